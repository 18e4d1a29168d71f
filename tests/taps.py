"""A tap between raw clients and a raw upstream, on loopback: for tests where bytes matter."""

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import re
import time

from kvpressure.config import TapConfig
from kvpressure.observe.tap import Tap

LIMIT = 30
"""Seconds that a test may take; none takes anywhere near that."""


class Sink:
    """Keeps what it is given."""

    def __init__(self):
        self.events = []
        self.advanced = []

    def feed(self, events):
        self.events += events

    def advance(self, t):
        self.advanced.append(t)

    def lose(self, t):
        raise AssertionError(t)

    @property
    def kinds(self):
        return [event.kind for event in self.events]


class Upstream:
    """A raw server: `answer(call)` is called per request, after its head was read; it may return "close"."""

    def __init__(self, answer, tls=None, **options):
        self.answer, self.tls, self.options = answer, tls, options
        self.calls, self.connections, self.open, self.tasks = [], 0, 0, set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(
            self.connected, "127.0.0.1", 0, ssl=self.tls, backlog=1024, **self.options
        )
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        await self.stop()

    async def stop(self):
        """Close the listening socket and every connection, as a server does that is killed."""
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def connected(self, reader, writer):
        task = asyncio.get_running_loop().create_task(self.serve(reader, writer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def serve(self, reader, writer):
        self.connections += 1
        self.open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                call = Call(head, reader, writer)
                self.calls.append(call)
                if await self.answer(call) == "close":
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            writer.close()
            # As a dying process does: what was written goes out, and nobody waits.
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await asyncio.wait_for(writer.wait_closed(), 1)

    @property
    def heads(self):
        return [call.head for call in self.calls]


class Call:
    """One request, as the upstream has it."""

    def __init__(self, head, reader, writer):
        self.head, self.reader, self.writer = head, reader, writer

    async def say(self, *pieces, pause=0.0):
        """Write pieces, each at its own time."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(pause)

    async def body(self):
        return await read_body(self.reader, self.head)

    async def gone(self):
        """Wait until the other side has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


class Tapped:
    """A running tap."""

    def __init__(self, tap, sink, upstream):
        self.tap, self.sink, self.upstream = tap, sink, upstream
        self.port = tap.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.writers = []

    @property
    def facts(self):
        """The tap's facts, without those that have not happened."""
        facts = self.tap.facts()
        names = ("responses", "refused", "broken", "unobserved")
        happened = {name: {key: n for key, n in getattr(facts, name).items() if n} for name in names}
        return dataclasses.replace(facts, **happened)

    async def connect(self, port=None, **options):
        reader, writer = await asyncio.open_connection("127.0.0.1", port or self.port, limit=2**24, **options)
        self.writers.append(writer)
        return reader, writer

    async def ask(self, request, port=None):
        """All that comes for these bytes, until the connection ends or a whole answer is here."""
        reader, writer = await self.connect(port)
        writer.write(request)
        method = request.partition(b" ")[0]
        answer = await read_answer(reader, method)
        writer.close()
        return answer

    async def settled(self):
        """Wait until no request is open at either side."""
        await until(lambda: not self.facts.open)


@contextlib.asynccontextmanager
async def tapped(answer=None, *, sink=None, tls=None, upstream="", now=time.time, **settings):
    """A tap in front of a raw upstream, or of the one at a given URL."""
    sink = sink or Sink()
    async with Upstream(answer, tls) as server:
        url = upstream or f"{'https' if tls else 'http'}://127.0.0.1:{server.port}"
        tap = Tap(TapConfig(listen=("127.0.0.1:0",), upstream=url, **settings), sink, now)
        await tap.start()
        running = Tapped(tap, sink, server)
        try:
            yield running
        finally:
            for writer in running.writers:
                writer.transport.abort()
            await tap.close(0)
            await asyncio.sleep(0)


def in_loop(test):
    """Turn a test that is a coroutine into a plain function that cannot hang."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        async def limited():
            async with asyncio.timeout(LIMIT):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return run


async def until(condition, seconds=5):
    """Wait for what must come about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.002)


async def read_answer(reader, method=b"GET"):
    """One answer as raw bytes, interim ones before it; all until the end where the head does not say where it ends."""
    answer = b""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        answer += head
        status = int(head.split(b" ", 2)[1])
        if status >= 200 or status == 101:
            break
    if method == b"HEAD" or status in (101, 204, 304):
        return answer
    if b"\r\ntransfer-encoding:" in head.lower():
        return answer + await read_chunks(reader)
    length = header(head, "content-length")
    return answer + (await reader.readexactly(int(length[0])) if length else await reader.read())


async def read_chunks(reader):
    """A body in chunks, as raw bytes."""
    raw = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        raw += line + await reader.readexactly(size + 2)
        if not size:
            return raw


async def read_body(reader, head):
    """A request's body, without its framing."""
    if b"chunked" in head.lower():
        return unchunked(await read_chunks(reader))
    length = header(head, "content-length")
    return await reader.readexactly(int(length[0])) if length else b""


def unchunked(raw):
    """The body in chunks."""
    body = b""
    while raw:
        line, _, raw = raw.partition(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        body, raw = body + raw[:size], raw[size + 2 :]
    return body


def unframed(answer):
    """Head and body of an answer, where chunks are put together or not."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, unchunked(body) if b"chunked" in head.lower() else body


def header(head, name):
    """The values of a header, in their order."""
    return re.findall(rb"(?im)^" + name.encode() + rb": ?(.*?)\r$", head)


def chunked(*pieces):
    """A body in chunks."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def says(body=b"ok", status="200 OK", headers=""):
    """Answers with this."""

    async def answer(call):
        await call.body()
        await call.say(f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body)

    return answer


# --- streams --------------------------------------------------------------------------------------------------------

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: vllm\r\nContent-Length: 2\r\n\r\n{}"
DONE = b"data: [DONE]\n\n"


def token(text="x", finish="null", index=0, model="m"):
    """A chunk of a chat completion."""
    return (
        f'data: {{"id":"1","model":"{model}","choices":[{{"index":{index},"delta":{{"content":"{text}"}},'
        f'"finish_reason":{finish}}}]}}\n\n'
    ).encode()


def framed(piece):
    """One chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def streams(*pieces, pause=0.0, end=b"0\r\n\r\n"):
    """Answers with a stream of these messages."""

    async def answer(call):
        await call.body()
        await call.say(STREAM, *map(framed, pieces), end, pause=pause)

    return answer


TOKENS = tuple(itertools.repeat(token(), 3))
