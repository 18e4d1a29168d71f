"""What limits an engine is said of what was seen, and no more than was seen."""

from dataclasses import replace

import pytest

from kvpressure.advise.limits import limit, limit_now, shifts
from kvpressure.advise.seen import Counted, Figure, Seen, Server, Slot

NOT_KNOWN = Figure(None, "", "not told")
SERVER = Server(
    Figure(20_000.0, "tokens", "told"), Figure(16.0, "tokens", "told"), NOT_KNOWN, NOT_KNOWN, NOT_KNOWN, NOT_KNOWN
)
EDGES = (200.0, 500.0, 1000.0, float("inf"))
SHORT = Counted(EDGES, (8.0, 2.0, 0.0, 0.0), 1500.0)
LONG = Counted(EDGES, (0.0, 2.0, 8.0, 0.0), 6000.0)
START = 1_800_000_000.0


def seen(slots, server=SERVER, **sources):
    """An engine of these slots, a quarter of a minute each."""
    placed = (replace(slot, end=START + 15.0 * (number + 1)) for number, slot in enumerate(slots))
    return Seen("m", "0", "a test", server, tuple(placed), sources)


def slot(**known):
    """A quarter of a minute."""
    return Slot(end=0.0, seconds=15.0, **known)


STORM = slot(preemptions=5.0, waiting=20.0, observed=15.0, blocked=10.0, regime="churn", answers=LONG)
CALM = slot(preemptions=0.0, waiting=0.0, observed=15.0, blocked=0.0, regime="calm", verdict="healthy", answers=SHORT)
QUEUE = slot(preemptions=0.0, running=16.0, waiting=500.0, usage=0.1)
NAMED = replace(SERVER, max_num_seqs=Figure(64.0, "requests", "--max-num-seqs 64, as given"))


def test_a_queue_at_the_top_of_the_batch_is_the_cap():
    """500 wait while the cache is nearly empty and as many run as ever did: no sidecar is needed to see the cap."""
    word, says, _ = limit(seen([QUEUE] * 40))
    assert word == "concurrency_cap"
    assert "500 on average" in says
    assert "10 % full" in says


@pytest.mark.parametrize(
    ("slots", "server"),
    [
        ([QUEUE] * 40, NAMED),
        ([replace(QUEUE, usage=0.9)] * 40, SERVER),
        ([replace(QUEUE, usage=None)] * 40, SERVER),
        ([replace(QUEUE, running=4.0)] * 39 + [QUEUE], SERVER),
        ([replace(QUEUE, preemptions=1.0)] + [QUEUE] * 39, SERVER),
        ([replace(QUEUE, preemptions=None, blocked=0.0, observed=15.0, usage=None)] * 40, SERVER),
    ],
    ids=["below the flag", "full", "usage not known", "below its top", "preempted", "preemptions not known"],
)
def test_a_queue_that_nothing_explains_is_not_explained(slots, server):
    """Without the sidecar's verdict nobody knows what it waits for, and never that hardly anybody waited."""
    word, says, _ = limit(seen(slots, server))
    assert word == "unknown"
    assert "cannot be told what they waited for" in says


def test_a_short_queue_in_a_long_range_is_found():
    """Half an hour of a queue in a day is 2 % of it, and not hidden by the mean."""
    queue = replace(QUEUE, waiting=10.0)
    idle = slot(preemptions=0.0, running=2.0, waiting=0.0, usage=0.1)
    assert limit(seen([queue] * 120 + [idle] * 5640))[0] == "concurrency_cap"
    assert limit(seen([queue] * 3 + [idle] * 5757))[0] == "neither"


def test_what_was_not_recorded_is_not_zero():
    """Unknown preemptions are never called none, and neither is an unknown queue."""
    word, says, _ = limit(seen([slot(observed=15.0, blocked=0.0, waiting=0.0)] * 40))
    assert word == "unknown"
    assert "preemptions were not recorded" in says
    word, says, _ = limit(seen([slot(preemptions=0.0)] * 40))
    assert word == "unknown"
    assert "whether requests waited was not recorded" in says
    word, says, _ = limit(seen([slot(preemptions=0.0, waiting=0.0)] * 40))
    assert word == "neither"
    assert says.endswith("nothing was preempted and hardly anybody waited.")


def test_a_queue_that_the_sidecar_judged_is_its_to_judge():
    """With a verdict that names neither, the queue is told and not denied."""
    word, says, _ = limit(seen([replace(CALM, waiting=7.0)] * 40))
    assert word == "neither"
    assert "(7 requests on average)" in says
    assert "hardly" not in says


@pytest.mark.parametrize(("slots", "word"), [(1, "neither"), (3, "neither"), (4, "kv_memory")])
def test_churn_must_last_a_minute(slots, word):
    """A slot or two of it in a day are no cache that is too small; a minute is."""
    storm = replace(CALM, regime="churn", preemptions=1.0)
    found, says, _ = limit(seen([storm] * slots + [CALM] * 5000))
    assert found == word
    assert "went on for 0 min" not in says
    assert "0.0 %" not in says
    if word == "neither":
        assert f"went on for {15 * slots} s" in says


@pytest.mark.parametrize(("every", "word"), [(1, "kv_memory"), (4, "kv_memory"), (5, "neither")])
def test_without_regimes_the_share_of_time_is_said(every, word):
    """A quarter of the time is called a quarter, not most of it."""
    slots = [slot(preemptions=float(number % every == 0), waiting=0.0) for number in range(100)]
    found, says, _ = limit(seen(slots))
    assert found == word
    assert f"during {100 // every} % of the time" in says
    assert "most" not in says


def test_a_minute_of_a_recording_is_needed_without_regimes_too():
    """Three slots with preemptions are no storm, though they are all that there is."""
    assert limit(seen([slot(preemptions=1.0)] * 3))[0] == "neither"


def test_what_limits_is_judged_where_it_is_simulated():
    """A storm that ended with shorter answers is past: what limits now is said first, then until when it did."""
    whole = seen([STORM] * 40 + [CALM] * 1000)
    changes = shifts(whole)
    assert [round(change.since - START) for change in changes] == [600]
    word, says, evidence = limit_now(whole, whole.slots[40:], changes)
    assert word == "neither"
    assert "too small" not in says
    assert says.endswith("Until 2027-01-15 08:10 UTC, before the answers became 4 times shorter, it was the KV cache.")
    lines = {line.name: line.figure for line in evidence}
    assert lines["Preemptions"].value == 0.0
    assert lines["Time that is judged"].value == 15_000.0


def test_a_storm_that_began_with_longer_answers_is_the_present():
    """Nothing is said of a calm past, and the whole range is judged where nothing changed."""
    whole = seen([CALM] * 100 + [STORM] * 100)
    word, says, _ = limit_now(whole, whole.slots[100:], shifts(whole))
    assert word == "kv_memory"
    assert "Until" not in says
    steady = seen([STORM] * 100)
    assert limit_now(steady, steady.slots, ()) == limit(steady)


def test_answers_without_tokens_do_not_change():
    """A model that embeds answers nothing: no length of it can grow, and nothing is divided by it."""
    nothing = slot(answers=Counted(EDGES, (10.0, 0.0, 0.0, 0.0), 0.0))
    assert shifts(seen([nothing] * 80)) == ()
    assert all(change.before > 0.0 for change in shifts(seen([nothing] * 40 + [CALM] * 40)))


def test_a_shift_cites_sum_and_count():
    """A mean is a sum over a count: both queries are its source."""
    whole = seen([CALM] * 100 + [STORM] * 100, answers="tokens_bucket{}", answers_sum="tokens_sum{}")
    (change,) = shifts(whole)
    assert change.source.startswith('tokens_sum{} / ignoring(le) tokens_bucket{le="+Inf"}')
