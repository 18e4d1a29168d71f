"""What the tap does not do twice, and what it has room for."""

import asyncio
import contextlib
import dataclasses
import resource

import pytest
from taps import POST, in_loop, read_answer, says, tapped, until

from kvpressure.observe import tap as module
from kvpressure.observe import tap_server
from kvpressure.observe.tap import connection_places


@pytest.mark.parametrize("interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"])
@in_loop
async def test_a_request_that_had_an_interim_answer_is_not_sent_again(interim):
    """The upstream has begun to answer, so it may have begun to work: when it then dies, nothing is done twice."""
    served = set()

    async def respond(call):
        if call.writer in served:
            await call.say(interim)
            await call.reader.readexactly(5)
            return "close"
        served.add(call.writer)
        return await says()(call)

    async with tapped(respond) as it:
        await it.ask(POST)
        reader, writer = await it.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: vllm\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert interim.partition(b"\r\n")[0] in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"hello")
        assert b"502 Bad Gateway" in await read_answer(reader)
        assert len(it.upstream.calls) == 2


@in_loop
async def test_a_thousand_headers_pass_both_ways():
    """The limit is on the bytes of the headers, not on their number."""
    many = b"".join(b"X-%d: y\r\n" % n for n in range(1000))
    seen = []

    async def respond(call):
        seen.append(call.head.count(b"\r\nX-"))
        await call.say(b"HTTP/1.1 200 OK\r\n" + many + b"Content-Length: 2\r\n\r\nok")

    async with tapped(respond) as it:
        answer = await it.ask(b"GET / HTTP/1.1\r\nHost: vllm\r\n" + many + b"\r\n")
    assert ([1000], 1000) == (seen, answer.count(b"\r\nX-"))


@in_loop
async def test_more_connections_than_file_descriptors_allow(monkeypatch):
    """They are closed at once and counted, and those that are there go on; a place that is free is taken again."""
    monkeypatch.setattr(module, "connection_places", lambda *_: 2)
    async with tapped(says()) as it:
        first, second = [await it.connect() for _ in range(2)]
        await asyncio.sleep(0.05)
        reader, _ = await it.connect()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read(1) == b""
        assert it.facts.refused == {"connections": 1}
        first[1].write(POST)
        assert b"200 OK" in await read_answer(first[0])
        second[1].close()
        await second[1].wait_closed()
        await until(lambda: len(it.tap._server.places) == 1)
        assert b"200 OK" in await it.ask(POST)


@in_loop
async def test_a_connection_that_waits_makes_room(monkeypatch):
    """The one that has waited longest for a request is closed for one that comes; one with a request on it never is."""
    monkeypatch.setattr(module, "connection_places", lambda *_: 2)
    monkeypatch.setattr(tap_server, "_PATIENCE", dataclasses.replace(tap_server._PATIENCE, grace=0.0))
    go = asyncio.Event()

    async def respond(call):
        await go.wait()
        await says()(call)

    async with tapped(respond) as it:
        busy, idle = [await it.connect() for _ in range(2)]
        busy[1].write(POST)
        await until(lambda: it.facts.open == 1)
        comes = await it.connect(it.port)
        comes[1].write(POST)
        await until(lambda: it.facts.open == 2)
        with contextlib.suppress(ConnectionResetError):
            assert await idle[0].read() == b""
        with contextlib.suppress(ConnectionResetError):
            assert await (await it.connect())[0].read() == b""
        go.set()
        for reader, _ in (busy, comes):
            assert b"200 OK" in await read_answer(reader)
        assert it.facts.refused == {"connections": 2}


@in_loop
async def test_a_head_that_does_not_come(monkeypatch):
    """It loses its place, and takes none from a body or an answer that is slow."""
    monkeypatch.setattr(tap_server, "_PATIENCE", dataclasses.replace(tap_server._PATIENCE, head=0.3))
    async with tapped(says()) as it:
        slow, body = [await it.connect() for _ in range(2)]
        body[1].write(b"POST / HTTP/1.1\r\nHost: vllm\r\nContent-Length: 8\r\n\r\n")
        slow[1].write(b"POST / HTTP/1.1\r\nX: ")
        for _ in range(8):
            await asyncio.sleep(0.1)
            body[1].write(b"x")
            slow[1].write(b"x")
        assert b"200 OK" in await read_answer(body[0])
        with contextlib.suppress(ConnectionError):
            assert await slow[0].read() == b""
        assert len(it.upstream.calls) == 1


def test_places_leave_room_for_others(monkeypatch):
    """The limit of open files is raised as far as it may, and half of it, less what others need, is for connections."""
    limits = [1024, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.__setitem__(slice(None), list(new)))

    assert connection_places(100) == (4096 - 128) // 2
    assert limits == [4096, 4096]
    assert connection_places(100, 256) == (4096 - 128 - 256) // 2


def test_too_few_places_are_told(monkeypatch, logged):
    """A limit of open files that allows fewer requests than were configured is told at the start."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (200, 200))

    assert connection_places(4096) == 36
    assert "open_files=200 requests=36" in logged.getvalue()


def test_no_limit_of_open_files(monkeypatch):
    """Where the system sets no limit there is room for half a million."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    assert connection_places(4096) > 500_000
