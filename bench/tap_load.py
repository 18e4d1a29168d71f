"""
The processes around a proxy under test, each started alone.

``python -m bench.tap_load source`` is the upstream: it answers every request with a stream of chunks as vLLM writes
them, at the rate and for the number that the path says (``/RATE/CHUNKS``), with the time of its writing as the text of
each. It prints its port. ``... client PORT STREAMS RATE CHUNKS`` reads so many streams at once and prints, as JSON,
what it saw. ``... tap PORT`` is the tap alone in front of an upstream, as `serve` makes it, and prints its port.
``... steady PORT STREAMS RATE`` keeps so many streams going, new ones in the place of those that end, and
``... log FILE STREAMS RATE`` writes the lines that a vLLM logs for such streams; both go on until terminated.
"""

import asyncio
import gc
import json
import random
import re
import sys
import time
from array import array
from functools import partial
from pathlib import Path

from bench.logs import delta
from kvpressure.config import StreamConfig, TapConfig
from kvpressure.derive.streams import Streams
from kvpressure.observe.tap import Tap

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
_EVENT = (
    b'data: {"id":"chatcmpl-%032x","object":"chat.completion.chunk","created":1800000000,"model":"lab-8b","choices":'
    b'[{"index":0,"delta":{"content":" %d"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_STAMP = re.compile(rb'"content":" (\d+)"')
SHARES = {"50": 500, "99": 990, "999": 999}
"""What is told of the delays: the names of percentiles, and which share of a thousand lies below each."""
_LASTS = 10.0  # seconds that a stream of a steady load lasts at least; twice that at most
_EDGE = 8  # the share of the chunks at each end that is not measured, while streams begin and end: one in so many


class Source(asyncio.Protocol):
    """One connection of the upstream."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to answer."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Begin a stream when the request is complete."""
        self._received += data
        if not self._received.endswith(b"}"):
            return
        rate, chunks = self._received.split(b" ", 2)[1].split(b"/")[1:]
        self._received = b""
        self._id, self._left, self._period = random.getrandbits(128), int(chunks), 1 / float(rate)
        self._due = self._loop.time() + random.random() * self._period  # noqa: S311  # streams are not in step
        self._transport.write(_ANSWER)
        self._loop.call_at(self._due, self._emit)

    def _emit(self) -> None:
        if self._transport.is_closing():
            return
        if not self._left:
            self._transport.write(_END)
            return
        self._left -= 1
        self._due += self._period
        self._loop.call_at(self._due, self._emit)
        event = _EVENT % (self._id, time.perf_counter_ns())
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))


class Reader(asyncio.Protocol):
    """
    One client: asks once, and keeps how long each chunk was on its way.

    Args:
        path: what it asks for.
        delays: where the nanoseconds go.
    """

    def __init__(self, path: str, delays: "array[int]") -> None:
        body = b'{"model":"lab-8b","stream":true}'
        self._request = (
            b"POST %b HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (path.encode(), len(body), body)
        )
        self._delays = delays
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Note the delay of every chunk in it."""
        now = time.perf_counter_ns()
        for stamp in _STAMP.findall(data):
            self._delays.append(now - int(stamp))
        if data.endswith(b"0\r\n\r\n"):
            self._transport.close()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Be done."""
        if not self.done.done():
            self.done.set_result(None)


async def source() -> None:
    """Serve until terminated."""
    server = await asyncio.get_running_loop().create_server(Source, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def client(port: int, streams: int, rate: float, chunks: int) -> None:
    """Read so many streams at once, and print what was seen."""
    loop, delays = asyncio.get_running_loop(), array("q")
    readers = [
        (await loop.create_connection(lambda: Reader(f"/{rate:g}/{chunks}", delays), "127.0.0.1", port))[1]
        for _ in range(streams)
    ]
    print("started", flush=True)
    await asyncio.gather(*(reader.done for reader in readers))
    edge = len(delays) // _EDGE
    middle = sorted(delays[edge : len(delays) - edge])
    figures = {f"p{name}": middle[len(middle) * share // 1000] / 1e9 for name, share in SHARES.items()}
    print(json.dumps({"chunks": len(delays)} | figures), flush=True)


async def steady(port: int, streams: int, rate: float) -> None:
    """Keep so many streams going."""
    loop = asyncio.get_running_loop()

    async def keep() -> None:
        while True:
            chunks = int(rate * random.uniform(_LASTS, 2 * _LASTS))  # noqa: S311  # they end one by one
            path, delays = f"/{rate:g}/{chunks}", array("q")
            _, reader = await loop.create_connection(partial(Reader, path, delays), "127.0.0.1", port)
            await reader.done

    print("started", flush=True)
    await asyncio.gather(*(keep() for _ in range(streams)))


def log(path: str, streams: int, rate: float) -> None:
    """Write the lines of so many streams at the pace of the clock."""
    left, names, request, period = [0] * streams, [""] * streams, 0, 1 / rate
    with Path(path).open("w", encoding="utf-8") as file:
        print("started", flush=True)
        due = time.time()
        while True:
            lines = []
            for number in range(streams):
                if not left[number]:
                    request += 1
                    names[number] = f"chatcmpl-r{request}"
                    left[number] = int(rate * random.uniform(_LASTS, 2 * _LASTS))  # noqa: S311
                left[number] -= 1
                reason = "None" if left[number] else "length"
                lines.append(delta(time.time(), names[number], reason))
            file.write("".join(lines))
            file.flush()
            due += period
            time.sleep(max(0.0, due - time.time()))


async def tap(upstream: int) -> None:
    """Pass requests on until terminated."""
    offset = time.time() - time.monotonic()
    config = TapConfig(listen=("127.0.0.1:0",), upstream=f"http://127.0.0.1:{upstream}")
    running = Tap(config, Streams("tap", StreamConfig(), str), lambda: time.monotonic() + offset)
    await running.start()
    gc.collect()
    gc.freeze()  # as serve does
    print(running.addresses[0][1], flush=True)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    command, *values = sys.argv[1:]
    if command == "source":
        asyncio.run(source())
    elif command == "steady":
        asyncio.run(steady(int(values[0]), int(values[1]), float(values[2])))
    elif command == "log":
        log(values[0], int(values[1]), float(values[2]))
    elif command == "tap":
        asyncio.run(tap(int(values[0])))
    else:
        asyncio.run(client(int(values[0]), int(values[1]), float(values[2]), int(values[3])))
