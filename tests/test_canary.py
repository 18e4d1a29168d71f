"""Nothing that a user sends or gets leaves the process: canaries go in by every way, and are looked for everywhere."""

import asyncio
import json
import socket
import threading
import time

import pytest
from aiohttp import web
from commands import free_port, get, kvpressure, running, wait_for

CANARY = "canary7Zq"
"""Part of every text, id, key and name below. A model's name is not: it is a label."""
CLIENT = "127.77.88.99"
"""The address that clients come from."""

METRICS = (
    'vllm:num_requests_running{engine="0",model_name="m"} 1\n'
    'vllm:num_requests_waiting{engine="0",model_name="m"} 0\n'
    'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5\n'
    'vllm:num_preemptions_total{engine="0",model_name="m"} 0\n'
)


def message(text, **more):
    delta = {"id": f"chatcmpl-{CANARY}", "model": "m", "choices": [{"index": 0, "delta": {"content": text}} | more]}
    return f"data: {json.dumps(delta)}\n\n".encode()


class Upstream:
    """A server that answers with canaries, and breaks in several ways."""

    def __init__(self):
        self.port = free_port()
        self.paths = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def _serve(self):
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()

    async def _start(self):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def _answer(self, request):
        self.paths.append(request.path)
        if request.path == "/metrics":
            return web.Response(text=METRICS)
        if request.path.endswith("/error"):
            return web.json_response({"error": {"message": f"bad prompt {CANARY}"}}, status=500)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Request-Id": CANARY})
        await response.prepare(request)
        await response.write(message(f"{CANARY} one"))
        await response.write(b"data: {broken " + CANARY.encode() + b"\n\n")
        await response.write(message(f"{CANARY} two"))
        if request.path.endswith("/cut"):
            request.transport.abort()
            return response
        await response.write(f'data: {{"error": {{"message": "{CANARY}"}}}}\n\ndata: [DONE]\n\n'.encode())
        return response

    def stop(self):
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


def ask(port, text):
    """Send bytes from the clients' address, and read until the end."""
    with socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(CLIENT, 0)) as client:
        client.sendall(text)
        client.settimeout(10)
        answer = b""
        try:
            while part := client.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
        return answer


def request(path, method="POST", extra=""):
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": CANARY}]})
    return (
        f"{method} {path}?api_key={CANARY} HTTP/1.1\r\nHost: {CANARY}.example\r\nAuthorization: Bearer {CANARY}\r\n"
        f"X-Request-Id: {CANARY}\r\nCookie: {CANARY}={CANARY}\r\nConnection: close\r\n{extra}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


REQUESTS = (
    request("/v1/chat/completions"),
    request("/v1/error"),
    request("/v1/cut"),
    request(f"/{CANARY}/%2f..//x"),
    request(f"{CANARY} no path"),
    request("/v1/chat/completions", extra=f"Transfer-Encoding: chunked {CANARY}\r\n"),
    request("/v1/chat/completions", extra=f"X-Long: {CANARY * 20_000}\r\n"),
    request("/v1/chat/completions", method=f"{CANARY}\x00"),
    f"{CANARY}\r\n\r\n".encode(),
)

PREFIX = "(APIServer pid=7) INFO 11-30 05:19:03 [request_logger.py:108] "
CRI = "2026-11-30T05:19:03.579408000Z stdout F "
RECORD = {"asctime": "2026-11-30 05:59:10,241", "levelname": "INFO"}
LINES = (
    f"{PREFIX}Received request chatcmpl-{CANARY}: prompt: '{CANARY}', params: SamplingParams(stop=['{CANARY}'])",
    f"{PREFIX}Generated response chatcmpl-{CANARY} (streaming delta): output: '{CANARY}', finish_reason: None",
    f"{CRI}{PREFIX}Generated response chatcmpl-{CANARY}2 (streaming delta): output: '{CANARY}', finish_reason: None",
    f"2026-11-30T05:19:03.5Z stdout P {PREFIX}Generated response {CANARY}",
    f"{CRI}{PREFIX}Aborted request(s) {CANARY}-9fa351a2,{CANARY}.",
    json.dumps({"log": f"{PREFIX}Added request {CANARY}.\n", "stream": "stdout", "time": f"not {CANARY}"}),
    json.dumps(RECORD | {"message": f"Generated response {CANARY} (streaming delta): output: '{CANARY}'"}),
    json.dumps({"request_id": CANARY, "event": "token", "time": CANARY}),
    json.dumps({"request_id": CANARY, "event": CANARY, "time": 1.0, "model": CANARY}),
    json.dumps({"request_id": CANARY, "event": "token", "time": 1.0, "model": CANARY, "choice": CANARY}),
    f'INFO:     {CLIENT}:5 - "POST /v1/completions?{CANARY} HTTP/1.1" 200 OK',
    f'{{"broken": "{CANARY}',
    f"\x1b[31m{CANARY}\x1b[0m \udcff",
)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """All that a sidecar says in all its places after canaries went in by every way; and what it counted."""
    log = tmp_path_factory.mktemp("log") / "vllm.log"
    log.touch()
    nothing = tmp_path_factory.mktemp("log") / "nothing.log"
    nothing.touch()
    upstream = Upstream()
    tap, dead = free_port(), free_port()
    flags = ["--vllm.url", f"http://127.0.0.1:{upstream.port}/metrics", "--log.level", "debug", "--log.path", str(log)]
    flags += ["--log.path", str(nothing), "--tap.listen", f"127.0.0.1:{tap}"]
    said = []
    try:
        for where in (upstream.port, dead):
            with running("serve", *flags, "--tap.upstream", f"http://127.0.0.1:{where}", ready="/-/ready") as sidecar:
                wait_for(lambda: "kvpressure_log_files" in get(f"{sidecar.url}/metrics")[1], 10)
                wait_for(lambda: get(f"{sidecar.url}/metrics")[1].count("kvpressure_log_files 2.0") == 1, 10)
                answers = [ask(tap, text) for text in REQUESTS]
                if where == dead:
                    # What the tap says itself; what the upstream said is the client's own.
                    said += [answer.decode("latin-1") for answer in answers]
                for number in range(3):
                    with log.open("a", encoding="utf-8", errors="surrogateescape") as file:
                        file.write("\n".join(LINES) + "\n")
                    with nothing.open("a", encoding="utf-8") as file:
                        file.write(f"{CANARY} is no log {number}\n" * 200)
                    time.sleep(0.4)
                wait_for(lambda: "kvpressure_log_lines_total 6" in get(f"{sidecar.url}/metrics")[1], 10)
                pages = [get(sidecar.url + path)[1] for path in ("/metrics", "/api/v1/state", "/", f"/{CANARY}")]
                assert sidecar.stop() == 0
                said += [*pages, sidecar.stderr]
                if where != dead:
                    counted = pages[0]
    finally:
        upstream.stop()
    return said, counted


def test_no_canary_comes_out(everything):
    """Neither metrics, state, pages, the log at debug nor the tap's own answers hold a canary or an address."""
    said, _ = everything

    assert [text for text in said if CANARY in text] == []
    assert [text for text in said if CLIENT in text] == []


def test_the_canaries_went_in(everything):
    """What was sent was seen: streams by both observers, lines, faults of the traffic."""
    _, counted = everything

    assert 'kvpressure_requests_streamed_total{model_name="m",source="tap"} ' in counted
    assert 'kvpressure_requests_streamed_total{model_name="m",source="tap"} 0.0' not in counted
    assert 'kvpressure_requests_streamed_total{model_name="m",source="log"} ' in counted
    assert 'kvpressure_requests_streamed_total{model_name="m",source="log"} 0.0' not in counted
    assert 'kvpressure_tap_broken_responses_total{side="upstream"} 1.0' in counted
    assert 'kvpressure_tap_refused_total{reason="headers"}' in counted
    assert "kvpressure_tap_observation_faults_total 0.0" in counted
    assert "kvpressure_log_errors_total" in counted


def test_a_canary_in_a_recording(tmp_path):
    """A replay tells neither the text nor the ids of a log, nor of lines that it cannot use."""
    (tmp_path / "metrics.jsonl").write_text(
        json.dumps({"t": 1796015943.0, "body": METRICS}) + f'\n{{"t": "{CANARY}"}}\n', encoding="utf-8"
    )
    (tmp_path / "server.log").write_text("\n".join(LINES[:-1]) + "\n", encoding="utf-8")

    for words in ((str(tmp_path),), (str(tmp_path), "--step", "1s")):
        said = kvpressure("replay", *words)
        assert said.stdout
        assert CANARY not in said.stdout + said.stderr
