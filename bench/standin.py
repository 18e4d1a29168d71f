"""
A stand-in for a vLLM server, as a process: answers every request with the exposition of the present second.

The answer of the next second is rendered between two requests, so that answering itself costs next to nothing and no
reader waits for it. It prints its port, then serves until it is terminated. ``python -m bench.standin ENGINES``
"""

import asyncio
import sys

from bench.exposition import LONG_MODEL, Fleet

_PAUSE = 0.05
"""Seconds after an answer at which the next one is rendered: nobody who asks once a second asks then."""


class Answers:
    """
    Counters that have moved by one step with each second since the first request.

    Args:
        engines: engines in the exposition.
    """

    def __init__(self, engines: int) -> None:
        self._fleet = Fleet(engines, LONG_MODEL)
        self._step, self._answer = 0, _answer(self._fleet.text(0).encode())
        self._loop = asyncio.get_running_loop()
        self._start: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def now(self) -> bytes:
        """The answer of this second."""
        if self._start is None:
            self._start = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(_PAUSE, self._render)
        return self._answer

    def _render(self) -> None:
        self._timer = None
        step = int(self._loop.time() - (self._start or 0.0)) + 1
        if step != self._step:
            self._step, self._answer = step, _answer(self._fleet.text(step).encode())


class Connection(asyncio.Protocol):
    """One connection; every blank line is taken for the end of a request."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to answer."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each complete request."""
        *requests, self._received = (self._received + data).split(b"\r\n\r\n")
        for _ in requests:
            if self._transport is not None:
                self._transport.write(self._answers.now())


def _answer(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def serve(engines: int) -> None:
    """Listen on a free port of the loopback interface and print it."""
    answers = Answers(engines)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(answers), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
