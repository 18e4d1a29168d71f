"""What each client of the web server may take: places, time, memory and turns; with short times, in this process."""

import asyncio
import contextlib
import dataclasses
import gzip
import itertools
import ssl
import time

import pytest
from taps import until
from webdoor import issued

from kvpressure import connections
from kvpressure.config import Config, WebConfig
from kvpressure.derive.snapshot import Snapshot
from kvpressure.expose import guard, reuse
from kvpressure.expose.server import _GUARD, make_app, refused, serve

GET = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n"
SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
BIG = b"#" * 30_000_000
"""More than what the system's buffers hold."""


class Server:
    """A web server in this process."""

    def __init__(self, app, port):
        self.app, self.port, self.writers = app, port, []

    @property
    def refused(self):
        return {reason: count for reason, count in refused(self.app).items() if count}

    async def connect(self, data=b"", **options):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **options)
        self.writers.append(writer)
        writer.write(data)
        return reader, writer

    async def status(self, data=GET, **options):
        """The first line's status, 0 where there is none."""
        with contextlib.suppress(OSError):
            reader, _ = await self.connect(data, **options)
            line = await asyncio.wait_for(reader.readline(), 5)
            return int(line[9:12] or 0)
        return 0


@contextlib.asynccontextmanager
async def running(monkeypatch, body=b"# metrics\n", patience=None, **web):
    if patience:
        monkeypatch.setattr(guard, "_PATIENCE", dataclasses.replace(guard._PATIENCE, **patience))
    config = Config(web=WebConfig(**{"listen_address": ("127.0.0.1:0",)} | web))
    app = make_app(
        config, metrics=lambda _: (body, "text/plain"), state=dict, snapshot=lambda: Snapshot(t=0.0, up=None)
    )
    runner = await serve(app, config)
    server = Server(app, runner.addresses[0][1])
    try:
        yield server
    finally:
        for writer in server.writers:
            writer.transport.abort()
        await runner.cleanup()
        await asyncio.sleep(0.01)


def in_loop(test):
    """A coroutine as a test that cannot hang."""

    def run(monkeypatch, authority, tmp_path):
        async def limited():
            async with asyncio.timeout(30):
                await test(monkeypatch, authority, tmp_path)

        asyncio.run(limited())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


# --- places ---------------------------------------------------------------------------------------------------------


@in_loop
async def test_the_one_that_waits_longest_gives_its_place(monkeypatch, *_):
    """Neither the one that comes nor one that was just served is closed for want of places."""
    async with running(monkeypatch, max_connections=8) as server:
        first = await server.connect()
        others = [await server.connect() for _ in range(7)]
        await asyncio.sleep(0.05)
        first[1].write(GET)
        assert b"200" in await first[0].readuntil(b"ok\n")
        assert await server.status() == 200
        assert await others[0][0].read() == b""
        first[1].write(GET)
        assert b"200" in await asyncio.wait_for(first[0].readuntil(b"ok\n"), 5)
        assert server.refused == {"connections": 1}


@in_loop
async def test_one_that_does_not_read_gives_its_place_to_one_that_comes(monkeypatch, *_):
    """Where none waits for a request."""
    monkeypatch.setattr(connections, "_STUCK", 0.0)
    async with running(monkeypatch, BIG, max_connections=8) as server:
        for _ in range(8):
            await server.connect(SCRAPE, limit=1)
        await until(lambda: stuck(server) == 8)
        assert await server.status() == 200
        assert server.refused == {"connections": 1}


@in_loop
async def test_all_are_busy(monkeypatch, *_):
    """Then the oldest gives its place."""
    async with running(monkeypatch, max_connections=8) as server:
        pages = [await server.connect(SCRAPE.replace(b"/metrics", b"/api/v1/events")) for _ in range(8)]
        for reader, _ in pages:
            await reader.readuntil(b"retry")
        assert await server.status() == 200
        await asyncio.wait_for(pages[0][0].read(), 0.5)
        assert server.refused == {"connections": 1}


def test_places_are_a_quarter_of_the_open_files(monkeypatch):
    """A few where the limit is tight, and no more than were configured where it is not."""
    for files, expected in ((1024, 224), (64, 8), (100_000, 256)):
        monkeypatch.setattr(guard, "open_files", lambda files=files: files)
        assert guard.places(256) == expected


def test_the_limit_that_is_told_is_the_one_that_holds(monkeypatch, logged):
    """Where open files are few, the log names the places that there are, not those that were configured."""
    monkeypatch.setattr(guard, "open_files", lambda: 256)
    guard.Guard(WebConfig())._closed("connections")

    assert "limit=32" in logged.getvalue()


# --- time -----------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_head_that_does_not_come(monkeypatch, *_):
    """Neither silence nor a byte now and then keeps a place, and both are counted; a request in time does."""
    async with running(monkeypatch, patience={"head": 0.4}) as server:
        silent, slow, good = [await server.connect(data) for data in (b"", GET[:-4], b"")]
        for _ in range(8):
            slow[1].write(b"x")
            good[1].write(GET)
            assert b"200" in await good[0].readline()
            await good[0].readuntil(b"ok\n")
            await asyncio.sleep(0.1)
        for reader, _ in (silent, slow):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        assert server.refused == {"slow": 2}


@in_loop
async def test_a_later_head_has_its_own_time(monkeypatch, *_):
    """A connection may rest for longer than a head may take; a head that then begins may not."""
    async with running(monkeypatch, patience={"head": 0.3}) as server:
        reader, writer = await server.connect(GET)
        await reader.readuntil(b"ok\n")
        await asyncio.sleep(0.6)
        writer.write(GET)
        await reader.readuntil(b"ok\n")
        began = time.monotonic()
        writer.write(GET[:9])
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        assert 0.25 < time.monotonic() - began < 3
        assert server.refused == {"slow": 1}


@pytest.mark.parametrize("pipelined", [1, 100])
def test_an_answer_that_is_not_read(monkeypatch, pipelined):
    """Its connection is dropped, also where what is left of it is little, and counted."""

    async def main():
        body = BIG if pipelined == 1 else b"#" * 200_000
        async with running(monkeypatch, body, patience={"read": 0.4}) as server:
            _, writer = await server.connect(SCRAPE * pipelined, limit=1)
            writer.transport.pause_reading()
            await until(lambda: len(server.app[_GUARD].places) == 1)
            await until(lambda: len(server.app[_GUARD].places) == 0)
            assert server.refused == {"slow": 1}

    asyncio.run(main())


@in_loop
async def test_a_handshake_that_does_not_come(monkeypatch, authority, tmp_path):
    """With TLS too, every connection has a place and a deadline from its beginning on."""
    cert, key = issued(authority, "guarded", "127.0.0.1")
    path = tmp_path / "web.yml"
    path.write_text(f"tls_server_config: {{cert_file: {cert}, key_file: {key}}}\n")
    tls = ssl.create_default_context(cafile=authority.file)
    async with running(monkeypatch, patience={"head": 0.4}, config_file=str(path), max_connections=8) as server:
        silent = [await server.connect() for _ in range(8)]
        assert await server.status(ssl=tls) == 200
        await until(lambda: server.refused.get("slow", 0) >= 7)
        assert server.refused["connections"] == 1
        for reader, _ in silent:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        assert await server.status(ssl=tls) == 200


# --- memory ---------------------------------------------------------------------------------------------------------


@in_loop
async def test_too_many_answers_that_are_not_read(monkeypatch, *_):
    """For a moment requests are refused; then who has not read for longest is cut off, and others are answered."""
    async with running(monkeypatch, BIG, max_requests=2) as server:
        for _ in range(2):
            await server.connect(SCRAPE, limit=1)
        await until(lambda: stuck(server) == 2)
        reader, _ = await server.connect(SCRAPE)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 503 " in head
        assert b"\r\nRetry-After: 1\r\n" in head
        assert server.refused == {"inflight": 1}
        assert await server.status(GET) == 200
        await asyncio.sleep(connections._STUCK)
        assert await server.status(SCRAPE) == 200
        assert stuck(server) <= 2


@in_loop
async def test_a_head_that_does_not_end_is_not_kept(monkeypatch, *_):
    """It is refused once 64 KB of it are here, in lines that are each short enough."""
    async with running(monkeypatch) as server:
        assert await server.status(GET[:-2] + (b"X: " + b"y" * 5000 + b"\r\n") * 20) == 431


# --- turns ----------------------------------------------------------------------------------------------------------


def test_turns_come_in_order_and_at_a_rate(monkeypatch):
    """A burst at once, then one after the other; those who went away cost no turn."""
    monkeypatch.setattr(guard, "RATE", 50.0)
    monkeypatch.setattr(guard, "BURST", 5)

    async def main():
        pace, came, began = guard.Pace(), [], asyncio.get_running_loop().time()

        async def one(number):
            await pace.turn()
            came.append(number)

        tasks = [asyncio.create_task(one(number)) for number in range(120)]
        await asyncio.sleep(0)
        assert came == list(range(6))
        for task in tasks[10:110]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert came == [*range(10), *range(110, 120)]
        return asyncio.get_running_loop().time() - began

    # 14 turns at 50 a second; a hundred more would be two seconds.
    assert 0.25 < asyncio.run(main()) < 1.5


# --- answers that are given again -----------------------------------------------------------------------------------


def test_an_answer_is_given_again_for_a_moment():
    """For a tenth of a second, or for longer where it was dear; a fault is not kept."""
    now, made = [0.0], itertools.count()
    answers = reuse.Answers(lambda: now[0])

    def make(cost=0.0):
        now[0] += cost
        return reuse.Kept(str(next(made)).encode(), "text/plain")

    def body(cost=0.0):
        return answers.get("x", lambda: make(cost))._body

    def fault():
        raise RuntimeError

    assert [body(), body()] == [b"0", b"0"]
    now[0] += 0.11
    assert [body(0.05), body()] == [b"1", b"1"]
    now[0] += 0.9
    assert body() == b"1"
    now[0] += 0.2
    with pytest.raises(RuntimeError):
        answers.get("x", fault)
    assert body() == b"2"


@in_loop
async def test_scrapes_in_one_moment_are_alike(monkeypatch, *_):
    """To the byte, compressed too; each format on its own, and what else clients ask for makes no difference."""
    rendered = []

    def metrics(accept):
        rendered.append(accept)
        return f"{accept} {len(rendered)}".encode(), "text/plain"

    monkeypatch.setattr(reuse, "FRESH", 60.0)
    config = Config(web=WebConfig(listen_address=("127.0.0.1:0",)))
    app = make_app(config, metrics=metrics, state=dict, snapshot=lambda: Snapshot(t=0.0, up=None))
    runner = await serve(app, config)
    server, bodies = Server(app, runner.addresses[0][1]), set()
    for accept in ("", "*/*", "text/plain;version=1.0.0;escaping=dots", "application/openmetrics-text;version=1.0.0"):
        for version in range(20):
            asked = f"Accept: {accept.replace('1.0.0', f'1.{version}.0')}\r\nAccept-Encoding: gzip\r\n\r\n"
            reader, writer = await server.connect(SCRAPE[:-2] + asked.encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
            bodies.add(gzip.decompress(await reader.readexactly(int(length.split(b":")[1]))))
            writer.transport.abort()
    await runner.cleanup()
    await asyncio.sleep(0.01)

    assert rendered == ["", "application/openmetrics-text;version=1.0.0"]
    assert len(bodies) == 2


def stuck(server):
    return server.app[_GUARD].places.stuck
