"""Regime: what is onset, and what is churn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.config import RegimeConfig
from kvpressure.derive.regime import RegimeWatch


def watch(*moments, **given):
    """A watch that saw preemptions at moments: seconds, or (seconds, how many)."""
    made = RegimeWatch(RegimeConfig(**given))
    for moment in moments:
        t, count = moment if isinstance(moment, tuple) else (moment, 1.0)
        made.observe(float(t), float(count))
    return made


def test_calm_without_preemptions():
    """Without a preemption the regime is calm, however many readings there were."""
    assert watch((0, 0), (1000, 0)).at(1000.0) == "calm"


def test_burst_is_onset():
    """A burst is onset, however large, and calm three minutes after its last preemption."""
    made = watch(*[(t, 500) for t in range(20)])

    assert made.at(19.0) == "onset"
    assert made.at(19.0 + 179.9) == "onset"
    assert made.at(19.0 + 180.0) == "calm"


def test_spread_is_churn():
    """Preemptions over more than four minutes are churn, from the one that makes it so."""
    assert watch(0, 60, 120, 180, 240).at(240.0) == "onset"
    assert watch(0, 60, 120, 180, 241).at(241.0) == "churn"


def test_churn_ends_after_its_pause():
    """Churn holds for five minutes after its last preemption, and is calm then."""
    made = watch(0, 60, 120, 180, 241)

    assert made.at(541.0) == "churn"
    assert made.at(541.1) == "calm"


def test_few_are_no_churn():
    """Four preemptions are never churn, whatever time they take."""
    assert watch(0, 100, 200, 300).at(300.0) == "onset"


def test_several_at_once_count():
    """Preemptions that one reading brought together count each."""
    assert watch(0, (241, 4)).at(241.0) == "churn"


def test_pause_starts_anew():
    """After a pause of over five minutes a new episode starts: two onsets are no churn."""
    assert watch((0, 50), (300.5, 50)).at(300.5) == "onset"
    assert watch((0, 50), (300, 50)).at(300.0) == "churn"


def test_config():
    """The rule's numbers are those of the settings."""
    assert watch(0, 11, churn_spread=10.0, churn_count=2).at(11.0) == "churn"
    assert watch(0, onset_hold=10.0).at(10.0) == "calm"


@given(moments=st.lists(st.floats(0, 240), min_size=1, max_size=50), late=st.floats(0, 1000))
def test_never_churn_within_four_minutes(moments, late):
    """No burst of at most four minutes is ever churn, at any moment after it."""
    made = watch(*[(t, 100) for t in sorted(moments)])

    assert made.at(max(moments) + late) in ("onset", "calm")


@given(gaps=st.lists(st.floats(0, 299), min_size=5, max_size=40))
def test_churn_is_the_episode(gaps):
    """Preemptions with no pause over five minutes are churn as soon as they span more than four."""
    moments = [1000.0]
    for gap in gaps:
        moments.append(moments[-1] + gap)
    long = moments[-1] - moments[0] > 240.0

    assert (watch(*moments).at(moments[-1]) == "churn") is long


@pytest.mark.parametrize("moments", [range(0, 4000, 20), range(0, 4000, 290)])
def test_storms_of_any_rate(moments):
    """What goes on for an hour is churn, at one preemption in 20 s as at one in 290 s."""
    assert watch(*moments).at(float(moments[-1])) == "churn"
