"""Hours that the rules were not made for: other rates, other hours, other sizes, and real recordings end to end."""

import math
import random

import alert_bench
import pytest
from alert_harness import Fired, fired, scrapes
from alert_traces import MINUTE, Engine, after, at, made_up, once, repeated, watched, wave, within

from kvpressure.recording import Row

STORM = "PreemptionStorm"
CHURN = "PreemptionChurn"
NEVER: dict[str, tuple[float, float]] = {}

CASES = {
    # --- onsets, whatever their size and hour ---------------------------------------------------------------------
    "an onset of 960 preemptions, early": (
        lambda: made_up(Engine(preemptions=within(3, 6.2, 5), finished=2, waiting=within(3, 6.2, 200)), minutes=30),
        NEVER,
    ),
    "three onsets in one hour": (
        lambda: made_up(
            Engine(preemptions=lambda t: float(t % 1200 < 170), waiting=lambda t: 50 * (t % 1200 < 170), finished=3)
        ),
        NEVER,
    ),
    "a noisy onset at three requests a second": (
        lambda: made_up(Engine(preemptions=noisy(within(20, 23, 0.8), 3), finished=noisy(3, 2)), minutes=40),
        NEVER,
    ),
    # --- steady rates: 10 is a ticket, 100 a page, and the line between them at 50 -----------------------------------
    "steady 4 per thousand": (lambda: made_up(Engine(preemptions=0.02, kv=0.95), minutes=40), NEVER),
    "steady 10 per thousand": (lambda: made_up(Engine(preemptions=0.05, kv=0.95), minutes=20), {CHURN: (5, 12)}),
    "steady 10 per thousand at 40 requests/s": (
        lambda: made_up(Engine(preemptions=0.4, finished=40, kv=0.99), minutes=30),
        {CHURN: (5, 12)},
    ),
    "steady 10 per thousand at 0.2 requests/s": (
        lambda: made_up(Engine(preemptions=0.002, finished=0.2, running=4, kv=0.9)),
        {CHURN: (30, 60)},
    ),
    "steady 40 per thousand": (lambda: made_up(Engine(preemptions=0.2, kv=0.95), minutes=20), {CHURN: (5, 12)}),
    "steady 60 per thousand": (
        lambda: made_up(Engine(preemptions=0.3, kv=0.95), minutes=20),
        {STORM: (4, 5), CHURN: (5, 12)},
    ),
    "steady 100 per thousand at 0.2 requests/s": (
        lambda: made_up(Engine(preemptions=after(10, 0.02), finished=0.2, running=4, kv=0.9), minutes=40),
        {STORM: (14, 16), CHURN: (15, 25)},
    ),
    "a trickle of 1 per thousand on a full cache": (
        lambda: made_up(Engine(preemptions=noisy(0.02, 5), finished=20, kv=0.99), minutes=40),
        NEVER,
    ),
    # --- storms ------------------------------------------------------------------------------------------------------
    "a noisy storm at 0.2 requests/s": (
        lambda: made_up(
            Engine(preemptions=noisy(after(10, 0.05), 1), finished=noisy(0.2, 2), running=6, kv=wave(60, 0.86, 1.0)),
            minutes=40,
        ),
        {STORM: (14, 15.5), CHURN: (15, 25)},
    ),
    "one rank of eight, two models": (
        lambda: made_up(
            *[
                Engine(
                    engine=str(rank),
                    model="a" if rank < 4 else "b",
                    preemptions=after(10, 0.3 if rank == 5 else 0.0),
                    finished=2,
                )
                for rank in range(8)
            ],
            minutes=20,
        ),
        {STORM: (14, 15), CHURN: (15, 25)},
    ),
    # --- other troubles ----------------------------------------------------------------------------------------------
    "a livelock that vLLM does not count": (
        lambda: made_up(
            Engine(
                running=lambda t: 20 if t < 600 else (8 if t % 4 < 2 else 3),
                waiting=lambda t: 0 if t < 600 else (20 if t % 4 < 2 else 25),
                tokens=after(10, 0.1, 1000),
                finished=after(10, 0, 5),
                kv=after(10, 0.99, 0.6),
            ),
            minutes=30,
        ),
        {"Livelock": (13, 17), "MemoryBound": (20, 30)},
    ),
    "a queue for memory, nothing preempted": (
        lambda: made_up(Engine(waiting=after(10, 30), kv=after(10, 0.995, 0.4)), minutes=40),
        {"MemoryBound": (20, 30)},
    ),
    "a queue at the scheduler's limit": (
        lambda: made_up(Engine(waiting=after(10, 30), kv=0.4), minutes=40),
        NEVER,
    ),
    "a full cache and no queue": (lambda: made_up(Engine(kv=1.0, tokens=1500), minutes=40), NEVER),
    "stalls with room in the cache": (
        lambda: made_up(Engine(tokens=lambda t: 0 if t % 120 < 4 else 1000), minutes=30),
        {"StallElsewhere": (10, 15)},
    ),
    "answers that grow by half": (
        lambda: made_up(Engine(output=after(60, 375, 250)), minutes=100),
        {"OutputLengthShift": (70, 90)},
    ),
    # --- restarts ----------------------------------------------------------------------------------------------------
    "a healthy restart of two minutes": (lambda: made_up(Engine(), restart=30, silent=(30, 32)), NEVER),
    "a server that does not come back": (
        lambda: made_up(Engine(), silent=(20, 60), minutes=40),
        {"VLLMDown": (22.5, 23.5)},
    ),
}


def noisy(rate, seed):
    """Whole events, as many a second as chance has it at this rate."""
    chance = random.Random(seed)

    def events(t):
        count, left, least = 0, chance.random(), math.exp(-at(rate, t))
        while left > least:
            left *= chance.random()
            count += 1
        return float(count)

    return events


def judged(rows, folder, events=()) -> dict[str, Fired]:
    """Pages and tickets by the alert's name."""
    found = fired(scrapes(rows, events), alert_bench.RULES, folder)
    return {name.removeprefix("KVPressure"): when for (severity, name), when in found.items() if severity != "info"}


@pytest.mark.parametrize("case", CASES)
def test_made_up_hours(case, tmp_path):
    """Each hour sets off the pages and tickets that it should, in time, and no others."""
    rows, expected = CASES[case]

    found = judged(rows(), tmp_path)

    assert set(expected) == set(found)
    for name, (earliest, latest) in expected.items():
        assert earliest <= found[name].first <= latest, name


def test_a_page_outlasts_a_restart_and_ends_with_its_storm(tmp_path):
    """A storm of 35 minutes with a restart and 75 s of silence is one page without a hole, gone in ten minutes."""
    storm = Engine(preemptions=within(5, 40, 2), finished=10, kv=within(5, 40, 1, 0.6), waiting=within(5, 40, 80))

    page = judged(made_up(storm, restart=25, silent=(24, 25.25)), tmp_path)[STORM]

    assert 9 <= page.first <= 10
    assert page.whole
    assert 40 <= page.last < 50


def test_the_quietest_page_ends_in_time_as_well(tmp_path):
    """At 0.2 requests a second, where a preemption weighs most, a page ends within ten minutes after the last one."""
    storm = Engine(preemptions=within(5, 30, 0.05), finished=0.2, running=6, tokens=60)

    page = judged(made_up(storm, minutes=50), tmp_path)[STORM]

    assert page.whole
    assert 30 <= page.last < 40


@pytest.mark.parametrize("name", ["control_16_500", "arm_tight_2x3"])
def test_a_storm_that_was_recorded_pages(name, recorded, tmp_path):
    """A recorded flood on a tight cache, again and again for an hour, pages within five minutes and to the end."""
    found = judged(repeated(recorded(name), 60), tmp_path)

    assert 4 <= found[STORM].first <= 5
    assert (60.0, True) == (found[STORM].last, found[STORM].whole)


@pytest.mark.parametrize("name", ["arm_roomy", "control_500_16", "compute_stall"])
def test_what_was_recorded_once_pages_nobody(name, recorded, tmp_path):
    """A flood that settles, a queue without preemptions and a stopped process, once each, are no page and no ticket."""
    assert {} == judged(once(recorded(name), 25), tmp_path)


STREAMS = alert_bench.ROOT / "tests" / "fixtures" / "recordings"


def streams_of(name):
    """The file of what users saw in a recording."""
    return STREAMS / name / "streams.jsonl.gz"


@pytest.mark.parametrize("name", ["arm_roomy", "arm_tight_2x3", "compute_stall"])
def test_pauses_of_an_onset_or_of_one_stall_page_nobody(name, recorded, tmp_path):
    """With a tap that saw every pause, what happened once still is no page: 33 of 200 were paused in arm_roomy."""
    rows = recorded(name)

    assert {} == judged(once(rows, 25), tmp_path, watched(streams_of(name), rows, 25, again=False))


def test_pauses_that_go_on_page_whatever_their_reason(recorded, tmp_path):
    """A process that is stopped for 3 s again and again pauses 8 % of its users: a page, and not for the cache."""
    rows = recorded("compute_stall")

    found = judged(repeated(rows, 25), tmp_path, watched(streams_of("compute_stall"), rows, 25, again=True))

    assert {"RequestsPausing", "StallElsewhere"} == set(found)
    assert found["RequestsPausing"].first <= 6


def test_a_server_that_answers_only_now_and_then_still_pages(tmp_path):
    """Where two samples of three fail, a storm is seen all the same."""
    rows = made_up(Engine(preemptions=after(5, 0.5)), minutes=20)

    found = judged((row if int(row.t) % 3 == 0 else Row(row.t, None, 0.01) for row in rows), tmp_path)

    assert 9 <= found[STORM].first <= 11


def test_the_harness_tells_a_hole_from_a_whole(tmp_path):
    """An alert that ends and fires again is not whole."""
    rows = made_up(Engine(preemptions=lambda t: 2.0 * (t % (30 * MINUTE) < 10 * MINUTE)), minutes=50)

    page = judged(rows, tmp_path)[STORM]

    assert not page.whole
