"""One vLLM server over its life: restarts, sleeps, outages, ranks that come and go, clocks that step back."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kvpressure.config import Config
from kvpressure.derive import target as module
from kvpressure.derive.target import FORGET_AFTER, Target
from kvpressure.expose.families import exposition
from kvpressure.vllm.spellings import SPELLINGS

START = 1000.0


class Server:
    """A target that is fed one sample a second; time is what was given, not a clock's."""

    def __init__(self, text, **given):
        self.target = Target(Config(), interval=1.0, **given)
        self.text = text
        self.t = START - 1.0

    def says(self, *texts, **values):
        self.t += 1.0
        self.target.observe(self.t, "".join(texts) or self.text(**values), 0.01)
        return self

    def fails(self, times=1):
        for _ in range(times):
            self.t += 1.0
            self.target.failed(self.t, "timeout")
        return self

    def snapshot(self, later=0.0):
        return self.target.snapshot(self.t + later)

    def engine(self, number=0, later=0.0):
        return self.snapshot(later).engines[number]

    def series(self, later=0.0):
        """The exposition: sample name and labels -> value."""
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(exposition(self.snapshot(later)).decode())
            for sample in family.samples
        }


@pytest.fixture
def server(vllm_text):
    return Server(vllm_text)


def test_before_the_first_sample(server):
    """Before the first sample there is no up, no engine and no availability, but the schedule."""
    names = {key[0] for key in server.series()}

    assert server.snapshot().up is None
    assert names == {"kvpressure_sample_interval_seconds", "kvpressure_samples_total", "kvpressure_build_info"}


def test_unknown_before_the_second_reading(server):
    """After one reading regime and verdict are unknown and no window exists; after two they are known."""
    first = server.says(preemptions=5).engine()
    second = server.says(preemptions=6).engine()

    assert (first.regime, first.verdict, first.windows, first.preemptions) == ("unknown", "unknown", (), 0.0)
    assert (second.regime, second.verdict, second.preemptions) == ("onset", "healthy", 1.0)
    assert [window.window for window in second.windows] == ["1m", "5m", "15m"]


def test_restart(server):
    """A restart of vLLM, with an outage between, keeps what was counted and adds what the new process counts."""
    server.says(preemptions=100, finished=40).says(preemptions=104, finished=50)
    engine = server.fails(60).says(preemptions=0, finished=0).says(preemptions=2, finished=1).engine()

    assert (engine.preemptions, engine.finished, engine.resets) == (6.0, {"stop": 11.0}, 1.0)


def test_restart_infers_nothing(server):
    """A vLLM that restarts before anything finished, into a queue, shows no preemption."""
    server.says(running=50, kv_usage=1, tokens=900).says(running=50, kv_usage=1, tokens=950)
    engine = server.fails(60).says(running=2, waiting=30, kv_usage=0.9, tokens=5).engine()

    assert (engine.preemptions, engine.preemptions_inferred) == (0.0, 0.0)


def test_sleep(server):
    """An engine that is put to sleep has no regime and no verdict, and its time is in no total."""
    server.says(preemptions=5, kv_usage=1, awake=1).says(preemptions=6, kv_usage=1, awake=1)
    asleep = [server.says(preemptions=6, kv_usage=1, awake=0).engine() for _ in range(5)]
    awake = server.says(preemptions=6, awake=1).says(preemptions=6, awake=1).engine()

    assert {(engine.regime, engine.verdict) for engine in asleep} == {("unknown", "unknown")}
    assert (awake.regime, awake.verdict, awake.kv_observed_seconds) == ("onset", "healthy", 3.0)


def test_rank_appears(server, vllm_text):
    """A rank that appears with counters of its own life brings none of them: it is counted from there."""
    first = vllm_text(preemptions=7)
    server.says(first).says(first)
    server.says(first, vllm_text(engine="1", preemptions=500, finished=900, running=3, waiting=9, kv_usage=1))
    engine = server.engine(1)

    assert (engine.preemptions, engine.finished, engine.preemptions_inferred) == (0.0, {"stop": 0.0}, 0.0)
    assert (engine.regime, engine.waiting) == ("unknown", 9.0)


def test_rank_vanishes(server, vllm_text):
    """A rank that vanishes keeps its counters, loses its gauges and windows, and makes nobody preempted."""
    both = vllm_text(preemptions=7), vllm_text(engine="1", preemptions=5, running=9, kv_usage=1)
    engine = server.says(*both).says(*both).says(both[0]).engine(1)
    names = {key[0] for key in server.series() if "1" in key[1:]}

    assert (engine.preemptions, engine.preemptions_inferred, engine.regime, engine.running) == (
        0.0,
        0.0,
        "unknown",
        None,
    )
    assert "kvpressure_preemptions_total" in names
    assert not names & {
        "kvpressure_kv_usage_ratio",
        "kvpressure_requests_running",
        "kvpressure_preemptions_per_thousand_requests",
    }


def test_rank_is_forgotten(server, vllm_text):
    """A rank that is gone for fifteen minutes leaves no series behind; the one that stayed keeps all of its own."""
    server.says(vllm_text(), vllm_text(engine="1"))
    gone = server.t
    while server.t - gone < FORGET_AFTER:
        server.says(vllm_text())

    assert len(server.snapshot().engines) == 2
    assert [engine.engine for engine in server.says(vllm_text()).snapshot().engines] == ["0"]
    assert not [key for key in server.series() if "1" in key[1:] and key[0].startswith("kvpressure_preemptions_total")]


def test_rank_comes_back(server, vllm_text):
    """A rank that comes back within that time goes on where it was, and the time between was not observed."""
    both = vllm_text(), vllm_text(engine="1", preemptions=5)
    server.says(*both).says(*both)
    for _ in range(10):
        server.says(both[0])
    engine = server.says(both[0], vllm_text(engine="1", preemptions=9)).engine(1)

    assert (engine.preemptions, engine.kv_observed_seconds) == (4.0, 1.0)


def test_engines_are_bounded(server, vllm_text):
    """Ever new model names leave no more engines than the bound; the one that is exposed is among them."""
    for number in range(module.MAX_ENGINES + 10):
        server.says(vllm_text(model=f"m{number}"))
    models = [engine.model_name for engine in server.snapshot().engines]

    assert len(models) == module.MAX_ENGINES
    assert f"m{module.MAX_ENGINES + 9}" in models
    assert "m0" not in models


def test_forgetting_waits_for_vllm(server):
    """While vLLM is down nothing is forgotten, however long."""
    server.says(preemptions=1).says(preemptions=3)
    server.t += 10 * FORGET_AFTER

    assert server.fails().engine().preemptions == 2.0


def test_outage(server):
    """Three failed samples do not age the last reading; the fourth leaves only what was counted."""
    server.says(preemptions=1, kv_usage=1).says(preemptions=3, kv_usage=1)
    short, long = server.fails(3).engine(), server.fails().engine()

    assert (short.kv_usage, short.regime) == (1.0, "onset")
    assert (long.kv_usage, long.regime, long.verdict, long.windows) == (None, "unknown", "unknown", ())
    assert (long.preemptions, long.kv_pinned_seconds) == (2.0, 1.0)


def test_outage_in_the_exposition(server):
    """During an outage up is 0 and gauges are absent, while counters, regime unknown and errors stay."""
    series = server.says(preemptions=1).says(preemptions=3).fails(9).series()
    names = {key[0] for key in series}

    assert series["kvpressure_up",] == 0.0
    assert series["kvpressure_preemptions_total", "0", "m"] == 2.0
    assert series["kvpressure_regime", "0", "m", "unknown"] == 1.0
    assert series["kvpressure_sample_errors_total", "timeout"] == 9.0
    assert not names & {"kvpressure_kv_usage_ratio", "kvpressure_kv_pinned_ratio", "kvpressure_requests_running"}


def test_after_the_outage(server):
    """The next good sample goes on where the counters were; the outage is in no time."""
    server.says(preemptions=1, kv_usage=1).says(preemptions=3, kv_usage=1)
    engine = server.fails(20).says(preemptions=8, kv_usage=1).says(preemptions=8, kv_usage=1).engine()

    assert (engine.preemptions, engine.resets) == (7.0, 0.0)
    assert (engine.kv_observed_seconds, engine.kv_pinned_seconds) == (2.0, 2.0)


def test_refused_body(server):
    """A body that is refused is a failed sample with the reason of its own, and changes nothing that was counted."""
    server.says(preemptions=1).says(preemptions=3).says("<html>\n")
    snapshot = server.snapshot()

    assert (snapshot.up, snapshot.errors, snapshot.samples) == (False, {"not_exposition": 1}, 3)
    assert server.says(preemptions=4).engine().preemptions == 3.0


def test_problems_are_counted(server, vllm_text):
    """Parts of a good sample that were skipped are counted by reason, and the sample is good."""
    server.says(vllm_text(waiting="NaN"))

    assert (server.snapshot().up, server.snapshot().errors) == (True, {"bad_value": 1})


def test_hanging_sample(server):
    """A sample that hangs does not age the last one before it would have failed: three intervals and the timeout."""
    server.says().says()

    assert server.engine(later=13.0).kv_usage == 0.5
    assert server.engine(later=13.1).kv_usage is None


def test_clock_steps_back(server):
    """Where the clock steps back, time goes on by an interval: nothing is lost, counted twice or waited for."""
    server.says(preemptions=1, kv_usage=1).says(preemptions=2, kv_usage=1)
    server.t -= 3600.0
    engine = server.says(preemptions=4, kv_usage=1).says(preemptions=5, kv_usage=1).engine()

    assert (engine.preemptions, engine.kv_observed_seconds, engine.kv_pinned_seconds) == (4.0, 3.0, 3.0)
    assert server.snapshot().errors == {"clock_stepped_back": 1}
    assert server.snapshot().t == START + 3.0


def test_clock_steps_back_while_down(server):
    """A step back at a failed sample is one too, and the next good sample has no negative age."""
    server.says().says()
    server.t -= 3600.0
    server.fails().says()

    assert server.snapshot().errors == {"clock_stepped_back": 1, "timeout": 1}
    assert server.engine().kv_observed_seconds == 3.0


def test_counter_absent_then_present(server):
    """A counter that appears later counts from 0; until then the signals that need it are absent and said to be."""
    before = server.says(preemptions=None).says(preemptions=None).series()
    after = server.says(preemptions=3).series()

    assert before["kvpressure_signal_available", "preemptions_total"] == 0.0
    assert ("kvpressure_preemptions_total", "0", "m") not in before
    assert before["kvpressure_regime", "0", "m", "unknown"] == 1.0
    assert after["kvpressure_signal_available", "preemptions_total"] == 1.0
    assert after["kvpressure_preemptions_total", "0", "m"] == 3.0


@pytest.mark.parametrize(
    ("left_out", "absent"),
    [
        ("kv_usage", {"kv_usage_ratio", "kv_pinned_ratio", "kv_observed_seconds_total", "kv_pinned_seconds_total"}),
        ("running", {"requests_running", "preemptions_per_thousand_requests", "kv_resident_tokens_per_request"}),
        ("finished", {"requests_finished_total", "preemptions_per_thousand_requests"}),
        ("waiting", {"requests_waiting", "preemptions_inferred_total"}),
        ("tokens", {"generation_tokens_total"}),
        ("preemptions", {"preemptions_total", "recomputed_tokens_estimate_total"}),
        ("blocks", {"kv_capacity_tokens", "kv_resident_tokens_per_request", "recomputed_tokens_estimate_total"}),
        ("gaps", {"inter_token_gap_p99_seconds", "long_gaps_per_thousand_requests"}),
    ],
)
def test_absent_is_absent(server, left_out, absent):
    """What vLLM does not say leaves the series that need it absent, never 0; with it they are all there."""
    values = {"blocks": 100, "gaps": {"1.0": 3, "+Inf": 3}, "preemptions": 3, "finished": 2}
    later = values | {"gaps": {"1.0": 4, "+Inf": 5}}
    there = {key[0] for key in server.says(**values).says(**later).series()}
    gone = {
        key[0]
        for key in Server(server.text).says(**values | {left_out: None}).says(**later | {left_out: None}).series()
    }

    assert {f"kvpressure_{name}" for name in absent} <= there
    assert not {f"kvpressure_{name}" for name in absent} & gone


def test_available_on_every_engine(server, vllm_text):
    """A signal is available only where every engine of the last good sample gives what it needs."""
    server.says(vllm_text(), vllm_text(engine="1", waiting=None))

    assert server.snapshot().unavailable["requests_waiting"] == ("waiting",)
    assert "requests_running" not in server.snapshot().unavailable


def test_nothing_available_without_engines(server):
    """An exposition without any vllm: series is a good sample, of which no signal can be derived."""
    snapshot = server.says("python_info 1\n").snapshot()

    assert (snapshot.up, snapshot.engines) == (True, ())
    assert snapshot.unavailable["preemptions_total"] == ("preemptions",)


def test_live_interval(vllm_text):
    """A live target schedules by its duty budget, and judges gaps by the interval that was scheduled."""
    target = Target(Config())
    target.observe(START, vllm_text(), 0.08)
    target.observe(START + 4.0, vllm_text(), 0.08)

    assert target.interval == 4.0
    assert target.snapshot(START + 4.0).cost == 0.08
    assert target.snapshot(START + 4.0).engines[0].kv_observed_seconds == 4.0


LABELS = st.sampled_from(
    [
        'model_name="m"',
        'model_name="m",engine="0"',
        'model_name="m",engine="1",finished_reason="stop"',
        'model_name="m",engine="0",le="+Inf",sleep_state="awake",transfer_type="CPU_to_GPU"',
        'model_name="m",engine="0",le="1",num_gpu_blocks="0",block_size="16"',
        'model_name="m",engine="0",pid="7",num_gpu_blocks="1",block_size="0",kv_cache_size_tokens="0"',
    ]
)
LINES = st.tuples(
    st.sampled_from(sorted(SPELLINGS)), LABELS, st.sampled_from(["0", "0.5", "1", "7", "1e300", "NaN", "-1", "x"])
)
BODIES = st.lists(LINES, max_size=25).map(lambda lines: "".join(f"{n}{{{ls}}} {v}\n" for n, ls, v in lines) or "<")


@settings(deadline=None, max_examples=300)
@given(bodies=st.lists(BODIES, min_size=1, max_size=6))
def test_whatever_vllm_says(bodies):
    """Whatever stands in the series that are read, nothing is raised, no counter falls and every value is a number."""
    server, counted = Server(None), []
    for body in bodies:
        series = server.says(body).series()
        counted.append({key: value for key, value in series.items() if key[0].endswith("_total")})

        assert not [key for key, value in series.items() if value != value]  # noqa: PLR0124  # NaN alone differs from itself
    for before, after in itertools.pairwise(counted):
        assert {key: value for key, value in before.items() if after.get(key, 0.0) < value} == {}


def test_unreadable_marker(server, vllm_text):
    """The counter that marks an old V1, unreadable from the start, spoils nothing else."""
    marker = 'vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} NaN\n'
    engine = server.says(vllm_text(preemptions=5), marker).says(vllm_text(preemptions=7), marker).engine()

    assert (engine.preemptions, engine.era) == (2.0, "V1")
