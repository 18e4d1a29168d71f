"""The lab over HTTP: vLLM's endpoints in front of one engine."""

import json
import time

from aiohttp import web
from aiohttp.typedefs import Handler

from kvpressure.lab.host import Host, Options, TokenQueue
from kvpressure.lab.logs import VllmLog
from kvpressure.lab.model import FinishReason, Request
from kvpressure.lab.openai import DONE, Answer, ApiError, Ask, Ids, models_body, read_ask

VLLM_VERSION = "0.32.0"
"""The version that the lab imitates, and what ``/version`` says."""

_MAX_BODY_BYTES = 64 * 1024 * 1024


class LabServer:
    """
    One server.

    Args:
        options: what it serves.
        log: where its log lines go.
    """

    def __init__(self, options: Options, log: VllmLog) -> None:
        self.host = Host(options, log)
        self._config = options.scenario.server
        self._model = options.model
        self._log = log
        self._created = int(time.time())

    def app(self) -> web.Application:
        """
        The HTTP application; ``host.run()`` must run beside it.

        Its runner needs ``handler_cancellation=True``, or a client that leaves goes unnoticed.
        """
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_errors])
        app.on_response_prepare.append(self._log_access)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/version", self._version),
                web.get("/metrics", self._metrics),
                web.get("/metrics/", self._metrics_negotiated),
                web.get("/v1/models", self._models),
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._chat_completions),
            ]
        )
        return app

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        return await self._generate(http, chat=False)

    async def _chat_completions(self, http: web.Request) -> web.StreamResponse:
        return await self._generate(http, chat=True)

    async def _generate(self, http: web.Request, *, chat: bool) -> web.StreamResponse:
        """Queue one request and answer it; if its client leaves, free what it holds at once."""
        ask = await self._read(http, chat=chat)
        ids = Ids.make(http.headers.get("X-Request-Id"), chat=chat)
        answer = Answer(ask, ids.response, self._model, int(time.time()))
        request = Request(
            id=ids.internal,
            prompt_tokens=len(ask.prompt),
            max_tokens=ask.max_tokens,
            answer_tokens=self._answer_length(ask),
            block_keys=ask.block_keys(self._config.block_size),
        )
        self._log.received(ids.logged, ids.internal, ask.max_tokens, ignore_eos=ask.ignore_eos)
        tokens = self.host.submit(request)
        try:
            if ask.stream:
                return await self._stream(http, answer, ids, tokens)
            return await self._whole(answer, ids, tokens)
        finally:
            self.host.close(ids.internal)

    async def _read(self, http: web.Request, *, chat: bool) -> Ask:
        try:
            body = await http.json()
        except (json.JSONDecodeError, UnicodeDecodeError) as fault:
            raise ApiError(f"The body is not JSON: {fault}.") from fault
        return read_ask(
            body,
            chat=chat,
            model=self._model,
            limit=self._config.max_request_tokens,
        )

    async def _stream(self, http: web.Request, answer: Answer, ids: Ids, tokens: TokenQueue) -> web.StreamResponse:
        """Server-sent events, one chunk per token."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        generated = 0
        finished: FinishReason | None = None
        try:
            await response.prepare(http)
            while finished is None:
                finished = await tokens.get()
                generated += 1
                if answer.ask.chat:
                    if generated == 1:
                        await response.write(answer.role_chunk())
                    # As in vLLM, only chat completions have delta lines.
                    self._log.delta(ids.logged, finished)
                await response.write(answer.token_chunk(finished))
            if answer.ask.include_usage:
                await response.write(answer.usage_chunk(generated))
            await response.write(DONE)
            await response.write_eof()
        except ConnectionResetError:
            # The client left between two tokens; `_generate` frees what it held.
            pass
        return response

    async def _whole(self, answer: Answer, ids: Ids, tokens: TokenQueue) -> web.Response:
        """One JSON body when all is there."""
        generated = 1
        while (finished := await tokens.get()) is None:
            generated += 1
        self._log.complete(ids.logged, finished)
        return web.json_response(answer.whole(generated, finished))

    def _answer_length(self, ask: Ask) -> int | None:
        """Where the answer ends by itself, unless the client wants all its tokens."""
        if ask.ignore_eos:
            return None
        return min(ask.max_tokens, max(ask.min_tokens, self.host.draw_answer_length()))

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": VLLM_VERSION})

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response(models_body(self._model, self._config.max_model_len, self._created))

    async def _metrics(self, _: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self.host.metrics.render(), headers=headers)

    async def _metrics_negotiated(self, http: web.Request) -> web.Response:
        body, content_type = self.host.metrics.negotiate(http.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _log_access(self, http: web.Request, response: web.StreamResponse) -> None:
        peer = http.transport.get_extra_info("peername") if http.transport else None
        name = f"{peer[0]}:{peer[1]}" if peer else "-"
        self._log.access(name, http.method, http.path, response.status, response.reason or "")
        self._log.flush()


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors in vLLM's shape."""
    try:
        return await handler(request)
    except ApiError as error:
        return web.json_response(error.body, status=error.status)
