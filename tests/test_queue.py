"""Where the running batch stood while requests queued."""

from hypothesis import given
from hypothesis import strategies as st

from kvpressure.derive.queue import QueueFacts, QueueWatch


def watch(*rows, window=300.0):
    """A watch that saw rows of (end, seconds, running, queued, usage)."""
    made = QueueWatch(window)
    for end, seconds, running, queued, usage in rows:
        made.observe(end, seconds, running=running, queued=queued, usage=usage)
    return made


def test_no_queue():
    """Without a queue there is nothing to tell, however large the batch."""
    assert watch((1.0, 1.0, 50.0, False, 0.9)).facts(1.0) == QueueFacts()


def test_facts():
    """Seconds, time at the maximum and usage are those with a queue; the maximum is of all the window."""
    made = watch(
        (1.0, 1.0, 8.0, True, 0.4), (3.0, 2.0, 6.0, True, 0.5), (4.0, 1.0, 8.0, False, 0.9), (5.0, 1.0, 8.0, True, 0.3)
    )

    assert made.facts(5.0) == QueueFacts(seconds=4.0, running_max=8.0, at_max=2.0, usage_max=0.5)


def test_maximum_without_queue():
    """A larger batch without a queue shows that running was not at its maximum while requests waited."""
    made = watch((1.0, 1.0, 8.0, True, 0.4), (2.0, 1.0, 10.0, False, 0.4))

    assert made.facts(2.0) == QueueFacts(seconds=1.0, running_max=10.0, at_max=0.0, usage_max=0.4)


def test_a_place_left_for_a_step():
    """A batch one short of its maximum, or a tenth, still stands at it; an empty one never does."""
    small = watch((1.0, 1.0, 8.0, True, 0.1), (2.0, 1.0, 7.0, True, 0.1), (3.0, 1.0, 6.0, True, 0.1))
    large = watch((1.0, 1.0, 200.0, True, 0.1), (2.0, 1.0, 180.0, True, 0.1), (3.0, 1.0, 179.0, True, 0.1))
    lone = watch((1.0, 1.0, 1.0, True, 0.1), (2.0, 1.0, 0.0, True, 0.1))

    assert [made.facts(3.0).at_max for made in (small, large, lone)] == [2.0, 2.0, 1.0]


def test_window():
    """What ended before the window is not in it, even where no reading came since."""
    made = watch((1.0, 1.0, 8.0, True, 0.4))

    assert made.facts(300.5).seconds == 1.0
    assert made.facts(301.0) == QueueFacts()


def test_bounded():
    """Only the window's rows are kept."""
    made = watch(*[(float(t), 1.0, 1.0, True, 0.1) for t in range(1, 2000)])

    assert len(made._held) == 300
    assert made.facts(1999.0).seconds == 300.0


STATES = st.lists(
    st.tuples(
        st.sampled_from([0.5, 1.0, 7.0, 29.5, 61.0]),  # seconds that it lasted
        st.sampled_from([0.0, 2.0, 8.0, 9.0]),  # running
        st.booleans(),  # a queue
        st.sampled_from([0.1, 0.5, 0.9, 1.0]),  # usage
        st.sampled_from([0.0, 0.0, 40.0]),  # seconds before it that were not observed
    ),
    min_size=1,
    max_size=60,
)


@given(states=STATES, late=st.sampled_from([0.0, 3.5, 59.5, 200.0]))
def test_facts_by_brute_force(states, late):
    """After each state, and at any moment after the last one, the facts are those of all states in the window."""
    made, seen, end = QueueWatch(60.0), [], 0.0
    for seconds, running, queued, usage, unseen in states:
        end += seconds + unseen
        made.observe(end, seconds, running=running, queued=queued, usage=usage)
        seen.append((end, seconds, running, queued, usage))

        assert by_looking_at_all(seen, end) == made.facts(end)
    assert by_looking_at_all(seen, end + late) == made.facts(end + late)


def by_looking_at_all(states, t):
    held = [state for state in states if state[0] > t - 60.0]
    queued = [state for state in held if state[3]]
    if not queued:
        return QueueFacts()
    top = max(running for _, _, running, _, _ in held)
    return QueueFacts(
        sum(seconds for _, seconds, *_ in queued),
        top,
        sum(seconds for _, seconds, running, *_ in queued if running >= max(1.0, top - max(1.0, 0.1 * top))),
        max(usage for *_, usage in queued),
    )
