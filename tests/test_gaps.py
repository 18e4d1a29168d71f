"""Gaps over windows: p99 within 2 %, the exact maximum, the histogram, and memory that stays bounded."""

import math
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvpressure.derive.gaps import LONGEST, SHORTEST, GapWindows
from kvpressure.signals import WINDOWS

EDGES = (0.01, 0.1, 1.0)
QS = (0.01, 0.5, 0.9, 0.99, 1.0)


def filled(timed):
    """What a stream of (second, gap) leaves behind; seconds rise."""
    windows = GapWindows(EDGES)
    for second, gap in timed:
        windows.turn(second)
        windows.pending.append(gap)
    return windows


def exact(gaps, q):
    """The q-quantile by nearest rank."""
    return sorted(gaps)[math.ceil(q * len(gaps)) - 1]


gap_values = st.floats(SHORTEST, LONGEST, exclude_min=True)
timed_gaps = st.lists(st.tuples(st.integers(0, 1200), gap_values), min_size=1, max_size=200).map(
    lambda pairs: sorted(pairs, key=lambda pair: pair[0])
)


@given(timed_gaps, st.integers(0, 1000))
@example([(0, SHORTEST * 1.0001), (0, LONGEST)], 0)
def test_windows_against_exact_values(timed, later):
    """In every window each quantile is within 2 % of the exact one, and the maximum is exact."""
    now = timed[-1][0] + later
    windows = filled(timed)
    windows.turn(now)

    for _, seconds in WINDOWS:
        inside = [gap for second, gap in timed if now - seconds < second <= now]
        assert windows.longest(seconds) == max(inside, default=None)
        for q in QS:
            found = windows.quantile(q, seconds)
            assert (found is None) == (not inside)
            if inside:
                assert found == pytest.approx(exact(inside, q), rel=0.02)


@given(timed_gaps)
def test_everything_so_far(timed):
    """Without a window, quantile and maximum are over everything, however long ago."""
    gaps = [gap for _, gap in timed]
    windows = filled(timed)
    windows.turn(timed[-1][0] + 10_000)

    assert windows.longest(None) == max(gaps)
    assert windows.quantile(0.99, None) == pytest.approx(exact(gaps, 0.99), rel=0.02)


@given(timed_gaps)
def test_histogram_is_exact(timed):
    """The histogram counts each gap at or under each edge, whatever window it was in, and sums them."""
    gaps = [gap for _, gap in timed]
    found = filled(timed).histogram()

    assert found.edges == (*EDGES, math.inf)
    assert found.counts == tuple(sum(gap <= edge for gap in gaps) for edge in found.edges)
    assert found.sum == pytest.approx(math.fsum(gaps))


def test_a_second_that_is_looked_at_twice():
    """A look in the middle of a second changes nothing for the rest of it."""
    windows = GapWindows(EDGES)
    for gap in (0.2, 0.1, 3.0, 0.3):
        windows.turn(5)
        windows.pending.append(gap)
        windows.quantile(0.99, 60.0)

    assert windows.longest(60.0) == 3.0
    assert windows.quantile(0.5, 60.0) == pytest.approx(0.2, rel=0.02)
    windows.turn(65)
    assert windows.longest(60.0) is None
    assert windows.quantile(0.5, 60.0) is None


def test_nothing():
    """Without gaps there is no quantile and no maximum, and the histogram is empty."""
    windows = GapWindows(EDGES)

    assert windows.quantile(0.99, 60.0) is None
    assert windows.longest(None) is None
    assert windows.histogram().counts == (0, 0, 0, 0)


def test_zero_and_beyond():
    """Two chunks at one moment are a gap of nothing, and more than a day counts as the longest that is told apart."""
    windows = filled([(0, 0.0), (0, 0.0), (1, 1e9)])

    assert windows.quantile(0.5, 60.0) == 0.0
    assert windows.quantile(1.0, 60.0) == pytest.approx(LONGEST, rel=0.02)
    assert windows.longest(60.0) == 1e9


def test_gaps_of_one_moment_are_not_kept():
    """Where the clock stands still, gaps do not pile up."""
    windows = GapWindows(EDGES)
    for _ in range(50):
        windows.turn(1)
        windows.pending.extend([0.02] * 1000)

    assert len(windows.pending) < 10_000
    assert windows.histogram().counts[-1] == 50_000


def test_order_within_a_second_does_not_matter():
    """The same gaps in another order give the same answers."""
    gaps = [0.001 * n for n in range(1, 400)]
    shuffled = random.Random(1).sample(gaps, len(gaps))

    one, other = filled([(1, gap) for gap in gaps]), filled([(1, gap) for gap in shuffled])

    assert [one.quantile(q, 60.0) for q in QS] == [other.quantile(q, 60.0) for q in QS]
