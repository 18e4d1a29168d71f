"""What passes through the tap passes as it came: requests, answers and interim answers."""

import asyncio
import gzip

import pytest
from taps import (
    DONE,
    POST,
    STREAM,
    chunked,
    framed,
    header,
    in_loop,
    read_answer,
    says,
    streams,
    tapped,
    token,
    unframed,
    until,
)

# --- requests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        b"/",
        b"//v1//models/",
        b"/a%2Fb/%2e%2e/../x/./y",
        b"/?",
        b"/v1/models?",
        b"/x?a=1&&b==%20+;?/#f",
        b"/%C3%A9%ff%zz%",
        b"/a\"<>{}|\\^`[]'~!$&()*+,;=:@",
        b"*",
        b"http://elsewhere:1/v1?x",
    ],
)
@in_loop
async def test_a_target_passes_as_it_was_sent(target):
    """Nothing is normalised or quoted anew, not even what is no path at all."""
    method = b"OPTIONS" if target == b"*" else b"GET"
    async with tapped(says()) as it:
        request = b"%b %b HTTP/1.1\r\nHost: vllm\r\n\r\n" % (method, target)
        await it.ask(request)
        assert [request] == it.upstream.heads


@pytest.mark.parametrize("method", [b"GET", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE", b"PROPFIND"])
@in_loop
async def test_a_method_passes_as_it_was_sent(method):
    """With a body or without, and no length is made up for one that has none."""
    async with tapped(says()) as it:
        bare = method + b" /x HTTP/1.1\r\nHost: vllm\r\n\r\n"
        full = method + b" /x HTTP/1.1\r\nHost: vllm\r\nContent-Length: 3\r\n\r\n"
        assert b"200 OK" in await it.ask(bare)
        assert b"200 OK" in await it.ask(full + b"abc")
        assert [bare, full] == it.upstream.heads


@in_loop
async def test_headers_pass_in_order_in_their_case_and_twice():
    """Also bytes that are not UTF-8; nothing is added, and Host is what the client sent."""
    request = (
        b"GET / HTTP/1.1\r\nhOST: api.example:80\r\nx-B: 1\r\nX-a: \xe9\xff\r\nx-b: 2\r\nCookie: a=1; b=\xc3\xa9\r\n"
        b"cookie: c\r\nX-Empty: \r\nAuthorization: Bearer k\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n"
    )
    async with tapped(says()) as it:
        await it.ask(request)
        assert [request] == it.upstream.heads


@in_loop
async def test_what_concerns_one_connection_stays_there():
    """Connection and what it names, and the hop-by-hop headers; but never what frames a message or says where to."""
    kept = b"POST / HTTP/1.1\r\nHost: vllm\r\nX-Kept: 1\r\nContent-Length: 2\r\n\r\n"
    request = (
        b"POST / HTTP/1.1\r\nHost: vllm\r\nConnection: keep-alive, X-Mine, Content-Length\r\nconnection: host\r\n"
        b"X-Mine: 1\r\nKeep-Alive: timeout=5\r\nTE: trailers\r\nTrailer: x\r\nProxy-Authorization: b\r\n"
        b"Proxy-Connection: close\r\nUpgrade: h2c\r\nX-Kept: 1\r\nContent-Length: 2\r\n\r\n"
    )
    async with tapped(says()) as it:
        await it.ask(request + b"{}")
        assert [kept] == it.upstream.heads


@in_loop
async def test_a_host_is_given_where_there_is_none():
    """HTTP/1.0 does without; the upstream's HTTP/1.1 does not."""
    async with tapped(says()) as it:
        await it.ask(b"GET / HTTP/1.0\r\n\r\n")
        assert [b"127.0.0.1:%d" % it.upstream.port] == header(it.upstream.heads[0], "host")


# --- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ndate: x\r\nserver: uvicorn\r\ncontent-length: 2\r\ncontent-type: text/plain\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nX: \xe9\xff\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 404 N\xc3\xb6 \xff such thing\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 500 \r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 599 Odd\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\nX: 1\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 7\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 22\r\n\r\n" + gzip.compress(b"ab", mtime=0),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"a", b"bc" * 99),
        STREAM + chunked(token(), DONE),
    ],
)
@in_loop
async def test_an_answer_is_the_very_bytes_that_the_upstream_sent(answer):
    """Status, reason, headers and body are those of a client that asked the upstream itself."""
    cut = answer.find(b"\r\n\r\n") + 4

    async def respond(call):
        # In two pieces, so that chunks are not put together.
        await call.body()
        await call.say(answer[:cut], pause=0.01)
        pieces = answer[cut:].split(b"\r\n0\r\n\r\n") if b"chunked" in answer else [answer[cut:]]
        await call.say(pieces[0] + b"\r\n" * (len(pieces) > 1), b"0\r\n\r\n" * (len(pieces) > 1))

    async with tapped(respond) as it:
        through = await it.ask(POST)
        direct = await it.ask(POST, it.upstream.port)
        assert unframed(answer) == unframed(direct)
        assert unframed(direct) == unframed(through)


@in_loop
async def test_chunks_pass_as_they_come_and_one_by_one():
    """Each arrives before the next one is sent, in the frame that it had."""
    pieces = [framed(token(text)) for text in "abc"]
    taken = asyncio.Event()

    async def respond(call):
        await call.body()
        await call.say(STREAM)
        for piece in pieces:
            await call.say(piece)
            await taken.wait()
            taken.clear()
        await call.say(b"0\r\n\r\n")

    async with tapped(respond) as it:
        reader, writer = await it.connect()
        writer.write(POST)
        assert STREAM == await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            assert piece == await reader.readexactly(len(piece))
            taken.set()
        assert b"0\r\n\r\n" == await reader.readexactly(5)


@in_loop
async def test_a_head_only_answer_has_no_body():
    """HEAD passes with the length that GET would have had; the connection goes on."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"

    async def respond(call):
        await call.say(answer)

    async with tapped(respond) as it:
        reader, writer = await it.connect()
        for _ in range(2):
            writer.write(b"HEAD / HTTP/1.1\r\nHost: vllm\r\n\r\n")
            assert answer == await read_answer(reader, b"HEAD")
        assert 1 == it.upstream.connections


@in_loop
async def test_what_concerns_the_upstreams_connection_stays_there():
    """Its Connection and Keep-Alive say nothing of the client's connection, which goes on."""

    async def respond(call):
        await call.say(
            b"HTTP/1.1 200 OK\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nProxy-X: 1\r\n"
            b"X-Kept: 1\r\nContent-Length: 0\r\n\r\n"
        )
        return "close"

    async with tapped(respond) as it:
        reader, writer = await it.connect()
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: vllm\r\n\r\n")
            assert b"HTTP/1.1 200 OK\r\nX-Kept: 1\r\nContent-Length: 0\r\n\r\n" == await read_answer(reader)
        assert 2 == it.upstream.connections


@in_loop
async def test_a_client_that_closes_is_told_so():
    """Connection: close comes back to it, where the upstream had its own Connection, or at the end."""
    async with tapped(says(b"", headers="connection: keep-alive\r\nX: 1\r\n")) as it:
        answer = await it.ask(b"GET / HTTP/1.1\r\nHost: vllm\r\nConnection: close\r\n\r\n")
        assert b"HTTP/1.1 200 OK\r\nconnection: close\r\nX: 1\r\nContent-Length: 0\r\n\r\n" == answer


@in_loop
async def test_an_old_client_gets_a_body_without_chunks():
    """HTTP/1.0 knows none: the body ends with the connection; with a length and keep-alive it stays open."""
    async with tapped(streams(token(), DONE)) as it:
        reader, writer = await it.connect()
        writer.write(b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
        answer = await reader.read()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nConnection: close\r\n\r\n"
        assert head + token() + DONE == answer
        await it.settled()
        assert ["start", "token", "end"] == it.sink.kinds
    async with tapped(says(b"x")) as it:
        reader, writer = await it.connect()
        for _ in range(2):
            writer.write(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert b"200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\nx" in await read_answer(reader)


@in_loop
async def test_an_answer_that_ends_with_its_connection_does_so_for_the_client():
    """Neither a length nor chunks: all is passed on, then the connection ends."""

    async def respond(call):
        await call.say(b"HTTP/1.1 200 OK\r\nX: 1\r\n\r\n", b"abc", b"def", pause=0.01)
        return "close"

    async with tapped(respond) as it:
        reader, writer = await it.connect()
        writer.write(POST)
        assert b"HTTP/1.1 200 OK\r\nX: 1\r\nConnection: close\r\n\r\nabcdef" == await reader.read()
        await it.settled()
        assert {} == it.facts.broken


# --- interim answers ------------------------------------------------------------------------------------------------

EXPECT = b"POST / HTTP/1.1\r\nHost: vllm\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"


@in_loop
async def test_a_client_that_waits_for_100_gets_the_upstreams():
    """Not a byte before the upstream's 100, and the body only after it."""
    asked, go = asyncio.Event(), asyncio.Event()

    async def respond(call):
        asked.set()
        await go.wait()
        await call.say(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert b"abc" == await call.body()
        await call.say(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with tapped(respond) as it:
        reader, writer = await it.connect()
        writer.write(EXPECT)
        await asked.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.05)
        go.set()
        assert b"HTTP/1.1 100 Continue\r\n\r\n" == await reader.readuntil(b"\r\n\r\n")
        writer.write(b"abc")
        assert b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" == await read_answer(reader)
        assert [EXPECT] == it.upstream.heads


@in_loop
async def test_an_upstream_that_answers_without_100_is_passed_on():
    """The body is not waited for; as it may still come, the connection ends."""

    async def respond(call):
        await call.say(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await call.gone()
        return "close"

    async with tapped(respond) as it:
        answer = await it.ask(EXPECT)
        assert b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" == answer
        await until(lambda: not it.upstream.open)


@in_loop
async def test_other_interim_answers_pass_too():
    """As they came; but not to a client of HTTP/1.0, which knows none."""
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"

    async def respond(call):
        await call.say(hints, hints + final + b"\r\n", pause=0.01)

    async with tapped(respond) as it:
        assert hints + hints + final + b"\r\n" == await it.ask(b"GET / HTTP/1.1\r\nHost: vllm\r\n\r\n")
        assert final + b"Connection: close\r\n\r\n" == await it.ask(b"GET / HTTP/1.0\r\n\r\n")
