"""What the tap tells of streams, what it does not tell, and that nothing of it is felt."""

import asyncio
import gzip
import itertools
import json
import socket
import subprocess
import sys
import time
from collections import Counter

import aiohttp
import pytest
from commands import free_port
from taps import (
    DONE,
    POST,
    STREAM,
    TOKENS,
    Sink,
    framed,
    in_loop,
    read_answer,
    says,
    streams,
    tapped,
    token,
    unchunked,
    until,
)

from kvpressure.config import StreamConfig
from kvpressure.derive.streams import Streams
from kvpressure.observe import tap_exchange, tap_watch
from kvpressure.vllm import sse
from kvpressure.vllm.stream import TapFacts

ROLE = b'data: {"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
USAGE = b'data: {"model":"m","choices":[],"usage":{"total_tokens":3}}\n\n'


async def ask(it, request=POST):
    """What a stream through the tap says, when all of it has passed."""
    answer = await it.ask(request)
    await it.settled()
    return answer


# --- events ---------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_stream_is_told_chunk_by_chunk():
    """Its start, each chunk with the model and the time of its arrival, and its end; the role and usage are none."""
    async with tapped(streams(ROLE, *TOKENS, token(finish='"stop"'), USAGE, DONE, pause=0.02)) as it:
        began = time.time()
        await ask(it)
        events = it.sink.events
        assert ["start", "token", "token", "token", "last", "end"] == it.sink.kinds
        assert [""] + ["m"] * 5 == [event.model for event in events]
        assert {0} == {event.choice for event in events}
        assert 1 == len({event.request for event in events})
        times = [event.t for event in events]
        assert times == sorted(times)
        assert began < times[0] < times[-1] < time.time()
        gaps = [later - earlier for earlier, later in itertools.pairwise(times[1:5])]
        assert all(gap > 0.015 for gap in gaps)


@in_loop
async def test_each_response_has_a_key_of_its_own():
    """One after the other on one connection, and at once."""
    async with tapped(streams(*TOKENS, DONE)) as it:
        reader, writer = await it.connect()
        for _ in range(2):
            writer.write(POST)
            await read_answer(reader)
        await asyncio.gather(*(ask(it) for _ in range(10)))
        kinds = Counter(event.request for event in it.sink.events)
        assert 12 == len(kinds)
        assert {5} == set(kinds.values())


@in_loop
async def test_a_stream_ends_once():
    """With [DONE], or where that is missing with its body."""
    async with tapped(streams(*TOKENS, DONE, token())) as it:
        await ask(it)
        assert ["start", "token", "token", "token", "end"] == it.sink.kinds
    async with tapped(streams(*TOKENS)) as it:
        await ask(it)
        assert ["start", "token", "token", "token", "end"] == it.sink.kinds


@in_loop
async def test_a_stream_that_tells_of_an_error_is_broken_off():
    """Although its body is whole."""
    async with tapped(streams(token(), b'data: {"error":{"message":"no"}}\n\n', DONE)) as it:
        await ask(it)
        assert ["start", "token", "abort"] == it.sink.kinds
        assert {} == it.facts.broken


@pytest.mark.parametrize(
    ("content_type", "watched"),
    [
        ("text/event-stream", True),
        ("Text/Event-Stream ;charset=utf-8", True),
        ("application/json", False),
        ("text/event-streams", False),
        ("", False),
    ],
)
@in_loop
async def test_only_event_streams_are_watched(content_type, watched):
    """By their content type, without regard to case and parameters."""
    line = f"Content-Type: {content_type}\r\n" if content_type else ""
    async with tapped(says(token() + DONE, headers=line)) as it:
        await ask(it)
        assert (["start", "token", "end"] if watched else []) == it.sink.kinds
        assert {"2xx": 1} == it.facts.responses


@in_loop
async def test_an_answer_to_head_is_not_watched():
    """It has the content type of a stream and no body."""

    async def respond(call):
        await call.say(STREAM)

    async with tapped(respond) as it:
        await ask(it, b"HEAD / HTTP/1.1\r\nHost: vllm\r\n\r\n")
        assert [] == it.sink.events


@pytest.mark.parametrize("encoding", ["gzip", "br", "x-own", "gzip, identity"])
@in_loop
async def test_a_compressed_stream_passes_and_is_counted(encoding):
    """It is not unpacked, so it cannot be timed."""
    body = gzip.compress(token() + DONE)
    line = f"Content-Type: text/event-stream\r\nContent-Encoding: {encoding}\r\n"
    async with tapped(says(body, headers=line)) as it:
        assert body == (await ask(it)).partition(b"\r\n\r\n")[2]
        assert [] == it.sink.events
        assert {"encoding": 1} == it.facts.unobserved


@in_loop
async def test_a_message_that_is_too_long_passes_and_makes_a_stream_unobserved_in_part(monkeypatch):
    """No gap is made of the time over which nothing is known; the stream is counted once."""
    monkeypatch.setattr(sse, "MAX_MESSAGE", 2000)
    monkeypatch.setattr(sse, "_MAX_LINE", 2100)
    long = b"data: " + b"x" * 5000 + b"\n\n"
    async with tapped(streams(token(), long, long, token(), DONE)) as it:
        body = unchunked((await ask(it)).partition(b"\r\n\r\n")[2])
        assert token() + long + long + token() + DONE == body
        assert ["start", "token", "blind", "blind", "token", "end"] == it.sink.kinds
        assert {"message_size": 1} == it.facts.unobserved


@in_loop
async def test_answers_are_counted_by_class():
    """Those that were passed on, and only them."""

    async def respond(call):
        await says(status=call.head.split(b"/")[1].split(b" ")[0].decode() + " X")(call)

    async with tapped(respond) as it:
        for status in (200, 200, 302, 404, 429, 503):
            await it.ask(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % status)
        await it.settled()
        assert {"2xx": 2, "3xx": 1, "4xx": 2, "5xx": 1} == it.facts.responses
        assert TapFacts(responses=it.facts.responses) == it.facts


@in_loop
async def test_the_sink_hears_that_silence_lasts():
    """Again and again, so that a pause counts while it lasts."""
    async with tapped(says()) as it:
        began = time.time()
        await until(lambda: len(it.sink.advanced) > 1)
        assert it.sink.advanced == sorted(it.sink.advanced)
        assert began < it.sink.advanced[0] < time.time()


# --- slow clients and slow servers ----------------------------------------------------------------------------------

PAUSE = 0.6
SMALL = 4096


def small_buffers(sock):
    """So that a client that does not read is felt soon."""
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, SMALL)


@in_loop
async def test_a_server_that_pauses_pauses():
    """The gap is what the server made of it, and no client is blamed."""
    streams_seen = Streams("tap", StreamConfig(pause_threshold=PAUSE / 2), lambda name: name)

    async def pauses(call):
        await call.body()
        await call.say(STREAM, framed(token()))
        await asyncio.sleep(PAUSE)
        await call.say(framed(token()), framed(token()), framed(DONE) + b"0\r\n\r\n")

    async with tapped(pauses, sink=streams_seen) as it:
        await ask(it)
        (seen,) = streams_seen.snapshot(time.time())
        assert (1, 1) == (seen.streamed, seen.paused)
        assert seen.windows[0].gap_max_seconds > 0.95 * PAUSE
        assert 0.0 == it.facts.blocked


@in_loop
async def test_a_client_that_does_not_read_is_no_pause():
    """
    While its buffers are full nothing is known of time, so no gap reaches across that.

    Neither is a pause counted while it lasts, and its time is accounted for.
    """
    streams_seen = Streams("tap", StreamConfig(pause_threshold=PAUSE / 2), lambda name: name)
    sink = Both(streams_seen)
    text = "y" * 1000

    async def flows(call):
        small_buffers(call.writer.get_extra_info("socket"))
        await call.body()
        await call.say(STREAM)
        for _ in range(1500):
            await call.say(framed(token(text)), pause=0.0002)
        await call.say(framed(DONE) + b"0\r\n\r\n")

    async with tapped(flows, sink=sink) as it:
        sock = socket.socket()
        small_buffers(sock)
        sock.setblocking(False)  # noqa: FBT003
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", it.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=SMALL)
        writer.write(POST.replace(b"Host", b"Connection: close\r\nHost"))
        await reader.readuntil(b"data: ")
        (client,) = it.tap._server.connections
        small_buffers(client.transport.get_extra_info("socket"))
        await until(lambda: "blind" in sink.kinds)
        await asyncio.sleep(2 * PAUSE)
        assert 0 == streams_seen.snapshot(time.time())[0].paused
        assert 2 * PAUSE - 0.1 < it.facts.blocked < 20
        body = await reader.read()
        writer.close()
        await it.settled()
        assert body.endswith(DONE + b"\r\n0\r\n\r\n")
        (seen,) = streams_seen.snapshot(time.time())
        assert (1, 0) == (seen.streamed, seen.paused)
        assert seen.windows[0].gap_max_seconds < PAUSE / 2
        assert 2 * PAUSE - 0.1 < it.facts.blocked < 20
        assert 1500 == sink.kinds.count("token")


class Both(Sink):
    """Keeps events and hands them on."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def feed(self, events):
        super().feed(events)
        self.other.feed(events)

    def advance(self, t):
        self.other.advance(t)


@in_loop
async def test_a_moment_of_waiting_is_not_blocking(monkeypatch):
    """A buffer that is full for less than that tells nothing of the client."""
    monkeypatch.setattr(tap_exchange, "BLOCKED", 10.0)
    big = token("z" * 600_000)
    async with tapped(streams(token(), big, big, DONE)) as it:
        reader, writer = await it.connect()
        writer.transport.pause_reading()
        writer.write(POST)
        await asyncio.sleep(0.1)
        writer.transport.resume_reading()
        await read_answer(reader)
        await it.settled()
        assert "blind" not in it.sink.kinds
        assert 0.0 == it.facts.blocked


# --- observing that fails -------------------------------------------------------------------------------------------


class Failing(Sink):
    """Fails from a given event on."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def feed(self, events):
        super().feed(events)
        if any(event.kind == self.kind for event in events):
            raise ValueError("SECRET")

    def advance(self, t):  # noqa: ARG002
        raise ValueError("SECRET")


@pytest.mark.parametrize(
    ("kind", "kinds"),
    [
        ("start", ["start", "end"]),
        ("token", ["start", "token", "end"]),
        ("end", ["start", "token", "token", "token", "end", "end"]),
    ],
)
@in_loop
async def test_a_sink_that_fails_is_not_felt(kind, kinds, logged):
    """The bytes are the same, the fault is counted, and for the sink the stream ends there; the log quotes nothing."""
    async with tapped(streams(*TOKENS, DONE, pause=0.01), sink=Failing(kind)) as it:
        through = await ask(it)
        assert await it.ask(POST, it.upstream.port) == through
        assert kinds == it.sink.kinds
        assert it.facts.faults >= 1
        await until(lambda: it.facts.faults >= 3)
    assert "SECRET" not in logged.getvalue()
    assert 1 == logged.getvalue().count("error_type=ValueError where=test_tap_streams.py")


@in_loop
async def test_a_reader_that_fails_is_not_felt(monkeypatch):
    """Only that stream is lost sight of."""

    def fail(_self, _data):
        raise RecursionError

    async with tapped(streams(*TOKENS, DONE, pause=0.01)) as it:
        monkeypatch.setattr(tap_watch.SseReader, "feed", fail)
        assert b"0\r\n\r\n" == (await ask(it))[-5:]
        assert ["start", "end"] == it.sink.kinds
        assert 1 == it.facts.faults
        monkeypatch.undo()
        await ask(it)
        assert ["start", "token", "token", "token", "end"] == it.sink.kinds[2:]


@in_loop
async def test_a_fault_in_passing_on_is_answered_and_told(monkeypatch, logged):
    """500 in the shape of OpenAI's API, without a word of what the fault says."""

    def fail(*_args, **_more):
        raise ValueError("SECRET")

    monkeypatch.setattr(tap_exchange.tap_http, "request_head", fail)
    async with tapped(says()) as it:
        answer = await it.ask(POST)
        assert 500 == json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]
        await it.settled()
        assert {"fault": 1} == it.facts.refused
        assert b"SECRET" not in answer
    assert "SECRET" not in logged.getvalue()
    assert "error_type=ValueError" in logged.getvalue()


@pytest.mark.parametrize(("method", "status"), [("head", b"502"), ("data", b"200")])
@in_loop
async def test_a_fault_in_passing_an_answer_on_is_told(method, status, monkeypatch, logged):
    """Both connections end, for what was to come is lost; neither client nor log is told what the fault says."""

    def fail(self, *_args):
        if method == "data":
            self._write(self._held)
        raise ValueError("SECRET")

    monkeypatch.setattr(tap_exchange.Exchange, method, fail)
    async with tapped(streams(*TOKENS, DONE, pause=0.01)) as it:
        reader, writer = await it.connect()
        writer.write(POST.replace(b"Host", b"Connection: close\r\nHost"))
        answer = await reader.read()
        assert status == answer.split(b" ")[1]
        assert b"SECRET" not in answer
        await until(lambda: not it.upstream.open)
        await it.settled()
        assert 1 == it.facts.faults
    assert "SECRET" not in logged.getvalue()
    assert "error_type=ValueError" in logged.getvalue()


# --- many, and the lab ----------------------------------------------------------------------------------------------


@in_loop
async def test_five_hundred_streams_at_once():
    """Every one is whole, told from start to end, and over afterwards."""
    pieces = [token(str(number)) for number in range(20)]
    async with tapped(streams(*pieces, DONE, pause=0.05)) as it:
        clients = [await it.connect() for _ in range(500)]
        for _, writer in clients:
            writer.write(POST)
        answers = await asyncio.gather(*(read_answer(reader) for reader, _ in clients))
        bodies = {unchunked(answer.partition(b"\r\n\r\n")[2]) for answer in answers}
        assert {b"".join(pieces) + DONE} == bodies
        await it.settled()
        kinds = Counter(it.sink.kinds)
        assert {"start": 500, "token": 10_000, "end": 500} == kinds
        assert (0, {}, {}, 0) == (it.facts.open, it.facts.broken, it.facts.refused, it.facts.faults)


class Lab:
    """The lab as a process."""

    def __init__(self, *words):
        self.port = free_port()
        command = [sys.executable, "-m", "kvpressure.lab", "--web.listen-address", f"127.0.0.1:{self.port}", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{self.port}"

    async def ready(self):
        for _ in range(200):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return
        raise AssertionError("the lab did not start")

    def stop(self):
        self.process.terminate()
        self.process.wait(10)


@pytest.fixture
def lab():
    """A lab whose users are the tests."""
    running = Lab("--no-load", "--scenario", "calm", "--speed", "4")
    yield running
    running.stop()


async def running_in(url):
    """Requests that the lab works on."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        text = await answer.text()
    lines = [
        line for line in text.splitlines() if line.startswith(("vllm:num_requests_running", "vllm:num_requests_w"))
    ]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@in_loop
async def test_the_lab_answers_through_the_tap_as_without_it(lab):
    """Streams, whole answers, errors, metrics and 404: status, headers and body are the same."""
    await lab.ready()
    body = {"model": "lab-8b", "prompt": "one two three", "max_tokens": 5, "ignore_eos": True}
    chat = {"model": "lab-8b", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "ignore_eos": True}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    asks = [
        ("POST", "/v1/completions", body),
        ("POST", "/v1/completions", body | usage),
        ("POST", "/v1/chat/completions", chat | usage),
        ("POST", "/v1/chat/completions", chat),
        ("POST", "/v1/completions", body | {"model": "none"}),
        ("POST", "/v1/completions", body | {"max_tokens": -1}),
        ("GET", "/v1/models", None),
        ("GET", "/nothing", None),
        ("DELETE", "/v1/models", None),
    ]
    async with tapped(upstream=lab.url) as it, aiohttp.ClientSession() as session:
        for method, path, given in asks:
            answers = []
            for url in (lab.url, it.url):
                async with session.request(method, url + path, json=given, headers={"X-Request-Id": "r"}) as answer:
                    text = (await answer.text()).replace("created", "")
                    headers = [pair for pair in answer.raw_headers if pair[0] not in (b"Date", b"Content-Length")]
                    answers.append((answer.status, answer.reason, headers, [*map(strip, text.splitlines())]))
            assert answers[0] == answers[1]
        await it.settled()
        assert {"2xx": 5, "4xx": 4} == it.facts.responses
        assert ["start", *["token"] * 4, "last", "end"] * 2 == it.sink.kinds
        assert {"", "lab-8b"} == {event.model for event in it.sink.events}


def strip(line):
    """A line without what differs from second to second."""
    return "".join(letter for letter in line if not letter.isdigit())


@in_loop
async def test_two_hundred_aborted_streams_leave_nothing_open_in_the_lab(lab):
    """In the lab no request is left, so all its blocks are free; in the tap none is open."""
    await lab.ready()
    body = {"model": "lab-8b", "prompt": "one two", "max_tokens": 500, "ignore_eos": True, "stream": True}
    async with tapped(upstream=lab.url) as it, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as users:

        async def leave():
            async with users.post(f"{it.url}/v1/completions", json=body) as answer:
                await answer.content.readline()
                answer.close()

        await asyncio.gather(*(leave() for _ in range(200)))
        await it.settled()
        assert {"client": 200} == it.facts.broken
        for _ in range(100):
            if not await running_in(lab.url):
                break
            await asyncio.sleep(0.05)
        assert 0 == await running_in(lab.url)


@in_loop
async def test_nothing_that_passes_is_told(logged):
    """Texts, ids, keys, queries and addresses are in no log line, fact, event or error of the tap."""
    canary = "CANARY7f3a"
    secret = f'data: {{"id":"{canary}","model":"m","choices":[{{"index":0,"delta":{{"content":"{canary}"}}}}]}}\n\n'

    async def respond(call):
        body = await call.body()
        kind = call.head.split(b"/")[1].split(b"?")[0]
        if kind == b"broken":
            await call.say(f"{canary} {canary}\r\n\r\n".encode())
            return "close"
        if kind == b"half":
            await call.say(STREAM, framed(secret.encode()), f"{canary}\r\n".encode(), pause=0.01)
            return "close"
        assert canary.encode() in body
        await call.say(STREAM, framed(secret.encode()), framed(DONE) + b"0\r\n\r\n")
        return None

    async with tapped(respond, sink=Both(Failing("token")), max_header_bytes=4096) as it:
        told = []
        for path in ("ok", "broken", "half"):
            head = (
                f"POST /{path}?key={canary} HTTP/1.1\r\nHost: {canary}\r\nAuthorization: Bearer {canary}\r\n"
                f"X-Request-Id: {canary}\r\nContent-Length: {len(canary)}\r\n\r\n{canary}"
            )
            reader, writer = await it.connect()
            writer.write(head.encode())
            if path != "half":
                answer = await read_answer(reader)
            told += [answer] if path == "broken" else []
            writer.close()
        for bad in (f"{canary}\r\n\r\n", f"GET / HTTP/1.1\r\nHost: a\r\nX: {canary * 999}\r\n\r\n"):
            told.append(await it.ask(bad.encode()))
        await it.upstream.stop()
        told.append(await it.ask(f"GET /{canary} HTTP/1.1\r\nHost: {canary}\r\n\r\n".encode()))
        await it.settled()
        assert 4 == len(told)
        assert sum(it.facts.refused.values()) == 4
        for text in (repr(told), repr(it.facts), repr(it.sink.events), logged.getvalue()):
            assert canary not in text
        assert "127.0.0.1" not in repr((it.facts, it.sink.events))
