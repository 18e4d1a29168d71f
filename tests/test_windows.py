"""Totals by time: what a window starts from."""

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from kvpressure.derive.windows import Buckets, History, Totals

GAPS = st.lists(st.sampled_from([0.5, 1.0, 7.0, 61.0, 300.0, 901.0]), min_size=1, max_size=60)


def baseline(readings, t):
    """The newest reading at or before t, or the first one: by looking at all of them."""
    before = [row for row in readings if row[0] <= t]
    return (before[-1] if before else readings[0])[1]


@settings(deadline=None)
@given(gaps=GAPS, window=st.sampled_from([60.0, 300.0, 900.0]), late=st.sampled_from([0.0, 0.25, 5.0]))
def test_window_is_that_of_all_readings(gaps, window, late):
    """At each reading, a window's start is what a search of all readings since the first one finds."""
    history, readings, t = History(900.0), [], 1000.0
    for number, gap in enumerate(gaps * 12):
        t += gap
        readings.append((t, Totals(preemptions=float(number))))
        history.append(*readings[-1])

        assert baseline(readings, t + late - window) == history.at(t + late - window)
        assert history.last == readings[-1][1]


def test_history_is_bounded():
    """An hour at one sample a second leaves no more rows than the longest window holds, and the one it starts at."""
    history = History(900.0)
    for second in range(3600):
        history.append(float(second), Totals())

    assert len(history) == 901


def test_an_engine_that_comes_and_goes_leaves_no_more():
    """Fifteen readings every 200 s: those of the last five times and the one the window starts at."""
    history = History(900.0)
    for visit in range(40):
        for second in range(15):
            history.append(200.0 * visit + second, Totals())

    assert len(history) == 5 * 15 + 1


def test_short_history_starts_at_first_reading():
    """A window that reaches back before the first reading starts there."""
    history = History(900.0)
    history.append(100.0, Totals(preemptions=5.0))
    history.append(101.0, Totals(preemptions=6.0))

    assert history.at(101.0 - 900.0).preemptions == 5.0


def test_reading_at_the_very_start():
    """A reading exactly at the window's start is its baseline."""
    history = History(900.0)
    for t in (0.0, 60.0, 120.0):
        history.append(t, Totals(preemptions=t))

    assert history.at(60.0).preemptions == 60.0


def test_buckets_since():
    """Buckets of one epoch are subtracted, one by one."""
    now, then = Buckets(1, array("d", [3.0, 5.0]), 9.0, 1.0), Buckets(1, array("d", [1.0, 1.0]), 5.0, 0.5)

    assert now.since(then) == [2.0, 4.0]


def test_buckets_since_other_edges():
    """Over a change of edges, all of the new epoch is what was gained."""
    now, then = Buckets(2, array("d", [3.0, 5.0]), 9.0, 1.0), Buckets(1, array("d", [1.0, 1.0]), 5.0, 0.5)

    assert now.since(then) == [3.0, 5.0]


def test_buckets_since_nothing():
    """Since before there was a histogram, all of it is what was gained."""
    assert Buckets(0, array("d", [3.0, 5.0]), 5.0, 1.0).since(Buckets()) == [3.0, 5.0]


NUMBERS = st.floats(0, 1e18)
HISTOGRAMS = st.builds(
    Buckets,
    st.integers(0, 1000),
    st.lists(NUMBERS, max_size=25).map(lambda counts: array("d", counts)),
    NUMBERS,
    NUMBERS,
)


@given(totals=st.builds(Totals, *[NUMBERS] * Totals._fields.index("gaps"), *[HISTOGRAMS] * 3))
def test_kept_as_it_was(totals):
    """Totals come back from the history exactly as they went in, histograms of any size among them."""
    history = History(900.0)
    history.append(0.0, totals)
    history.append(1.0, Totals())

    assert history.at(0.5) == totals
