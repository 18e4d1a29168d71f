"""Connections that change their protocol pass through the tap byte for byte, both ways, to their end."""

import asyncio
import hashlib

import aiohttp
import pytest
from aiohttp import web
from taps import POST, in_loop, read_answer, streams, tapped, token, until

SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nX: \xe9\r\nConnection: Upgrade\r\nUpgrade: own/1\r\n\r\n"
ASK = b"GET /chat HTTP/1.1\r\nHost: vllm\r\nConnection: keep-alive, Upgrade, X-Mine\r\nX-Mine: 1\r\nUpgrade: %b\r\n\r\n"
BIG = bytes(range(256)) * 20_000


async def echoes(call):
    """Switches, then sends back what comes until its end."""
    await call.say(SWITCH)
    while data := await call.reader.read(65536):
        await call.say(data)
    return "close"


# --- WebSocket ------------------------------------------------------------------------------------------------------


async def websocket(request):
    """Echoes frames; a text `close` closes."""
    socket = web.WebSocketResponse(max_msg_size=0, protocols=["realtime"])
    await socket.prepare(request)
    async for message in socket:
        if message.data == "close":
            await socket.close(code=4001, message=b"bye")
        elif message.type is aiohttp.WSMsgType.TEXT:
            await socket.send_str(message.data.upper())
        else:
            await socket.send_bytes(message.data)
    return socket


async def converse(session, url):
    """All that a client gets in a conversation."""
    seen = []
    async with session.ws_connect(url, protocols=["realtime"], max_msg_size=0, headers={"X-Key": "k"}) as socket:
        seen.append(socket.protocol)
        await socket.send_str("hé")
        seen.append((await socket.receive()).data)
        await socket.send_bytes(BIG)
        seen.append(hashlib.sha256((await socket.receive()).data).hexdigest())
        await socket.ping(b"p")
        for number in range(300):
            await socket.send_str(f"m{number}")
        seen += [(await socket.receive()).data for _ in range(300)]
        await socket.send_str("close")
        last = await socket.receive()
        seen += [last.type, last.data, last.extra, socket.close_code]
    return seen


@in_loop
async def test_a_websocket_through_the_tap_is_as_without_it():
    """Handshake, texts, five megabytes, pings, and how it closes."""
    application = web.Application()
    application.router.add_get("/ws", websocket)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    upstream = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with tapped(upstream=upstream) as it, aiohttp.ClientSession() as session:
            direct = await converse(session, f"{upstream}/ws")
            assert [direct] * 3 == await asyncio.gather(*(converse(session, f"{it.url}/ws") for _ in range(3)))
            await it.settled()
            assert {"1xx": 3} == it.facts.responses
            assert ([], {}) == (it.sink.events, it.facts.broken)
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(f"{it.url}/none")
            assert 404 == refused.value.status
    finally:
        await runner.cleanup()


# --- any protocol ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [b"websocket", b"own/1", b"h2c"])
@in_loop
async def test_any_protocol_passes(protocol):
    """The head asks upstream as it asked the tap, and the answer is the upstream's, as is every byte after it."""
    async with tapped(echoes) as it:
        reader, writer = await it.connect()
        request = ASK % protocol
        writer.write(request)
        assert SWITCH == await read_answer(reader)
        assert [request] == it.upstream.heads
        writer.write(b"\x00\xff" + BIG)
        assert b"\x00\xff" + BIG == await reader.readexactly(len(BIG) + 2)
        assert 1 == it.facts.open
        writer.write_eof()
        assert b"" == await reader.read()
        await it.settled()
        await until(lambda: not it.upstream.open)
        assert {"1xx": 1} == it.facts.responses


@in_loop
async def test_bytes_that_follow_the_heads_at_once_are_not_lost():
    """In one packet with the answer, and those that a client of WebSocket sends without waiting for it."""

    async def eager(call):
        await call.say(SWITCH + b"hello")
        await call.say(await call.reader.readexactly(4))
        return "close"

    async with tapped(eager) as it:
        reader, writer = await it.connect()
        writer.write(ASK % b"websocket" + b"soon")
        assert SWITCH + b"hello" + b"soon" == await reader.read()


@in_loop
async def test_one_direction_can_end_before_the_other():
    """The upstream hears the client's end and can still answer; then both connections are gone."""

    async def counts(call):
        await call.say(SWITCH)
        data = await call.reader.read()
        await asyncio.sleep(0.02)
        await call.say(b"%d bytes" % len(data))
        return "close"

    async with tapped(counts) as it:
        reader, writer = await it.connect()
        writer.write(ASK % b"own/1")
        await read_answer(reader)
        writer.write(b"abc")
        writer.write_eof()
        assert b"3 bytes" == await reader.read()
        await it.settled()


@in_loop
async def test_the_upstream_can_end_its_direction_first():
    """And still hears the client."""
    heard = []

    async def ends(call):
        await call.say(SWITCH + b"last words")
        call.writer.write_eof()
        heard.append(await call.reader.read())
        return "close"

    async with tapped(ends) as it:
        reader, writer = await it.connect()
        writer.write(ASK % b"own/1")
        assert SWITCH + b"last words" == await reader.read()
        writer.write(b"still here")
        writer.write_eof()
        await it.settled()
        assert [b"still here"] == heard


@pytest.mark.parametrize("side", ["client", "upstream"])
@in_loop
async def test_when_one_side_is_gone_so_is_the_other(side):
    """At once."""
    go = asyncio.Event()

    async def waits(call):
        await call.say(SWITCH)
        if side == "client":
            await call.gone()
        else:
            await go.wait()
            call.writer.transport.abort()
        return "close"

    async with tapped(waits) as it:
        reader, writer = await it.connect()
        writer.write(ASK % b"own/1")
        await read_answer(reader)
        if side == "client":
            writer.transport.abort()
        else:
            go.set()
            assert b"" == await reader.read()
            # As with any half-closed connection, it is the client's to close its own half.
            writer.close()
        await until(lambda: not it.upstream.open)
        await it.settled()
        await until(lambda: not it.tap._server.connections)


@in_loop
async def test_a_side_that_does_not_read_stops_the_other():
    """No more waits in the tap than buffers hold."""
    sent = 0

    async def floods(call):
        nonlocal sent
        await call.say(SWITCH)
        for _ in range(20):
            await call.say(BIG)
            sent += 1
        return "close"

    async with tapped(floods) as it:
        reader, writer = await it.connect()
        writer.write(ASK % b"own/1")
        await read_answer(reader)
        writer.transport.pause_reading()
        await asyncio.sleep(0.5)
        assert sent < 8
        writer.transport.resume_reading()
        assert hashlib.sha256(20 * BIG).digest() == hashlib.sha256(await reader.read()).digest()


@in_loop
async def test_a_tunnel_is_broken_off_when_the_tap_ends():
    """It has no end of its own to wait for."""
    async with tapped(echoes) as it:
        reader, writer = await it.connect()
        writer.write(ASK % b"own/1")
        await read_answer(reader)
        await it.tap.close(0.05)
        assert b"" == await reader.read()
        await until(lambda: not it.upstream.open)
        assert 0 == it.facts.open


# --- upstreams that do not switch -----------------------------------------------------------------------------------


HANDSHAKE = b"GET / HTTP/1.1\r\nHost: vllm\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
OFFER = (
    b"POST / HTTP/1.1\r\nHost: vllm\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: 2\r\n\r\n{}"
)


@pytest.mark.parametrize("ask", [HANDSHAKE, OFFER])
@in_loop
async def test_an_upstream_that_does_not_switch_answers_as_always(ask):
    """As vLLM does to clients that offer HTTP/2 with every request: the stream is watched, the connection goes on."""
    async with tapped(streams(token(), b"data: [DONE]\n\n")) as it:
        reader, writer = await it.connect()
        for request in (ask, ask, POST):
            writer.write(request)
            assert b"200 OK" in await read_answer(reader)
        heads = [request.removesuffix(b"{}") for request in (ask, ask, POST)]
        assert heads == it.upstream.heads
        await it.settled()
        assert ["start", "token", "end"] * 3 == it.sink.kinds


@in_loop
async def test_what_an_upstream_says_of_upgrades_is_passed_on():
    """426 names the protocol that it asks for."""
    answer = b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nConnection: upgrade\r\nContent-Length: 0\r\n\r\n"

    async def refuses(call):
        await call.say(answer)

    async with tapped(refuses) as it:
        assert answer == await it.ask(POST)


@in_loop
async def test_an_upgrade_that_nobody_asked_for_is_no_answer():
    """The client would not know what to do with it."""

    async def switches(call):
        await call.body()
        await call.say(SWITCH)
        await call.gone()
        return "close"

    async with tapped(switches) as it:
        assert b"502 Bad Gateway" in await it.ask(POST)
        assert {"unreadable": 1} == it.facts.refused
        await until(lambda: not it.upstream.open)
