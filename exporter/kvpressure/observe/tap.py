"""
The tap: a reverse proxy in the token stream that times what users get, and changes nothing of it.

What does not concern one connection alone passes as it came: bytes of paths, headers and bodies, chunk by chunk, and
how a connection ends. Only what HTTP lets every intermediary drop does not pass: extensions of chunks, and trailers.
The tap adds no header, so the upstream sees the tap's address in place of the clients', which stay where they are.
Whatever fails in observing is counted, and the bytes go on.
"""

import asyncio
import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from kvpressure.config import TapConfig
from kvpressure.connections import open_files
from kvpressure.listening import listen
from kvpressure.log import RateLimitedLog
from kvpressure.observe import tap_http, tunnel
from kvpressure.observe.tap_exchange import Around, Exchange, Outcome
from kvpressure.observe.tap_pool import Pool, explain
from kvpressure.observe.tap_refusals import Refusal
from kvpressure.observe.tap_server import Client, Passed, Server
from kvpressure.observe.tap_watch import Counts, Observer
from kvpressure.vllm.stream import StreamSink, TapFacts

_BEAT = 0.25  # seconds between two times that the sink hears that it has all events
_OTHER_FILES = 128  # file descriptors for the sampler and the log
_BACKLOG = 1024  # connections that wait to be accepted
_SHUTDOWN = 0.2  # seconds; for aiohttp's own part, when all requests have ended

_REFUSALS = {
    Outcome.UNANSWERED: Refusal.UNANSWERED,
    Outcome.UNREADABLE: Refusal.UNREADABLE,
    Outcome.MALFORMED: Refusal.MALFORMED,
}

_log = logging.getLogger(__name__)


class Tap:
    """
    Passes requests on to one upstream, and watches the streams that come back.

    Args:
        config: where to listen, and where to pass requests on to.
        sink: takes what happens in the streams.
        now: seconds since 1970 that never jump: the clock of the events.
        elsewhere: connections that the web server may have.

    Raises:
        ConfigError: a file that the settings name cannot be used.
    """

    def __init__(self, config: TapConfig, sink: StreamSink, now: Callable[[], float], elsewhere: int = 0) -> None:
        self._config = config
        self._now = now
        self._elsewhere = elsewhere
        self._counts = Counts()
        self._observer = Observer(sink, self._counts)
        self._around = Around(self._observer, self._counts, now)
        self._pool = Pool(config, now, self._observer.fault)
        self._told = RateLimitedLog(_log)
        self._running: set[asyncio.Task[object]] = set()
        self._closing = False
        self._server: Server | None = None
        self._runner: web.ServerRunner | None = None
        self._beat: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """
        Listen on every configured address.

        Raises:
            ConfigError: an address cannot be listened on.
        """
        places = connection_places(self._config.max_requests, self._elsewhere)
        self._server = Server(
            self._handle, self._malformed, self._config.max_header_bytes, places, self._connection_refused
        )
        self._runner = web.ServerRunner(self._server, shutdown_timeout=_SHUTDOWN)
        await self._runner.setup()
        try:
            for address in self._config.listen:
                await listen(self._runner, address, "tap.listen", backlog=_BACKLOG)
                _log.info("tapping", extra={"fields": {"address": address}})
        except BaseException:
            await self.close(0.0)
            raise
        self._beat = asyncio.create_task(self._keep_advancing())

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of every address that is listened on."""
        return [(name[0], name[1]) for name in self._runner.addresses] if self._runner else []

    def facts(self) -> TapFacts:
        """What has passed so far."""
        return self._counts.facts(self._now())

    async def close(self, grace: float) -> None:
        """
        Accept nothing more, let what is under way come to its end, and break off what has not after `grace` seconds.

        Args:
            grace: seconds.
        """
        self._closing = True
        if self._runner is not None and self._server is not None:
            for site in list(self._runner.sites):
                await site.stop()
            self._server.close_idle()
            if self._running:
                await asyncio.wait(self._running, timeout=grace)
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
            await self._runner.cleanup()
        if self._beat is not None:
            self._beat.cancel()
        self._pool.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request, from its head to the end of its answer."""
        client, transport = request.protocol, request.transport
        task = asyncio.current_task()
        if not isinstance(client, Client) or transport is None or task is None:
            return Passed(keep=False)
        refusal = self._refusal(request)
        if refusal is not None:
            return self._refuse(request, refusal)
        self._counts.open += 1
        self._running.add(task)
        try:
            client.exchange = exchange = Exchange(request, transport, self._pool.host, self._around)
            refusal = await self._pass(client, exchange)
            if refusal is None:
                return Passed(keep=not (exchange.close or self._closing))
        except Exception as fault:  # noqa: BLE001  # a fault of ours must not leave a request without an end
            self._observer.fault(fault)
            refusal = Refusal.FAULT
        finally:
            answered = client.exchange is not None and client.exchange.answered
            client.exchange = None
            self._running.discard(task)
            self._counts.open -= 1
        if answered:
            transport.close()
            return Passed(keep=False)
        return self._refuse(request, refusal)

    async def _pass(self, client: Client, exchange: Exchange) -> Refusal | None:
        """Pass it through, on a connection that is kept if there is one; tell what to answer where that failed."""
        upstream = self._pool.take()
        fresh = upstream is None
        while True:
            if upstream is None:
                try:
                    upstream = await self._pool.connect()
                except (OSError, UnicodeError) as fault:
                    why = explain(fault)
                    self._told.warning("unreachable", "the tap cannot reach its upstream", detail=why)
                    return Refusal.UNREACHABLE
            outcome = await exchange.run(client, upstream, fresh=fresh)
            if outcome is not Outcome.UNANSWERED or not exchange.upload.repeatable:
                break
            upstream, fresh = None, True
        if outcome is Outcome.PASSED:
            self._pool.give(upstream)
        elif outcome is Outcome.SWITCHED:
            self._counts.responses["1xx"] += 1
            await tunnel.run(client, upstream, exchange.switch)
        return _REFUSALS.get(outcome)

    def _refusal(self, request: web.BaseRequest) -> Refusal | None:
        """Why this request is not passed on, if it is not."""
        if request.method == "CONNECT":
            return Refusal.CONNECT
        if tap_http.is_ambiguous(request.raw_headers):
            return Refusal.MALFORMED
        if tap_http.size(request.raw_headers, request.raw_path) > self._config.max_header_bytes:
            return Refusal.HEADERS
        if self._counts.open >= self._config.max_requests:
            self._told.warning("overload", "the tap refuses requests", limit=self._config.max_requests)
            return Refusal.OVERLOAD
        return None

    def _refuse(self, request: web.BaseRequest, refusal: Refusal) -> web.StreamResponse:
        """Answer in the upstream's place."""
        self._counts.refused[refusal.reason] += 1
        keep = request.keep_alive and request.content.is_eof() and not self._closing
        # To some programs, what follows CONNECT is no request.
        keep = keep and refusal is not Refusal.CONNECT
        if request.transport is not None and not request.transport.is_closing():
            body = request.method != "HEAD"
            request.transport.write(tap_http.error(refusal.status, refusal.message, close=not keep, body=body))
            if refusal is Refusal.MALFORMED:
                # The rest of it, which aiohttp would wait for, will not come.
                request.transport.close()
        return Passed(keep=keep)

    def _connection_refused(self) -> None:
        self._counts.refused[Refusal.CONNECTIONS.reason] += 1
        self._told.warning("connections", "the tap refuses connections: raise the limit of open files (ulimit -n)")

    def _malformed(self, request: web.BaseRequest, fault: BaseException | None) -> web.StreamResponse:
        """Answer what aiohttp could not read; what it says of that would quote the request."""
        return self._refuse(request, Refusal.HEADERS if isinstance(fault, LineTooLong) else Refusal.MALFORMED)

    async def _keep_advancing(self) -> None:
        """A silence has no event of its own: the sink must hear that it lasts."""
        while True:
            await asyncio.sleep(_BEAT)
            self._observer.advance(self._now())


def connection_places(wanted: int, elsewhere: int = 0) -> int:
    """
    Connections that the tap may have at a time, each of which may need another one upstream.

    Raises the process's limit of open files as far as it may, and leaves some of it to the sampler, the log and the
    metrics: a liveness probe that finds no file descriptor would have the whole container restarted.

    Args:
        wanted: requests at a time for which there should be room.
        elsewhere: connections that the web server may have.
    """
    files = open_files()
    places = max(1, (files - _OTHER_FILES - elsewhere) // 2)
    if places < wanted:
        _log.warning(
            "the limit of open files allows fewer requests at a time than tap.max-requests",
            extra={"fields": {"open_files": files, "requests": places}},
        )
    return places
