"""What users keep of their streams: which chunks are tokens, which gaps are pauses, and the file of it."""

import gzip
import json
from pathlib import Path

import pytest

from kvpressure.lab.truth import LEFT, STOPPED, Record, Totals

ROLE = b'data: {"id":"chatcmpl-r0","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}'
TOKEN = b'data: {"id":"chatcmpl-r0","choices":[{"index":0,"delta":{"content":" tok"}}]}'
USAGE = b'data: {"id":"chatcmpl-r0","choices":[],"usage":{"completion_tokens":3}}'
RECORDINGS = Path(__file__).parents[2] / "shared" / "recordings"


def record(*lines, start=100.0):
    """A record that took these lines a tenth of a second apart."""
    made = Record(number=0, start=start, prompt=5, max_tokens=3)
    for number, line in enumerate(lines, 1):
        made.take(line, start + number / 10)
    return made


def streamed(*times, cut=None, how=STOPPED):
    """A record whose tokens came at these times, cut at another."""
    made = Record(number=0, start=0.0, prompt=5, max_tokens=3)
    for time in times:
        made.take(TOKEN, time)
    if cut is not None:
        made.end(how, cut)
    return made


def totals_of(*records, speed=1.0):
    """The totals of these records."""
    totals = Totals(speed)
    for each in records:
        totals.add(each)
    return totals


def test_a_chunk_is_any_message_and_a_token_one_with_more_than_a_role():
    """The recorder's count has role and usage messages in it, the tokens have not."""
    made = record(ROLE, b"", TOKEN, b": a comment", TOKEN, USAGE, b"data: [DONE]")

    assert [100.1, 100.3, 100.5, 100.6] == made.ts
    assert [100.3, 100.5] == made.token_ts
    assert ("chatcmpl-r0", True, None) == (made.id, made.done, made.error)


@pytest.mark.parametrize(
    "choice",
    [
        {"text": ""},
        {"delta": {}},
        {"delta": {"content": ""}},
        {"delta": {"reasoning_content": "hm"}},
        {"delta": {"tool_calls": [{"index": 0}]}},
        {"delta": {"role": "assistant", "content": "tok"}},
        {"delta": {"role": "assistant", "content": ""}, "finish_reason": "stop"},
    ],
)
def test_a_token_may_have_no_text(choice):
    """Empty deltas, reasoning, tool calls and the end of an answer are tokens like any other."""
    line = b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode()

    assert [100.1] == record(line).token_ts


@pytest.mark.parametrize("line", [b'data: {"id"', b'data: {"choices": 3}', b'data: {"choices": ["x"]}'])
def test_a_chunk_that_cannot_be_read_ends_the_answer(line):
    """It is counted as a chunk, not as a token, and says when."""
    made = record(TOKEN, line)

    assert (2, 1, "bad_chunk at 100.2000") == (len(made.ts), len(made.token_ts), made.error)


def test_an_error_in_a_stream_is_an_error():
    """vLLM answers a failure in mid-stream with an error message and goes on to its end."""
    made = record(TOKEN, b'data: {"error":{"message":"the engine is dead","code":500}}', b"data: [DONE]")

    assert "error_event at 100.2000" == made.error
    assert 1 == totals_of(made).failed


def test_a_pause_is_a_gap_of_strictly_more_than_a_second():
    """A gap of exactly a second is none, on a clock of today too."""
    now = 1796015943.1234

    totals = totals_of(streamed(now, now + 1.0, now + 2.0), streamed(now, now + 1.0001), streamed(now))

    assert (3, 1, 1.0001) == (totals.streamed, totals.paused, totals.longest)


def test_a_gap_that_is_still_open_when_the_answer_is_cut_is_one_once_it_is_a_pause():
    """Whoever is cut off after two seconds of silence has paused; half a second of silence says nothing."""
    assert [0.5] == streamed(1.0, 1.5, cut=2.0).gaps()
    assert [0.5, 2.0] == streamed(1.0, 1.5, cut=3.5).gaps()
    assert 1 == totals_of(streamed(1.0, 1.5, cut=2.0), streamed(1.0, cut=2.5)).paused
    assert 0 == totals_of(streamed(cut=9.0, how=LEFT)).streamed


def test_with_a_speed_gaps_are_in_the_servers_time():
    """Where the server plays ten times as fast, 0.11 s of the user's clock are a pause."""
    totals = totals_of(streamed(1.0, 1.11), streamed(1.0, cut=1.2), streamed(1.0, 1.09), speed=10.0)

    assert (2, 2.0) == (totals.paused, totals.longest)
    assert 2.0 == totals.p99


def test_p99_is_the_nearest_rank_within_half_a_percent():
    """Of 200 gaps it is the 198th; the table of gaps stays small."""
    records = [streamed(0.0, 0.0, number / 1000) for number in range(1, 101)]
    totals = totals_of(*records)

    assert 0.098 == totals.p99
    many = totals_of(*(streamed(0.0, 0.1 + number * 1e-5) for number in range(10_000)))
    assert 0.198999 == pytest.approx(many.p99, rel=0.005)
    assert len(many._gaps) <= 1000


def test_the_summary_says_what_happened_to_whom():
    """Failures by kind, those who left, those who were cut off, and who paused."""
    failed = record()
    failed.error = '503 {"error": "busy"}'
    text = totals_of(
        failed,
        streamed(cut=60.0, how=LEFT),
        streamed(1.0, 1.02, 3.5, cut=3.6),
        streamed(1.0, 1.02, cut=1.03, how="ClientPayloadError"),
        streamed(1.0, 1.02),
    ).text()

    assert text == (
        "5 requests: 2 failed (503 1, ClientPayloadError 1), 1 left without a token, 1 open at the end\n"
        "3 got a token, 1 of them paused for more than 1 s (33.3%); gaps: longest 2.48 s, p99 2.48 s"
    )


def test_what_is_not_known_is_a_dash():
    """Without a token there is no share, and without a gap no gap."""
    assert "0 got a token, 0 of them paused for more than 1 s (-); gaps: longest -, p99 -" in Totals().text()


def test_a_line_is_that_of_the_recordings_and_can_be_read_back():
    """The keys are those of a recording's streams, and what comes back sums up to the same."""
    failed = record()
    failed.error = "503 "
    records = [
        record(ROLE, TOKEN, TOKEN, b"data: [DONE]"),
        record(ROLE, TOKEN, b'data: {"error":{"code":500}}'),
        streamed(cut=60.0, how=LEFT),
        failed,
    ]
    back = [Record.of(json.loads(json.dumps(each.row()))) for each in records]

    assert ["i", "id", "start", "prompt", "max_tokens", "ts", "error"] == list(records[0].row())
    assert records == back


@pytest.mark.parametrize(
    ("name", "paused", "requests"),
    [("arm_roomy", 33, 200), ("control_16_500", 187, 200), ("compute_stall", 24, 300), ("chat_cri", 70, 160)],
)
def test_it_reads_the_recordings_of_a_real_vllm(name, paused, requests):
    """As many paused as their README tells."""
    path = RECORDINGS / name / "streams.jsonl.gz"
    if not path.exists():
        pytest.skip("there are no recordings beside the checkout")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        totals = totals_of(*(Record.of(json.loads(line)) for line in lines))

    assert (paused, requests) == (totals.paused, totals.requests)
