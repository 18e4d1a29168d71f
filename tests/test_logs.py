# small helpers, named for what they do
import json
from collections import Counter

import pytest
from logs_help import FIXTURES, NOON, events, fixture, told

from kvpressure.vllm.logfindings import ENOUGH, ENOUGH_ANSWERS
from kvpressure.vllm.logframes import MAX_OBJECT, MAX_PARTS
from kvpressure.vllm.loglines import MAX_LINE
from kvpressure.vllm.logmessages import MAX_ID, MAX_PREFIX
from kvpressure.vllm.logrecords import MAX_CHOICE
from kvpressure.vllm.logs import PROBLEMS, LogReader

LIVE = {"arrival": NOON, "since": NOON - 0.25}
HEAD = b"(APIServer pid=1) INFO 11-30 07:16:32 [request_logger.py:108] "


def delta(request=b"r1", text=b"''", reason=b"None", head=HEAD):
    return (
        head + b"Generated response " + request + b" (streaming delta): output: " + text + b", finish_reason: " + reason
    )


def says(message, head=HEAD):
    """What one text line says, of kinds and requests."""
    return told(head + message + b"\n", **LIVE)


def cri(content, time=b"2026-11-30T07:16:32.5Z", stream=b"stdout", tag=b"F"):
    return b" ".join((time, stream, tag, content)) + b"\n"


def docker(log, time="2026-11-30T07:16:32.5Z", stream="stdout"):
    return json.dumps({"log": log, "stream": stream, "time": time}, separators=(",", ":")).encode() + b"\n"


def gateway(**fields):
    record = {"request_id": "a", "event": "token", "time": NOON} | fields
    return json.dumps({name: value for name, value in record.items() if value is not ...}).encode() + b"\n"


# --- formats --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("cri.log", {"start": 2, "token": 60, "last": 2, "end": 2}),
        ("docker.log", {"start": 2, "token": 60, "last": 2, "end": 2}),
        ("cri-json.log", {"start": 4, "token": 40}),
        ("docker-json.log", {"start": 4, "token": 18}),
        ("json-0.32.0.log", {"start": 4, "token": 40}),
        ("json-env-0.32.0.log", {"start": 7, "token": 30, "end": 3}),
        ("stamped-0.32.0.log", {"start": 2, "token": 117, "last": 2, "end": 2}),
        ("gateway.jsonl", {"start": 1, "token": 2, "last": 1, "abort": 1, "end": 1}),
    ],
)
def test_formats_with_times(name, counts):
    """Each format that has times of its own gives the events that its lines tell of, without an arrival."""
    reader = LogReader()
    found = events(fixture(name), reader=reader)

    assert Counter(event.kind for event in found) == counts
    assert reader.problems == {}
    assert reader.lines == fixture(name).count(b"\n")
    assert all(event.choice == 0 and not event.model for event in found if name != "gateway.jsonl")


@pytest.mark.parametrize("name", ["text-0.18.1.log", "text-0.28.0.log", "old-prefixes.log"])
def test_text_has_no_time(name):
    """Whole seconds are no time: followed, lines count when they come; in replay they give nothing, and it is told."""
    reader = LogReader()
    live = events(fixture(name), **LIVE)

    assert {event.t for event in live} == {NOON}
    assert events(fixture(name), reader=reader) == []
    assert reader.problems["no_time"] > 0


def test_old_prefixes():
    """Text lines of all versions are understood: without brackets, coloured, with a prefix, with a process's name."""
    assert told(fixture("old-prefixes.log"), **LIVE) == [
        ("start", b"chatcmpl-a"),
        ("abort", b"chatcmpl-a"),
        ("start", b"chatcmpl-b"),
        ("abort", b"chatcmpl-b"),
        ("start", b"chatcmpl-c"),
        ("token", b"chatcmpl-c"),
        ("last", b"chatcmpl-c"),
        ("end", b"chatcmpl-c"),
        ("token", b"chatcmpl-d"),
        ("token", b"chatcmpl-e"),
        ("abort", b"chatcmpl-e-9fa351a2"),
        ("abort", b"chatcmpl-e"),
        ("abort", b"chatcmpl-d-00000000"),
        ("abort", b"chatcmpl-d"),
        ("abort", b"chatcmpl-g"),
        ("abort", b"chatcmpl-h"),
    ]


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        (b"2026-11-30T07:16:32Z", 0.0),
        (b"2026-11-30T07:16:32.4Z", 0.4),
        (b"2026-11-30T07:16:32.400430123Z", 0.400430123),
        (b"2026-11-30T09:16:32.4+02:00", 0.4),
        (b"2026-11-30T01:46:32.4-05:30", 0.4),
        (b"2026-12-01T00:16:32.4+17:00", 0.4),
    ],
)
def test_stamps(stamp, seconds):
    """A runtime's stamp has any number of digits and any zone."""
    (event,) = events(cri(delta(), stamp))

    assert event.t == pytest.approx(NOON + seconds, abs=1e-6)


@pytest.mark.parametrize("stamp", [b"2026-13-30T07:16:32Z", b"2026-11-30T25:16:32Z", b"0000-11-30T07:16:32.5Z"])
def test_impossible_stamps(stamp):
    """A stamp that is no time times nothing."""
    reader = LogReader()

    assert events(cri(delta(), stamp), reader=reader) == []
    assert reader.problems == {"no_time": 1}


def test_stamps_without_a_stream():
    """`kubectl logs --timestamps` prints time and line, and both are understood."""
    (event,) = events(b"2026-11-30T07:16:32.25Z " + delta() + b"\n")

    assert event.t == NOON + 0.25


def test_json_in_a_frame():
    """Around vLLM's JSON, the time of the runtime wins."""
    inner = json.dumps({"asctime": "2026-11-30 01:00:00,000", "message": delta(head=b"").decode()})

    assert [event.t for event in events(cri(inner.encode()))] == [NOON + 0.5]
    assert [event.t for event in events(docker(inner + "\n"))] == [NOON + 0.5]


def test_json_behind_a_process_name():
    """Before 0.31, the process's name stands before JSON, coloured or not."""
    inner = json.dumps({"asctime": "2026-11-30 07:16:32,125", "message": delta(head=b"").decode()}).encode()

    for prefix in (b"(APIServer pid=1) ", b"\x1b[0;36m(APIServer pid=1)\x1b[0;0m "):
        assert [event.t for event in events(prefix + inner + b"\n")] == [NOON + 0.125]


def test_carriage_returns():
    """A terminal's line ends do not hide a finish reason."""
    assert told(delta(reason=b"stop") + b"\r\n" + delta() + b"\r\n", **LIVE) == [("last", b"r1"), ("token", b"r1")]


# --- lines in parts -------------------------------------------------------------------------------------------------


def test_parts_are_joined():
    """A line that a runtime cut is one line, with the time of its last part."""
    whole = delta(text=b"'abcdef'", reason=b"length")
    data = cri(whole[:70], b"2026-11-30T07:16:32.1Z", tag=b"P")
    data += cri(whole[70:90], b"2026-11-30T07:16:32.2Z", tag=b"P") + cri(whole[90:], b"2026-11-30T07:16:32.3Z")

    assert [(event.kind, event.t) for event in events(data)] == [("last", pytest.approx(NOON + 0.3, abs=1e-6))]


def test_parts_by_stream():
    """Parts of stdout and stderr do not mix, in either runtime's format."""
    whole = delta(reason=b"stop").decode()
    other = delta(b"r2").decode()
    data = cri(whole[:50].encode(), tag=b"P") + cri(other.encode(), stream=b"stderr") + cri(whole[50:].encode())
    assert told(data) == [("token", b"r2"), ("last", b"r1")]

    data = docker(whole[:50]) + docker(other + "\n", stream="stderr") + docker(whole[50:] + "\n")
    assert told(data) == [("token", b"r2"), ("last", b"r1")]


def learned(*lines):
    """A reader that knows what deltas look like, and what it makes of more lines."""
    reader = LogReader()
    events(cri(delta(b"r0")) * 5, reader=reader)
    return reader, [(event.kind, event.request) for event in events(b"".join(lines), reader=reader)]


def test_text_cannot_begin_a_line():
    """What looks like a line of its own in a part of a longer line is text, also where deltas are read at a glance."""
    begun = cri(b"INFO 11-30 07:16:32 [x.py:1] Received request r9: prompt: '" + b"x" * 50, tag=b"P")
    _, found = learned(cri(delta(b"r1")), begun, cri(delta(b"r8")), cri(delta(b"r2")) * 3)

    assert found == [("token", b"r1"), ("start", b"r9"), *[("token", b"r2")] * 3]


def test_deltas_at_a_glance():
    """Among deltas of a known shape, all other lines keep their place, and none is taken for what it is not."""
    _, found = learned(
        cri(delta(b"a")),
        cri(HEAD + b"Aborted request(s) a."),
        cri(b""),
        b"\n",
        cri(delta(b"b", reason=b"stop")),
        cri(delta(b"c")) * 2,
        cri(delta(b"d", head=HEAD.replace(b"request_logger", b"REQUEST LOGGER"))),
        cri(delta(b"e", head=b"x" * len(HEAD))),
        cri(delta(b"f"), b"2026-13-30T07:16:32.5Z"),
        cri(delta(b"g"), b"2026-11-30T07:17:32,5Z"),
    )

    expected = ["a", "a", "b", "c", "c", "d", "g"]
    assert [request.decode() for _, request in found] == expected
    assert [kind for kind, _ in found][:3] == ["token", "abort", "last"]


def test_stamps_at_a_glance():
    """Minutes that change or do not exist, and commas for points, are read as anywhere else."""
    reader, _ = learned()
    stamps = (b"2026-11-30T07:16:59.5Z", b"2026-11-30T07:17:00Z", b"2026-11-30T07:18:00,25Z")
    found = events(b"".join(cri(delta(), stamp) for stamp in stamps), reader=reader)
    assert [event.t - NOON for event in found] == [27.5, 28.0, 88.25]

    for stamp in (b"2026-11-31T24:00:00Z", b"2026x11-30T07:16:32Z"):
        assert len(events(cri(delta()) + cri(delta(), stamp), reader=reader)) == 1
    assert reader.problems == {"no_time": 2}


def test_shapes_that_change():
    """After an update of vLLM its lines look different: their shape is learned anew."""
    reader, _ = learned()
    shape = reader._shape
    for _ in range(10):
        events(cri(delta(head=HEAD.replace(b"request_logger", b"other"))) * 3, reader=reader)

    assert reader._shape is not shape
    assert reader.findings.deltas == 35


@pytest.mark.parametrize(
    "line",
    [
        delta(head=b"x" * 1100 + HEAD),
        b'{"a": "\\\\", "asctime": "2026-11-30 07:16:32,5", "message": "' + delta(head=b"") + b'"}',
        b'{"a": "2026-11-30 07:16:32,5", "asctime": "2026-11-30 07:16:32,5", "message": "' + delta(head=b"") + b'"}',
        delta(b"x" * 300),
        delta(text=b"'cut off"),
    ],
)
def test_lines_without_a_shape(line):
    """Deltas that are too odd to find others by them are understood all the same."""
    reader = LogReader()
    found = events((line + b"\n") * 10, reader=reader, **LIVE)

    assert len(found) == (10 if len(line) < 1000 or b"xxxx" not in line[:9] else 0)
    assert reader._shape is None or b"cut off" in line


def test_text_holds_anything():
    """Neither quotes, nor words of the log, nor a finish reason in a text are taken for what they look like."""
    for text in (
        b'"it\'s, finish_reason: stop"',
        b"'\\nINFO 11-30 07:16:32 [x.py:1] Aborted request r1.'",
        b"' (streaming complete): output: '",
        "'Grüße, finish_reason: None'".encode(),
        b"'\xff\xfe'",
        b"None",
    ):
        assert says(delta(text=text, head=b"")) == [("token", b"r1")]
        assert says(delta(text=text, head=b"", reason=b"tool_calls")) == [("last", b"r1")]


# --- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        b"Added request chatcmpl-r0-9fa351a2.",
        b"Generated response r1: output: '', finish_reason: stop",
        b"Generated response r1 (streaming delta) details: output_token_ids: [1]",
        b"Request r1 details: prompt: 'it failed. Request r2 aborted.', prompt_token_ids: [1]",
        b'Request r1 JSON body: {"messages": "Request r2 aborted."}',
        b"Request r1 was rejected due to a full waiting queue (log every 10 requests)",
        b"Received request",
        b"Generated response ",
        b"Aborted request .",
        b"Engine 000: Avg prompt throughput: 1.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%",
    ],
)
def test_messages_that_say_nothing(message):
    """Lines that are about requests, but not about the course of a stream, say nothing."""
    assert says(message) == []


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"Received request my id: params: SamplingParams(n=1)", [("start", b"my id")]),
        (b"Request r1 failed (engine dead).", [("abort", b"r1")]),
        (b"Request r1 failed due to synthetic", [("abort", b"r1")]),
        (b"Aborted request(s) a,b-0123abcd.", [("abort", b"a"), ("abort", b"b-0123abcd"), ("abort", b"b")]),
        (b"Generated response r1 (streaming delta): output: 'cut off", [("token", b"r1")]),
    ],
)
def test_messages(message, expected):
    """Starts and aborts are understood in all spellings; a delta that is cut off is still a delta."""
    assert says(message) == expected


@pytest.mark.parametrize(
    "before",
    [
        b"",
        b"\x1b[1;36m(APIServer pid=1)\x1b[0;0m ",
        b"(APIServer_1 pid=1) (Worker_TP0 pid=22) ",
        b"(VllmWorker rank=0 pid=10812) ",
        b"prod-7 (APIServer pid=79) ",
        b"(APIServer pid=79) [eu-1:8000] ",
        b"prod-7/",
        b"x" * MAX_PREFIX + b"(APIServer pid=1) " * 3,
    ],
)
def test_what_precedes_a_header(before):
    """Names of processes, colours and VLLM_LOGGING_PREFIX may stand before a header."""
    for header in (b"INFO 11-30 07:16:32 [x.py:1] ", b"INFO [x.py:1] "):
        assert says(delta(head=b""), before + header) == [("token", b"r1")]


@pytest.mark.parametrize(
    "before",
    [
        b"ValueError: bad prompt: ",
        b'INFO:     192.0.2.7:5 - "GET /?a=',
        b"(APIServer pid=1) INFO:     192.0.2.7:5 - GET ",
        b"KeyError('",
        b'{"prompt": "',
        b"x" * (MAX_PREFIX + 1),
        b"INFO 11-30 07:16:32 [x.py:1] Request r9 was refused: ",
    ],
)
def test_a_header_in_text(before):
    """What a program prints of a user is no line of vLLM, though it holds one."""
    forged = b"INFO [x.py:1] " + delta(head=b"")
    assert says(forged, before) == []
    forged = b"INFO 11-30 07:16:32 [x.py:1] " + delta(head=b"")

    for frame in (b"", b"2026-11-30T07:16:32.5Z stdout F "):
        assert says(forged, frame + before) == []


def test_aborts_are_bounded():
    """A line that aborts more requests than a server can have does not hold up others."""
    assert 0 < len(says(b"Aborted request(s) " + b"a," * 500_000 + b"a.")) < 10_000


def test_long_ids():
    """A client's endless id is not kept, but its stream is followed all the same."""
    long = b"x" * (MAX_ID + 1)
    first, second = events((delta(long) + b"\n") * 2, **LIVE)

    assert first.request == second.request
    assert isinstance(first.request, int)


# --- gateways -------------------------------------------------------------------------------------------------------


def test_gateway():
    """A gateway's line gives choice, model and time, as number or text, and its own time wins over a runtime's."""
    (event,) = events(cri(gateway(time="2026-11-30T07:16:33Z", choice=3, model="m").rstrip()))
    assert event == ("token", NOON + 1, b"a", 3, "m")

    kinds = [event.kind for event in events(gateway(last=True) + gateway(last=1) + gateway(event="end", last=True))]
    assert kinds == ["last", "token", "end"]
    assert [event.request for event in events(gateway(request_id=5) + gateway(request_id="ü"))] == [b"5", "ü".encode()]


@pytest.mark.parametrize(
    "fields",
    [
        {"event": "finish"},
        {"event": ["token"]},
        {"request_id": None},
        {"request_id": ""},
        {"request_id": True},
        {"request_id": 1.5},
        {"time": ...},
        {"time": "noon"},
        {"time": True},
        {"time": NOON * 1000},
        {"time": float("nan")},
        {"time": 10**400},
        {"choice": -1},
        {"choice": MAX_CHOICE + 1},
        {"choice": "0"},
        {"choice": True},
    ],
)
def test_bad_gateway_records(fields):
    """A record that is not understood gives nothing, and is counted."""
    reader = LogReader()

    assert events(gateway(**fields), reader=reader) == []
    assert reader.problems == {"bad_record": 1}


def test_gateway_models_are_bounded():
    """A model that is no name is none."""
    assert [event.model for event in events(gateway(model=5) + gateway(model="m" * 201))] == ["", ""]


def test_half_characters():
    """JSON can hold half a character, which is no text: nothing that comes out of a line does."""
    half = b'"\\ud800x"'
    for name in (b"model", b"request_id"):
        line = gateway(model="m").replace(b'"m"' if name == b"model" else b'"a"', half)
        (event,) = events(line)
        assert event.request.decode() == ("a" if name == b"model" else "?x")
        assert event.model == ("?x" if name == b"model" else "m")

    record = b'{"asctime": "2026-11-30 07:16:32,125", "message": "' + delta(b"r\\ud800", head=b"") + b'"}\n'
    assert events(record)[0].request == b"r?"
    assert events(docker(record.decode()))[0].request == b"r?"


def test_long_json():
    """Long text within JSON is read. What is long and of many small pieces is not: it would hold up everybody else."""
    text = "\\n".join(["w" * 20] * 10_000)
    record = json.dumps({"asctime": "2026-11-30 07:16:32,125", "message": delta(head=b"").decode() + text})
    assert len(record) > 3 * MAX_OBJECT
    assert told(record.encode() + b"\n") == [("token", b"r1")]
    assert told(docker(record + "\n")) == [("token", b"r1")]

    for piece in ([[[]]], {}, 1, "x", {"a": "b"}):
        assert told(gateway(more=[piece] * MAX_OBJECT)) == []
    assert told(gateway(more=[1] * 100)) == [("token", b"a")]


@pytest.mark.parametrize(
    "line", [b'{"a": ' * 5000, b'{"a": 1' + b"0" * 5000 + b"}", b"{", b"[]", b'"x"', b"{}", b"{\xff}"]
)
def test_json_that_is_none(line):
    """JSON that is too deep, too large or broken is just another line."""
    assert events(line + b"\n" + delta() + b"\n", **LIVE)[0].kind == "token"


# --- what a log turns out to be --------------------------------------------------------------------------------------


def test_unknown_logs():
    """A log is called unknown after a hundred lines of which none was recognised, and no more once one was."""
    reader = LogReader()
    events(b"\n\n" + b"GET /index.html 200\n" * (ENOUGH - 1), reader=reader)
    assert reader.findings.complaint is None
    events(b'127.0.0.1 "GET /" 200\n', reader=reader)
    assert reader.findings.complaint == "unknown"
    events(HEAD + b"Starting\n", reader=reader)
    assert reader.findings.complaint is None


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.iterdir()))
def test_known_logs(name):
    """No format is called unknown, not even by its first line of use alone."""
    reader = LogReader()
    events(fixture(name), reader=reader)

    assert reader.findings.recognised
    assert reader.findings.complaint is None


def test_idle_logs_are_known():
    """A server that only answers probes for metrics has a log that is understood."""
    reader = LogReader()
    events(b'INFO:     127.0.0.1:5 - "GET /metrics HTTP/1.1" 200 OK\n' * 2 * ENOUGH, reader=reader)

    assert reader.findings.complaint is None


def test_logs_without_requests():
    """Where chat requests are answered and no line tells of any, that is said; one line of a request ends it."""
    reader = LogReader()
    events(b'INFO:     127.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n' * ENOUGH_ANSWERS, reader=reader)
    assert reader.findings.complaint == "no_requests"

    events(delta() + b"\n", reader=reader)
    assert reader.findings.complaint is None


def test_logs_without_deltas():
    """Where streamed answers are told of and none of their chunks, that is said."""
    complete = HEAD + b"Generated response r1 (streaming complete): output: '', finish_reason: streaming_complete\n"
    reader = LogReader()
    events(complete * ENOUGH_ANSWERS, reader=reader)
    assert reader.findings.complaint == "no_deltas"

    events(delta() + b"\n", reader=reader)
    assert reader.findings.complaint is None


# --- bounds ---------------------------------------------------------------------------------------------------------


def test_long_lines():
    """A line of the greatest length is read; a longer one is skipped up to its end, and counted."""
    fill = MAX_LINE - len(delta(text=b"''"))
    data = delta(text=b"'" + b"x" * fill + b"'") + b"\n" + delta(b"r2", b"'" + b"x" * (fill + 1) + b"'") + b"\n"
    reader = LogReader()

    assert [event.request for event in events(data + delta(b"r3") + b"\n", reader=reader, **LIVE)] == [b"r1", b"r3"]
    assert reader.problems == {"line_too_long": 1}


def test_long_joined_lines():
    """Parts that join to more than the greatest length are skipped up to the last of them, and counted once."""
    reader = LogReader()
    data = cri(delta()[:80] + b"x" * (MAX_LINE // 2), tag=b"P") * 3 + cri(delta(b"r2")) + cri(delta(b"r3"))

    assert [event.request for event in events(data, reader=reader)] == [b"r3"]
    assert reader.problems == {"line_too_long": 1}
    assert set(reader.problems) <= set(PROBLEMS)


@pytest.mark.parametrize("part", [b"", b"x"])
def test_many_parts(part):
    """A line in endless small or empty parts is given up, counted once, and takes neither time nor memory."""
    reader = LogReader()
    events(cri(part, tag=b"P") * (MAX_PARTS + 1), reader=reader)
    assert reader._frames._parts == {"stdout": None}
    data = cri(part, tag=b"P") * MAX_PARTS + cri(delta(b"r2")) + cri(delta(b"r3"))

    assert [event.request for event in events(data, reader=reader)] == [b"r3"]
    assert reader.problems == {"line_too_long": 1}


def test_leaps():
    """After a leap to within a line the rest of that line is skipped; after one to a line's beginning, nothing is."""
    reader = LogReader()
    events(delta()[:50], reader=reader)
    reader.leap(within_line=True)
    assert [event.request for event in events(delta(b"r2") + b"\n" + delta(b"r3") + b"\n", reader=reader, **LIVE)] == [
        b"r3"
    ]
    events(delta()[:50], reader=reader)
    reader.leap(within_line=False)
    assert [event.request for event in events(delta(b"r4") + b"\n", reader=reader, **LIVE)] == [b"r4"]
