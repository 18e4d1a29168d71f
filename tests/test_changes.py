"""What two neighbouring readings tell: preemptions before they are counted, and streams that stand still."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.derive.changes import StallWatch, finished_between, preemptions_inferred
from kvpressure.vllm.reading import EngineReading


def reading(*, running=10.0, waiting=0.0, finished=0.0, usage=1.0, tokens=0.0, awake=None):  # noqa: PLR0913
    return EngineReading(
        "V1",
        running=running,
        waiting=waiting,
        kv_usage=usage,
        finished=None if finished is None else {"stop": finished},
        generation_tokens=tokens,
        awake=awake,
    )


def inferred(before, after):
    return preemptions_inferred(before, after, 0.85)


# --- inferred preemptions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (reading(running=7.0, waiting=3.0), 3.0),
        (reading(running=7.0, waiting=1.0), 1.0),
        (reading(running=7.0, waiting=3.0, finished=3.0), 0.0),
        (reading(running=7.0, waiting=3.0, finished=1.0), 2.0),
        (reading(running=12.0, waiting=3.0), 0.0),
        (reading(running=7.0, waiting=0.0), 0.0),
    ],
    ids=["all went back", "one is in the queue", "all finished", "one finished", "arrivals", "left for good"],
)
def test_inferred(after, expected):
    """Requests that left the batch unfinished were preempted, as far as the queue grew by them."""
    assert inferred(reading(), after) == expected


@given(
    preempted=st.integers(0, 10),
    admitted=st.integers(0, 10),
    arrived=st.integers(0, 10),
    finished=st.integers(0, 10),
)
def test_inferred_is_a_lower_bound(preempted, admitted, arrived, finished):
    """Without aborts, whatever is admitted, arrives and finishes meanwhile, never more are inferred than there were."""
    before = reading(running=30.0, waiting=30.0)
    after = reading(
        running=30.0 - preempted - finished + admitted, waiting=30.0 + preempted + arrived - admitted, finished=finished
    )

    assert 0.0 <= inferred(before, after) <= preempted


@pytest.mark.parametrize(("before", "after", "expected"), [(0.5, 0.5, 0.0), (0.9, 0.5, 3.0), (0.5, 0.85, 3.0)])
def test_inferred_only_near_full(before, after, expected):
    """A cache that has room at both readings makes it an abort beside an arrival: nothing is inferred."""
    assert inferred(reading(usage=before), reading(running=7.0, waiting=3.0, usage=after)) == expected


@pytest.mark.parametrize("missing", ["running", "waiting", "finished", "usage"])
def test_nothing_inferred_without(missing):
    """Where any of the four series is missing on either side, nothing is inferred."""
    gone, there = reading(**{missing: None}), reading(running=7.0, waiting=3.0)

    assert (
        inferred(gone, there)
        == inferred(reading(), reading(**{"running": 7.0, "waiting": 3.0} | {missing: None}))
        == 0.0
    )


def test_nothing_inferred_over_restart():
    """Over a restart, which sets the finished requests back, nothing is inferred."""
    assert inferred(reading(finished=9.0), reading(running=0.0, waiting=8.0, finished=0.0)) == 0.0


def test_finished_between():
    """Requests finished between two readings are the difference of the sums over reasons, unknown over a restart."""
    before = EngineReading("V1", finished={"stop": 2.0})

    assert finished_between(before, EngineReading("V1", finished={"stop": 3.0, "length": 4.0})) == 5.0
    assert finished_between(before, EngineReading("V1", finished={"stop": 1.0})) is None
    assert finished_between(before, EngineReading("V1")) is None
    assert finished_between(EngineReading("V1"), before) is None


# --- stalls ---------------------------------------------------------------------------------------------------------


def stalls(*readings, seen=True):
    """The seconds of stall that each reading after the first reveals, one reading a second."""
    watch = StallWatch(1.0)
    return [
        watch.observe(float(t), before, t + 1.0, after, seen=seen)
        for t, (before, after) in enumerate(itertools.pairwise(readings))
    ]


def streaming(*tokens, **given):
    return [reading(tokens=float(count), **given) for count in tokens]


def test_stall():
    """A stall counts from the reading that last saw tokens move, once it lasts as long as the threshold."""
    assert stalls(*streaming(0, 50, 50, 50, 50, 80, 80)) == [0.0, 1.0, 1.0, 1.0, 0.0, 1.0]


def test_stall_is_told_late_but_whole():
    """The part of a stall under the threshold is added when it passes it."""
    watch = StallWatch(2.5)
    rows = streaming(0, 50, 50, 50, 50, 50)
    found = [watch.observe(float(t), a, t + 1.0, b, seen=True) for t, (a, b) in enumerate(itertools.pairwise(rows))]

    assert found == [0.0, 0.0, 0.0, 3.0, 1.0]


def test_no_stall_before_tokens():
    """A batch that has given no token yet is in its prefill, and stalls nobody."""
    assert stalls(*streaming(50, 50, 50, 50)) == [0.0, 0.0, 0.0]


def test_no_stall_after_the_last_stream():
    """Where all that ran before the last tokens has finished, the one that came since is in its prefill."""
    before = reading(running=1.0, tokens=0.0)
    after = [reading(running=1.0, tokens=50.0, finished=1.0)] * 4

    assert stalls(before, *after) == [0.0] * 4


def test_no_stall_while_asleep():
    """An engine that is put to sleep does not stall."""
    assert stalls(*streaming(0, 50), *streaming(50, 50, awake=0.0)) == [0.0] * 3


def test_no_stall_without_running():
    """Where nothing runs, nothing stalls; a stall does not go on behind it."""
    assert stalls(*streaming(0, 50), *streaming(50, running=0.0), *streaming(50, 50)) == [0.0] * 4


def test_no_stall_over_a_gap():
    """Time that was not observed is no stall."""
    assert stalls(*streaming(0, 50, 50, 50), seen=False) == [0.0] * 3


def test_no_stall_without_token_counter():
    """Without a token counter a stall cannot be known."""
    rows = [reading(tokens=None)] * 4

    assert stalls(*rows) == [0.0] * 3


def test_no_stall_where_finished_is_unknown():
    """Where it is not known whether the streams finished, they are not taken for stalled."""
    assert stalls(*[reading(tokens=t, finished=None) for t in (0.0, 50.0, 50.0, 50.0)]) == [0.0] * 3
