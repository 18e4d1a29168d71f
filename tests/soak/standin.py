"""
A stand-in for vLLM, as a process: metrics, streams and a request log that go wrong as they are told to.

It prints its port, then takes commands as lines of JSON on its standard input and answers each with a line. Every
tenth of a second it writes down what has happened. ``python -m tests.soak.standin FOLDER TRUTH PREEMPTS``
"""

import asyncio
import itertools
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from aiohttp import web

from .engines import Engine, exposition
from .requestlog import RequestLog
from .truth import TICK, StreamWatch, write

_FOREIGN = 60_000  # series
_TOO_LARGE = 17 * 1024 * 1024  # bytes; one more than kvpressure takes by default
_DRIP = 40  # bytes a tick


class StandIn:
    """
    One vLLM.

    Args:
        log: its request log.
        truth: where it writes down what happened.
        preempts: tenths of a second from one preemption to the next; 0 for none.
    """

    def __init__(self, log: RequestLog, truth: TextIO, preempts: int) -> None:
        self._log = log
        self._truth = truth
        self._preempts = preempts
        self._chance = random.Random(7)
        self._engines = {"m/0": Engine("m", 0, preempts)}
        self._present = ["m/0"]
        self._mode = "ok"
        self._flow = asyncio.Event()
        self._flow.set()
        self._watch = StreamWatch()
        self._numbers = itertools.count(1)
        self._streams: dict[int, asyncio.Task[Any]] = {}
        self._garbage: Iterator[Callable[[str], bytes]] = itertools.cycle(_GARBAGE)
        self._asked = 0
        self._answered = 0
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._offset = time.time() - time.monotonic()

    async def run(self) -> None:
        """Serve, obey and write down, until there are no more commands."""
        await self._up()
        sys.stdout.write(f"{self._port}\n")
        sys.stdout.flush()
        ticking = asyncio.create_task(self._tick())
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            await self._obey(json.loads(line))
            sys.stdout.write("ok\n")
            sys.stdout.flush()
        ticking.cancel()

    async def _obey(self, command: dict[str, Any]) -> None:
        do = command["do"]
        if do == "down":
            await self._down()
        elif do == "up":
            for engine in self._engines.values():
                engine.restart()
            await self._up()
        else:
            acts: dict[str, Callable[[dict[str, Any]], None]] = {
                "mode": self._answer_so,
                "engines": self._show,
                "jump": self._jump,
                "rotate": lambda _: self._log.rotate(),
                "burst": lambda more: self._log.burst(self._now(), more["lines"]),
                "clock": self._step,
            }
            acts[do](command)

    def _now(self) -> float:
        """Seconds since 1970, by a clock that nobody sets."""
        return time.monotonic() + self._offset

    def _answer_so(self, command: dict[str, Any]) -> None:
        self._mode = command["mode"]
        (self._flow.clear if self._mode == "hang" else self._flow.set)()

    def _step(self, command: dict[str, Any]) -> None:
        self._log.offset = command["offset"]

    def _jump(self, _: dict[str, Any]) -> None:
        """All counters go back to something small, as after a restart that nobody saw."""
        most = {"preemptions": 1, "finished": 20, "tokens": 200}
        for key in self._present:
            self._engines[key].restart({name: float(self._chance.randint(0, high)) for name, high in most.items()})

    def _show(self, command: dict[str, Any]) -> None:
        """Expose these engines; one that comes has been started anew."""
        keys: list[str] = command["keys"]
        for key in keys:
            model, _, number = key.partition("/")
            if key not in self._engines:
                self._engines[key] = Engine(model, int(number), self._preempts)
            elif key not in self._present:
                self._engines[key].restart()
        self._present = keys

    async def _up(self) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=1024)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def _down(self) -> None:
        """The process is killed: its port is closed, all its connections break off, and its log just ends."""
        if self._runner is not None:
            for number, task in list(self._streams.items()):
                self._watch.end(number, time.monotonic())
                task.cancel()
            await self._runner.cleanup()
            self._runner = None

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            if self._runner is not None and self._flow.is_set():
                for key in self._present:
                    self._engines[key].tick(self._chance)
            now = time.monotonic()
            self._watch.tick(now)
            rows = {name: value for engine in self._engines.values() for name, value in engine.rows().items()}
            rows |= {f"stream/{name}": value for name, value in self._watch.totals(now).items()}
            rows |= {"log/lines": self._log.lines, "answered": self._answered}
            write(self._truth, now, rows)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        self._asked += 1
        await self._flow.wait()
        mode = self._mode
        shown = [self._engines[key] for key in self._present]
        values = [engine.shown() for engine in shown]
        text = exposition(shown)
        if mode == "500":
            return web.Response(status=500, text="Internal Server Error")
        if mode in ("garbage", "empty"):
            body = next(self._garbage)(text) if mode == "garbage" else _empty(self._asked, text)
            return web.Response(body=body, content_type="text/plain")
        if mode == "too large":
            return web.Response(body=b"# filler\n" * (_TOO_LARGE // 9 + 1), content_type="text/plain")
        if mode == "huge":
            text += "".join(f'other_series_total{{number="{number}"}} 1.0\n' for number in range(_FOREIGN))
        body = text.encode()
        response = web.StreamResponse(headers={"Content-Type": "text/plain", "Content-Length": str(len(body))})
        await response.prepare(request)
        while mode == "drip" and self._mode == "drip" and len(body) > _DRIP:
            await response.write(body[:_DRIP])
            body = body[_DRIP:]
            await asyncio.sleep(TICK)
        await response.write(body)
        await response.write_eof()
        for engine, value in zip(shown, values, strict=True):
            engine.read(*value)
        self._answered += 1
        return response

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        number = next(self._numbers)
        name = f"chatcmpl-{number:08x}"
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self._line("request_logger.py:65", f"Received request {name}: params: SamplingParams(n=1), lora_request: None.")
        self._line("async_llm.py:578", f"Added request {name}-{number:08x}.")
        task = self._streams[number] = asyncio.ensure_future(self._answer(response, number, name, asked))
        try:
            await task
        except ConnectionError:
            self._line("async_llm.py:820", f"Aborted request(s) {name}-{number:08x}.")
        except asyncio.CancelledError:
            if request.transport is not None:
                request.transport.abort()
            raise
        finally:
            del self._streams[number]
            self._watch.end(number, time.monotonic())
        return response

    async def _answer(self, response: web.StreamResponse, number: int, name: str, asked: dict[str, Any]) -> None:
        """So many tokens, or tokens for ever."""
        await response.write(_event(name, {"role": "assistant", "content": ""}, None))
        tokens = asked["tokens"]
        for place in itertools.count(1):
            last = place == tokens
            reason = "length" if last else None
            await self._flow.wait()
            self._watch.chunk(number, time.monotonic())
            self._line(
                "request_logger.py:108",
                f"Generated response {name} (streaming delta): output: '', finish_reason: {reason}",
            )
            await response.write(_event(name, {"content": "x"}, reason))
            if last:
                break
            await asyncio.sleep(asked["every"])
        self._line(
            "request_logger.py:108",
            f"Generated response {name} (streaming complete): output: '', finish_reason: streaming_complete",
        )
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()

    def _line(self, where: str, message: str) -> None:
        self._log.line(self._now(), where, message)


def _event(name: str, delta: dict[str, str], reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    body = {"id": name, "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _empty(number: int, text: str) -> bytes:
    """No body at all, and one without a series of vLLM's, in turn."""
    return b"" if number % 2 else "".join(line + "\n" for line in text.splitlines() if "vllm:" not in line).encode()


def _cut(text: str) -> bytes:
    """Cut off within a number, which then reads as a smaller one."""
    place = text.rindex("vllm:generation_tokens_total{")
    return text[: text.index("} ", place) + 3].encode()


_GARBAGE: tuple[Callable[[str], bytes], ...] = (
    lambda _: random.Random(3).randbytes(4096),
    lambda _: b"<html><body><h1>Bad gateway</h1></body></html>\n",
    _cut,
    lambda text: re.sub(r" \S+$", " NaN", text, flags=re.MULTILINE).encode(),
    lambda text: re.sub(r"(?<=\} )", "-", text).encode(),
    lambda text: "".join(line + "\n" for line in text.splitlines()[::2]).encode(),
)


def main(folder: str, truth: str, preempts: str) -> None:
    """Be a stand-in until there are no more commands."""
    with Path(truth).open("w", encoding="utf-8") as out:
        asyncio.run(StandIn(RequestLog(Path(folder)), out, int(preempts)).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
