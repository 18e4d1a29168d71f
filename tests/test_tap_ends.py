"""How things end at the tap: clients that leave, upstreams that die or never were, limits, and the tap's own end."""

import asyncio
import json
import socket
import struct
import time

import pytest
from taps import (
    DONE,
    POST,
    STREAM,
    TOKENS,
    Sink,
    chunked,
    framed,
    header,
    in_loop,
    read_answer,
    says,
    streams,
    tapped,
    token,
    until,
)

from kvpressure.config import TapConfig
from kvpressure.observe.tap import Tap

GET = b"GET / HTTP/1.1\r\nHost: vllm\r\n\r\n"


async def endless(call):
    """Streams a token every few ms, until the other side leaves."""
    await call.body()
    await call.say(STREAM)
    while True:
        await call.say(framed(token()), pause=0.005)


async def silent(call):
    """Never answers."""
    await call.body()
    await call.gone()
    return "close"


def error_of(answer):
    """Status and error of an answer of the tap's own."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert [b"application/json"] == header(head + b"\r\n", "content-type")
    error = json.loads(body)["error"]
    assert {"message", "type", "param", "code"} == set(error)
    assert int(head.split()[1]) == error["code"]
    assert error["param"] is None
    return error["code"], error["type"], error["message"]


# --- clients that leave ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset"])
@in_loop
async def test_a_client_that_leaves_a_stream_ends_it_upstream(how):
    """At once, so that vLLM frees what the request holds; the sink hears that it was broken off."""
    async with tapped(endless) as it:
        reader, writer = await it.connect()
        writer.write(POST)
        await reader.readuntil(b"data: ")
        if how == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()
        await until(lambda: not it.upstream.open)
        await it.settled()
        assert "abort" == it.sink.kinds[-1]
        assert {"client": 1} == it.facts.broken


@in_loop
async def test_a_client_that_leaves_before_the_answer_ends_the_request_upstream():
    """Nothing was answered, so no answer was broken."""
    async with tapped(silent) as it:
        _, writer = await it.connect()
        writer.write(POST)
        await until(lambda: it.upstream.calls)
        assert 1 == it.facts.open
        writer.close()
        await until(lambda: not it.upstream.open)
        await it.settled()
        assert {} == it.facts.broken
        assert [] == it.sink.events


@in_loop
async def test_a_client_that_leaves_in_the_middle_of_its_request_ends_it_upstream():
    """The upstream gets no more than what came."""
    async with tapped(silent) as it:
        _, writer = await it.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: vllm\r\nContent-Length: 99\r\n\r\nabc")
        await until(lambda: it.upstream.calls)
        writer.close()
        await until(lambda: not it.upstream.open)


@in_loop
async def test_two_hundred_clients_that_leave_leave_nothing_behind():
    """No request is open at either side, and each stream was broken off once."""
    async with tapped(endless) as it:
        for _ in range(4):
            clients = [await it.connect() for _ in range(50)]
            for _, writer in clients:
                writer.write(POST)
            for reader, writer in clients:
                await reader.readuntil(b"data: ")
                writer.transport.abort()
        await until(lambda: not it.upstream.open)
        await it.settled()
        assert {"client": 200} == it.facts.broken
        assert 200 == it.sink.kinds.count("start")
        assert 200 == it.sink.kinds.count("abort")
        assert 0 == it.sink.kinds.count("end")


@in_loop
async def test_clients_that_leave_at_any_moment_leave_nothing_behind():
    """Also in the middle of the tap's connecting: no connection upstream is forgotten."""
    async with tapped(endless) as it:
        for round_ in range(8):
            writers = [(await it.connect())[1] for _ in range(25)]
            for number, writer in enumerate(writers):
                writer.write(POST)
                if number % 5 < round_:
                    await asyncio.sleep(0)
                writer.transport.abort()
        await it.settled()
        await until(lambda: not it.upstream.open)
        await until(lambda: not it.tap._server.connections)
        kinds = it.sink.kinds
        assert kinds.count("start") == kinds.count("abort")


@in_loop
async def test_a_client_that_leaves_without_having_read_ends_the_stream_upstream():
    """Though much still waited for it in the tap."""
    big = framed(token("x" * 100_000))

    async def floods(call):
        await call.body()
        await call.say(STREAM)
        while True:
            await call.say(big)

    async with tapped(floods) as it:
        _, writer = await it.connect()
        writer.transport.pause_reading()
        writer.write(POST)
        await until(lambda: it.facts.blocked > 0)
        writer.transport.abort()
        await until(lambda: not it.upstream.open)
        await it.settled()
        assert {"client": 1} == it.facts.broken
        assert "abort" == it.sink.kinds[-1]
        blocked = it.facts.blocked
        await asyncio.sleep(0.02)
        assert blocked == it.facts.blocked


@in_loop
async def test_a_client_that_leaves_after_the_last_byte_has_broken_nothing():
    """Closing after [DONE] is how many clients end a stream, and the answer is complete soon after."""
    async with tapped(streams(*TOKENS, DONE)) as it:
        reader, writer = await it.connect()
        writer.write(POST)
        await reader.readuntil(DONE)
        writer.close()
        await it.settled()
        assert ["start", "token", "token", "token", "end"] == it.sink.kinds


# --- upstreams that die ---------------------------------------------------------------------------------------------


@in_loop
async def test_a_stream_whose_upstream_dies_is_not_ended_as_if_it_were_whole():
    """The client gets what had come and then the end of the connection, but not the last chunk."""
    pieces = [framed(token()), framed(token())]

    async def dies(call):
        await call.body()
        await call.say(STREAM, *pieces, pause=0.01)
        return "close"

    async with tapped(dies) as it:
        reader, writer = await it.connect()
        writer.write(POST)
        assert STREAM + b"".join(pieces) == await reader.read()
        assert {"upstream": 1} == it.facts.broken
        assert ["start", "token", "token", "abort"] == it.sink.kinds
        await it.settled()


@in_loop
async def test_a_body_whose_upstream_dies_is_shorter_than_it_says():
    """As it would be without the tap."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"

    async def dies(call):
        await call.body()
        await call.say(head + b"abc")
        return "close"

    async with tapped(dies) as it:
        reader, writer = await it.connect()
        writer.write(POST)
        assert head + b"abc" == await reader.read()
        assert {"upstream": 1} == it.facts.broken


@in_loop
async def test_a_body_without_length_whose_upstream_is_reset_is_reset():
    """Nothing but a reset tells such a client that this is not all."""

    async def dies(call):
        await call.body()
        await call.say(b"HTTP/1.1 200 OK\r\n\r\nabc", pause=0.05)
        linger = struct.pack("ii", 1, 0)
        call.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        call.writer.transport.abort()
        return "close"

    async with tapped(dies) as it:
        reader, writer = await it.connect()
        writer.write(POST)
        await reader.readuntil(b"abc")
        await it.settled()
        assert {"upstream": 1} == it.facts.broken
        assert b"" == await reader.read()


@pytest.mark.parametrize("rest", [b"zz\r\n", b"5\r\nabcdeXX", b"-1\r\n"])
@in_loop
async def test_chunks_that_cannot_be_read_end_the_answer(rest):
    """What came before them is passed on, and no end is made up."""

    async def garbles(call):
        await call.body()
        await call.say(STREAM, framed(token()), pause=0.02)
        await call.say(rest)
        await call.gone()
        return "close"

    async with tapped(garbles) as it:
        reader, writer = await it.connect()
        writer.write(POST)
        answer = await reader.read()
        assert STREAM + framed(token()) == answer[: len(STREAM + framed(token()))]
        assert b"0\r\n\r\n" not in answer
        assert {"upstream": 1} == it.facts.broken
        await until(lambda: not it.upstream.open)


@pytest.mark.parametrize(
    "answer",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ],
)
@in_loop
async def test_what_is_no_answer_is_answered_for(answer, logged):
    """502 in the shape of OpenAI's API, which quotes nothing of it, and neither does the log."""

    async def garbles(call):
        await call.body()
        await call.say(answer)
        await call.gone()
        return "close"

    async with tapped(garbles) as it:
        told = (502, "BadGatewayError", "The upstream's answer is not valid HTTP.")
        assert told == error_of(await it.ask(POST))
        assert {"unreadable": 1} == it.facts.refused
        assert "hello" not in logged.getvalue()


@in_loop
async def test_an_upstream_that_closes_without_an_answer_is_answered_for():
    """502, on a connection that goes on."""

    async def closes(call):
        await call.body()
        return "close"

    async with tapped(closes) as it:
        reader, writer = await it.connect()
        for _ in range(2):
            writer.write(POST)
            told = (502, "BadGatewayError", "The upstream closed the connection without an answer.")
            assert told == error_of(await read_answer(reader))
        assert {"unanswered": 2} == it.facts.refused
        assert {} == it.facts.broken


@in_loop
async def test_an_upstream_that_is_not_there_is_answered_for(logged):
    """502, and the log says why, once a minute."""
    async with tapped(says()) as it:
        await it.upstream.stop()
        for _ in range(3):
            told = (502, "BadGatewayError", "The upstream cannot be reached.")
            assert told == error_of(await it.ask(POST))
        assert b"" == (await it.ask(b"HEAD / HTTP/1.1\r\nHost: vllm\r\n\r\n")).partition(b"\r\n\r\n")[2]
        assert {"unreachable": 4} == it.facts.refused
        assert {} == it.facts.responses
        assert 1 == logged.getvalue().count("the tap cannot reach its upstream")
        assert "connection refused" in logged.getvalue()


@in_loop
async def test_an_upstream_that_takes_no_connection_is_given_up():
    """After tap.connect-timeout; there is no other limit of time."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        # Its queue is full with these, so the next one gets no answer at all.
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)  # noqa: FBT003
            one.connect_ex(address)
        async with tapped(says(), upstream=f"http://127.0.0.1:{address[1]}", connect_timeout=0.2) as it:
            assert 502 == error_of(await it.ask(POST))[0]
        for one in waiting:
            one.close()


@in_loop
async def test_a_name_that_cannot_be_resolved_is_answered_for(logged):
    """Also one that is no name at all."""
    for host in ("no.such.host.invalid", "a" * 70 + ".example"):
        async with tapped(says(), upstream=f"http://{host}:1") as it:
            assert 502 == error_of(await it.ask(POST))[0]
    assert "its name cannot be resolved" in logged.getvalue()


# --- limits and requests that are none ------------------------------------------------------------------------------


@in_loop
async def test_requests_beyond_the_limit_are_refused():
    """503 while so many are open; the next one passes when one has ended."""
    async with tapped(endless, max_requests=2) as it:
        clients = [await it.connect() for _ in range(2)]
        for _, writer in clients:
            writer.write(POST)
        await until(lambda: it.facts.open == 2)
        code, kind, message = error_of(await it.ask(POST))
        assert (503, "ServiceUnavailableError") == (code, kind)
        assert "tap.max-requests" in message
        assert {"overload": 1} == it.facts.refused
        clients[0][1].close()
        await until(lambda: it.facts.open == 1)
        reader, writer = await it.connect()
        writer.write(POST)
        assert STREAM == await reader.readuntil(b"\r\n\r\n")


@pytest.mark.parametrize(
    "headers",
    [b"X: " + b"x" * 3000, b"\r\n".join(b"X-%d: 123456" % number for number in range(200)), b"X" * 3000 + b": 1"],
)
@in_loop
async def test_headers_that_are_too_long_are_refused(headers):
    """Whether one is, or all are together; the message names the setting, and no byte goes upstream."""
    async with tapped(says(), max_header_bytes=2048) as it:
        code, kind, message = error_of(await it.ask(b"GET / HTTP/1.1\r\nHost: vllm\r\n" + headers + b"\r\n\r\n"))
        assert (503, "ServiceUnavailableError") == (code, kind)
        assert "tap.max-header-bytes" in message
        assert {"headers": 1} == it.facts.refused
        assert 0 == it.upstream.connections


@in_loop
async def test_headers_pass_up_to_the_limit():
    """Far beyond what aiohttp takes by itself."""
    async with tapped(says()) as it:
        request = b"GET /" + b"p" * 20_000 + b" HTTP/1.1\r\nHost: vllm\r\nX: " + b"x" * 40_000 + b"\r\n\r\n"
        assert b"200 OK" in await it.ask(request)
        assert [request] == it.upstream.heads


@pytest.mark.parametrize(
    "request_",
    [
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 6\r\n\r\nabcdef",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nabcde",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n folded: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\nY: b\r\n\r\n",
        b"SECRET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03SECRET\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
@in_loop
async def test_a_request_that_two_programs_could_read_in_two_ways_is_not_passed_on(request_, logged):
    """400, and the connection ends; no byte goes upstream, and neither answer nor log quotes it."""
    async with tapped(says()) as it:
        reader, writer = await it.connect()
        writer.write(request_ + b"SECRET / HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        assert (400, "BadRequestError", "The request is not valid HTTP.") == error_of(answer)
        assert {"malformed": 1} == it.facts.refused
        assert 0 == it.upstream.connections
        assert "SECRET" not in logged.getvalue()


@in_loop
async def test_a_body_that_cannot_be_read_ends_the_request():
    """Upstream too, for it will never be complete."""
    async with tapped(silent) as it:
        reader, writer = await it.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await until(lambda: it.upstream.calls)
        writer.write(b"SECRET\r\n")
        answer = await reader.read()
        assert 400 == error_of(answer)[0]
        await until(lambda: not it.upstream.open)
        await it.settled()
        assert {"malformed": 1} == it.facts.refused


@in_loop
async def test_a_body_that_cannot_be_read_while_the_tap_connects_ends_the_request(monkeypatch):
    """Before any of it has been sent."""
    async with tapped(silent) as it:
        connect = it.tap._pool.connect

        async def late():
            await until(lambda: it.tap._server.connections[0].exchange._spoiled)
            return await connect()

        monkeypatch.setattr(it.tap._pool, "connect", late)
        reader, writer = await it.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await until(lambda: it.facts.open)
        writer.write(b"SECRET\r\n")
        assert 400 == error_of(await reader.read())[0]
        assert [] == it.upstream.calls


@in_loop
async def test_nobody_is_connected_elsewhere():
    """CONNECT is for proxies of another kind."""
    async with tapped(says()) as it:
        reader, writer = await it.connect()
        writer.write(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n")
        assert (501, "NotImplementedError") == error_of(await read_answer(reader))[:2]
        assert {"connect": 1} == it.facts.refused


@in_loop
async def test_a_refused_request_with_a_body_does_not_spoil_the_connection():
    """What comes of the body is not taken for the next request."""
    async with tapped(endless, max_requests=1) as it:
        _, busy = await it.connect()
        busy.write(POST)
        await until(lambda: it.facts.open == 1)
        reader, writer = await it.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 41\r\n\r\n")
        assert b"503" in await read_answer(reader)
        writer.write(b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n12345678")
        assert b"" == await reader.read()
        assert 1 == len(it.upstream.calls)


def test_what_can_be_counted_is_there_from_the_start():
    """At 0, and it is little: these are values of labels."""
    facts = Tap(TapConfig(), Sink(), time.time).facts()
    counts = [facts.responses, facts.refused, facts.broken, facts.unobserved]
    assert {0} == {number for each in counts for number in each.values()}
    assert [5, 9, 2, 2] == [len(each) for each in counts]


# --- the tap's own end ----------------------------------------------------------------------------------------------


@in_loop
async def test_what_is_under_way_may_end_before_the_tap_does():
    """No new connection is accepted meanwhile, idle ones end, and the stream is whole."""
    async with tapped(streams(*TOKENS, DONE, pause=0.05)) as it:
        idle, _ = await it.connect()
        reader, writer = await it.connect()
        writer.write(POST)
        await until(lambda: it.facts.open)
        closing = asyncio.create_task(it.tap.close(10))
        assert STREAM + chunked(*TOKENS, DONE) == await reader.read()
        assert b"" == await idle.read()
        await asyncio.wait_for(closing, 2)
        with pytest.raises(ConnectionRefusedError):
            await it.connect()
        assert "end" == it.sink.kinds[-1]


@in_loop
async def test_what_does_not_end_is_broken_off():
    """After the grace period, at both sides."""
    async with tapped(endless) as it:
        reader, writer = await it.connect()
        writer.write(POST)
        await reader.readuntil(b"data: ")
        began = time.monotonic()
        await it.tap.close(0.1)
        assert 0.1 <= time.monotonic() - began
        assert b"0\r\n\r\n" not in await reader.read()
        await until(lambda: not it.upstream.open)
        assert 0 == it.facts.open
        assert "abort" == it.sink.kinds[-1]


@in_loop
async def test_the_tap_can_be_closed_twice_and_before_it_started():
    """Nothing is left either way."""
    tap = Tap(TapConfig(), Sink(), time.time)
    await tap.close(0)
    await tap.start()
    await tap.close(0)
    await tap.close(0)
