"""What a sick or hostile vLLM could turn into a false preemption, a wrong number or a hang."""

import json
import random
import re
import time
from pathlib import Path

import pytest

from kvpressure.config import Config
from kvpressure.derive.target import Target
from kvpressure.expose.families import exposition
from kvpressure.serve import state_of
from kvpressure.vllm import metrics
from kvpressure.vllm.metrics import ExpositionReader
from kvpressure.vllm.reading import ExpositionError

FIXTURES = Path(__file__).parent / "fixtures"
REAL = (FIXTURES / "lab" / "vllm-0.32.0.prom").read_text(encoding="utf-8")
LABELS = 'model_name="m",engine="0"'


def body(*, running=20, waiting=0, usage=0.97, preemptions=0, finished=0, tokens=9000, awake=1, extra=""):  # noqa: PLR0913
    """An exposition of one engine."""
    return (
        f"vllm:num_requests_running{{{LABELS}}} {running}\n"
        f"vllm:num_requests_waiting{{{LABELS}}} {waiting}\n"
        f"vllm:kv_cache_usage_perc{{{LABELS}}} {usage}\n"
        f"vllm:num_preemptions_total{{{LABELS}}} {preemptions}\n"
        f'vllm:request_success_total{{{LABELS},finished_reason="stop"}} {finished}\n'
        f"vllm:generation_tokens_total{{{LABELS}}} {tokens}\n"
        f'vllm:engine_sleep_state{{{LABELS},sleep_state="awake"}} {awake}\n'
        f"{extra}"
    )


def fed(*bodies, target=None):
    """The target after these samples, a second apart; None is a sample that failed."""
    target = target or Target(Config(), interval=1.0)
    for t, text in enumerate(bodies):
        if text is None:
            target.failed(float(t), "refused")
        else:
            target.observe(float(t), text, 0.01)
    return target, target.snapshot(float(len(bodies) - 1))


@pytest.mark.parametrize(
    "bodies",
    [
        [body(running=50), *[None] * 60, body(running=0, waiting=50, tokens=0)],
        [body(running=50), None, None, None, body(running=0, waiting=50)],
        [body(running=50, finished=3), body(running=10, waiting=38, finished=4, tokens=5)],
        [body(running=10), body(running=0, waiting=10, awake=0), body(running=0, waiting=10, awake=0)],
        [body(running=0, waiting=0, awake=0), body(running=0, waiting=10)],
    ],
    ids=["outage and restart", "outage", "quick restart", "going to sleep", "waking up"],
)
def test_nothing_is_inferred_over_a_break(bodies):
    """Over an outage, a restart or a sleep no preemption is inferred from the queues."""
    assert fed(*bodies)[1].engines[0].preemptions_inferred == 0.0


def test_a_broken_line_is_not_an_absent_series():
    """A counter whose line is broken in the first sample is counted from its first good value, not from 0."""
    broken = body(preemptions=500).replace("vllm:num_preemptions_total{", "vllm:num_preemptions_total{{")

    _, snapshot = fed(broken, broken, body(preemptions=500), body(preemptions=501))

    assert snapshot.engines[0].preemptions == 1.0


def test_a_bucket_line_that_is_lost_once():
    """A bucket line that is lost, or garbled, in one sample changes no count, no quantile and resets nothing."""
    lost = re.sub(r'^vllm:inter_token_latency_seconds_bucket.*le="0\.5".*\n', "", REAL, flags=re.MULTILINE)
    garbled = re.sub(r'(inter_token_latency_seconds_bucket.*le="0\.5".*) \S+', r"\1 x", REAL)

    for odd in (lost, garbled):
        _, snapshot = fed(REAL, REAL, odd, REAL, REAL)
        engine = snapshot.engines[0]

        assert (engine.resets, engine.verdict) == (0.0, "healthy")
        assert [window.long_gaps_per_thousand for window in engine.windows] == [0.0, 0.0, 0.0]
        assert [window.gap_p99_seconds for window in engine.windows] == [None, None, None]


def test_edges_that_stay_away_are_believed():
    """Edges that are missing twice in a row have changed: the histogram is counted anew."""
    fewer = re.sub(r'^vllm:inter_token_latency_seconds_bucket.*le="0\.5".*\n', "", REAL, flags=re.MULTILINE)

    _, snapshot = fed(REAL, REAL, fewer, fewer)

    assert snapshot.engines[0].resets == 1.0


def test_a_histogram_that_disagrees_with_its_count():
    """A histogram whose count is not that of its last bucket is not used."""
    spoilt = re.sub(r"(inter_token_latency_seconds_count\{.*\}) \S+", r"\1 7.0", REAL)

    assert ExpositionReader().read(spoilt).readings["tiny", "0"].gaps is None


def test_several_servers_behind_one_address(logged):  # noqa: ARG001
    """Counters that start again with nearly every sample are said to alternate, and there is no verdict from them."""
    two = [body(preemptions=500 - 200 * (n % 2), waiting=5) for n in range(30)]

    _, snapshot = fed(*two)
    engine = snapshot.engines[0]

    assert (engine.regime, engine.verdict) == ("unknown", "unknown")
    assert snapshot.errors["alternating_counters"] > 20


def test_a_crash_loop_is_no_alternation():
    """A vLLM that restarts once a minute has restarts, and a regime."""
    rows = [body(preemptions=n % 60) for n in range(300)]

    _, snapshot = fed(*rows)

    assert snapshot.engines[0].resets == 4.0
    assert snapshot.engines[0].regime != "unknown"
    assert snapshot.errors == {}


@pytest.mark.parametrize("value", ["1_000", "\u0661\u0660", "0x10", "1e300", "5\x0c", "", "5 5 5"])
def test_what_only_python_takes_for_a_number(value):
    """A value that Prometheus would not read, or that no counter reaches, is not read, seen before or not."""
    line = f"vllm:num_requests_swapped{{{LABELS}}} {value}\n"
    reader = ExpositionReader()
    reader.read(body(extra=f"vllm:num_requests_swapped{{{LABELS}}} 1\n"))

    for known in (reader, ExpositionReader()):
        found = known.read(body(extra=line))
        assert found.readings["m", "0"].swapped is None
        assert sum(found.problems.values()) == 1


@pytest.mark.parametrize("labels", ['junk model_name="m"', "model_name='m'", 'model_name="m" engine="0"', "model_name"])
def test_labels_that_are_not_labels(labels):
    """Labels that are not quite labels are a bad line, not a guess."""
    found = ExpositionReader().read(body(extra=f"vllm:num_requests_swapped{{{labels}}} 1\n"))

    assert found.problems == {"bad_line": 1}
    assert list(found.readings) == [("m", "0")]


@pytest.mark.parametrize("tail", ["\t", "\r", " ", "_0", "x", " 1700000000", ' # {a="b"} 1', "\x0b"])
@pytest.mark.parametrize(
    "line",
    [f"vllm:num_requests_swapped{{{LABELS}}} 2.0", 'foreign{a="b"} 2.0', "foreign_bare 2.0", "#", "vllm:kv_cach"],
)
def test_a_line_means_the_same_seen_before_or_not(line, tail):
    """What stands behind a value, or a line cut short, is read alike whether or not its series was seen before."""
    warm = ExpositionReader()
    for seen in ("#\n", body(extra=line + "\n"), body(extra="# x\n")):
        warm.read(seen + body())

    assert warm.read(body(extra=line + tail + "\n")) == ExpositionReader().read(body(extra=line + tail + "\n"))


def cut_and_stirred(text, chance):
    """An exposition as a bad proxy might spoil it: lines lost, doubled, cut short, out of order, or with odd ends."""
    lines = text.splitlines()
    for _ in range(chance.randint(0, 6)):
        at = chance.randrange(len(lines))
        spoil = chance.choice(("shuffle", "lose", "double", "cut", "end"))
        if spoil == "shuffle":
            chance.shuffle(lines)
        elif spoil == "lose" and len(lines) > 1:
            del lines[at]
        elif spoil == "double":
            lines.append(lines[at])
        elif spoil == "cut":
            lines[at] = lines[at][: chance.randint(0, len(lines[at]))]
        else:
            lines[at] += chance.choice((" ", "\t", " 123", "\r", ' # {a="b"} 1', "_0"))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("seed", range(60))
def test_reading_has_no_memory(seed):
    """However spoilt, an exposition of any version is read alike after others and as the first one."""
    chance = random.Random(seed)
    texts = [path.read_text(encoding="utf-8") for path in sorted(FIXTURES.glob("versions/*.prom"))]
    warm = ExpositionReader()

    for _ in range(6):
        text = cut_and_stirred(chance.choice(texts), chance)
        assert outcome(warm, text) == outcome(ExpositionReader(), text)


def outcome(reader, text):
    """What reading gives: an exposition, or the reason why there is none."""
    try:
        return reader.read(text)
    except ExpositionError as fault:
        return fault.reason


def test_a_flood_of_series_is_refused_in_time(monkeypatch):
    """An exposition with more new series than can be read in time is refused as a whole, and the next one is read."""
    monkeypatch.setattr(metrics, "MAX_NEW_SERIES", 500)
    reader = ExpositionReader()
    flood = "".join(f'vllm:request_success_total{{model_name="m{n}",finished_reason="x"}} 1\n' for n in range(600))

    with pytest.raises(ExpositionError, match="more new series") as refused:
        reader.read(body() + flood.replace('_success_total{model_name="m', '_success_total{model_name="m",x="'))

    assert refused.value.reason == "too_many_series"
    assert reader.read(body()).problems == {}


def test_endless_reasons_are_bounded():
    """Ever new values of finished_reason do not grow the exposition without bound."""
    target = Target(Config(), interval=1.0)
    rows = [
        body(extra="".join(f'vllm:request_success_total{{{LABELS},finished_reason="r{n}-{k}"}} 1\n' for k in range(20)))
        for n in range(50)
    ]

    _, snapshot = fed(*rows, target=target)

    assert len(snapshot.engines[0].finished or {}) <= 33


def test_failed_answers_count_towards_the_duty_budget():
    """A vLLM that spends 90 ms on answers that cannot be used is asked less often, as one whose answers are good."""
    good, bad, refused = (Target(Config()) for _ in range(3))
    for t in range(5):
        good.observe(float(t), body(), 0.09)
        bad.failed(float(t), "status", 0.09)
        refused.observe(float(t), "<html>", 0.09)

    assert good.interval == bad.interval == refused.interval == pytest.approx(4.5)


def test_a_capacity_of_nothing_is_none():
    """An engine without a KV cache has no capacity, and is not blocked."""
    info = 'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="0",kv_cache_size_tokens="0"} 1\n'

    _, snapshot = fed(*[body(waiting=5, extra=info)] * 3)

    assert snapshot.engines[0].kv_capacity_tokens is None
    assert snapshot.engines[0].kv_blocked_seconds is None


def lengths(name, total):
    """A histogram of one request."""
    buckets = "".join(f'{name}_bucket{{{LABELS},le="{edge}"}} 1\n' for edge in ("1", "+Inf"))
    return f"{buckets}{name}_sum{{{LABELS}}} {total}\n{name}_count{{{LABELS}}} 1\n"


@pytest.mark.parametrize("running", [20, "1e-320"])
def test_next_to_nothing_makes_nothing_infinite(running):
    """Divided by lengths or by a batch that are next to nothing, no value leaves what the page and JSON can show."""
    extra = 'vllm:cache_config_info{engine="0",block_size="16",kv_cache_size_tokens="1600"} 1\n' + "".join(
        lengths(f"vllm:request_{name}_tokens", "1e-310") for name in ("prompt", "generation")
    )

    _, snapshot = fed(*[body(running=running, extra=extra)] * 2)

    assert json.dumps(state_of(snapshot), allow_nan=False)
    assert not re.search(r" (NaN|[+-]Inf)$", exposition(snapshot).decode(), re.MULTILINE)


def test_white_space_holds_nobody_up():
    """Lines with thousands of spaces among their labels are bad lines, and cost no more than others of their length."""
    line = f"vllm:num_requests_swapped{{{LABELS}{' ' * 8000}x\n"
    began = time.process_time()

    found = ExpositionReader().read(body(extra=line * 400))

    assert found.problems == {"bad_line": 400}
    assert time.process_time() - began < 20.0  # with every way to divide the spaces tried, a minute and a half
