"""
What must hold on recordings of a real vLLM, by replay.

Whole recordings stand beside the checkout; thinned ones of the main four are in the fixtures, so these facts are
proven without them too.
"""

import functools
import gzip
import importlib.util
import json
import re
from pathlib import Path

import pytest

from kvpressure.config import Config
from kvpressure.derive.target import Target
from kvpressure.expose.families import exposition
from kvpressure.recording import Row

CONFIG = Config()
TRACES = Path(__file__).parent / "fixtures" / "alert_bench" / "traces.py"


def replayed(rows):
    """After each row: seconds since the first one, and the engines' snapshots."""
    target = Target(CONFIG, interval=1.0)
    found = []
    for row in rows:
        if row.body is None:
            target.failed(row.t, "recorded")
        else:
            target.observe(row.t, row.body, row.took)
        found.append((row.t - rows[0].t, target.snapshot(row.t).engines))
    return found


@pytest.fixture(scope="session")
def looks(recorded):
    """Seconds and the one engine's snapshot after each row of a recording, each replayed once."""

    @functools.cache
    def after_each_row(name):
        return [(t, engines[0]) for t, engines in replayed(recorded(name))]

    return after_each_row


def window(engine, label="15m"):
    return next(w for w in engine.windows if w.window == label)


# --- preemptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "preemptions", "per_thousand"),
    [
        ("arm_roomy", 45, 225),
        ("arm_tight_2x3", 173, 865),
        ("control_16_500", 1035, 5175),
        ("control_500_16", 0, 0),
        ("chat_deltas", 291, 2425),
        ("compute_stall", 0, 0),
    ],
)
def test_preemptions(looks, name, preemptions, per_thousand):
    """Preemptions are exact, and at the end so are those per thousand requests."""
    _, last = looks(name)[-1]

    assert (last.preemptions, window(last).preemptions_per_thousand) == (preemptions, per_thousand)


@pytest.mark.parametrize(
    ("name", "preemptions"),
    [
        ("0.18.1-default", {"0": 91.0}),
        ("0.18.1-logs", {"0": 100.0}),
        ("0.28.0-logs", {"0": 123.0}),
        ("0.32.0-api2", {"0": 92.0}),
        ("0.32.0-async-off", {"0": 85.0}),
        ("0.32.0-async-on", {"0": 42.0}),
        ("0.32.0-dp2", {"0": 75.0, "1": 70.0}),
        ("0.32.0-jsonlog", {"0": 93.0}),
        ("0.32.0-jsonlog-env", {"0": 78.0}),
        ("0.32.0-nostats", {}),
    ],
)
def test_preemptions_of_versions(recorded, name, preemptions):
    """Preemptions are exact on each version and variant, by engine."""
    _, engines = replayed(recorded(f"versions/{name}"))[-1]

    assert preemptions == {engine.engine: engine.preemptions for engine in engines}


@pytest.mark.parametrize("name", ["control_500_16", "compute_stall"])
def test_nothing_inferred(looks, name):
    """Where nothing was preempted, nothing is ever inferred."""
    assert {engine.preemptions_inferred for _, engine in looks(name)} == {0.0}


def test_inferred_leads(looks):
    """On the roomy arm 30 to 45 are inferred, the first at least 4 s before the counter moves."""
    found = looks("arm_roomy")
    inferred = next(t for t, engine in found if engine.preemptions_inferred)
    counted = next(t for t, engine in found if engine.preemptions)

    assert 30.0 <= found[-1][1].preemptions_inferred <= 45.0
    assert counted - inferred >= 4.0


@pytest.mark.parametrize("name", ["arm_roomy", "arm_tight_2x3", "control_16_500", "chat_deltas"])
def test_inferred_is_a_lower_bound(looks, name):
    """At the end no more are inferred than were counted."""
    _, last = looks(name)[-1]

    assert 0.0 < last.preemptions_inferred <= last.preemptions


# --- verdict --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["control_16_500", "control_500_16"])
def test_kv_memory(looks, name):
    """A cache that is too small ends as kv_memory, whether or not it preempts, and is never a stall on the way."""
    found = [engine.verdict for _, engine in looks(name)]

    assert found[-1] == "kv_memory"
    assert set(found) == {"unknown", "healthy", "kv_memory"}


@pytest.mark.parametrize("stop", [24.0, 40.0, 55.0])
def test_stall_is_told_in_time(looks, stop):
    """Within ten seconds of each stop of the engine its stalled time has grown and the verdict is stall_elsewhere."""
    found = looks("compute_stall")
    before = [engine for t, engine in found if t < stop][-1].evidence.stalled_seconds
    soon = [engine for t, engine in found if stop <= t <= stop + 10.0][-1]

    assert soon.verdict == "stall_elsewhere"
    assert soon.evidence.stalled_seconds >= before + 1.0


def test_stall_is_never_kv_memory(looks):
    """A stopped engine is never laid to the cache, and healthy until it was stopped."""
    found = looks("compute_stall")

    assert "kv_memory" not in {engine.verdict for _, engine in found}
    assert {engine.verdict for t, engine in found if 0.0 < t < 24.0} == {"healthy"}


@pytest.mark.parametrize("name", ["arm_roomy", "arm_tight_2x3", "control_16_500", "control_500_16", "chat_deltas"])
def test_flood_is_no_cap(looks, name):
    """A flood is not taken for a concurrency cap, in its first seconds or later."""
    assert "concurrency_cap" not in {engine.verdict for _, engine in looks(name)}


# --- regime ---------------------------------------------------------------------------------------------------------

_COUNTER = re.compile(r"^(vllm:\S+(?:_total|_bucket|_sum|_count)\{[^\n]*\}) (\S+)$", re.MULTILINE)


def repeated(rows, times):
    """The recording again and again as one: times go on, and so do counters and histograms."""
    period = rows[-1].t - rows[0].t + 0.5
    last = {series: float(value) for series, value in _COUNTER.findall(rows[-1].body)}
    first = {series: float(value) for series, value in _COUNTER.findall(rows[0].body)}

    def moved(body, again):
        return _COUNTER.sub(
            lambda m: f"{m[1]} {float(m[2]) + again * (last[m[1]] - first.get(m[1], 0.0))}" if m[1] in last else m[0],
            body,
        )

    return [Row(row.t + n * period, moved(row.body, n), row.took) for n in range(times) for row in rows]


def test_onset(looks):
    """A tight cache for two minutes, and a flood on a roomy one, are onset from the first preemption on."""
    for name in ("arm_tight_2x3", "arm_roomy"):
        assert {engine.regime for _, engine in looks(name) if engine.preemptions} == {"onset"}, name


def test_calm_before(looks):
    """Until the first preemption the regime is calm."""
    assert {engine.regime for t, engine in looks("arm_roomy") if t and not engine.preemptions} == {"calm"}


def test_calm_at_last(recorded):
    """A flood on a roomy cache is calm three minutes after its last preemption."""
    rows = list(recorded("arm_roomy"))
    rows += [Row(rows[-1].t + n, rows[-1].body, 0.01) for n in range(1, 200)]
    found = [(t, engines[0]) for t, engines in replayed(rows)]
    last = next(t for t, engine in found if engine.preemptions == 45.0)
    calm = next(t for t, engine in found if t > last and engine.regime == "calm")

    assert 180.0 <= calm - last < 181.5


def test_churn(recorded):
    """The tight cache for ten minutes is churn from its fifth minute on, and its preemptions are five times as many."""
    found = [(t, engines[0]) for t, engines in replayed(repeated(recorded("arm_tight_2x3"), 5))]
    churn = next(t for t, engine in found if engine.regime == "churn")

    assert 240.0 < churn < 300.0
    assert {engine.regime for t, engine in found if t > churn} == {"churn"}
    assert (found[-1][1].preemptions, found[-1][1].resets) == (5 * 173.0, 0.0)


# --- traces ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def traced():
    """Minutes and all engines' regimes, every third second of a synthetic trace; each is replayed once."""
    if not TRACES.is_file():
        pytest.skip("there is no alert bench beside the checkout")
    spec = importlib.util.spec_from_file_location("traces", TRACES)
    traces = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(traces)

    @functools.cache
    def regimes(name):
        target, found = Target(CONFIG, interval=3.0), []
        for t, body in traces.expositions(traces.TRACES[name]):
            if t % 3:
                continue
            if body is None:
                target.failed(float(t), "recorded")
            else:
                target.observe(float(t), body, 0.01)
            found.append((t / 60, {e.engine: e.regime for e in target.snapshot(float(t)).engines}))
        return found

    return regimes


def test_onset_is_no_churn(traced):
    """An onset of three minutes is onset from its first preemption, calm at last, and never churn."""
    found = traced("A_onset")

    assert {regimes["0"] for minute, regimes in found if 11.1 <= minute < 14.0} == {"onset"}
    assert {regimes["0"] for minute, regimes in found if minute > 17.1} == {"calm"}
    assert "churn" not in {regimes["0"] for _, regimes in found}


def test_full_cache_is_calm(traced):
    """A full cache that preempts nobody is calm for an hour."""
    assert {regimes["0"] for minute, regimes in traced("B_full_but_fine") if minute > 0.0} == {"calm"}


@pytest.mark.parametrize("name", ["C_low_traffic_storm", "D_storm"])
def test_storm_is_churn(traced, name):
    """A storm that starts at minute 10 is churn by minute 15, at low traffic too, and stays so."""
    found = traced(name)

    assert "churn" not in {regimes["0"] for minute, regimes in found if minute < 10.0}
    assert {regimes["0"] for minute, regimes in found if minute >= 15.0} == {"churn"}


def test_hot_rank(traced):
    """Of eight ranks the hot one alone is churn, by minute 15."""
    for minute, regimes in traced("E_one_hot_rank"):
        if minute >= 15.0:
            assert {rank for rank, regime in regimes.items() if regime == "churn"} == {"3"}


def test_churn_over_restart(traced):
    """A storm is churn again as soon as vLLM answers after its restart, and unknown only while it is silent."""
    found = traced("F_storm_and_restart")

    assert {regimes["0"] for minute, regimes in found if 15.0 <= minute < 29.0} == {"churn"}
    assert {regimes["0"] for minute, regimes in found if 29.5 <= minute < 30.25} == {"unknown"}
    assert {regimes["0"] for minute, regimes in found if minute >= 30.5} == {"churn"}


# --- what is exposed ------------------------------------------------------------------------------------------------


def test_exposed(recorded):
    """The exposition at the end of the roomy arm says what the replay found, with one regime and one verdict."""
    target = Target(CONFIG, interval=1.0)
    rows = recorded("arm_roomy")
    for row in rows:
        target.observe(row.t, row.body, row.took)
    lines = exposition(target.snapshot(rows[-1].t)).decode().splitlines()
    labels = 'engine="0",model_name="tiny"'

    assert f"kvpressure_preemptions_total{{{labels}}} 45.0" in lines
    assert f'kvpressure_preemptions_per_thousand_requests{{{labels},window="15m"}} 225.0' in lines
    assert [line for line in lines if line.startswith("kvpressure_regime{") and line.endswith(" 1.0")] == [
        f'kvpressure_regime{{{labels},regime="onset"}} 1.0'
    ]
    assert [line for line in lines if line.startswith("kvpressure_verdict{") and line.endswith(" 1.0")] == [
        f'kvpressure_verdict{{{labels},verdict="kv_memory"}} 1.0'
    ]


@pytest.mark.parametrize("name", ["arm_roomy", "arm_tight_2x3", "control_500_16", "compute_stall"])
def test_thinned_fixture_is_the_recording(recorded, name):
    """The thinned recording in the fixtures gives the same snapshots as the whole one, row by row."""
    thin = Path(__file__).parent / "fixtures" / "recordings" / name
    rows = [json.loads(line) for line in _unzipped(thin / "metrics.jsonl.gz")]
    small = replayed([Row(row["t"], row.get("body"), row.get("took", 0.0)) for row in rows])

    assert replayed(recorded(name)) == small


def _unzipped(path):
    return gzip.decompress(path.read_bytes()).splitlines()
