"""Bodies of any size at any speed, and the connections on which they pass."""

import asyncio
import contextlib
import hashlib
import socket
import ssl
import time
from pathlib import Path

import pytest
from taps import (
    DONE,
    POST,
    STREAM,
    Sink,
    chunked,
    framed,
    in_loop,
    read_answer,
    says,
    streams,
    tapped,
    token,
    unframed,
    until,
)

from kvpressure.config import TapConfig
from kvpressure.observe import tap_exchange, tap_pool
from kvpressure.observe.tap import Tap
from kvpressure.settings import ConfigError

BIG = bytes(range(256)) * 40_000  # 10 MB


# --- large bodies and slow sides ------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["length", "chunks"])
@in_loop
async def test_ten_megabytes_pass_both_ways(framing):
    """Bytes up are the bytes that the upstream gets, bytes down are those that it sent."""
    seen = []

    async def respond(call):
        body = await call.body()
        seen.append(hashlib.sha256(body).hexdigest())
        if framing == "length":
            await call.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        else:
            await call.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body[:99], body[99:]))

    async with tapped(respond) as it:
        reader, writer = await it.connect()
        if framing == "length":
            writer.write(b"POST / HTTP/1.1\r\nHost: vllm\r\nContent-Length: %d\r\n\r\n" % len(BIG) + BIG)
        else:
            writer.write(b"POST / HTTP/1.1\r\nHost: vllm\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(chunked(BIG[:7], BIG[7:5000], BIG[5000:]))
        answer = await read_answer(reader)
        assert [hashlib.sha256(BIG).hexdigest()] == seen
        assert BIG == unframed(answer)[1]


@in_loop
async def test_an_upload_goes_no_faster_than_it_is_taken():
    """An upstream that does not read stops the client, and the tap holds no more than buffers do."""
    go = asyncio.Event()

    async def respond(call):
        await go.wait()
        await says()(call)

    async with tapped(respond) as it:
        reader, writer = await it.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: vllm\r\nContent-Length: %d\r\n\r\n" % (8 * len(BIG)))
        sent = 0
        with contextlib.suppress(TimeoutError):
            for _ in range(8):
                writer.write(BIG)
                await asyncio.wait_for(writer.drain(), 0.5)
                sent += 1
        assert sent < 4
        go.set()
        for _ in range(8 - sent - 1):
            writer.write(BIG)
        assert b"200 OK" in await read_answer(reader)


@in_loop
async def test_a_download_goes_no_faster_than_it_is_taken():
    """A client that does not read stops the upstream."""
    sent = 0

    async def respond(call):
        nonlocal sent
        await call.body()
        await call.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (8 * len(BIG)))
        for _ in range(8):
            await call.say(BIG)
            sent += 1

    async with tapped(respond) as it:
        reader, writer = await it.connect()
        writer.transport.pause_reading()
        writer.write(POST)
        await asyncio.sleep(0.5)
        assert sent < 4
        writer.transport.resume_reading()
        assert b"\r\n\r\n" + 8 * BIG in await read_answer(reader)


@in_loop
async def test_an_answer_may_come_before_the_request_is_complete():
    """It is passed on at once, and both directions go on; then nothing more is read of the request."""
    go = asyncio.Event()

    async def respond(call):
        await call.say(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc")
        assert b"more" == await call.reader.readexactly(4)
        await call.say(b"def")
        go.set()
        await call.gone()
        return "close"

    async with tapped(respond) as it:
        reader, writer = await it.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: vllm\r\nContent-Length: 999\r\n\r\n")
        assert b"abc" == (await reader.readuntil(b"abc"))[-3:]
        writer.write(b"more")
        await go.wait()
        assert b"def" == await reader.readexactly(3)
        await until(lambda: not it.upstream.open)


@in_loop
async def test_an_answer_waits_for_the_client_to_read_the_one_before():
    """Requests that come at once, and a client that takes its time: both answers are whole."""
    async with tapped(says(BIG)) as it:
        reader, writer = await it.connect()
        writer.transport.pause_reading()
        writer.write(2 * POST)
        await asyncio.sleep(0.2)
        writer.transport.resume_reading()
        for _ in range(2):
            assert BIG == unframed(await read_answer(reader))[1]


# --- connections ----------------------------------------------------------------------------------------------------


@in_loop
async def test_connections_are_kept_on_both_sides():
    """Request after request goes over one connection; those that overlap have their own."""
    async with tapped(says()) as it:
        reader, writer = await it.connect()
        for _ in range(5):
            writer.write(POST)
            assert b"200 OK" in await read_answer(reader)
        assert 1 == it.upstream.connections
        await asyncio.gather(*(it.ask(POST) for _ in range(20)))
        assert it.upstream.connections <= 21


@in_loop
async def test_requests_that_come_at_once_are_answered_in_their_order():
    """Pipelining, as HTTP/1.1 has it."""

    async def respond(call):
        path = call.head.split(b" ")[1]
        await asyncio.sleep(0.02 if path == b"/0" else 0)
        await call.say(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n" + path)

    async with tapped(respond) as it:
        reader, writer = await it.connect()
        writer.write(b"".join(b"GET /%d HTTP/1.1\r\nHost: vllm\r\n\r\n" % number for number in range(4)))
        assert [b"/0", b"/1", b"/2", b"/3"] == [(await read_answer(reader))[-2:] for _ in range(4)]


@in_loop
async def test_a_connection_is_closed_before_the_upstream_would_close_it(monkeypatch):
    """vLLM closes what has been idle for 5 s; a request that is on its way just then would be lost."""
    assert tap_pool._IDLE < 5
    monkeypatch.setattr(tap_pool, "_IDLE", 0.05)
    async with tapped(says()) as it:
        await it.ask(POST)
        assert 1 == it.upstream.open
        await until(lambda: not it.upstream.open)
        await it.ask(POST)
        assert 2 == it.upstream.connections


def closes_after_one(*, wait=0.0):
    """Answers one request per connection; the next one finds the connection closed, though it did not look so."""
    served = set()

    async def respond(call):
        if call.writer in served:
            await asyncio.sleep(wait)
            return "close"
        served.add(call.writer)
        return await says()(call)

    return respond


@in_loop
async def test_a_request_that_crosses_the_end_of_an_idle_connection_is_sent_again():
    """Also one with a body, because nothing was answered, and the connection broke before it can have mattered."""
    async with tapped(closes_after_one()) as it:
        await it.ask(POST)
        assert b"200 OK" in await it.ask(POST)
        assert [2, 3] == [it.upstream.connections, len(it.upstream.calls)]
        assert {} == it.facts.refused


@pytest.mark.parametrize("framing", ["length", "chunks"])
@in_loop
async def test_a_body_that_is_sent_again_is_whole(framing, monkeypatch):
    """What had been sent of it, what had come meanwhile, and what came later."""
    served, bodies = set(), []

    async def respond(call):
        if call.writer in served:
            await call.reader.readexactly(20_000)
            return "close"
        served.add(call.writer)
        bodies.append(await call.body())
        await call.say(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        return None

    first, second, third = BIG[:30_000], BIG[30_000:90_000], BIG[90_000:100_000]
    go = asyncio.Event()
    async with tapped(respond) as it:
        await it.ask(POST)
        connect = it.tap._pool.connect

        async def late():
            await go.wait()
            return await connect()

        monkeypatch.setattr(it.tap._pool, "connect", late)
        reader, writer = await it.connect()
        frame = (lambda part: part) if framing == "length" else framed
        line = b"Content-Length: 100000" if framing == "length" else b"Transfer-Encoding: chunked"
        writer.write(b"POST / HTTP/1.1\r\nHost: vllm\r\n" + line + b"\r\n\r\n" + frame(first))
        await until(lambda: not it.upstream.open)
        writer.write(frame(second))
        await asyncio.sleep(0.05)
        go.set()
        await until(lambda: it.upstream.open)
        writer.write(frame(third) + b"0\r\n\r\n" * (framing == "chunks"))
        assert b"200 OK" in await read_answer(reader)
        assert first + second + third == bodies[-1]


@in_loop
async def test_a_request_that_may_have_broken_the_connection_is_not_sent_again(monkeypatch):
    """It broke too late for a coincidence: whatever the request did is not done twice."""
    monkeypatch.setattr(tap_exchange, "CROSSED", 0.02)
    async with tapped(closes_after_one(wait=0.05)) as it:
        await it.ask(POST)
        assert b"502 Bad Gateway" in await it.ask(POST)
        assert 2 == len(it.upstream.calls)
        assert {"unanswered": 1} == it.facts.refused


@in_loop
async def test_a_body_that_is_no_longer_at_hand_is_not_sent_again():
    """What has passed is not kept, but for the first 64 KB."""
    request = b"POST / HTTP/1.1\r\nHost: vllm\r\nContent-Length: %d\r\n\r\n" % (100_000)
    async with tapped(closes_after_one()) as it:
        await it.ask(POST)
        reader, writer = await it.connect()
        writer.write(request + b"x" * 99_999)
        assert b"502 Bad Gateway" in await read_answer(reader)


@in_loop
async def test_a_new_connection_that_breaks_is_not_tried_again():
    """Only one that has been idle can have been closed for that."""

    async def respond(_call):
        return "close"

    async with tapped(respond) as it:
        assert b"502 Bad Gateway" in await it.ask(POST)
        assert 1 == len(it.upstream.calls)


@in_loop
async def test_an_idle_connection_on_which_something_comes_is_not_used_again():
    """It would be taken for the next answer."""

    async def respond(call):
        await says()(call)
        await asyncio.sleep(0.05)
        await call.say(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhidden")
        await call.gone()
        return "close"

    async with tapped(respond) as it:
        assert b"ok" == (await it.ask(POST))[-2:]
        await until(lambda: not it.upstream.open)
        assert b"ok" == (await it.ask(POST))[-2:]
        assert 2 == it.upstream.connections


@in_loop
async def test_two_answers_to_one_request_spoil_the_connection():
    """Also when they come together."""

    async def respond(call):
        await call.body()
        await call.say(2 * b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab")

    async with tapped(respond) as it:
        for _ in range(2):
            assert b"ab" == (await it.ask(POST))[-2:]
        assert 2 == it.upstream.connections


@in_loop
async def test_small_pieces_are_sent_at_once_on_both_sides():
    """Nagle's algorithm is off."""
    async with tapped(streams(token(), pause=0.05)) as it:
        _, writer = await it.connect()
        writer.write(POST)
        await until(lambda: "token" in it.sink.kinds)
        (client,) = it.tap._server.connections
        for transport in (client.transport, client.exchange._upstream.transport):
            sock = transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@in_loop
async def test_the_environment_has_no_say(monkeypatch, tmp_path):
    """Neither its proxies nor a netrc."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with tapped(says()) as it:
        assert b"200 OK" in await it.ask(POST)
        assert [POST[:-2]] == it.upstream.heads


# --- TLS and addresses ----------------------------------------------------------------------------------------------


def listening(*addresses):
    """Start a tap on these addresses, and end it."""

    async def main():
        tap = Tap(TapConfig(listen=addresses), Sink(), time.time)
        await tap.start()
        try:
            return tap.addresses
        finally:
            await tap.close(0)

    return asyncio.run(main())


def server_tls(authority, *hosts):
    """What a server shows."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority.issue(f"tap-{'-'.join(hosts)}", *hosts))
    return tls


@in_loop
async def test_an_upstream_over_tls(authority):
    """Its certificate is accepted by the file that is named, and nothing else of the answer differs."""
    tls = server_tls(authority, "127.0.0.1")
    async with tapped(streams(token(), DONE), tls=tls, ca_file=authority.file) as it:
        assert STREAM == (await it.ask(POST))[: len(STREAM)]
        assert ["start", "token", "end"] == it.sink.kinds


@in_loop
async def test_an_upstream_whose_name_is_another(authority):
    """Without the name that its certificate has it is refused, in words that say why."""
    tls = server_tls(authority, "vllm.example")
    async with tapped(says(), tls=tls, ca_file=authority.file, server_name="vllm.example") as it:
        assert b"200 OK" in await it.ask(POST)
    async with tapped(says(), tls=tls, ca_file=authority.file) as it:
        assert b"502 Bad Gateway" in await it.ask(POST)
        assert {"unreachable": 1} == it.facts.refused


@in_loop
async def test_an_upstream_that_does_not_speak_tls(logged):
    """It is refused, and the log says what failed."""

    def greets(_reader, writer):
        writer.write(b"220 this is another protocol\r\n")
        writer.close()

    server = await asyncio.start_server(greets, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with tapped(says(), upstream=f"https://127.0.0.1:{port}") as it:
        assert b"502 Bad Gateway" in await it.ask(POST)
    server.close()
    assert "the TLS handshake failed: " in logged.getvalue()


@in_loop
async def test_an_authority_that_is_replaced_is_read_again(authority, tmp_path):
    """A file that has become unusable changes nothing: what passes must not suffer."""
    file = tmp_path / "ca.pem"
    good = Path(authority.file).read_bytes()  # noqa: ASYNC240
    file.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"^tap\.ca-file: \S+ holds no usable PEM certificate$"):
        Tap(TapConfig(upstream="https://x", ca_file=str(file)), Sink(), time.time)
    file.write_bytes(good)
    closes = "Connection: close\r\n"
    tls = server_tls(authority, "127.0.0.1")
    async with tapped(says(headers=closes), tls=tls, ca_file=str(file)) as it:
        for content in (good, b"broken", good * 2):
            file.write_bytes(content)
            assert b"200 OK" in await it.ask(POST)


def test_a_file_that_is_missing_stops_the_start(tmp_path):
    """With one sentence that names setting and file."""
    path = str(tmp_path / "none.pem")
    with pytest.raises(ConfigError, match=rf"^tap\.ca-file: {path} cannot be read: no such file or directory$"):
        Tap(TapConfig(upstream="https://x", ca_file=path), Sink(), time.time)


def test_an_address_that_is_taken_stops_the_start():
    """With one sentence."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"^tap\.listen: cannot listen on '{address}': address already in use$"):
            listening("127.0.0.1:0", address)


def test_a_host_that_has_no_address_stops_the_start():
    """With one sentence."""
    with pytest.raises(ConfigError, match=r"^tap\.listen: the host of 'no\.such\.host\.invalid:1' cannot be resolved$"):
        listening("no.such.host.invalid:1")


def test_every_interface_is_listened_on():
    """Also where IPv6 is switched off."""
    assert {host for host, _ in listening(":0")} <= {"0.0.0.0", "::"}  # noqa: S104


def test_every_interface_without_ipv6(monkeypatch):
    """What a pod does whose IPv6 is switched off: its address cannot be bound."""
    real = socket.socket.bind

    def bind(self, address):
        if self.family == socket.AF_INET6:
            raise OSError(99, "cannot assign")
        return real(self, address)

    monkeypatch.setattr(socket.socket, "bind", bind, raising=False)
    assert ["0.0.0.0"] == [host for host, _ in listening(":0")]  # noqa: S104
