"""Increases over resets."""

import itertools
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.derive.counters import HistogramIncrease, Increase
from kvpressure.vllm.reading import Histogram

STEPS = st.lists(st.integers(0, 1000), max_size=12)
LIVES = st.lists(STEPS, min_size=1, max_size=6)
"""What a counter gains from reading to reading, in each of several lives of its process."""


def values(lives):
    """The counter's readings over its lives; each starts at 0 and the first gain of a later one is before a reading."""
    return [sum(steps[: n + 1]) for steps in lives for n in range(len(steps))]


def by_promql(readings):
    """The increase over all readings by PromQL's rule, beside the number of resets."""
    pairs = list(itertools.pairwise(readings))
    return sum(b - a if b >= a else b for a, b in pairs), sum(b < a for a, b in pairs)


@given(lives=LIVES)
def test_increase_over_resets(lives):
    """Over any readings with any resets, total and resets are those of PromQL's rule."""
    readings = [0, *values(lives)]
    increase = Increase(readings[0])
    gained = [increase.add(float(value)) for value in readings[1:]]

    assert by_promql(readings) == (increase.total, increase.resets)
    assert sum(gained) == increase.total


@given(steps=STEPS, keep=st.data())
def test_increase_over_any_split(steps, keep):
    """Without resets the total is last minus first, whichever of the readings between them are seen."""
    readings = values([steps])
    seen = [value for value in readings[:-1] if keep.draw(st.booleans())] + readings[-1:]
    increase = Increase(0.0)
    for value in seen:
        increase.add(float(value))

    assert (increase.total, increase.resets) == (sum(steps), 0)


def test_first_value_is_no_increase():
    """What a counter had when it was first read is not counted."""
    increase = Increase(500.0)

    assert (increase.add(500.0), increase.add(503.0), increase.total) == (0.0, 3.0, 3.0)


def test_reset_counts_new_value():
    """A counter that fell was reset, and its new value is what it gained."""
    increase = Increase(500.0)

    assert (increase.add(7.0), increase.total, increase.resets) == (7.0, 7.0, 1)


EDGES = (0.5, 1.0, inf)


def cumulative(observations, edges=EDGES):
    return Histogram(edges, tuple(float(sum(o <= e for o in observations)) for e in edges), float(sum(observations)))


OBSERVATIONS = st.lists(st.sampled_from([0.25, 0.75, 3.0]), max_size=5)


@given(lives=st.lists(st.lists(OBSERVATIONS, min_size=1, max_size=4), min_size=1, max_size=4))
def test_histogram_over_resets(lives):
    """A histogram gains its differences, each bucket what those below it did, and all of itself where one fell."""
    readings = [cumulative([*itertools.chain(*life[: n + 1])]) for life in lives for n in range(len(life))]
    increase = HistogramIncrease(readings[0])
    counts, resets = [0.0, 0.0, 0.0], 0
    for before, after in itertools.pairwise(readings):
        increase.add(after)
        gained = [b - a for a, b in zip(before.counts, after.counts, strict=True)]
        fell = min(gained) < 0.0
        resets += fell
        gained = after.counts if fell else itertools.accumulate(gained, max)
        counts = [total + more for total, more in zip(counts, gained, strict=True)]

    assert (counts, resets) == (increase.total.counts.tolist(), increase.resets)
    assert increase.total.count == counts[-1]


def test_buckets_are_judged_together():
    """Where one bucket fell the whole histogram was reset, even where its count did not fall."""
    increase = HistogramIncrease(cumulative([0.25, 0.25]))
    increase.add(cumulative([3.0, 3.0, 3.0]))

    assert increase.total.counts.tolist() == [0.0, 0.0, 3.0]
    assert (increase.total.count, increase.total.sum, increase.resets) == (3.0, 9.0, 1)


def test_histogram_from_nothing():
    """A histogram that appears on an engine already read counts from 0, in an epoch of its own."""
    increase = HistogramIncrease(None)
    increase.add(cumulative([0.25, 3.0]))

    assert increase.total.counts.tolist() == [1.0, 1.0, 2.0]
    assert (increase.total.count, increase.total.sum, increase.resets) == (2.0, 3.25, 0)


def test_other_edges():
    """Other edges start a new epoch of counts, while count and sum go on."""
    increase = HistogramIncrease(cumulative([]))
    increase.add(cumulative([0.25, 0.75]))
    before = increase.total
    increase.add(cumulative([2.0], edges=(1.0, 30.0, inf)))
    increase.add(cumulative([2.0, 0.25], edges=(1.0, 30.0, inf)))
    total = increase.total

    assert (total.count, total.sum, increase.resets) == (4.0, 3.25, 1)
    assert total.epoch == before.epoch + 1
    assert total.counts.tolist() == [1.0, 2.0, 2.0]


def test_histogram_that_is_whole():
    """What is shown as a histogram starts again with other edges, so that its sum belongs to its buckets."""
    increase = HistogramIncrease(cumulative([0.75]))
    increase.add(cumulative([0.75, 0.25]))
    before = increase.histogram
    increase.add(cumulative([2.0, 0.25], edges=(1.0, 30.0, inf)))

    assert before == Histogram(EDGES, (1.0, 1.0, 1.0), 0.25)
    assert increase.histogram == Histogram((1.0, 30.0, inf), (1.0, 2.0, 2.0), 2.25)


def test_histogram_over_a_reset():
    """With the same edges a reset is corrected: the histogram goes on, and is still one."""
    increase = HistogramIncrease(cumulative([3.0] * 5))
    increase.add(cumulative([3.0, 0.25]))
    increase.add(cumulative([3.0, 0.25, 0.75]))

    assert increase.histogram == Histogram(EDGES, (1.0, 2.0, 3.0), 4.0)


def test_totals_are_not_shared():
    """A total that was taken once does not change with later readings."""
    increase = HistogramIncrease(cumulative([]))
    increase.add(cumulative([0.25]))
    taken = increase.total
    increase.add(cumulative([0.25, 0.25]))

    assert taken.counts.tolist() == [1.0, 1.0, 1.0]


def test_sum_never_falls():
    """A sum that rounding lets fall without a reset adds nothing rather than take something away."""
    increase = HistogramIncrease(Histogram(EDGES, (0.0, 0.0, 1.0), 3.0))
    increase.add(Histogram(EDGES, (0.0, 0.0, 1.0), 3.0))
    increase.add(Histogram(EDGES, (1.0, 1.0, 2.0), 2.5))

    assert increase.total.sum == pytest.approx(0.0, abs=0.0)


@given(before=st.tuples(*[st.integers(0, 9)] * 3), after=st.tuples(*[st.integers(0, 9)] * 3))
def test_what_was_gained_is_a_histogram(before, after):
    """Also over a restart that let no bucket fall, each bucket gained at least what the one below it did."""
    first, second = (
        Histogram((1.0, 2.0, inf), tuple(map(float, itertools.accumulate(each))), 1.0) for each in (before, after)
    )
    increase = HistogramIncrease(first)
    increase.add(second)
    gained = increase.total.counts.tolist()

    assert sorted(gained) == gained
    assert min(gained) >= 0.0
    assert increase.total.count == gained[-1]


def test_a_line_lost_twice_with_nothing_between_is_no_restart():
    """Other edges are believed where the next reading has them too; one without the histogram between is none such."""
    whole = Histogram((1.0, 2.0, inf), (1.0, 5.0, 9.0), 12.0)
    half = Histogram((1.0, inf), (1.0, 9.0), 12.0)
    broken, apart = HistogramIncrease(whole), HistogramIncrease(whole)
    for increase, between in ((broken, False), (apart, True)):
        increase.add(half)
        if between:
            increase.missed()
        increase.add(half)
        increase.add(whole)

    assert 0 == apart.resets
    assert 0.0 == apart.total.count
    assert 2 == broken.resets
