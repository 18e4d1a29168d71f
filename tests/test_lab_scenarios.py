# a test's name is the fact that it proves
"""Each scenario shows what its name says, whatever the seed; a workload is reproducible."""

import itertools
from dataclasses import replace
from functools import cache

import pytest

from kvpressure.lab.engine import Engine
from kvpressure.lab.load import Load
from kvpressure.lab.model import Config, Request, StepTime
from kvpressure.lab.scenarios import SCENARIOS
from kvpressure.lab.simulate import simulate
from kvpressure.lab.workload import Length, Phase, Workload, arrivals

SEEDS = (0, 1, 2)
ONE_PHASE = Workload((Phase(seconds=10, rate=2.0, prompt=Length(100), answer=Length(50)),))


@cache
def trace(name, seconds, seed):
    """One run, shared by the tests that read it."""
    return simulate(SCENARIOS[name], seconds, seed)


def minutes(run, start, end):
    """Figures of each whole minute between two minutes."""
    return [run.window(60 * minute, 60 * (minute + 1)) for minute in range(start, end)]


@pytest.mark.parametrize("seed", SEEDS)
def test_calm_never_preempts_never_pins_and_nobody_waits_a_second(seed):
    figures = trace("calm", 400, seed).window()
    assert figures.preemptions == 0
    assert figures.pinned == 0
    assert figures.longest_gap < 1
    assert 0.2 < figures.mean_usage < 0.6


@pytest.mark.parametrize("seed", SEEDS)
def test_storm_is_there_within_a_minute_and_lasts_for_as_long_as_it_runs(seed):
    run = trace("storm", 420, seed)
    for minute in minutes(run, 0, 7):
        assert minute.per_thousand > 100
        assert minute.paused_share > 0.1
    assert max(b - a for a, b in itertools.pairwise([0.0, *run.preemption_times, 420.0])) < 20


@pytest.mark.parametrize("seed", SEEDS)
def test_onset_preempts_for_less_than_three_minutes_and_then_never_again(seed):
    run = trace("onset", 900, seed)
    times = run.preemption_times
    assert len(times) > 50
    assert times[-1] - times[0] < 180
    assert run.window(times[-1] + 60).pinned == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_long_answers_is_healthy_until_the_answers_double_and_then_storms(seed):
    run = trace("long_answers", 600, seed)
    assert run.window(0, 300).preemptions == 0
    for minute in minutes(run, 7, 10):
        assert minute.per_thousand > 100
        assert minute.paused_share > 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_queue_bound_queues_for_ever_in_front_of_a_roomy_cache(seed):
    run = trace("queue_bound", 400, seed)
    figures = run.window()
    assert figures.preemptions == 0
    assert figures.top_usage < 0.5
    assert figures.longest_gap < 1
    assert run.window(120).least_waiting > 0
    running = [step.running for step in run.steps if step.now > 120]
    assert max(running) == 8
    assert running.count(8) / len(running) > 0.9


@pytest.mark.parametrize("seed", SEEDS)
def test_slow_host_pauses_users_without_any_pressure_on_the_cache(seed):
    figures = trace("slow_host", 400, seed).window()
    assert figures.preemptions == 0
    assert figures.top_usage < 0.5
    assert figures.paused_share > 0.05
    assert 2 < figures.longest_gap < 4.5


@pytest.mark.parametrize("seed", SEEDS)
def test_bookstore_is_fine_with_short_answers_and_storms_with_long_ones(seed):
    run = trace("bookstore", 1000, seed)
    short, long = run.window(0, 600), run.window(720, 1000)
    assert short.per_thousand < 50
    assert short.paused_share < 0.02
    assert long.per_thousand > 100
    assert long.paused_share > 0.1


def test_bookstore_has_the_cache_of_its_story():
    server = SCENARIOS["bookstore"].server
    assert server.num_gpu_blocks * server.block_size == pytest.approx(26_600, abs=server.block_size)


def test_a_scenario_says_in_one_sentence_what_it_shows():
    for name, scenario in SCENARIOS.items():
        assert scenario.name == name
        assert scenario.summary.endswith(".")


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    first, again, other = (simulate(SCENARIOS["storm"], 60, seed) for seed in (5, 5, 6))
    assert first.steps == again.steps
    assert first.steps != other.steps


def test_arrivals_come_in_order_at_the_asked_rate_with_the_asked_lengths():
    workload = Workload((Phase(seconds=1, rate=5.0, prompt=Length(100, 0.5), answer=Length(10)),))
    asked = list(itertools.islice(arrivals(workload, 0), 5000))
    times = [arrival.time for arrival in asked]
    assert times == sorted(times)
    assert 5000 / times[-1] == pytest.approx(5.0, rel=0.05)
    assert {arrival.answer_tokens for arrival in asked} == {10}
    prompts = [arrival.prompt_tokens for arrival in asked]
    assert (min(prompts), max(prompts)) == (50, 150)
    assert sum(prompts) / 5000 == pytest.approx(100, rel=0.02)


def test_a_burst_comes_when_its_phase_begins_and_the_last_phase_never_ends():
    quiet = Phase(seconds=100, rate=0.1, prompt=Length(1), answer=Length(1))
    workload = Workload((quiet, replace(quiet, burst=7, answer=Length(2))))
    asked = list(itertools.islice(arrivals(workload, 0), 500))
    assert sum(1 for arrival in asked if arrival.time == 100.0) == 7
    assert {arrival.answer_tokens for arrival in asked if arrival.time < 100} == {1}
    assert asked[-1].time > 3000


def test_a_shared_prefix_is_reused_in_whole_blocks():
    workload = Workload((replace(ONE_PHASE.phases[0], shared_prefix=40),))
    assert len(next(arrivals(workload, 0)).block_keys(16)) == 2
    engine, load = Engine(Config(num_gpu_blocks=200)), Load(workload, 0)
    cached = []
    while engine.clock < 30:
        load.advance(engine)
        result, duration = engine.begin()
        cached += [sequence.cached_tokens for sequence in result.admitted]
        engine.finish(result, duration)
    assert cached[0] == 0
    assert set(cached[1:]) == {32}


def test_a_request_that_comes_to_a_busy_engine_waits_for_the_end_of_the_step():
    engine = Engine(Config(num_gpu_blocks=200, step_time=StepTime(base=1.0, decode=0.0, prefill=0.0)))
    engine.submit(Request("a", 5, 1))
    result, duration = engine.begin()
    engine.submit(Request("b", 5, 1), arrival=0.25)
    engine.finish(result, duration)
    iteration = engine.finish(*engine.begin())
    (token,) = iteration.tokens
    assert (token.times.arrival, token.times.queued, token.times.scheduled) == (0.25, 0.25, 1.0)
    assert token.times.first_token == 2.0


def test_a_user_leaves_who_has_seen_nothing_for_too_long_but_never_one_whose_answer_has_begun():
    engine = Engine(Config(num_gpu_blocks=200, max_num_seqs=1))
    load = Load(replace(ONE_PHASE, patience=0.2), 0)
    aborted, started = set(), set()
    while engine.clock < 30:
        aborted |= set(load.advance(engine).aborted)
        result, duration = engine.begin()
        started |= {token.sequence.request.id for token in engine.finish(result, duration).tokens}
    assert aborted
    assert started
    assert not aborted & started


def test_a_request_that_a_smaller_cache_could_never_hold_is_dropped_as_vllm_would_refuse_it():
    engine, load = Engine(Config(num_gpu_blocks=5)), Load(ONE_PHASE, 0)
    engine.clock = 10.0
    assert load.advance(engine).submitted == ()
    assert engine.scheduler.idle
