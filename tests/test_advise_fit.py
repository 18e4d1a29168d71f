"""The time of a step is found in what a server does, and traffic in what it finished."""

import math
from dataclasses import replace

import pytest

from kvpressure.advise import demand, fit
from kvpressure.advise.seen import AdviseError, Counted, Slot
from kvpressure.lab.model import StepTime

EDGES = (100.0, 200.0, 500.0, float("inf"))


STEP = StepTime(0.018, 0.0002, 0.00014)


def slot(number, *, running, rate=2.0, step=STEP, preemptions=0.0, waiting=0.0):  # noqa: PLR0913
    """A quarter minute of a server with prompts of 150 tokens and answers of 300."""
    seconds, finished = 15.0, rate * 15.0
    prompts = 150.0 * rate
    # step = base + decode * running + prefill * (prompt tokens per second * step)
    took = (step.base + step.decode * running) / (1 - step.prefill * prompts)
    return Slot(
        end=15.0 * (number + 1),
        seconds=seconds,
        finished=finished,
        tokens=running / took * seconds,
        preemptions=preemptions,
        running=running,
        waiting=waiting,
        prompts=Counted(EDGES, (0.0, finished, 0.0, 0.0), 150.0 * finished),
        answers=Counted(EDGES, (0.0, 0.0, finished, 0.0), 300.0 * finished),
    )


@pytest.mark.parametrize("step", [STEP, StepTime(0.004, 0.0012, 0.00005)])
def test_a_step_time_is_found_where_the_load_changes(step):
    """With 5 to 60 requests, a step of either server is found to a tenth at any of these loads."""
    slots = [slot(n, running=float(n), rate=n / 10, step=step) for n in range(5, 61)]
    known = [replace(each, first_tokens=Counted((math.inf,), (each.finished,), 0.1)) for each in slots]
    found = fit.fit(known).step
    for n in (5, 20, 60):
        true, fitted = step.base + step.decode * n, found.base + found.decode * n
        assert abs(fitted / true - 1) < 0.1


def test_a_constant_load_gives_the_usual_shape():
    """Where the load never changed, the mean is kept and the parts are in the proportion of a usual server."""
    found = fit.fit([slot(n, running=30.0, step=StepTime(0.036, 0.0004, 0.00028)) for n in range(10)]).step
    assert abs((found.base + 30 * found.decode) / (0.036 + 30 * 0.0004) - 1) < 0.05
    assert 60 < found.base / found.decode < 130


def test_an_idle_server_has_no_step_time():
    """Nothing ran: one sentence, no number."""
    with pytest.raises(AdviseError, match="cannot be told"):
        fit.fit([Slot(15.0 * n, 15.0, running=0.0, tokens=0.0) for n in range(9)])


def test_arrivals_are_what_finished_and_what_grew():
    """A queue that grows by 30 requests in a minute is 30 arrivals that did not finish."""
    slots = [slot(n, running=10.0, waiting=max(0.0, 7.5 * (n - 3))) for n in range(20)]
    chosen = demand.busiest(slots, period=120.0)
    assert chosen == tuple(slots[-8:])
    found = demand.demand(slots, chosen)
    # The last slot has no successor, so half of its growth is not seen.
    assert found.rate == pytest.approx(2.0 + 7.5 / 15.0, rel=0.05)


def test_the_busiest_is_where_most_was_preempted():
    """Preemptions count more than a long queue; without any, the most present requests do."""
    calm = [slot(n, running=50.0) for n in range(40)]
    storm = [slot(n, running=20.0, preemptions=3.0) for n in range(40, 80)]
    rest = [slot(n, running=60.0) for n in range(80, 120)]
    assert demand.busiest([*calm, *storm, *rest]) == tuple(storm)
    assert demand.busiest([*calm, *rest]) == tuple(rest)
    assert demand.busiest(calm[:3]) == tuple(calm[:3])


def later(slots, seconds):
    """The same slots, so much later."""
    return [replace(each, end=each.end + seconds) for each in slots]


def test_the_busiest_has_no_hole():
    """Five minutes, ten hours that nobody watched, and five minutes again are not the busiest 605 minutes."""
    first = [slot(n, running=30.0, preemptions=1.0) for n in range(20)]
    second = later([slot(n, running=30.0, preemptions=2.0) for n in range(20)], 36_000)
    assert demand.busiest([*first, *second]) == tuple(second)


def test_a_short_hole_is_none():
    """A scrape that failed parts nothing: the minutes around it are one busy time, ten minutes by the clock."""
    slots = [slot(n, running=30.0, preemptions=1.0) for n in range(60) if n != 30]
    chosen = demand.busiest(slots)
    assert chosen[-1].end - (chosen[0].end - chosen[0].seconds) == demand.PERIOD


def test_a_short_crowd_is_not_the_busiest():
    """Without preemptions, a quarter minute between two holes does not stand for the day, however full it was."""
    calm = [slot(n, running=30.0) for n in range(80)]
    crowd = later([slot(0, running=50.0)], 36_000)
    storm = later([slot(n, running=20.0, preemptions=1.0) for n in range(8)], 72_000)
    assert set(demand.busiest([*calm, *crowd])) <= set(calm)
    assert demand.busiest([*calm, *crowd, *storm]) == tuple(storm)


@pytest.mark.parametrize("hole", ["before", "after"])
def test_nobody_arrived_in_a_hole(hole):
    """What was there beyond a hole is no growth: the server finished two requests a second, and as many came."""
    chosen = later([slot(n, running=10.0) for n in range(40)], 36_000)
    full = [slot(n, running=10.0, waiting=300.0) for n in range(40)]
    empty = [slot(n, running=0.0, rate=0.0) for n in range(40)]
    for other in (full, empty):
        slots = [*other, *chosen] if hole == "before" else [slot(-1, running=10.0), *chosen, *later(other, 72_000)]
        assert demand.demand(slots, chosen).rate == pytest.approx(2.0)


def test_runs_are_like_what_was_seen():
    """Ten seeds: each differs, together they have the rate and the lengths of what was seen."""
    slots = [slot(n, running=30.0, rate=1.0 + n % 3) for n in range(40)]
    found = demand.demand(slots, demand.busiest(slots))
    runs = [found.jobs(seed) for seed in range(10)]
    assert found.jobs(3) == runs[3]
    assert len({len(jobs) for jobs in runs}) > 1
    jobs = [job for run in runs for job in run]
    seconds = 10 * (found.seconds + demand.RUN_IN)
    assert len(jobs) / seconds == pytest.approx(found.rate, rel=0.05)
    assert sum(job.prompt for job in jobs) / len(jobs) == pytest.approx(150, rel=0.03)
    assert sum(job.answer for job in jobs) / len(jobs) == pytest.approx(300, rel=0.03)
    assert all(jobs == sorted(jobs, key=lambda job: job.arrival) for jobs in runs)


def test_too_little_is_said():
    """Ten requests are no traffic."""
    slots = [slot(n, running=1.0, rate=0.05) for n in range(10)]
    with pytest.raises(AdviseError, match="fewer than 20"):
        demand.demand(slots, slots)
