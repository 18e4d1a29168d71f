"""The real program and requests meant to be misunderstood: what the tap passes on, and what the web server serves."""

import contextlib
import http.client
import re
import socket
import time
from urllib.parse import quote

import pytest
from attackers import CANARY
from commands import free_port, running
from raw_server import RawServer

from kvpressure.config import Config
from kvpressure.derive.snapshot import Snapshot
from kvpressure.expose.server import make_app

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SILENCE = 0.05
"""Seconds without a byte after which the upstream answers."""


class Recorder(RawServer):
    """A raw upstream that keeps every byte which it is sent, and answers whatever it is."""

    def __init__(self):
        self.received = bytearray()
        super().__init__()

    def answer(self, connection):
        while data := connection.recv(65536):
            connection.settimeout(SILENCE)
            with contextlib.suppress(TimeoutError):
                while more := connection.recv(65536):
                    data += more
            connection.settimeout(None)
            self.received += data
            connection.sendall(ANSWER)


def ask(port, data, seconds=2.0):
    """What comes back until the connection is closed, or an answer is here and nothing follows it."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(data)
        answer = b""
        client.settimeout(seconds)
        with contextlib.suppress(OSError):
            while part := client.recv(65536):
                answer += part
                client.settimeout(3 * SILENCE)
        return answer


@pytest.fixture(scope="module")
def proxied():
    """A sidecar whose tap leads to a raw upstream: that, the port of the tap and the port of the web server."""
    upstream, tap = Recorder(), free_port()
    flags = ("--vllm.url", f"http://127.0.0.1:{free_port()}/metrics", "--tap.listen", f"127.0.0.1:{tap}")
    flags += ("--tap.upstream", f"http://127.0.0.1:{upstream.port}", "--log.level", "debug")
    with running("serve", *flags, ready="/-/ready") as sidecar:
        yield upstream, tap, int(sidecar.url.rpartition(":")[2])
        assert sidecar.stop() == 0
        assert CANARY not in sidecar.stderr
        assert "smuggled" not in sidecar.stderr
        assert "Traceback" not in sidecar.stderr
    upstream.stop()


# --- smuggling ------------------------------------------------------------------------------------------------------

POST = b"POST /first HTTP/1.1\r\nHost: vllm\r\n"
SECOND = b"GET /smuggled HTTP/1.1\r\nHost: vllm\r\n\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n" % len(SECOND)
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
HELLO = CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"
EMPTY = b"0\r\n\r\n"

REFUSED = {
    "CL.TE": POST + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nX" + SECOND,
    "TE.CL": POST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n%x\r\n" % len(SECOND)
    + SECOND
    + b"\r\n0\r\n\r\n",
    "TE: xchunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n" + EMPTY + SECOND,
    "TE: space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n" + EMPTY + SECOND,
    "TE: space before the name": POST + b" Transfer-Encoding: chunked\r\n\r\n" + EMPTY + SECOND,
    "TE: vertical tab": POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n" + EMPTY + SECOND,
    "TE: chunked, then identity": POST
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n"
    + EMPTY
    + SECOND,
    "TE: twice": POST + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n" + EMPTY + SECOND,
    "TE: chunked is not last": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + EMPTY + SECOND,
    "TE: quoted": POST + b'Transfer-Encoding: "chunked"\r\n\r\n' + EMPTY + SECOND,
    "TE: with a parameter": POST + b"Transfer-Encoding: chunked;x=1\r\n\r\n" + EMPTY + SECOND,
    "TE: empty": POST + b"Transfer-Encoding:\r\n\r\n" + EMPTY + SECOND,
    "TE: folded": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + EMPTY + SECOND,
    "TE: in HTTP/1.0": CHUNKED.replace(b"1.1", b"1.0") + EMPTY + SECOND,
    "CL: two that differ": POST + b"Content-Length: 0\r\n" + LENGTH + SECOND,
    "CL: two alike": POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "CL: a list": POST + b"Content-Length: 5, 5\r\n\r\nhello",
    "CL: plus": POST + b"Content-Length: +5\r\n\r\nhello",
    "CL: minus": POST + b"Content-Length: -5\r\n\r\nhello",
    "CL: hexadecimal": POST + b"Content-Length: 0x5\r\n\r\nhello",
    "CL: underscore": POST + b"Content-Length: 1_0\r\n\r\nhellohello",
    "CL: space within": POST + b"Content-Length: 5 0\r\n\r\nhello",
    "CL: space before the colon": POST + b"Content-Length : 5\r\n\r\nhello",
    "CL: empty": POST + b"Content-Length: \r\n\r\n" + SECOND,
    "CL: digits of another script": POST + "Content-Length: \u0665\r\n\r\nhello".encode(),
    "CL: beyond 64 bits": POST + b"Content-Length: 99999999999999999999999\r\n\r\nhello",
    "CL: NUL": POST + b"Content-Length: 5\x00\r\n\r\nhello",
    "chunk size: 0x": CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n",
    "chunk size: plus": CHUNKED + b"+5\r\nhello\r\n0\r\n\r\n",
    "chunk size: minus": CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n",
    "chunk size: underscore": CHUNKED + b"1_0\r\nhellohellohello!\r\n0\r\n\r\n",
    "chunk size: beyond 64 bits": CHUNKED + b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "chunk size: space": CHUNKED + b"5 \r\nhello\r\n0\r\n\r\n",
    "chunk: line ends in LF": CHUNKED + b"5\nhello\r\n0\r\n\r\n",
    "chunk: extension ends in LF": CHUNKED + b"5;a\nhello\r\n0\r\n\r\n" + SECOND,
    "chunk: line ends in CR": CHUNKED + b"5\rhello\r\n0\r\n\r\n",
    "chunk: data ends in LF": CHUNKED + b"5\r\nhello\n0\r\n\r\n",
    "chunk: data does not end": CHUNKED + b"5\r\nhello0\r\n\r\n",
    "chunk: data is longer than said": CHUNKED + b"5\r\nhelloXX0\r\n\r\n" + SECOND,
    "trailer that is a length": CHUNKED + b"5\r\nhello\r\n0\r\nContent-Length: 99\r\n\r\n",
    "lines end in LF": b"POST /first HTTP/1.1\nHost: vllm\nContent-Length: 5\n\nhello",
    "one line ends in LF": b"POST /first HTTP/1.1\r\nHost: vllm\nContent-Length: 5\r\n\r\nhello",
    "CR within a value": POST + b"X: a\rContent-Length: 5\r\n\r\n",
    "first line ends in CR": b"POST /first HTTP/1.1\rHost: vllm\r\n\r\n",
    "CR CR LF": POST + b"X: a\r\r\nContent-Length: 0\r\n\r\n",
    "folded line": POST + b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "NUL in a value": POST + b"X: a\x00b\r\n\r\n",
    "NUL in a name": POST + b"X\x00: b\r\n\r\n",
    "line without a colon": POST + b"Content-Length\r\n\r\n",
    "line without a name": POST + b": a\r\n\r\n",
    "two targets": b"POST /first /second HTTP/1.1\r\nHost: vllm\r\n\r\n",
    "two hosts": b"POST /first HTTP/1.1\r\nHost: vllm\r\nHost: other\r\n\r\n",
    "an unknown version": POST.replace(b"1.1", b"1.2") + b"\r\n",
    "a version in small letters": b"GET /first http/1.1\r\nHost: vllm\r\n\r\n",
    "line break after the method": b"GET\r\n /first HTTP/1.1\r\nHost: vllm\r\n\r\n",
    "HTTP/2's beginning": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SECOND,
    "CONNECT": b"CONNECT other:80 HTTP/1.1\r\nHost: other:80\r\n\r\n" + SECOND,
}

# Each is one request to any reader. What the upstream is sent, where that is not what was sent to the tap:
PASSED = {
    "a body that looks like a request": (POST + LENGTH + SECOND, None),
    "the same in a GET": (b"GET /first HTTP/1.1\r\nHost: vllm\r\n" + LENGTH + SECOND, None),
    "the same in a chunk": (CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(SECOND), SECOND), None),
    "the same, and asked for first": (POST + b"Expect: 100-continue\r\n" + LENGTH + SECOND, None),
    "TE: tab": (POST + b"Transfer-Encoding:\tchunked\r\n\r\n" + EMPTY, CHUNKED + EMPTY),
    "TE: letters": (POST + b"tRANSFER-eNCODING: cHUNKED\r\n\r\n" + EMPTY, None),
    "TE: underscore is another name": (POST + b"Transfer_Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + EMPTY, None),
    "TE: named by Connection": (HELLO.replace(b"Tr", b"Connection: Transfer-Encoding\r\nTr"), HELLO),
    "CL: named by Connection": (
        POST + b"Connection: Content-Length\r\nContent-Length: 5\r\n\r\nhello",
        POST + b"Content-Length: 5\r\n\r\nhello",
    ),
    "CL: leading zeros": (POST + b"Content-Length: 005\r\n\r\nhello", None),
    "chunk size: leading zeros": (CHUNKED + b"0005\r\nhello\r\n0\r\n\r\n", HELLO),
    "chunk: extension": (CHUNKED + b'5;a="b"\r\nhello\r\n0\r\n\r\n', HELLO),
    "a URL as the target": (b"GET http://other/first HTTP/1.1\r\nHost: vllm\r\n\r\n", None),
    "line breaks before it": (
        b"\r\n\r\nGET /first HTTP/1.1\r\nHost: vllm\r\n\r\n",
        SECOND.replace(b"smuggled", b"first"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_two_programs_could_read_differently_is_refused(proxied, name):
    """The answer is the tap's, the connection ends with it, and the upstream sees nothing."""
    upstream, tap, _ = proxied
    del upstream.received[:]

    answer = ask(tap, REFUSED[name])

    assert re.match(rb"HTTP/1\.1 (400|501) ", answer)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"smuggled" not in answer
    time.sleep(SILENCE * 1.5)
    assert bytes(upstream.received) == b""


@pytest.mark.parametrize("name", PASSED)
def test_what_all_programs_read_alike_passes_as_one_request(proxied, name):
    """The upstream is sent that one request, to the byte but for what is each connection's own."""
    upstream, tap, _ = proxied
    del upstream.received[:]
    sent, passed = PASSED[name]

    answer = ask(tap, sent)

    assert answer == ANSWER
    assert bytes(upstream.received) == (passed or sent)


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("name", ["CL.TE", "TE.CL", "TE: folded", "chunk: line ends in LF", "chunk: data does not end"])
def test_in_pieces_it_is_refused_as_well(proxied, name, pieces):
    """However the bytes arrive, no second request comes out of them."""
    upstream, tap, _ = proxied
    del upstream.received[:]
    data = REFUSED[name]

    with socket.create_connection(("127.0.0.1", tap)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError):
            for start in range(0, len(data), pieces):
                client.sendall(data[start : start + pieces])
                time.sleep(0.001)
        client.settimeout(2)
        answer = b""
        with contextlib.suppress(OSError):
            while part := client.recv(65536):
                answer += part

    assert b" 200 " not in answer
    time.sleep(SILENCE * 1.5)
    assert b"smuggled" not in upstream.received
    assert upstream.received.count(b" HTTP/1.1\r\n") <= 1


# --- paths and URLs -------------------------------------------------------------------------------------------------

APP = make_app(Config(), metrics=lambda _: (b"", ""), state=dict, snapshot=lambda: Snapshot(t=0.0, up=None))
ROUTES = sorted({route.resource.canonical for route in APP.router.routes()})
CLIMBS = ("..", "%2e%2e", "%2E.", "..%2f", "..%5c", "%252e%252e", "..\\", "....", "..;", "%c0%ae%c0%ae", "%00..")
TARGETS = [f"/-/{climb}/{climb}/{climb}/{climb}/{file}" for climb in CLIMBS for file in ("etc/passwd", "server.py")]
TARGETS += ["/-//etc/passwd", "/-/%2fetc%2fpasswd", "//etc/passwd", "/-/page.css/../../server.py", "/-/page.css%00.py"]
TARGETS += ["/-/", "/-", "/-/index.html", "/-/live.py", "file:///etc/passwd", "\\..\\server.py", "/-/C:\\x", "*"]


@pytest.mark.parametrize("target", TARGETS)
def test_no_path_leads_out_of_what_is_served(proxied, target):
    """Whatever the path, it is one of the routes or nothing."""
    answer = ask(proxied[2], f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())

    assert re.match(rb"HTTP/1\.[01] (400|404) ", answer)
    assert answer.endswith((b"\r\n\r\nnot found\n", b"\r\n\r\nbad request\n"))
    assert b"X-Content-Type-Options: nosniff\r\n" in answer


@pytest.mark.parametrize("path", ROUTES)
def test_no_endpoint_takes_a_url(proxied, path):
    """Nobody can have the exporter connect to an address: in no parameter, header, target or body."""
    port = proxied[2]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.3)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/{CANARY}"
        names = (
            "url",
            "target",
            "uri",
            "host",
            "module",
            "path",
            "redirect",
            "next",
            "callback",
            "upstream",
            "vllm.url",
        )
        query = "&".join(f"{name}={quote(url, safe='')}" for name in names)
        lines = "".join(
            f"{name}: {url}\r\n" for name in ("Host", "Referer", "X-Forwarded-Host", "Origin", "Destination")
        )
        for method in ("GET", "POST", "PUT", "OPTIONS", "PROPFIND"):
            for target in (f"{path}?{query}", url, f"{path}?{url}"):
                head = f"{method} {target} HTTP/1.1\r\n{lines}Connection: close\r\n"
                answer = ask(port, f"{head}Content-Length: {len(query)}\r\n\r\n{query}".encode())
                assert CANARY.encode() not in answer
                assert b"\r\nLocation:" not in answer
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize("path", [*ROUTES, "/nowhere"])
@pytest.mark.parametrize(
    "wrong", ["", "Host", "X: a\x00b\r\n", f"X: {'y' * 9000}\r\n", "X: z\r\n" * 200, f"X: {'y' * 990}\r\n" * 70]
)
def test_every_answer_has_the_security_headers(proxied, path, wrong):
    """Also one to what is no request, or a head too large; and that is in words that quote nothing."""
    head = f"GET {path} HTTP/1.1\r\nHost: {CANARY}\r\nConnection: close\r\n{wrong}\r\n"
    answer = ask(proxied[2], head.encode(), seconds=1.0).partition(b"\r\n\r\n")

    status = int(answer[0].split(b" ")[1])
    assert status in ((400, 431) if wrong else (404,) if path == "/nowhere" else (200,))
    for line in (b"X-Content-Type-Options: nosniff", b"X-Frame-Options: DENY", b"Referrer-Policy: no-referrer"):
        assert line in answer[0].split(b"\r\n")
    assert b"\r\nContent-Security-Policy: default-src 'none'; " in answer[0]
    assert b"\r\nServer: kvpressure" in answer[0]
    assert CANARY.encode() not in answer[2]


# --- two listeners --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ROUTES)
def test_the_tap_serves_none_of_the_web_servers_paths(proxied, path):
    """Such a request goes to the upstream, as every other one."""
    upstream, tap, _ = proxied
    del upstream.received[:]
    request = f"GET {path} HTTP/1.1\r\nHost: vllm\r\n\r\n".encode()

    assert ask(tap, request) == ANSWER
    assert bytes(upstream.received) == request


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/health", "/version", "/tokenize", "/v1/"])
def test_the_web_server_passes_nothing_on(proxied, path):
    """vLLM's paths are not found there, and the upstream hears nothing."""
    upstream, _, port = proxied
    del upstream.received[:]
    for method in ("GET", "POST"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request(method, path, body=b"{}")
        assert connection.getresponse().status == 404
        connection.close()
    time.sleep(2 * SILENCE)
    assert bytes(upstream.received) == b""
