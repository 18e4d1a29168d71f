"""
A stand-in for a vLLM server, as a process: answers every request with the exposition of the present second.

The bodies are rendered before it listens, so that answering costs it next to nothing. It prints its port, then serves
until it is terminated. ``python -m bench.standin ENGINES SECONDS``
"""

import asyncio
import sys
import time

from bench.exposition import LONG_MODEL, Fleet


class Answers:
    """
    Ready answers, one per second from the first request on; then the last one goes on.

    Args:
        engines: engines in the exposition.
        seconds: how many answers to prepare.
    """

    def __init__(self, engines: int, seconds: int) -> None:
        fleet = Fleet(engines, LONG_MODEL)
        self._answers = [_answer(fleet.text(step).encode()) for step in range(seconds)]
        self._start: float | None = None

    def now(self) -> bytes:
        """The answer of this second."""
        now = time.monotonic()
        if self._start is None:
            self._start = now
        return self._answers[min(int(now - self._start), len(self._answers) - 1)]


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


async def serve(engines: int, seconds: int) -> None:
    """Listen on a free port of the loopback interface and print it."""
    answers = Answers(engines, seconds)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(answers), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
