"""Streams beside samples: which model and which source they belong to, and what the verdict makes of them."""

import itertools

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvpressure.config import Config
from kvpressure.derive.target import MAX_MODELS, MAX_NAME, OTHER, REFUSED, Target
from kvpressure.expose.families import exposition
from kvpressure.observe.fetch import REASONS
from kvpressure.signals import CATALOGUE
from kvpressure.vllm.stream import LogFacts, StreamEvent, TapFacts

T = 1000.0


@pytest.fixture
def made(vllm_text):
    """A target with observers that has seen two samples of these engines, a second apart."""

    def target(*engines, sources=("tap", "log"), **values):
        target = Target(Config(), interval=1.0, sources=sources)
        if engines:
            text = "".join(vllm_text(model=model, engine=engine, **values) for model, engine in engines)
            target.observe(T - 1.0, text, 0.01)
            target.observe(T, text, 0.01)
        return target

    return target


_numbers = itertools.count()


def stream(target, *times, model="", source="tap"):
    """One response with chunks at these seconds after T, and its end after them."""
    request = next(_numbers)
    events = [StreamEvent("token", T + t, request, model=model) for t in times]
    target.streams[source].feed([*events, StreamEvent("end", T + times[-1], request)])


def streamed(target):
    return {(s.source, s.model_name): s.streamed for s in target.snapshot(T + 10.0).streams}


def samples(snapshot, name):
    """The samples of one family: label values -> value."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition(snapshot).decode())
        for sample in family.samples
        if sample.name == name
    }


def test_the_only_model(made):
    """Where vLLM serves one model, streams are its, whatever alias or adapter a response names."""
    target = made(("m", "0"), ("m", "1"))
    stream(target, 1.0, model="m")
    stream(target, 1.0, model="my-adapter")
    stream(target, 1.0, source="log")

    assert streamed(target) == {("tap", "m"): 2, ("log", "m"): 1}


def test_several_models(made):
    """Where there are several, a response says which; a log line does not."""
    target = made(("a", "0"), ("b", "0"))
    stream(target, 1.0, model="b")
    stream(target, 1.0, model="who knows")
    stream(target, 1.0, source="log")

    assert streamed(target) == {("tap", "b"): 1, ("tap", OTHER): 1, ("log", OTHER): 1}


def test_models_without_metrics(made):
    """Where vLLM's metrics name no model, responses do, and so many at most."""
    target = made()
    for number in range(MAX_MODELS + 10):
        stream(target, 1.0, model=f"m{number}")
    stream(target, 1.0, model="m0")
    found = streamed(target)

    assert len(found) == MAX_MODELS + 1
    assert (found["tap", "m0"], found["tap", OTHER]) == (2, 10)


@pytest.mark.parametrize("name", ["\ud800", "a\udfffb", "\x00", 'quo"te\n', "x" * 10_000, "\U0001f600"])
def test_models_with_names_of_their_own(made, name):
    """Whatever a response calls its model, it can be exposed, and read back."""
    target = made()
    stream(target, 1.0, model=name)

    ((model, source),) = samples(target.snapshot(T + 2.0), "kvpressure_requests_streamed_total")
    assert source == "tap"
    assert len(model) <= MAX_NAME


def test_counters_begin_at_zero(made):
    """Once the model is known its counters are there, before the first stream: else the first one is lost to rate()."""
    snapshot = made(("m", "0"), sources=("tap",)).snapshot(T)

    assert samples(snapshot, "kvpressure_requests_paused_total") == {("m", "tap"): 0.0}
    assert samples(snapshot, "kvpressure_paused_requests_ratio") == {}


def test_exposed_with_source_and_without_engine(made):
    """A stream's series carry model and source and no engine; the engine's own p99 stays beside them."""
    target = made(("m", "0"), gaps={"0.5": 0, "1.0": 0, "+Inf": 0})
    target.observe(T + 1.0, exposition_with_gaps(), 0.01)
    stream(target, 0.1, 0.3, 3.3)
    stream(target, 0.1, 0.2)
    snapshot = target.snapshot(T + 4.0)

    assert samples(snapshot, "kvpressure_paused_requests_ratio")["m", "tap", "1m"] == 0.5
    assert samples(snapshot, "kvpressure_inter_token_gap_max_seconds")["m", "tap", "5m"] == pytest.approx(3.0)
    p99 = samples(snapshot, "kvpressure_inter_token_gap_p99_seconds")
    assert p99["m", "tap", "1m"] == pytest.approx(3.0, rel=0.02)
    assert ("0", "m", "engine", "1m") in p99
    buckets = samples(snapshot, "kvpressure_inter_token_gap_seconds_bucket")
    assert (buckets["1.0", "m", "tap"], buckets["+Inf", "m", "tap"]) == (2.0, 3.0)
    assert samples(snapshot, "kvpressure_request_max_gap_seconds_count") == {("m", "log"): 0.0, ("m", "tap"): 2.0}


def exposition_with_gaps():
    labels = 'engine="0",model_name="m"'
    name = "vllm:inter_token_latency_seconds"
    return (
        f"vllm:num_requests_running{{{labels}}} 1\nvllm:num_requests_waiting{{{labels}}} 0\n"
        f"vllm:kv_cache_usage_perc{{{labels}}} 0.5\n"
        f'{name}_bucket{{{labels},le="0.5"}} 90\n{name}_bucket{{{labels},le="1.0"}} 99\n'
        f'{name}_bucket{{{labels},le="+Inf"}} 100\n{name}_count{{{labels}}} 100\n{name}_sum{{{labels}}} 9\n'
    )


def test_silence_is_told_by_each_observer(made):
    """A snapshot takes nobody's silence for a pause: each observer says how far it has seen."""
    target = made(("m", "0"))
    for source in ("tap", "log"):
        target.streams[source].feed([StreamEvent("token", T + 1.0, "a")])
    target.streams["tap"].advance(T + 5.0)
    found = {s.source: s.paused_now for s in target.snapshot(T + 5.0).streams}

    assert found == {"tap": 1, "log": 0}


def verdict_with(target):
    snapshot = target.snapshot(T + 6.0)
    return [engine.verdict for engine in snapshot.engines]


def test_users_pause_without_preemption(made):
    """Users who pause on an engine that preempts nothing are stalled elsewhere, though its histogram shows nothing."""
    target = made(("m", "0"))
    stream(target, 0.1, 5.0)

    assert verdict_with(target) == ["stall_elsewhere"]


def test_the_tap_before_the_log(made):
    """Where both see streams, the verdict believes the tap: what a log shows may be the log's own delay."""
    target = made(("m", "0"))
    stream(target, 0.1, 0.2)
    stream(target, 0.1, 5.0, source="log")

    assert verdict_with(target) == ["healthy"]


def test_a_tap_that_few_use(made):
    """A client or two that try the tap do not hide what the log shows of all the others."""
    target = made(("m", "0"))
    stream(target, 0.1, 0.2)
    for _ in range(3):
        stream(target, 0.1, 5.0, source="log")

    assert verdict_with(target) == ["stall_elsewhere"]
    assert [s.source for s in target.snapshot(T + 6.0).streams] == ["log", "tap"]
    stream(target, 0.1, 0.2)
    assert [s.source for s in target.snapshot(T + 6.0).streams] == ["tap", "log"]
    assert verdict_with(target) == ["healthy"]


def test_a_log_that_tells_of_no_streams(made, vllm_text):
    """A vLLM that generates and logs no chunk was started without the flags for it: nothing can be derived."""
    target = made(("m", "0"), sources=("log",))
    name = ("paused_requests_ratio",)
    assert samples(target.snapshot(T, log=LogFacts(files=1)), "kvpressure_signal_available")[name] == 1.0

    target.observe(T + 1.0, vllm_text(tokens=5000), 0.01)
    assert samples(target.snapshot(T + 1.0, log=LogFacts(files=1)), "kvpressure_signal_available")[name] == 0.0
    stream(target, 0.1, 0.2, source="log")
    assert samples(target.snapshot(T + 1.0, log=LogFacts(files=1)), "kvpressure_signal_available")[name] == 1.0


def test_the_log_where_the_tap_saw_nothing(made):
    """A tap that nobody uses says nothing; the log does."""
    target = made(("m", "0"))
    stream(target, 0.1, 5.0, source="log")

    assert verdict_with(target) == ["stall_elsewhere"]


def test_another_rank_preempts(made, vllm_text):
    """Where one of two ranks preempts, the users' pauses are not laid at the other's host."""
    target = made(("m", "0"), ("m", "1"))
    target.observe(T + 1.0, vllm_text(model="m", engine="0", preemptions=3) + vllm_text(model="m", engine="1"), 0.01)
    stream(target, 0.1, 5.0)

    assert verdict_with(target) == ["healthy", "healthy"]


@pytest.mark.parametrize(
    ("sources", "log", "available"),
    [((), None, 0.0), (("tap",), None, 1.0), (("log",), LogFacts(), 0.0), (("log",), LogFacts(files=1), 1.0)],
)
def test_available(made, sources, log, available):
    """Signals of streams can be derived where there is a tap, or a log that is found."""
    snapshot = made(("m", "0"), sources=sources).snapshot(T, log=log)

    found = samples(snapshot, "kvpressure_signal_available")
    assert {found[signal.name,] for signal in CATALOGUE if signal.scope == "stream"} == {available}


def test_observers_speak_of_themselves(made):
    """What log and tap say of themselves is exposed, and absent where there is none."""
    snapshot = made(("m", "0")).snapshot(
        T,
        log=LogFacts(files=2, lines=10, dropped=3, errors={"unreadable": 1}),
        tap=TapFacts(open=4, responses={"2xx": 7}, refused={"too_many": 1}, blocked=2.5),
    )

    assert samples(snapshot, "kvpressure_log_dropped_lines_total") == {(): 3.0}
    assert samples(snapshot, "kvpressure_log_lag_seconds") == {}
    assert samples(snapshot, "kvpressure_log_errors_total") == {("unreadable",): 1.0}
    assert samples(snapshot, "kvpressure_tap_responses_total") == {("2xx",): 7.0}
    assert samples(snapshot, "kvpressure_tap_client_blocked_seconds_total") == {(): 2.5}
    assert samples(snapshot, "kvpressure_stream_chunks_untracked_total") == {("tap",): 0.0, ("log",): 0.0}
    without = made(("m", "0"), sources=()).snapshot(T)
    assert samples(without, "kvpressure_log_lines_total") == samples(without, "kvpressure_tap_requests") == {}


def test_an_end_of_vllm_is_no_pause(made, vllm_text):
    """Where nobody listens any more, who streamed in the log has broken off; after the restart he is gone from it."""
    assert REFUSED in REASONS
    target = made(("m", "0"), preemptions=5)
    events = [StreamEvent("token", T + 0.5, request) for request in ("a", "b")]
    for streams in target.streams.values():
        streams.feed(events)
    target.failed(T + 1.0, REFUSED)
    for streams in target.streams.values():
        streams.advance(T + 5.0)

    # A tap sees connections end: what is silent there is silent.
    paused = {s.source: (s.paused, s.open) for s in target.snapshot(T + 5.0).streams}
    assert {"tap": (2, 2), "log": (0, 2)} == paused

    target.observe(T + 6.0, vllm_text(model="m", engine="0", preemptions=0), 0.01)
    found = {s.source: (s.paused, s.open, s.abandoned) for s in target.snapshot(T + 6.0).streams}
    assert {"tap": (2, 2, 0), "log": (0, 0, 2)} == found


def test_metrics_out_of_reach_are_no_restart(made):
    """Where metrics stay out of reach and the log goes on, its pauses count again; and nobody is taken off it."""
    target = made(("m", "0"), preemptions=5)
    for second in (1.0, 2.0, 3.0):
        target.failed(T + second, REFUSED)
    log = target.streams["log"]
    log.feed([StreamEvent("token", T + 2.5, "a")])
    target.failed(T + 4.0, REFUSED)
    log.advance(T + 5.0)

    (found,) = (s for s in target.snapshot(T + 5.0).streams if s.source == "log")
    assert (1, 1) == (found.paused, found.open)
