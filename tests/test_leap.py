# a test's name is the fact that it proves
"""The fast simulator decides what the lab's scheduler decides, step for step, and costs no more than its events."""

import itertools
import sys
from dataclasses import fields, replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leap_reference import INF, stepped

from kvpressure.lab.leap import Admission, Job, leap
from kvpressure.lab.model import Config, StepTime
from kvpressure.lab.scenarios import SCENARIOS
from kvpressure.lab.workload import arrivals

SUMS = {"seconds", "gap_seconds", "mean_running", "mean_waiting", "mean_usage", "pinned", "blocked"}
"""Added up in another order than the reference does; all else is equal to the last digit."""

STEPS = st.sampled_from(
    [
        StepTime(base=0.02, decode=0.001, prefill=0.0005),
        StepTime(base=0.25, decode=0.0, prefill=0.125),  # whole in binary: arrivals fall on the ends of steps
        StepTime(base=0.1, decode=0.0, prefill=0.0),  # a sum of many is not a product
        StepTime(base=0.0, decode=0.9, prefill=0.01),  # steps that are about as long as a pause
    ]
)


def same(got, expected):
    """Every field, so that a failure names the field."""
    for field in fields(expected):
        value = getattr(expected, field.name)
        wanted = pytest.approx(value, rel=1e-9, abs=1e-9) if field.name in SUMS else value
        assert (field.name, wanted) == (field.name, getattr(got, field.name))


@st.composite
def configs(draw):
    """Servers with a small cache of a few blocks or of many, and every limit of a step."""
    size = draw(st.sampled_from([1, 2, 4, 16, 32]))
    return Config(
        num_gpu_blocks=1 + max(1, draw(st.integers(20, 400)) // size),
        block_size=size,
        max_model_len=draw(st.sampled_from([50, 4000, 4000])),
        max_num_seqs=draw(st.sampled_from([1, 2, 5, 64, 64])),
        max_num_batched_tokens=draw(st.sampled_from([1, 3, 8, 20, 2048, 2048])),
        step_time=draw(STEPS),
    )


@st.composite
def traffic(draw, most=60):
    """Jobs in bursts and alone, with a limit or without."""
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from([0.0, 0.0, 0.0, 0.1, 0.25, 0.5, 1.0, 7.0]) | st.floats(0, 5),
                st.integers(1, most),
                st.integers(1, 60),
                st.sampled_from([0, 0, 0, 1, 30, 100]),
            ),
            max_size=30,
        )
    )
    times = itertools.accumulate(row[0] for row in rows)
    return [Job(time, prompt, answer, limit) for time, (_, prompt, answer, limit) in zip(times, rows, strict=True)]


@st.composite
def looks(draw):
    """Windows, patience, thresholds and rules of admission."""
    since = draw(st.sampled_from([0.0, 0.0, 0.5, 3.0]) | st.floats(0, 10))
    return {
        "since": since,
        "until": since + draw(st.sampled_from([INF, INF, 0.25, 1.0, 5.0]) | st.floats(0.001, 30)),
        "patience": draw(st.sampled_from([INF, INF, 0.1, 1.0, 5.0]) | st.floats(0.01, 10)),
        "pause": draw(st.sampled_from([1.0, 0.25, 0.1, 0.05])),
        "admission": Admission(draw(st.sampled_from([0, 0, 0, 1, 3, 50])), draw(st.sampled_from([False, False, True]))),
    }


@given(config=configs(), jobs=traffic(), look=looks())
@settings(max_examples=400, deadline=None)
def test_any_run_is_equal_to_the_labs_own_step_by_step(config, jobs, look):
    same(leap(config, jobs, **look), stepped(config, jobs, **look))


@given(
    config=configs(),
    budget=st.sampled_from([2, 3, 4, 6, 2048]),
    answers=st.lists(st.integers(10, 60), min_size=2, max_size=12),
    patience=st.sampled_from([INF, 3.0]),
)
@settings(max_examples=300, deadline=None)
def test_a_flood_of_short_prompts_that_outgrow_the_cache_is_equal_too(config, budget, answers, patience):
    blocks = 1 + -(-64 // config.block_size)
    config = replace(config, max_num_seqs=64, num_gpu_blocks=blocks, max_num_batched_tokens=budget)
    jobs = [Job(0.0, 3, answer) for answer in answers]
    same(leap(config, jobs, patience=patience), stepped(config, jobs, patience=patience))


def test_a_gap_is_compared_with_the_threshold_as_the_difference_of_two_clocks():
    config = Config(num_gpu_blocks=100, step_time=StepTime(base=0.1, decode=0.0, prefill=0.0))
    # Tokens at 0.1, 0.2, 0.30000000000000004 and 0.4: only the third is more than 0.1 s after the one before it.
    outcome = leap(config, [Job(0.0, 1, 4)], pause=0.1)
    same(outcome, stepped(config, [Job(0.0, 1, 4)], pause=0.1))
    assert outcome.paused == 1


def test_a_step_that_ends_as_the_window_does_is_in_it():
    config = Config(num_gpu_blocks=100, step_time=StepTime(base=0.25, decode=0.0, prefill=0.0))
    assert leap(config, [Job(0.0, 1, 4)], until=0.5).tokens == 2
    assert leap(config, [Job(0.0, 1, 4)], since=0.5).tokens == 2


def scenario_jobs(name, seconds, seed=0):
    stream = itertools.takewhile(lambda arrival: arrival.time < seconds, arrivals(SCENARIOS[name].workload, seed))
    return [Job(arrival.time, arrival.prompt_tokens, arrival.answer_tokens) for arrival in stream]


@pytest.mark.parametrize(
    ("name", "since", "until", "storms"),
    [
        ("storm", 60, 240, True),
        ("onset", 0, 120, True),
        ("long_answers", 240, 480, True),
        ("bookstore", 540, 800, True),
        ("queue_bound", 60, 180, False),
    ],
)
def test_a_named_scenario_is_equal_to_the_labs_own(name, since, until, storms):
    scenario = SCENARIOS[name]
    look = {"since": since, "until": until, "patience": scenario.workload.patience}
    jobs = scenario_jobs(name, until)
    outcome = leap(scenario.server, jobs, **look)
    same(outcome, stepped(scenario.server, jobs, **look))
    assert storms == (outcome.preemptions > 10)


@cache
def storm(**admission):
    """Three minutes of the storm under a rule of admission."""
    return leap(SCENARIOS["storm"].server, scenario_jobs("storm", 180), until=180, admission=Admission(**admission))


@given(config=configs(), jobs=traffic(), headroom=st.sampled_from([0, 2]))
@settings(max_examples=200, deadline=None)
def test_guaranteed_admission_never_preempts_and_serves_all_that_can_fit(config, jobs, headroom):
    outcome = leap(config, jobs, admission=Admission(headroom, guaranteed=True))
    assert outcome.preemptions == 0
    assert outcome.finished + outcome.refused == outcome.arrived == len(jobs)


def test_guaranteed_admission_ends_the_storm_and_makes_the_queue_longer():
    assert storm().preemptions > 100
    assert storm(guaranteed=True).preemptions == 0
    assert storm(guaranteed=True).mean_waiting > storm().mean_waiting
    assert storm(guaranteed=True).mean_running < storm().mean_running


def test_more_headroom_means_fewer_preemptions_of_the_storm():
    preemptions = [storm(headroom=blocks).preemptions for blocks in (0, 60, 180, 300)]
    assert preemptions == sorted(preemptions, reverse=True)
    assert preemptions[-1] < preemptions[0] / 10


def test_headroom_that_can_never_be_kept_lets_requests_run_one_by_one():
    jobs = [Job(0.0, 10, 5) for _ in range(4)]
    outcome = leap(Config(num_gpu_blocks=100), jobs, admission=Admission(headroom=1000))
    assert (outcome.finished, outcome.top_running) == (4, 1)


def test_the_limit_ends_an_answer_is_reserved_and_decides_who_is_refused():
    config = Config(num_gpu_blocks=11, block_size=10)
    short, refused = Job(0.0, 20, 60, limit=5), Job(0.0, 20, 10, limit=81)
    outcome = leap(config, [short, refused])
    assert (outcome.tokens, outcome.finished, outcome.refused) == (5, 1, 1)
    pair = [Job(0.0, 20, 10, limit=50)] * 2
    assert leap(config, pair).top_running == 2
    assert leap(config, pair, admission=Admission(guaranteed=True)).top_running == 1


def test_windows_that_follow_each_other_add_up_to_the_whole():
    jobs = scenario_jobs("storm", 60)
    whole, first, second = (
        leap(SCENARIOS["storm"].server, jobs, since=since, until=until) for since, until in ((0, 60), (0, 30), (30, 60))
    )
    assert first.preemption_times + second.preemption_times == whole.preemption_times
    assert first.first_tokens + second.first_tokens == whole.first_tokens
    assert first.tokens + second.tokens == whole.tokens
    assert first.finished + second.finished == whole.finished
    # Who has begun to stream and has not finished streams in the second window too.
    assert second.streamed == whole.streamed - first.finished
    assert (first.mean_running + second.mean_running) / 2 == pytest.approx(whole.mean_running)


def test_the_same_jobs_give_the_same_outcome_and_an_endless_stream_is_read_as_far_as_it_is_needed():
    scenario = SCENARIOS["storm"]
    read = []

    def endless():
        for arrival in arrivals(scenario.workload, 0):
            read.append(arrival)
            yield Job(arrival.time, arrival.prompt_tokens, arrival.answer_tokens)

    first = leap(scenario.server, endless(), until=20)
    assert first == leap(scenario.server, scenario_jobs("storm", 30), until=20)
    assert len(read) == first.arrived + 1


def test_the_percentiles_of_the_first_token_are_by_nearest_rank():
    config = Config(num_gpu_blocks=100, max_num_seqs=1, step_time=StepTime(base=1.0, decode=0.0, prefill=0.0))
    outcome = leap(config, [Job(0.0, 1, 1) for _ in range(4)])
    assert outcome.first_tokens == (1.0, 2.0, 3.0, 4.0)
    assert [outcome.ttft(share) for share in (0.01, 0.5, 0.51, 0.95, 1.0)] == [1.0, 2.0, 3.0, 4.0, 4.0]


def test_an_empty_run_served_one_and_knows_no_time_to_the_first_token():
    outcome = leap(Config(num_gpu_blocks=100), [])
    assert (outcome.seconds, outcome.served, outcome.per_thousand, outcome.throughput) == (0.0, 1, 0.0, 0.0)
    assert outcome.ttft(0.5) is None
    idle = leap(Config(num_gpu_blocks=100), [Job(20.0, 1, 1)], until=10.0)
    assert (idle.seconds, idle.arrived, idle.mean_usage) == (10.0, 0, 0.0)


@pytest.mark.parametrize(
    "job",
    [
        Job(0.5, 1, 1),
        Job(-1.0, 1, 1),
        Job(INF, 1, 1),
        Job(float("nan"), 1, 1),
        Job(1, 0, 1),
        Job(1, 1, 0),
        Job(1, 1, 1, -1),
    ],
)
def test_a_job_that_makes_no_sense_is_named_by_its_number(job):
    with pytest.raises(ValueError, match=r"^job 2 cannot be simulated: "):
        leap(Config(num_gpu_blocks=100), [Job(1.0, 1, 1), job])


@pytest.mark.parametrize("window", [(1.0, 1.0), (-1.0, 5.0), (2.0, 1.0)])
def test_a_window_without_length_is_refused(window):
    with pytest.raises(ValueError, match="has no length"):
        leap(Config(num_gpu_blocks=100), [], since=window[0], until=window[1])


@pytest.mark.parametrize("limit", [{"num_gpu_blocks": 1}, {"max_num_seqs": 0}, {"max_num_batched_tokens": 0}])
def test_a_server_that_can_run_nothing_is_refused(limit):
    with pytest.raises(ValueError, match=r"^the server can run nothing"):
        leap(replace(Config(num_gpu_blocks=100), **limit), [Job(0.0, 1, 1)])


def calls(answer):
    """Function calls that 600 jobs in ten minutes cost, on a server without any pressure."""
    count = 0

    def profile(_frame, event, _what):
        nonlocal count
        count += event in ("call", "c_call")

    jobs = [Job(float(second), 100, answer) for second in range(600)]
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        outcome = leap(Config(num_gpu_blocks=10_000), jobs)
    finally:
        sys.setprofile(before)
    assert outcome.tokens == 600 * answer
    return count


def test_a_calm_run_costs_by_the_request_and_not_by_the_token_or_the_step():
    short, long = calls(20), calls(640)  # 600 to 1,200 events each; some 12,000 and 50,000 steps
    assert long < 1.5 * short
    assert long < 600 * 120
