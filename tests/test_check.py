"""`kvpressure check`, against servers that answer with real expositions."""

import gzip
import http.server
import socketserver
import ssl
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import ENVIRONMENT, free_port, kvpressure
from dripping import BEGINNINGS, dripping

FIXTURES = Path(__file__).parent / "fixtures"
REAL = (FIXTURES / "lab" / "vllm-0.32.0.prom").read_text(encoding="utf-8")
EXPOSITIONS = Path(__file__).parent / "fixtures" / "expositions"
NOSTATS = (
    "# HELP python_info Python platform information\n# TYPE python_info gauge\n"
    'python_info{implementation="CPython",major="3",minor="12"} 1.0\n'
    'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 60.0\n'
)


@contextmanager
def vllm(body, status=200, version='{"version":"0.32.0"}', context=None):
    """A server that gives `body` at /metrics and `version` at /version."""
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, dict(self.headers)))
            text = version if self.path == "/version" else body
            self.send_response(200 if self.path == "/version" else status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def row(text, start):
    """The words of the line that starts with `start`."""
    return next(line for line in text.splitlines() if line.strip().startswith(start)).split()


def test_a_healthy_v1():
    """On a real 0.32 exposition every headline signal is available and the exit status is 0."""
    with vllm(REAL) as (url, _):
        said = kvpressure("check", url)

    assert (0, "") == (said.returncode, said.stderr)
    assert "V1 engine" in said.stdout
    assert ["version", "0.32.0"] == row(said.stdout, "version")
    assert "V1 recomputes" in said.stdout
    assert ["KV", "capacity", "1,920", "tokens"] == row(said.stdout, "KV capacity")
    assert ["kvpressure_preemptions_per_thousand_requests", "yes"] == row(
        said.stdout, "kvpressure_preemptions_per_thousand"
    )
    assert "Every headline signal of vLLM's metrics can be derived; what users see needs the tap" in said.stdout


def test_no_statistics():
    """Without any vllm: series it says which flag to take away, and exits with 1."""
    with vllm(NOSTATS) as (url, _):
        said = kvpressure("check", url)

    assert 1 == said.returncode
    assert "--disable-log-stats" in said.stdout
    assert "no vllm: series" in " ".join(said.stdout.split())
    assert "  * restart vLLM without --disable-log-stats" in said.stdout


def test_no_statistics_of_a_real_server():
    """The same on the exposition of a real vLLM that was started with --disable-log-stats."""
    body = gzip.decompress((EXPOSITIONS / "vllm-0.32.0-nostats.prom.gz").read_bytes()).decode()

    with vllm(body) as (url, _):
        said = kvpressure("check", url)

    assert 1 == said.returncode
    assert "  * restart vLLM without --disable-log-stats" in said.stdout


def test_v1_without_the_counter():
    """V1 0.7 has no preemption counter: the headline is missing, and the upgrade is named."""
    body = "\n".join(
        line.replace('engine="0",', "").replace('engine="0"', "")
        for line in REAL.splitlines()
        if "num_preemptions" not in line and "cache_config_info" not in line
    )
    with vllm(body + "\n") as (url, _):
        said = kvpressure("check", url)

    assert 1 == said.returncode
    assert ["kvpressure_preemptions_total", "no"] == row(said.stdout, "kvpressure_preemptions_total")[:2]
    assert "  * upgrade vLLM to 0.8.0 or later" in said.stdout


def test_v0_with_swap():
    """V0 is told by its names, and that it can swap by its CPU blocks."""
    body = (
        'vllm:num_requests_running{model_name="m"} 1\nvllm:num_requests_waiting{model_name="m"} 0\n'
        'vllm:num_requests_swapped{model_name="m"} 0\nvllm:gpu_cache_usage_perc{model_name="m"} 0.5\n'
        'vllm:num_preemptions_total{model_name="m"} 3\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",num_cpu_blocks="2048"} 1\n'
    )
    with vllm(body) as (url, _):
        said = kvpressure("check", url)

    assert "V0 engine" in said.stdout
    assert "swaps to the CPU" in said.stdout
    assert ["KV", "capacity", "16,000", "tokens"] == row(said.stdout, "KV capacity")
    assert ["kvpressure_requests_swapped", "yes"] == row(said.stdout, "kvpressure_requests_swapped")


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ("<html>hello</html>", 200, "is this the URL of vLLM's metrics?"),
        ("", 200, "the body is empty"),
        ("gone", 404, "it answered with status 404"),
    ],
)
def test_what_is_not_vllm(body, status, says):
    """An answer that is not an exposition is one sentence on stderr, exit status 1."""
    with vllm(body, status) as (url, _):
        said = kvpressure("check", url)

    assert (1, "") == (said.returncode, said.stdout)
    assert said.stderr.startswith(f"kvpressure check: {url}: ")
    assert says in said.stderr
    assert 1 == said.stderr.count("\n")


def test_an_engine_is_asked_for_what_itself_lacks():
    """Of two engines only one lacks its capacity: nothing is said of the cache of the other one."""
    body = "".join(f'vllm:num_requests_running{{model_name="m",engine="{engine}"}} 1\n' for engine in "01")
    with vllm(body + 'vllm:cache_config_info{engine="0",kv_cache_size_tokens="1600"} 1\n') as (url, _):
        said = kvpressure("check", url)

    assert "cache_config_info is not exposed" in " ".join(said.stdout.split())
    assert "before it knew the size" not in " ".join(said.stdout.split())


@pytest.mark.parametrize("host", ["a" * 64 + ".com", "a..b", ".x"])
def test_a_host_that_is_no_name(host):
    """A host that can be no name is said to be none, not taken for an answer that was broken off."""
    said = kvpressure("check", f"http://{host}/metrics")

    assert (1, "") == (said.returncode, said.stdout)
    assert f"kvpressure check: http://{host}/metrics: its host cannot be the name of one\n" == said.stderr


def test_nobody_there():
    """A refused connection is one sentence that names the URL."""
    url = f"http://127.0.0.1:{free_port()}/metrics"

    said = kvpressure("check", url)

    assert (1, "") == (said.returncode, said.stdout)
    assert (
        f"kvpressure check: {url}: nothing accepts a connection there; is vLLM running, and is the port right?\n"
        == said.stderr
    )


@pytest.mark.parametrize("begin", BEGINNINGS)
def test_an_answer_that_drips(begin):
    """A head, the length of a part, or a body that comes by the byte is given up as silence is."""
    with dripping(begin) as address:
        said = kvpressure("check", f"{address}/metrics", "--vllm.timeout", "0.5s")

    assert (1, "") == (said.returncode, said.stdout)
    assert f"{address}/metrics: it did not answer in time (vllm.timeout)" in said.stderr


def test_headers_and_token_are_sent(tmp_path):
    """The token of the file and the extra header reach vLLM, and neither is printed."""
    token = tmp_path / "token"
    token.write_text("canary-token\n", encoding="utf-8")
    with vllm(REAL) as (url, seen):
        said = kvpressure("check", url, "--vllm.bearer-token-file", str(token), "--vllm.header", "X-Team: canary")

    assert "Bearer canary-token" == seen[0][1]["Authorization"]
    assert "canary" == seen[0][1]["X-Team"]
    assert "canary" not in said.stdout + said.stderr


def test_over_a_unix_socket(tmp_path):
    """A vLLM that listens on a Unix socket is reached, and one that does not is one sentence."""

    class Server(socketserver.UnixStreamServer):
        pass

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Length", str(len(REAL)))
            self.end_headers()
            self.wfile.write(REAL.encode())

        def address_string(self):
            return "unix"

        def log_message(self, *_):
            pass

    path = str(tmp_path / "vllm.sock")
    with Server(path, Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        said = kvpressure("check", "http://vllm/metrics", "--vllm.unix-socket", path)
        server.shutdown()
        thread.join()
    gone = kvpressure("check", "http://vllm/metrics", "--vllm.unix-socket", str(tmp_path / "nothing.sock"))

    assert (0, "") == (said.returncode, said.stderr)
    assert "V1 engine" in said.stdout
    assert (1, 1) == (gone.returncode, gone.stderr.count("\n"))


def test_another_name_in_the_certificate(authority):
    """With a CA file and the certificate's name TLS works under an address that is not in it; without, it says so."""
    cert, key = authority.issue("vllm", "vllm.internal")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with vllm(REAL, context=context) as (plain, _):
        url = plain.replace("http://", "https://")
        good = kvpressure("check", url, "--vllm.ca-file", authority.file, "--vllm.server-name", "vllm.internal")
        bad = kvpressure("check", url, "--vllm.ca-file", authority.file)

    assert (0, "") == (good.returncode, good.stderr)
    assert 1 == bad.returncode
    assert "TLS failed" in bad.stderr


@pytest.mark.parametrize("given", ["a certificate that is pinned", "the system's authorities"])
def test_trusts_what_the_sampler_trusts(authority, given, monkeypatch):
    """A certificate that the sampler accepts is accepted: one given by itself, or one of the system's authorities."""
    cert, key = authority.issue("vllm", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    flags = ["--vllm.ca-file", cert]
    if given.startswith("the system"):
        monkeypatch.setitem(ENVIRONMENT, "SSL_CERT_FILE", authority.file)
        flags = []
    with vllm(REAL, context=context) as (plain, _):
        said = kvpressure("check", plain.replace("http://", "https://"), *flags)

    assert (0, "") == (said.returncode, said.stderr)


def test_what_no_client_can_do():
    """A Unix socket with TLS is refused as by the sampler, and nothing is asked over the network instead."""
    said = kvpressure("check", "https://127.0.0.1:1/metrics", "--vllm.unix-socket", "vllm.sock")

    sentence = "kvpressure check: vllm.unix-socket: speaks plain HTTP only; give vllm.url as http://\n"
    assert (2, "", sentence) == (said.returncode, said.stdout, said.stderr)


@pytest.mark.parametrize(
    ("setting", "content", "sentence"),
    [
        ("vllm.ca-file", None, "cannot be read: no such file or directory"),
        ("vllm.ca-file", "junk", "holds no usable PEM certificate"),
        ("vllm.bearer-token-file", None, "cannot be read: no such file or directory"),
        ("vllm.bearer-token-file", "", "is empty"),
        ("vllm.key-file", None, "cannot be read: no such file or directory"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path, setting, content, sentence):
    """A file with a credential or a certificate that cannot be used is one sentence that names setting and file."""
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    more = ["--vllm.cert-file", __file__] if setting == "vllm.key-file" else []

    said = kvpressure("check", "https://127.0.0.1:1/metrics", f"--{setting}", str(file), *more)

    assert (2, "", f"kvpressure check: {setting}: {file} {sentence}\n") == (said.returncode, said.stdout, said.stderr)


def test_labels_cannot_steer_the_terminal():
    """A model name with an escape sequence is printed without it."""
    body = 'vllm:num_requests_running{model_name="a\x1b[31mb\\nc"} 1\n'
    with vllm(body) as (url, _):
        said = kvpressure("check", url)

    assert "\x1b" not in said.stdout
    assert "a [31mb c" in said.stdout
