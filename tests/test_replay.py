"""Replay: the live pipeline over a recording."""

import itertools

import pytest

from kvpressure import replay
from kvpressure.config import Config
from kvpressure.recording import Row

CONFIG = Config()


@pytest.fixture
def made(vllm_text):
    """Rows a second apart, each from what vLLM says (None: a failed sample)."""

    def rows(*said, start=1000.0):
        return [Row(start + n, None if s is None else vllm_text(**s), 0.01) for n, s in enumerate(said)]

    return rows


def test_steps(made):
    """A snapshot comes at every step from the first row on, made of the rows up to it, and one at the end."""
    rows = made(*[{"preemptions": n} for n in range(6)])
    found = list(replay.steps(rows, CONFIG, 1.0, 2.0))

    assert [snapshot.t for snapshot in found] == [1000.0, 1002.0, 1004.0, 1005.0]
    assert [snapshot.engines[0].preemptions for snapshot in found] == [0.0, 2.0, 4.0, 5.0]


def test_steps_between_rows(made):
    """A step between two rows speaks of the row before it."""
    found = list(replay.steps(made({"preemptions": 0}, {"preemptions": 1}), CONFIG, 1.0, 0.4))

    assert [(round(s.t - 1000.0, 1), s.engines[0].preemptions) for s in found] == [
        (0.0, 0.0),
        (0.4, 0.0),
        (0.8, 0.0),
        (1.0, 1.0),
    ]


def test_last_row_on_a_step(made):
    """The end is one snapshot, where a step falls on it too."""
    found = list(replay.steps(made({}, {}, {}), CONFIG, 1.0, 1.0))

    assert [snapshot.t for snapshot in found] == [1000.0, 1001.0, 1002.0]


def test_clock_steps_back(made):
    """Where the recording's clock steps back its time goes on, in steps and in the summary."""
    rows = made({}, {"preemptions": 1}) + made({"preemptions": 3}, {"preemptions": 4}, start=500.0)
    found = list(replay.steps(rows, CONFIG, 1.0, 1.0))

    assert [snapshot.t for snapshot in found] == [1000.0, 1001.0, 1002.0, 1003.0]
    assert found[-1].engines[0].preemptions == 4.0
    assert replay.summarise(rows, CONFIG, 1.0).seconds == 3.0


def test_log_where_the_clock_steps_back(made):
    """Steps read the log by the recording's own clock: a stream that flows to its end pauses nowhere."""
    start = 1_796_000_000.0
    rows = made(*[{}] * 20, start=start) + made(*[{}] * 20, start=start + 5)
    log = "".join(f'{{"request_id": "a", "event": "token", "time": {start + 20 + n / 2}}}\n' for n in range(9)).encode()
    found = list(replay.steps(rows, CONFIG, 1.0, 1.0, [log]))

    assert [snapshot.streams[0].paused for snapshot in found] == [0] * len(found)
    assert found[-1].streams[0].gaps.counts[-1] == 8


def test_summary(made):
    """The summary has the length, the seconds in each state, and the snapshot at the end with all of it."""
    rows = made(*[{"preemptions": max(0, n - 10)} for n in range(31)])
    summary = replay.summarise(rows, CONFIG, 1.0)

    assert summary.seconds == 30.0
    assert summary.regimes == {("m", "0"): {"calm": 10.0, "onset": 20.0}}
    assert summary.verdicts == {("m", "0"): {"healthy": 30.0}}
    assert [window.window for window in summary.last.engines[0].windows] == ["1m", "5m", "15m", "whole"]


def test_failed_rows(made):
    """Failed samples are counted, and the counters go on over them."""
    summary = replay.summarise(made({}, None, None, {"preemptions": 5}), CONFIG, 1.0)

    assert (summary.last.errors, summary.last.samples) == ({"recorded": 2}, 4)
    assert summary.last.engines[0].preemptions == 5.0


def test_nothing_to_replay():
    """A recording without rows has no steps, and says so."""
    assert list(replay.steps([], CONFIG, 1.0, 1.0)) == []
    assert replay.describe(replay.summarise([], CONFIG, 1.0)) == "The recording has no rows."


def test_describe(made):
    """The description has a table of the windows, the totals, the states and the samples."""
    text = replay.describe(replay.summarise(made({}, {"preemptions": 3}, None, {"preemptions": 3}), CONFIG, 1.0))

    assert "model m, engine 0, V1" in text
    assert [
        line.split()[-4:] for line in text.splitlines() if line.startswith("kvpressure_preemptions_per_thousand")
    ] == [["3,000"] * 4]
    assert "kvpressure_preemptions_total" in text
    assert "regime:  onset 3 s\nverdict: healthy 3 s" in text
    assert text.endswith("4 samples over 3 s, 1 recorded")


def test_describe_one_reading(made):
    """After one reading there is no window, and no state has lasted."""
    text = replay.describe(replay.summarise(made({}), CONFIG, 1.0))

    assert "signal at the end" not in text
    assert "regime:  -\nverdict: -" in text


def test_describe_without_engines():
    """A recording without vllm: series says so, and counts its samples all the same."""
    text = replay.describe(replay.summarise([Row(0.0, "python_info 1\n", 0.01)], CONFIG, 1.0))

    assert text == "The recording has no vllm: series.\n\n1 samples over 0 s"


def test_same_as_live(recorded):
    """Step by step or at once, a recording ends in the same totals."""
    rows = recorded("arm_roomy")
    last = list(replay.steps(rows, CONFIG, 1.0, 1.0))[-1].engines[0]
    whole = replay.summarise(rows, CONFIG, 1.0).last.engines[0]

    assert (last.preemptions, last.finished, last.kv_pinned_seconds) == (
        whole.preemptions,
        whole.finished,
        whole.kv_pinned_seconds,
    )
    assert last.windows == whole.windows[:3]


def test_steps_never_fall(recorded):
    """No counter falls from step to step."""
    found = [s.engines[0] for s in replay.steps(recorded("arm_tight_2x3"), CONFIG, 1.0, 1.0) if s.engines]

    for name in ("preemptions", "preemptions_inferred", "kv_observed_seconds", "kv_blocked_seconds"):
        values = [getattr(engine, name) for engine in found if getattr(engine, name) is not None]

        assert all(a <= b for a, b in itertools.pairwise(values)), name
        assert values[-1] > 0.0
