"""One engine over its readings: what is counted, and which time is observed."""

import itertools
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpressure.config import Config
from kvpressure.derive.state import EngineState
from kvpressure.vllm.reading import Cache, EngineReading, Histogram

START = 1000.0
READING = EngineReading(
    "V1",
    running=4.0,
    waiting=0.0,
    kv_usage=0.5,
    preemptions=100.0,
    finished={"stop": 50.0, "length": 0.0},
    generation_tokens=1000.0,
    prompt_lengths=Histogram((1000.0, inf), (50.0, 50.0), 40_000.0),
    cache=Cache(tokens=16016.0, block_size=16.0),
)


def state(*readings, every=1.0, interval=1.0):
    """An engine's state after readings; each is a reading, or what differs from READING."""
    made = EngineState(("m", "0"), Config())
    for number, given_ in enumerate(readings):
        reading = given_ if isinstance(given_, EngineReading) else replace(READING, **given_)
        made.observe(START + number * every, reading, interval)
    return made


def totals(*readings, **given_):
    return state(*readings, **given_).history.last


# --- counting -------------------------------------------------------------------------------------------------------


def test_first_reading_counts_nothing():
    """What vLLM counted before the first reading is not counted."""
    last = totals({})

    assert (last.preemptions, last.finished, last.prompts.count) == (0.0, 0.0, 0.0)


def test_gains():
    """What counters gain from reading to reading is added up."""
    last = totals({}, {"preemptions": 103.0}, {"preemptions": 103.0, "finished": {"stop": 52.0, "length": 1.0}})

    assert (last.preemptions, last.finished) == (3.0, 3.0)


def test_restart():
    """After a restart the new values are added to what was counted, and one reset is seen."""
    fresh = Histogram((1000.0, inf), (1.0, 1.0), 500.0)
    made = state(
        {},
        {"preemptions": 110.0},
        {"preemptions": 4.0, "finished": {"stop": 1.0, "length": 0.0}, "prompt_lengths": fresh},
    )
    last = made.history.last

    assert (last.preemptions, last.finished, last.prompts.count, last.prompts.sum) == (14.0, 1.0, 1.0, 500.0)
    assert made.resets == 1


def test_series_reset_one_by_one():
    """A series that starts again alone is judged alone: the others go on."""
    last = totals({}, {"preemptions": 2.0, "finished": {"stop": 51.0, "length": 0.0}})

    assert (last.preemptions, last.finished) == (2.0, 1.0)


def test_lazy_series_count_from_zero():
    """A series that first appears on an engine already read counts from 0."""
    last = totals(
        {"preemptions": None, "finished": {"stop": 50.0}},
        {"preemptions": 3.0, "finished": {"stop": 50.0, "length": 2.0}},
    )

    assert (last.preemptions, last.finished) == (3.0, 2.0)


def test_counter_absent_for_a_while():
    """A counter that is absent for some readings goes on where it was."""
    assert totals({}, {"preemptions": 101.0}, {"preemptions": None}, {"preemptions": 105.0}).preemptions == 5.0


@pytest.mark.parametrize(
    ("field", "value", "total"),
    [
        ("preemptions", 100.0, lambda t: t.preemptions),
        ("finished", {"stop": 50.0, "length": 3.0}, lambda t: t.finished),
        ("prompt_lengths", READING.prompt_lengths, lambda t: t.prompts.count),
    ],
)
@pytest.mark.parametrize("between", [(), ("unreadable", "unreadable"), ("absent",)], ids=["at once", "later", "absent"])
def test_unreadable_at_first(field, value, total, between):
    """What could not be read at the first reading is counted from the first value that can, not from 0."""
    unreadable = {field: None, "unreadable": frozenset({field})}
    rows = [unreadable, *[unreadable if row == "unreadable" else {field: None} for row in between], {field: value}]

    assert total(totals(*rows)) == 0.0


def test_unreadable_later():
    """What cannot be read at a later reading is counted over it."""
    unreadable = {"preemptions": None, "unreadable": frozenset({"preemptions"})}

    assert totals({}, unreadable, {"preemptions": 107.0}).preemptions == 7.0


LIVES = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=6), min_size=1, max_size=4)


@settings(deadline=None, max_examples=60)
@given(lives=LIVES, other=LIVES)
def test_totals_are_per_series(lives, other):
    """The total over two finished reasons is the sum of each one's own increase over its own resets."""

    def expected(rows):
        return sum(b - a if b >= a else b for a, b in itertools.pairwise(rows))

    first, second = ([0, *[sum(life[: n + 1]) for life in ls for n in range(len(life))]] for ls in (lives, other))
    rows = list(zip(first, second, strict=False))
    last = totals(*[{"finished": {"stop": float(a), "length": float(b)}} for a, b in rows])

    assert expected([a for a, _ in rows]) + expected([b for _, b in rows]) == last.finished


def test_recompute_estimate():
    """Preemptions cost the tokens that a running request holds then, or held last where nothing runs any more."""
    assert state({"kv_usage": 0.5}, {"preemptions": 102.0, "kv_usage": 0.25}).recomputed == 2.0 * 1000.0
    assert state({"kv_usage": 0.5}, {"preemptions": 102.0, "running": 0.0}).recomputed == 2.0 * 2000.0
    assert state({"cache": None}, {"preemptions": 102.0, "cache": None}).recomputed == 0.0


# --- inferred preemptions -------------------------------------------------------------------------------------------

FULL = {"running": 10.0, "waiting": 0.0, "kv_usage": 1.0}
FELL_BACK = {"running": 7.0, "waiting": 3.0, "kv_usage": 1.0}


def test_inferred():
    """Requests that fall back into the queue are inferred before the counter moves, and never added to it."""
    last = totals(FULL, FELL_BACK)

    assert (last.inferred, last.preemptions) == (3.0, 0.0)


def test_restart_infers_nothing():
    """A restart before anything finished, with a queue after it, is no preemption."""
    rows = [
        replace(READING, **FULL, finished={"stop": 0.0}),
        replace(READING, **FELL_BACK, finished={"stop": 0.0}, preemptions=0.0, generation_tokens=0.0),
    ]

    assert totals(*rows).inferred == 0.0


def test_absent_engine_infers_nothing():
    """Between the reading before an engine vanished and the one after, nothing is inferred or observed."""
    made = state(FULL)
    made.lost()
    made.observe(START + 1.0, replace(READING, **FELL_BACK), 1.0)

    assert (made.history.last.inferred, made.history.last.observed) == (0.0, 0.0)


# --- time -----------------------------------------------------------------------------------------------------------


def test_state_holds_until_the_next_reading():
    """What a reading shows holds from it until the next one: the last one has held for no time yet."""
    last = totals({"kv_usage": 0.95}, {"kv_usage": 0.2}, {"kv_usage": 1.0}, every=0.5)

    assert (last.observed, last.pinned) == (1.0, 0.5)


@pytest.mark.parametrize(("every", "observed"), [(3.0, 6.0), (3.01, 0.0)])
def test_unobserved(every, observed):
    """A gap of more than three scheduled intervals is unobserved time; what was counted across it counts."""
    last = totals({"kv_usage": 1.0}, {"kv_usage": 1.0}, {"preemptions": 105.0}, every=every)

    assert (last.observed, last.pinned, last.preemptions) == (observed, observed, 5.0)


def test_usage_unknown():
    """Time without KV usage is not observed."""
    assert totals({"kv_usage": None}, {}, {}).observed == 1.0


def test_blocked():
    """Time with a queue and fewer free tokens than a mean prompt is KV-blocked."""
    last = totals({"waiting": 1.0, "kv_usage": 0.96}, {"waiting": 1.0, "kv_usage": 0.9}, {"kv_usage": 0.96}, {})

    assert (last.blocked, last.blockable) == (1.0, 3.0)


def test_blocked_unknown():
    """Without a prompt length it is not known whether a queue is blocked, which is in no denominator."""
    last = totals({"waiting": 1.0, "kv_usage": 1.0, "prompt_lengths": None}, {"prompt_lengths": None}, {})

    assert (last.blocked, last.blockable, last.observed) == (0.0, 1.0, 2.0)


def test_typical_prompt():
    """The typical prompt is that of the window; before anything finished in it, that since vLLM's start."""
    longer = Histogram((1000.0, inf), (50.0, 52.0), 44_000.0)

    assert state({}).typical_prompt == 800.0
    assert state({}, {"prompt_lengths": longer}).typical_prompt == 2000.0
    assert state({"prompt_lengths": None}).typical_prompt is None


def test_sleep_is_no_time():
    """While an engine sleeps no time is observed, pinned or blocked."""
    asleep = {"awake": 0.0, "kv_usage": 1.0, "waiting": 5.0}
    last = totals(asleep, asleep, asleep)

    assert (last.observed, last.pinned, last.blocked, last.stalled) == (0.0, 0.0, 0.0, 0.0)


def test_stall():
    """A running batch that gives no token for the pause threshold is stalled."""
    rows = [{"generation_tokens": 1000.0 + tokens} for tokens in (0, 50, 50, 50, 50)]

    assert totals(*rows).stalled == 3.0


def test_bounded():
    """Two hours of readings leave no more than the longest window of them, and the one it starts at."""
    assert len(state(*[{}] * 7200).history) == 901
