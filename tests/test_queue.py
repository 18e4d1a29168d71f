"""Where the running batch stood while requests queued."""

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
    made = watch((1.0, 1.0, 8.0, True, 0.4), (2.0, 1.0, 9.0, False, 0.4))

    assert made.facts(2.0) == QueueFacts(seconds=1.0, running_max=9.0, at_max=0.0, usage_max=0.4)


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
