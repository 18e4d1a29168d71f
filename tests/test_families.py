"""A snapshot as Prometheus families: the golden file, the catalogue, and what is absent."""

import math
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import generate
import stages
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from kvpressure import signals, signals_streams
from kvpressure.config import Config
from kvpressure.derive.snapshot import EngineSnapshot, Snapshot
from kvpressure.derive.target import Target
from kvpressure.expose import families
from kvpressure.signals import CATALOGUE
from kvpressure.vllm import names
from kvpressure.vllm.reading import EngineReading, Histogram
from kvpressure.vllm.stream import SOURCES

REAL = (Path(__file__).parent / "fixtures" / "lab" / "vllm-0.32.0.prom").read_text(encoding="utf-8")
EMPTY = EngineSnapshot("m", "0", "V1", "unknown", "unknown")


def parsed(snapshot):
    """The families of a snapshot as prometheus_client's parser reads them."""
    text = families.exposition(snapshot).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_golden_exposition():
    """The exposition at the end of a recording of a real vLLM is the one that is committed."""
    assert generate.GOLDEN.read_text(encoding="utf-8") == generate.golden(), "run `make generate`"


def test_golden_passes_promtool():
    """promtool finds nothing to say about the golden exposition."""
    text = generate.GOLDEN.read_text(encoding="utf-8")

    checked = subprocess.run(["promtool", "check", "metrics"], input=text, check=False, capture_output=True, text=True)

    assert (0, "", "") == (checked.returncode, checked.stdout, checked.stderr)


def test_every_signal_has_its_samples():
    """The catalogue and the functions that give its samples name the same signals."""
    given = {*families._ENGINE, *families._EXPORTER, *families._LENGTHS, *families._STREAM, *families._HISTOGRAMS}

    assert set(CATALOGUE) == given
    assert len(CATALOGUE) == len({signal.metric for signal in CATALOGUE})


def test_no_two_are_one_family_in_openmetrics():
    """OpenMetrics names a counter without its _total: none of ours is then called like another signal."""
    bases = [signal.metric.removesuffix("_total") for signal in CATALOGUE]

    assert [] == [base for base in bases if bases.count(base) > 1]


def test_openmetrics_is_read_by_its_own_parser():
    """With streams of a tap and a log in it, the exposition in OpenMetrics is one that prometheus_client reads."""
    snapshot = stages.played("storm", 60, sources=SOURCES)[-1]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(families.SnapshotCollector(lambda: snapshot))
    body, content_type = families.render(registry, "application/openmetrics-text;version=1.0.0")

    read = {family.name for family in openmetrics.text_string_to_metric_families(body.decode())}

    assert content_type.startswith("application/openmetrics-text")
    assert {
        signals_streams.REQUESTS_PAUSED.metric.removesuffix("_total"),
        signals_streams.REQUESTS_PAUSING.metric,
    } <= read


def test_names_are_prometheus_own():
    """Names are lower case words with base units: _total on counters only, no colon, no percent, no milliseconds."""
    for signal in CATALOGUE:
        assert re.fullmatch(r"kvpressure_[a-z0-9]+(_[a-z0-9]+)*", signal.metric), signal.metric
        assert signal.metric.endswith("_total") == (signal.kind == "counter"), signal.metric
        assert not re.search(r"percent|_ms$|_perc$|milli", signal.metric), signal.metric
        assert signal.help.endswith("."), signal.metric
        assert signal.reason, signal.metric
        assert ("estimate" in signal.metric) <= ("stimate" in signal.help), signal.metric


def test_needs_are_fields_of_a_reading():
    """What a signal needs is something that is read from vLLM."""
    fields = {"streams"} | {family.field for family in names.FAMILIES}

    for signal in CATALOGUE:
        assert {*signal.needs, *signal.optional} <= fields, signal.name


def test_a_reading_has_a_field_for_every_family():
    """Every family that is read fills a field of the reading, but for the one that only tells the era."""
    fields = set(EngineReading.__dataclass_fields__)

    assert {family.field for family in names.FAMILIES} - fields == {names.V1_MARKER.field}


def test_help_names_the_upstream_series():
    """HELP says which of vLLM's series a signal is made of."""
    text = families.exposition(Snapshot(t=0.0, up=True, engines=(replace(EMPTY, preemptions=1.0),))).decode()

    help_line = next(line for line in text.splitlines() if line.startswith("# HELP kvpressure_preemptions_total"))
    assert help_line.endswith("From vllm:num_preemptions_total.")


def test_lengths_are_classic_histograms():
    """Lengths come as vLLM's own buckets, cumulative, with the sum and the count that belong to them."""
    lengths = Histogram((100.0, 2000.0, math.inf), (3.0, 5.0, 6.0), 9_000.0)
    found = parsed(Snapshot(t=0.0, up=True, engines=(replace(EMPTY, prompt_lengths=lengths),)))
    family = found[signals.PROMPT_LENGTHS.metric]

    assert family.type == "histogram"
    assert signals.OUTPUT_LENGTHS.metric not in found
    assert [
        (sample.name.removeprefix(family.name), sample.labels.get("le"), sample.value) for sample in family.samples
    ] == [
        ("_bucket", "100.0", 3.0),
        ("_bucket", "2000.0", 5.0),
        ("_bucket", "+Inf", 6.0),
        ("_count", None, 6.0),
        ("_sum", None, 9_000.0),
    ]
    assert all(sample.labels.items() >= {("model_name", "m"), ("engine", "0")} for sample in family.samples)


def test_before_the_first_sample():
    """Before anything was sampled only what the exporter knows of itself is exposed."""
    found = parsed(Snapshot(t=0.0, up=None, interval=1.0))

    assert {"kvpressure_sample_interval_seconds", "kvpressure_samples", "kvpressure_build_info"} == set(found)


def test_what_is_not_known_is_absent():
    """An engine of which nothing is known has states, resets and its era, and no other series."""
    found = {name for name in parsed(Snapshot(t=0.0, up=True, engines=(EMPTY,))) if not name.startswith("kvpressure_s")}

    assert {
        "kvpressure_regime",
        "kvpressure_verdict",
        "kvpressure_engine_resets",
        "kvpressure_upstream_info",
        "kvpressure_up",
        "kvpressure_build_info",
    } == found


def test_exactly_one_state_is_one():
    """Of each engine's regimes and verdicts exactly one is 1."""
    found = parsed(Snapshot(t=0.0, up=True, engines=(EMPTY, replace(EMPTY, engine="1", regime="churn"))))

    for family in ("kvpressure_regime", "kvpressure_verdict"):
        for engine in ("0", "1"):
            values = [s.value for s in found[family].samples if s.labels["engine"] == engine]
            assert 1.0 == sum(values)
            assert {0.0, 1.0} == set(values)


def test_a_restart_of_vllm_keeps_every_counter():
    """Over a restart of vLLM no counter of the sidecar falls."""
    target = Target(Config())
    target.observe(0.0, REAL, 0.01)
    target.observe(1.0, REAL.replace('vllm:num_preemptions_total{engine="0",model_name="tiny"} ', "x "), 0.01)
    before = _counters(target.snapshot(1.0))
    fresh = re.sub(r"^(vllm:[a-z_:]+(?:_total|_bucket|_sum|_count)\{.*\}) .*$", r"\1 1.0", REAL, flags=re.MULTILINE)
    target.observe(2.0, fresh, 0.01)

    after = _counters(target.snapshot(2.0))
    assert before.keys() <= after.keys()
    assert [name for name, value in before.items() if after[name] < value] == []


def test_hostile_label_values_survive_the_round_trip():
    """A model name with quotes, a backslash and a newline is exposed as it was read."""
    name = 'a"b\\c\nd{e="f"} 1'
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    target = Target(Config())
    target.observe(0.0, f'vllm:num_requests_running{{model_name="{escaped}",engine="0"}} 3\n', 0.01)

    sample = parsed(target.snapshot(0.0))["kvpressure_requests_running"].samples[0]
    assert (name, 3.0) == (sample.labels["model_name"], sample.value)


def test_no_sample_is_nan():
    """No value that is exposed is NaN or infinite, at any moment of a recording."""
    path = generate.recording.find(str(generate.RECORDING))
    for snapshot in generate.replay.steps(generate.recording.rows(path, print), Config(), 1.0, 2.0):
        for family in families.families(snapshot):
            assert all(math.isfinite(sample.value) for sample in family.samples), family.name


def test_readme_lists_the_catalogue():
    """The README's table of signals and of settings are those of the code."""
    text = generate.README.read_text(encoding="utf-8")

    assert text == generate.readme(text), "run `make generate`"
    assert all(f"`{signal.metric}`" in text for signal in CATALOGUE)


def test_headlines():
    """The headline signals are the four that the project exists for."""
    expected = (
        signals.PREEMPTIONS_PER_THOUSAND,
        signals.KV_PINNED_RATIO,
        signals.GAP_P99,
        signals_streams.PAUSED_RATIO,
    )

    assert expected == tuple(signal for signal in CATALOGUE if signal.headline)


def _counters(snapshot):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families.families(snapshot)
        if family.type in ("counter", "histogram")
        for sample in family.samples
    }
