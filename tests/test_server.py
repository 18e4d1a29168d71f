# small helpers, named for what they do
import asyncio
import base64
import contextlib
import errno
import socket
import ssl
import time
from html.parser import HTMLParser
from urllib.parse import urljoin

import aiohttp
import bcrypt
import pytest
from aiohttp import web

from kvpressure import __version__
from kvpressure.config import Config, WebConfig
from kvpressure.derive.snapshot import Snapshot
from kvpressure.expose.server import make_app, serve
from kvpressure.settings import ConfigError

METRICS = b"# HELP kvpressure_up x\n" * 100
PATHS = ["/", "/metrics", "/api/v1/state", "/-/healthy", "/-/ready"]
PAGE_PATHS = ["/-/page.css", "/-/page.js"]


def metrics(accept):
    kind = "application/openmetrics-text; version=1.0.0" if "openmetrics" in accept else "text/plain; version=0.0.4"
    return METRICS, f"{kind}; charset=utf-8"


def state():
    return {"engines": [], "verdict": "unknown"}


def snapshot():
    return Snapshot(t=1_800_000_000.0, up=None)


@contextlib.asynccontextmanager
async def running(*, metrics=metrics, state=state, snapshot=snapshot, **web):
    """The exporter's server on a free port; gives its base URL."""
    config = Config(web=WebConfig(**{"listen_address": ("127.0.0.1:0",)} | web))
    runner = await serve(make_app(config, metrics=metrics, state=state, snapshot=snapshot), config)
    try:
        yield f"{'https' if web.get('config_file') else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def ask(base, path, method="GET", **how):
    """Status, headers and body of one answer."""
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.request(method, base + path, allow_redirects=False, **how) as response,
    ):
        return response.status, response.headers, await response.read()


def answer(path, method="GET", *, headers=None, **how):
    async def main():
        async with running(**how) as base:
            return await ask(base, path, method, headers=headers)

    return asyncio.run(main())


# --- routes ---------------------------------------------------------------------------------------------------------


def test_metrics():
    """The metrics come in the format that the Accept header asks for."""
    status, headers, body = answer("/metrics", headers={"Accept": "text/plain", "Accept-Encoding": "identity"})

    assert (status, body) == (200, METRICS)
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    openmetrics = answer("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0,*/*;q=0.1"})
    assert openmetrics[1]["Content-Type"].startswith("application/openmetrics-text")


def test_metrics_are_compressed_on_request():
    """A client that accepts gzip gets it, another does not."""
    _, headers, body = answer("/metrics", headers={"Accept-Encoding": "gzip"})

    assert headers["Content-Encoding"] == "gzip"
    assert len(body) < len(METRICS) / 10
    assert "Content-Encoding" not in answer("/metrics", headers={"Accept-Encoding": "identity"})[1]


def test_another_telemetry_path():
    """The metrics move to the configured path."""

    async def main():
        async with running(telemetry_path="/kv/metrics") as base:
            return [(await ask(base, path))[0] for path in ("/kv/metrics", "/metrics")]

    assert asyncio.run(main()) == [200, 404]


def test_probes():
    """Healthy and ready answer with one word, whatever the state of the metrics."""

    def broken(_accept):
        raise RuntimeError

    assert answer("/-/healthy", metrics=broken)[::2] == (200, b"ok\n")
    assert answer("/-/ready", metrics=broken)[::2] == (200, b"ready\n")


def test_state():
    """The state is JSON that no cache keeps."""
    status, headers, body = answer("/api/v1/state", state=lambda: {"a": "<é>"})

    assert (status, body) == (200, b'{"a": "<\\u00e9>"}\n')
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    assert headers["Cache-Control"] == "no-store"


def test_page():
    """The page names program and version, links every route, and loads nothing but what is served beside it."""
    _, headers, body = answer("/", headers={"Accept-Encoding": "identity"})
    page = body.decode()
    links, loaded = [], []

    class Links(HTMLParser):
        def handle_starttag(self, tag, attributes):
            found = links if tag == "a" else loaded
            found.extend(value for name, value in attributes if name in ("href", "src"))

    Links().feed(page)
    policy = headers["Content-Security-Policy"]

    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert sorted(PATHS[1:]) == sorted(urljoin("/", link) for link in links)
    assert PAGE_PATHS == [urljoin("/", name) for name in loaded if not name.startswith("data:")]
    assert f"kvpressure {__version__}" in page
    assert '<html lang="en">' in page
    assert "style=" not in page
    assert "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("path", [*PATHS, *PAGE_PATHS, "/nowhere"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_headers_of_every_answer(path, method):
    """Every answer, also an error, has the security headers, is not cached, and names no library."""
    status, headers, body = answer(path, method)

    assert status == (404 if path == "/nowhere" else 405 if method == "POST" else 200)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
    assert headers["Cache-Control"] == "no-store"
    assert headers["Server"] == "kvpressure"
    assert bool(body) == (method != "HEAD")


def test_head_announces_the_length():
    """HEAD gives the headers of GET without a body."""
    assert answer("/metrics", "HEAD", headers={"Accept-Encoding": "identity"})[1]["Content-Length"] == str(len(METRICS))


def test_errors_are_short():
    """What does not exist or is not allowed is said in a few plain words."""
    assert answer("/<script>")[2] == b"not found\n"
    status, headers, body = answer("/metrics", "DELETE")

    assert (status, body) == (405, b"method not allowed\n")
    assert set(headers["Allow"].split(",")) == {"GET", "HEAD"}


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/state"])
def test_fault_in_a_source(path, logged):
    """A source that raises gives a 500 in one plain sentence; the cause is logged, at most once a minute."""

    def broken(*_):
        raise RuntimeError("the cause")

    async def main():
        async with running(metrics=broken, state=broken) as base:
            return [await ask(base, path) for _ in range(3)]

    for status, _, body in asyncio.run(main()):
        assert (status, body) == (500, b"the exporter could not answer this; its log says why\n")
    assert logged.getvalue().count('error="RuntimeError: the cause"') == 1


def test_state_that_is_not_json():
    """A state that holds a number JSON does not know is a fault, never an answer that no parser reads."""
    assert answer("/api/v1/state", state=lambda: {"a": float("nan")})[0] == 500


def test_nonsense_is_not_logged(logged):
    """Requests that are no HTTP, or too large, are refused without a line in the log."""

    async def send(port, data):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        line = await asyncio.wait_for(reader.readline(), 2)
        writer.close()
        return line

    async def main():
        async with running() as base:
            port = int(base.rpartition(":")[2])
            return [
                await send(port, data)
                for data in (
                    b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
                    b"GET / HTTP/1.1\r\nAuthorization: c4n4ry\x00\r\n\r\n",
                    b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
                    b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
                )
            ]

    assert all(b" 400 " in line for line in asyncio.run(main()))
    lines = [line for line in logged.getvalue().splitlines() if "asyncio" not in line and "listening" not in line]
    assert not lines


# --- addresses ------------------------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_two_addresses():
    """Every listen address answers."""
    ports = free_port(), free_port()

    async def main():
        async with running(listen_address=tuple(f"127.0.0.1:{port}" for port in ports)):
            return [(await ask(f"http://127.0.0.1:{port}", "/-/healthy"))[0] for port in ports]

    assert asyncio.run(main()) == [200, 200]


def test_every_interface():
    """An address without a host listens on every interface."""
    port = free_port()

    async def main():
        async with running(listen_address=(f":{port}",)):
            return (await ask(f"http://127.0.0.1:{port}", "/-/healthy"))[0]

    assert asyncio.run(main()) == 200


def test_every_interface_without_ipv6(monkeypatch):
    """Where IPv6 is switched off, an address without a host listens on IPv4 alone."""
    start = web.TCPSite.start

    async def without_ipv6(site):
        if site._host is None:
            raise OSError(errno.EADDRNOTAVAIL, "no IPv6")
        await start(site)

    monkeypatch.setattr(web.TCPSite, "start", without_ipv6)
    port = free_port()

    async def main():
        async with running(listen_address=(f":{port}",)):
            return (await ask(f"http://127.0.0.1:{port}", "/-/healthy"))[0]

    assert asyncio.run(main()) == 200


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:{used}", "web.listen-address: cannot listen on '{}': address already in use"),
        ("192.0.2.1:9999", "web.listen-address: cannot listen on '{}': cannot assign requested address"),
        ("no-such-host.invalid:9999", "web.listen-address: the host of '{}' cannot be resolved"),
        ("no..host:9999", "web.listen-address: the host of '{}' cannot be resolved"),
        (f"{64 * 'x'}:9999", "web.listen-address: the host of '{}' cannot be resolved"),
    ],
)
def test_address_that_cannot_be_used(address, sentence):
    """An address that cannot be listened on refuses the start by name, and the others are let go."""
    good = free_port()

    async def main(used):
        bad = address.format(used=used)
        with pytest.raises(ConfigError) as fault:
            async with running(listen_address=(f"127.0.0.1:{good}", bad)):
                pass
        assert str(fault.value) == sentence.format(bad)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        asyncio.run(main(taken.getsockname()[1]))
    with socket.socket() as again:
        again.bind(("127.0.0.1", good))


# --- TLS and basic auth ---------------------------------------------------------------------------------------------


@pytest.fixture
def web_file(tmp_path, authority):
    """A web configuration with TLS for 127.0.0.1 and one user."""
    cert, key = authority.issue("exporter", "127.0.0.1")
    hashed = bcrypt.hashpw(b"sesame", bcrypt.gensalt(4)).decode()
    path = tmp_path / "web.yml"
    path.write_text(
        f"tls_server_config: {{cert_file: {cert}, key_file: {key}}}\nbasic_auth_users: {{prometheus: {hashed}}}\n"
    )
    return path


def login(password):
    return {"Authorization": "Basic " + base64.b64encode(f"prometheus:{password}".encode()).decode()}


def test_tls_and_basic_auth(web_file, authority):
    """Over TLS, every path but the probe of health asks for the password, and the right one opens it."""
    client = ssl.create_default_context(cafile=authority.file)

    async def main():
        async with running(config_file=str(web_file)) as base:
            assert (await ask(base, "/-/healthy", ssl=client))[0] == 200
            for path in [path for path in [*PATHS, *PAGE_PATHS, "/nowhere"] if path != "/-/healthy"]:
                for headers in ({}, login("wrong")):
                    status, answered, body = await ask(base, path, ssl=client, headers=headers)
                    assert (status, body) == (401, b"unauthorized\n")
                    assert answered["WWW-Authenticate"] == 'Basic realm="kvpressure", charset="UTF-8"'
                    assert answered["X-Content-Type-Options"] == "nosniff"
                good = await ask(base, path, ssl=client, headers=login("sesame"))
                assert good[0] == (404 if path == "/nowhere" else 200)
            # A stream that is let in does not end by itself.
            assert (await ask(base, "/api/v1/events", ssl=client))[0] == 401
            with pytest.raises(aiohttp.ClientError):
                await ask(base.replace("https", "http"), "/metrics")

    asyncio.run(main())


def test_client_certificate(tmp_path, authority):
    """Where a client certificate is required, only a client that shows one is answered."""
    cert, key = authority.issue("mutual", "127.0.0.1")
    path = tmp_path / "web.yml"
    path.write_text(
        f"tls_server_config: {{cert_file: {cert}, key_file: {key}, client_ca_file: {authority.file}, "
        "client_auth_type: RequireAndVerifyClientCert, min_version: TLS13}"
    )
    stranger, known = (ssl.create_default_context(cafile=authority.file) for _ in range(2))
    known.load_cert_chain(*authority.issue("scraper"))
    old = ssl.create_default_context(cafile=authority.file)
    old.load_cert_chain(*authority.issue("scraper"))
    old.maximum_version = ssl.TLSVersion.TLSv1_2

    async def main():
        async with running(config_file=str(path)) as base:
            assert (await ask(base, "/metrics", ssl=known))[0] == 200
            for refused in (stranger, old):
                with pytest.raises(aiohttp.ClientError):
                    await ask(base, "/metrics", ssl=refused)

    asyncio.run(main())


def test_broken_web_file(tmp_path):
    """A web configuration that cannot be used refuses the application."""
    path = tmp_path / "web.yml"
    path.write_text("tls_server_config: {cert_file: none, key_file: none}")
    with pytest.raises(ConfigError, match=r"tls_server_config\.cert_file: .*/none cannot be read"):
        make_app(Config(web=WebConfig(config_file=str(path))), metrics=metrics, state=state, snapshot=snapshot)


# --- the end --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [False, True])
def test_shutdown_is_quick(tls, web_file, authority):
    """With an idle keep-alive connection and a client that reads nothing, shutting down takes under a second."""
    client = ssl.create_default_context(cafile=authority.file) if tls else None
    how = {"config_file": str(web_file)} if tls else {}
    big = b"#" * 50_000_000

    async def open_and_ask(port, path):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, limit=1024)
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {login('sesame')['Authorization']}\r\n\r\n"
        writer.write(head.encode())
        await reader.readline()
        return writer

    async def main():
        async with running(metrics=lambda _accept: (big, "text/plain"), **how) as base:
            port = int(base.rpartition(":")[2])
            writers = [await open_and_ask(port, path) for path in ("/-/healthy", "/metrics")]
            await asyncio.sleep(0.1)
            before = time.monotonic()
        took = time.monotonic() - before
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.05)
        return took

    assert asyncio.run(main()) < 1
