# small helpers, named for what they do
import asyncio
import base64
import contextlib
import gzip
import itertools
import logging
import shutil
import ssl
import time
import tracemalloc
import zlib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization as s

from kvpressure.config import VllmConfig
from kvpressure.observe import fetch
from kvpressure.observe.fetch import FetchError
from kvpressure.observe.scraper import Scraper, next_start
from kvpressure.settings import ConfigError
from kvpressure.vllm.reading import Taken

BODY = b"vllm:num_requests_running 1\n"


class Sink:
    """Keeps what it is given."""

    def __init__(self, interval=0.02):
        self.interval = interval
        self.samples = []
        self.failures = []
        self.answered = []
        self.taken = Taken(engines=1)

    def observe(self, t, text, took):
        self.samples.append((t, text, took))
        return self.taken

    def failed(self, t, reason, took=None):
        self.failures.append((t, reason))
        self.answered.append(took is not None)

    @property
    def reasons(self):
        return [reason for _, reason in self.failures]


class Vllm:
    """A raw server on loopback: `answer(reader, writer)` is called per request, after its head was read."""

    def __init__(self, answer, tls=None, unix=None):
        self.answer, self.tls, self.unix = answer, tls, unix
        self.heads, self.connections, self.tasks = [], 0, set()

    async def __aenter__(self):
        if self.unix:
            self.server = await asyncio.start_unix_server(self.connected, self.unix, ssl=self.tls)
        else:
            self.server = await asyncio.start_server(self.connected, "127.0.0.1", 0, ssl=self.tls)
            self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def connected(self, reader, writer):
        task = asyncio.current_task()
        self.tasks.add(task)
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head.decode())
                if await self.answer(reader, writer) == "close":
                    break
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self.tasks.discard(task)

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/metrics"

    def header(self, name, n=-1):
        """The values of a header in the n-th request."""
        lines = [line.partition(": ") for line in self.heads[n].splitlines()]
        return [value for key, _, value in lines if key.lower() == name.lower()]


def says(body=BODY, status="200 OK", headers=""):
    async def answer(_reader, writer):
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body)
        await writer.drain()

    return answer


def raw(data, then="close"):
    async def answer(_reader, writer):
        writer.write(data)
        await writer.drain()
        return then

    return answer


async def hang(_reader, _writer):
    await asyncio.sleep(30)


async def outcome(server, *, samples=1, **settings):
    """What a sink gets from some samples of `server`."""
    sink = Sink()
    scraper = Scraper(VllmConfig(**{"url": getattr(server, "url", ""), "timeout": 5.0} | settings), sink)
    for _ in range(samples):
        await scraper.sample_once()
    await scraper.close()
    return sink


def one(answer, **settings):
    """The sink after one sample of a server that answers so."""

    async def main():
        async with Vllm(answer) as server:
            return await outcome(server, **settings)

    return asyncio.run(main())


# --- good answers ---------------------------------------------------------------------------------------------------


def test_good_sample():
    """A good body reaches the sink as text, with the moment the request was sent and the time it took."""

    async def slow(reader, writer):
        await asyncio.sleep(0.1)
        await says()(reader, writer)

    before = time.time()
    sink = one(slow)
    ((t, text, took),) = sink.samples

    assert text == BODY.decode()
    assert before <= t < before + 0.1
    assert 0.1 <= took < 1
    assert not sink.failures


def test_bytes_that_are_not_utf8():
    """Bytes that are not UTF-8 become the replacement character, and the sample is good."""
    assert one(says(b'a{m="\xff"} 1\n')).samples[0][1] == 'a{m="\ufffd"} 1\n'


def test_content_type_is_not_required():
    """An answer without a content type, or with a foreign one, is read."""
    assert one(says()).samples
    assert one(says(headers="Content-Type: application/json\r\n")).samples


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_answer(encoding):
    """An answer that is compressed although nobody asked for it is read."""
    body = gzip.compress(BODY) if encoding == "gzip" else zlib.compress(BODY)

    assert one(says(body, headers=f"Content-Encoding: {encoding}\r\n")).samples[0][1] == BODY.decode()


def test_chunked_answer():
    """A chunked answer is read whole."""
    assert (
        one(raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na 1\r\n1\r\n\n\r\n0\r\n\r\n")).samples[0][1]
        == "a 1\n"
    )


def test_request_headers():
    """The request asks for the text format without compression, and carries the configured headers."""

    async def main():
        async with Vllm(says()) as server:
            await outcome(server, header=("X-Scope: a", "X-Scope:b", "X-Other: c: d "))
            return server

    server = asyncio.run(main())

    assert server.heads[0].startswith("GET /metrics HTTP/1.1\r\n")
    assert server.header("Accept") == ["text/plain;version=0.0.4"]
    assert server.header("Accept-Encoding") == ["identity"]
    assert server.header("User-Agent")[0].startswith("kvpressure/")
    assert server.header("X-Scope") == ["a", "b"]
    assert server.header("X-Other") == ["c: d"]
    assert not server.header("Authorization")


def test_cookies_are_not_kept():
    """A cookie that the server sets is not sent back."""

    async def main():
        async with Vllm(says(headers="Set-Cookie: a=b\r\n")) as server:
            await outcome(server, samples=2)
            return server

    server = asyncio.run(main())

    assert len(server.heads) == 2
    assert not server.header("Cookie")


def test_proxy_environment_is_ignored(monkeypatch):
    """A proxy in the environment is not used."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    assert one(says()).samples


def test_unix_socket(tmp_path):
    """The URL is reached over a Unix socket; without the socket the reason is refused."""
    path = str(tmp_path / "vllm.sock")

    async def main():
        async with Vllm(says(), unix=path):
            good = await outcome(None, url="http://vllm/metrics", unix_socket=path)
        return good, await outcome(None, url="http://vllm/metrics", unix_socket=path + "x")

    good, bad = asyncio.run(main())

    assert good.samples
    assert bad.reasons == ["refused"]


# --- the connection -------------------------------------------------------------------------------------------------


def test_connection_is_reused():
    """Many samples use one connection."""

    async def main():
        async with Vllm(says()) as server:
            return server, await outcome(server, samples=5)

    server, sink = asyncio.run(main())

    assert len(sink.samples) == 5
    assert server.connections == 1


def test_server_closes_between_samples():
    """A connection that the server closed while it idled costs no sample."""

    async def close_after(reader, writer):
        await says()(reader, writer)
        return "close"

    async def main():
        sink = Sink()
        async with Vllm(close_after) as server:
            scraper = Scraper(VllmConfig(url=server.url), sink)
            for pause in (0.05, 0.0, 0.0, 0.05):
                await scraper.sample_once()
                await asyncio.sleep(pause)
            await scraper.close()
        return sink

    sink = asyncio.run(main())

    assert len(sink.samples) == 4
    assert not sink.failures


def test_server_closes_on_the_next_request():
    """A reused connection that dies as the request arrives (the keep-alive race) costs no sample."""
    requests = itertools.count()

    async def answer(reader, writer):
        if next(requests) % 2:
            return "close"
        return await says()(reader, writer)

    async def main():
        async with Vllm(answer) as server:
            return server, await outcome(server, samples=3)

    server, sink = asyncio.run(main())

    assert len(sink.samples) == 3
    assert not sink.failures
    assert server.connections == 3


# --- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "answer"),
    [
        ("status", says(b"down", "500 Internal Server Error")),
        ("status", says(b"", "204 No Content")),
        ("status", says(b"", "302 Found", "Location: /elsewhere\r\n")),
        ("truncated", raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\na 1\n")),
        ("truncated", raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\n\r\n")),
        ("other", raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")),
        ("truncated", says(b"not gzip", headers="Content-Encoding: gzip\r\n")),
        ("truncated", says(gzip.compress(BODY)[:-9], headers="Content-Encoding: gzip\r\n")),
        ("truncated", says(gzip.compress(BODY) * 2, headers="Content-Encoding: gzip\r\n")),
        ("other", says(headers="Content-Encoding: br\r\n")),
        ("truncated", raw(b"")),
        ("truncated", raw(b"HTTP/1.1 200 OK\r\nContent-")),
        ("other", raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")),
        ("timeout", hang),
        ("timeout", raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\na 1\n", "hang")),
    ],
)
def test_failures(reason, answer):
    """Each way to fail gives its reason once, and no body."""

    async def maybe_hang(reader, writer):
        if await answer(reader, writer) == "hang":
            await asyncio.sleep(30)
        return "close"

    before = time.monotonic()
    sink = one(maybe_hang, timeout=0.3)

    assert sink.reasons == [reason]
    assert not sink.samples
    assert reason in fetch.REASONS
    assert time.monotonic() - before < 1


def test_refused():
    """A port that nobody listens on is refused."""

    async def main():
        async with Vllm(says()) as server:
            url = server.url
        return await outcome(None, url=url)

    assert asyncio.run(main()).reasons == ["refused"]


@pytest.mark.parametrize(
    "host", ["no-such-host.invalid", "no..host", 64 * "x", "1.2.3.999", "a\\b", "[fe80::1%25no-such-card]"]
)
def test_dns(host, caplog):
    """A host name that does not exist, or never could, has a reason of its own, and a sentence without a number."""
    assert asyncio.run(outcome(None, url=f"http://{host}/metrics")).reasons == ["dns"]
    assert [record.fields["detail"] for record in caplog.records] == ["the host's name cannot be resolved"]


def test_redirect_is_not_followed():
    """A redirect is a failure, and its target is never asked."""

    async def main():
        async with Vllm(says()) as target, Vllm(says(b"", "302 Found", f"Location: {target.url}\r\n")) as server:
            return target, await outcome(server)

    target, sink = asyncio.run(main())

    assert sink.reasons == ["status"]
    assert not target.heads


def test_slow_drip():
    """A body that trickles in for ever is given up when the whole sample's time is over."""

    async def drip(_reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"# \n")
            await writer.drain()
            await asyncio.sleep(0.02)

    before = time.monotonic()

    assert one(drip, timeout=0.3).reasons == ["timeout"]
    assert 0.25 < time.monotonic() - before < 0.6


def test_endless_body_is_cut_off():
    """Of 100 MB that a server wants to send, it gets rid of little more than the cap."""
    sent = 0

    async def flood(_reader, writer):
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(1600):
            writer.write(b"#" * 65536)
            await writer.drain()
            sent += 65536

    assert one(flood, max_body_bytes=1_000_000).reasons == ["too_large"]
    assert sent < 10_000_000


def test_announced_length_over_the_cap():
    """A content length over the cap is refused before the body is read."""
    assert one(says(b"#" * 2000), max_body_bytes=1999).reasons == ["too_large"]
    assert one(says(b"#" * 2000), max_body_bytes=2000).samples


def test_gzip_bomb():
    """The cap holds for the decompressed bytes, and the bomb does not unfold in memory."""
    bomb = gzip.compress(bytes(100_000_000))
    tracemalloc.start()
    try:
        reasons = one(says(bomb, headers="Content-Encoding: gzip\r\n"), max_body_bytes=1_000_000).reasons
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert reasons == ["too_large"]
    assert peak < 4_000_000


# --- credentials ----------------------------------------------------------------------------------------------------


def test_bearer_token_is_rotated(tmp_path):
    """The token is read at every sample; while its file is missing or empty, samples fail and send nothing."""
    file = tmp_path / "token"

    async def main():
        sink = Sink()
        async with Vllm(says()) as server:
            scraper = Scraper(VllmConfig(url=server.url, bearer_token_file=str(file)), sink)
            for token in (None, "first\n", "", "second"):
                if token is not None:
                    file.write_text(token)
                await scraper.sample_once()
            await scraper.close()
        return server, sink

    server, sink = asyncio.run(main())

    assert [server.header("Authorization", n) for n in range(2)] == [["Bearer first"], ["Bearer second"]]
    assert len(server.heads) == 2
    assert sink.reasons == ["credentials", "credentials"]


def test_basic_auth(tmp_path):
    """User and password are sent as basic authentication, in UTF-8."""
    (tmp_path / "password").write_text("pässword\n", encoding="utf-8")

    async def main():
        async with Vllm(says()) as server:
            await outcome(server, basic_auth_user="prometheus", basic_auth_password_file=str(tmp_path / "password"))
            return server

    sent = asyncio.run(main()).header("Authorization")[0]

    assert base64.b64decode(sent.removeprefix("Basic ")).decode() == "prometheus:pässword"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"bearer_token_file": "empty"}, "vllm.bearer-token-file: {}/empty is empty"),
        ({"bearer_token_file": "lines"}, "vllm.bearer-token-file: {}/lines must hold one line of printable text"),
        ({"bearer_token_file": "umlaut"}, "vllm.bearer-token-file: {}/umlaut must hold ASCII text"),
        ({"bearer_token_file": "binary"}, "vllm.bearer-token-file: {}/binary is not UTF-8 text"),
        ({"bearer_token_file": "."}, "vllm.bearer-token-file: {}/. cannot be read: is a directory"),
        (
            {"basic_auth_user": "a", "basic_auth_password_file": "empty"},
            "vllm.basic-auth-password-file: {}/empty is empty",
        ),
        ({"basic_auth_user": "a:b"}, "vllm.basic-auth-user: a user name cannot hold a colon"),
        ({"ca_file": "lines"}, "vllm.ca-file: {}/lines holds no usable PEM certificate"),
        (
            {"cert_file": "lines", "key_file": "umlaut"},
            "vllm.cert-file: {0}/lines and {0}/umlaut are not a PEM certificate and its unencrypted key",
        ),
        ({"unix_socket": "x"}, "vllm.unix-socket: speaks plain HTTP only; give vllm.url as http://"),
    ],
)
def test_malformed_files_refuse_the_start(tmp_path, settings, sentence):
    """A file that exists but cannot be used refuses the start, with one sentence that names setting and file."""
    for name, content in {"empty": b"\n", "lines": b"a\nb", "umlaut": "ä".encode(), "binary": b"\xff"}.items():
        (tmp_path / name).write_bytes(content)
    paths = {k: f"{tmp_path}/{v}" if k.endswith("_file") else v for k, v in settings.items()}
    with pytest.raises(ConfigError) as fault:
        Scraper(VllmConfig(url="https://127.0.0.1/metrics", **paths), Sink())

    assert str(fault.value) == sentence.format(tmp_path)


def test_encrypted_key_is_refused(tmp_path, authority):
    """A key with a password is refused instead of asking for it on the terminal."""
    cert, key = authority.issue("encrypted", "127.0.0.1")
    loaded = s.load_pem_private_key(Path(key).read_bytes(), None)
    (tmp_path / "key").write_bytes(
        loaded.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"x"))
    )
    with pytest.raises(ConfigError, match="unencrypted key"):
        Scraper(VllmConfig(url="https://127.0.0.1/", cert_file=cert, key_file=str(tmp_path / "key")), Sink())


# --- TLS ------------------------------------------------------------------------------------------------------------


def server_tls(files, client_ca=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context


def over_tls(tls, **settings):
    async def main():
        async with Vllm(says(), tls=tls) as server:
            return await outcome(server, samples=2, **settings)

    return asyncio.run(main())


def test_tls_authority(authority):
    """A certificate of the given authority is accepted; without the authority the reason is tls."""
    tls = server_tls(authority.issue("vllm", "127.0.0.1"))

    assert len(over_tls(tls, ca_file=authority.file).samples) == 2
    assert over_tls(tls).reasons == ["tls", "tls"]


def test_tls_host_name(authority, logged):
    """A certificate for another host is refused, unless that host is the name to expect."""
    tls = server_tls(authority.issue("other", "vllm.internal"))

    assert over_tls(tls, ca_file=authority.file).reasons == ["tls", "tls"]
    assert "certificate is not valid for '127.0.0.1'" in logged.getvalue()
    assert over_tls(tls, ca_file=authority.file, server_name="vllm.internal").samples


def test_tls_without_verification(authority):
    """Any certificate is accepted where the configuration says so."""
    assert over_tls(server_tls(authority.issue("any", "other.host")), insecure_skip_verify=True).samples


def test_tls_client_certificate(authority, logged):
    """A server that wants a client certificate gets it; without one the log suggests it."""
    tls = server_tls(authority.issue("strict", "127.0.0.1"), client_ca=authority.file)
    cert, key = authority.issue("client")

    assert over_tls(tls, ca_file=authority.file, cert_file=cert, key_file=key).samples
    assert over_tls(tls, ca_file=authority.file).reasons == ["truncated", "truncated"]
    assert "does vLLM want a client certificate?" in logged.getvalue()


def test_tls_to_a_plain_port():
    """Speaking TLS to a server that does not is a failure of TLS."""

    async def refuse(_reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async def main():
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        sink = await outcome(None, url=f"https://127.0.0.1:{port}/metrics")
        server.close()
        return sink

    assert asyncio.run(main()).reasons == ["tls"]


def test_tls_files_are_rotated(tmp_path, authority):
    """An authority that arrives after the start is used from the next sample on."""
    file = tmp_path / "ca.pem"

    async def main():
        sink = Sink()
        async with Vllm(says(), tls=server_tls(authority.issue("late", "127.0.0.1"))) as server:
            scraper = Scraper(VllmConfig(url=server.url, ca_file=str(file)), sink)
            await scraper.sample_once()
            shutil.copy(authority.file, file)
            await scraper.sample_once()
            await scraper.close()
        return sink

    sink = asyncio.run(main())

    assert sink.reasons == ["credentials"]
    assert len(sink.samples) == 1


# --- the schedule ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("due", "now", "interval", "expected"),
    [
        (10.0, 10.1, 1.0, 11.0),  # in time
        (10.0, 10.999, 1.0, 11.0),  # just in time
        (10.0, 11.0, 1.0, 12.0),  # a beat is over: never two at once
        (10.0, 13.5, 1.0, 14.0),  # a stall: missed beats are left out
        (10.0, 10.1, 5.0, 15.0),  # a longer interval holds at once
        (10.0, 9.999, 1.0, 11.0),  # woken early: no second sample on one beat
    ],
)
def test_next_start(due, now, interval, expected):
    """The next start keeps the beat, lies ahead, and leaves missed beats out."""
    assert next_start(due, now, interval) == expected


async def run_for(scraper, seconds):
    task = asyncio.create_task(scraper.run())
    await asyncio.sleep(seconds)
    assert not task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def test_run_keeps_the_beat_and_never_overlaps():
    """A stall of several intervals is followed by single samples on the beat, and requests never overlap."""
    starts, at_once, most = [], 0, 0

    async def answer(reader, writer):
        nonlocal at_once, most
        starts.append(time.monotonic())
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.43 if len(starts) == 3 else 0.02)
        at_once -= 1
        await says()(reader, writer)

    async def main():
        sink = Sink(interval=0.1)
        async with Vllm(answer) as server:
            await run_for(Scraper(VllmConfig(url=server.url), sink), 1.05)
        return sink

    sink = asyncio.run(main())
    beats = [round((start - starts[0]) / 0.1, 1) for start in starts]

    assert most == 1
    assert beats == pytest.approx([0, 1, 2, 7, 8, 9, 10], abs=0.3)
    assert len(sink.samples) >= 6


def test_run_survives_its_sink(logged):
    """A sink that raises, against its contract, ends nothing; the log tells where and not what."""

    class Broken(Sink):
        def observe(self, t, text, took):
            taken = super().observe(t, text, took)
            if len(self.samples) == 1:
                raise ValueError(text)
            return taken

    async def main():
        sink = Broken()
        async with Vllm(says()) as server:
            await run_for(Scraper(VllmConfig(url=server.url), sink), 1.2)
        return sink

    sink = asyncio.run(main())

    assert len(sink.samples) > 1
    assert "error_type=ValueError where=test_scraper.py:" in logged.getvalue()
    assert "vllm:num" not in logged.getvalue()


def test_wall_clock_steps_do_not_matter(monkeypatch):
    """Times follow the monotonic clock, whatever becomes of the wall clock after the start."""

    async def main():
        sink, now = Sink(), [100.0]
        async with Vllm(says()) as server:
            monkeypatch.setattr(time, "time", lambda: 5000.0)
            scraper = Scraper(VllmConfig(url=server.url), sink, clock=lambda: now[0])
            await scraper.sample_once()
            monkeypatch.setattr(time, "time", lambda: 1.0)
            now[0] = 102.5
            await scraper.sample_once()
            await scraper.close()
            assert scraper.now() == 5002.5
        return sink

    assert [t for t, _, _ in asyncio.run(main()).samples] == [5000.0, 5002.5]


# --- the log --------------------------------------------------------------------------------------------------------


def test_log_lines_are_rare(logged):
    """A reason is logged once a minute with what was held back, and a recovery once, with count and time."""
    up = False
    now = [0.0]

    async def answer(reader, writer):
        return await says(status="200 OK" if up else "503 Service Unavailable")(reader, writer)

    async def main():
        nonlocal up
        async with Vllm(answer) as server:
            scraper = Scraper(VllmConfig(url=server.url), Sink(), clock=lambda: now[0])
            for now[0] in range(70):
                await scraper.sample_once()
            up = True
            for now[0] in (70, 71):
                await scraper.sample_once()
            for now[0] in (72, 73, 74):  # flapping soon after: told in neither direction
                up = now[0] != 72
                await scraper.sample_once()
            await scraper.close()
        return server.url

    url = asyncio.run(main())
    lines = [line.partition(" logger=")[2] for line in logged.getvalue().splitlines() if "scraper" in line]

    told = f"""observe.scraper msg="cannot sample vLLM" reason=status detail="the answer's status is 503" url={url}"""
    assert lines == [
        told,
        told + " held_back=59",
        f'observe.scraper msg="sampling vLLM" url={url}',
        'observe.scraper msg="sampling works again after 70 failed samples, 70 s"',
    ]


def test_no_secret_reaches_the_log(tmp_path, logged):
    """Whatever fails, at debug level: no token, password, header value, query or body text is logged."""
    canary = "c4n4ry"
    (tmp_path / "token").write_text(canary)
    (tmp_path / "broken").write_text(f"{canary}\n{canary}")
    bad_heads = [
        f"HTTP/1.1 200 {canary}\r\nContent-Length: 100\r\n\r\n{canary}",
        f"HTTP/1.1 500 {canary}\r\nX-{canary}: {canary}\r\nContent-Length: 6\r\n\r\n{canary}",
        f"HTTP/1.1 302 Found\r\nLocation: http://{canary}/\r\nContent-Length: 0\r\n\r\n",
        f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{canary}\r\n",
        f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 6\r\n\r\n{canary}",
        f"HTTP/1.1 200 OK\r\nContent-Length: {canary}\r\n\r\n",
        f"HTTP/1.1 200 OK\r\nBad {canary}\x00: 1\r\n\r\n",
        f"{canary}\r\n\r\n",
    ]

    class Broken(Sink):
        def observe(self, _t, text, _took):
            raise ValueError(text)

    async def main():
        secrets = {"header": (f"X-Key: {canary}",), "timeout": 0.3, "bearer_token_file": str(tmp_path / "token")}
        reasons = []
        for head in bad_heads:
            async with Vllm(raw(head.encode())) as server:
                reasons += (await outcome(server, **secrets | {"url": f"{server.url}?key={canary}"})).reasons
        async with Vllm(says(canary.encode())) as server:
            await run_for(Scraper(VllmConfig(url=server.url, **secrets), Broken()), 0.1)
            (tmp_path / "late").unlink(missing_ok=True)
            scraper = Scraper(VllmConfig(url=server.url, bearer_token_file=str(tmp_path / "late")), Sink())
            (tmp_path / "late").write_text(f"{canary}\n{canary}")
            await scraper.sample_once()
            await scraper.close()
        async with Vllm(hang) as server:
            reasons += (await outcome(server, **secrets)).reasons
        return reasons

    reasons = asyncio.run(main())

    assert len(reasons) == len(bad_heads) + 1
    assert logged.getvalue().count("cannot sample vLLM") > 8
    assert canary not in logged.getvalue()
    with pytest.raises(ConfigError) as fault:
        Scraper(VllmConfig(bearer_token_file=str(tmp_path / "broken")), Sink())
    assert canary not in str(fault.value)


def test_errors_of_the_fetcher_have_known_reasons():
    """The words of the label are those that the fetcher can give."""
    assert str(FetchError("dns", "x")) == "dns: x"
    assert len(set(fetch.REASONS)) == len(fetch.REASONS) == 9
    assert logging.getLogger("kvpressure.observe.scraper").level == logging.NOTSET
