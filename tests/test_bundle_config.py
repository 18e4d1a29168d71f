"""The bundle's configuration: each number is in a rule, and what is not understood is named in one sentence."""

import dataclasses
import re

import pytest
import yaml

from kvpressure.bundle import alerts, example, raw, records, rules, write
from kvpressure.bundle.config import SECTIONS, BundleConfig, SelectConfig, load, settings
from kvpressure.bundle.promql import Picker, duration, hold, indent, number
from kvpressure.settings import ConfigError
from kvpressure.signals import GAP_P99, OUTPUT_LENGTHS, REGIME
from kvpressure.vllm import names

DEFAULT = BundleConfig()


def loaded(text, folder):
    """What a file with this text gives."""
    path = folder / "my.yml"
    path.write_text(text)
    return load(str(path))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("storm: {}", "unknown section 'storm'; known are select, preemption-storm, "),
        (
            "pinned: {threshold: 1}",
            "unknown key pinned.threshold; known under pinned are ratio, window, hold, keep",
        ),
        ("pinned: {ratio: 90}", "pinned.ratio: '90' is too large; the most is 1"),
        ("pinned: {window: 10m}", "pinned.window: '10m' is not a window that the exporter has: 1m, 5m or 15m"),
        ("pinned: {hold: soon}", 'pinned.hold: \'soon\' is not a duration like "1s", "500ms" or "5m"'),
        ("pinned: 0.9", "pinned must be a mapping of settings, not '0.9'"),
        (
            "select: {exporter: 'namespace=chat'}",
            'select.exporter: \'namespace=chat\' is not matchers of labels like namespace="chat",cluster=~"eu-.+"',
        ),
        ("select: {model-labels: ['model-name']}", "select.model-labels: 'model-name' is not a list of label names"),
        (
            "select: {exporter-job: ''}",
            "select.exporter-job must not be empty; it tells whose `up` is meant, out of all targets",
        ),
        ("raw: {vllm-job: ''}", "raw.vllm-job must not be empty; it tells whose `up` is meant, out of all targets"),
        (
            "runbooks: {url: https://wiki/alerts}",
            "runbooks.url: 'https://wiki/alerts' is not a URL with {alert} where the alert's name goes",
        ),
        (
            "runbooks: {url: 'https://wiki/{alert}/{model}'}",
            "runbooks.url: 'https://wiki/{alert}/{model}' is not a URL with {alert} where the alert's name goes",
        ),
        (
            "runbooks: {url: '{alert}.md'}",
            "runbooks.url: '{alert}.md' is not a URL with {alert} where the alert's name goes",
        ),
        (
            "kubernetes: {labels: [release]}",
            "kubernetes.labels: 'release' is not a list of labels like release=prometheus",
        ),
        ("notify: {page: mail}", "notify.page: 'mail' is not one of webhook, slack, pagerduty"),
    ],
)
def test_invalid(text, sentence, tmp_path):
    """A file that is not understood is refused with one sentence that names it, the setting and what is wrong."""
    with pytest.raises(ConfigError) as fault:
        loaded(text, tmp_path)

    assert str(fault.value).startswith(f"{tmp_path / 'my.yml'}: {sentence}")


def test_an_empty_file_is_the_default(tmp_path):
    """Who says nothing gets what is committed, and a section without a key says nothing."""
    assert DEFAULT == loaded("", tmp_path) == loaded("pinned:\n", tmp_path) == load("")


def test_the_commented_example_is_the_default(tmp_path):
    """bundle.example.yml says nothing as it is, and with every setting uncommented it says the defaults."""
    text = write.files(DEFAULT)["bundle.example.yml"]
    known = "|".join(re.escape(name.partition(".")[2]) for name, _ in settings())
    uncommented = re.sub(rf"^  # ((?:{known}): .*)$", r"  \1", text, flags=re.MULTILINE)

    assert DEFAULT == loaded(text, tmp_path) == loaded(uncommented, tmp_path)
    found = yaml.safe_load(uncommented)
    assert [name for name, _ in settings()] == [f"{section}.{key}" for section in found for key in found[section]]
    assert set(SECTIONS) == set(found)


def test_every_setting_says_what_it_is_for():
    """Each setting has a sentence, and each section has one that names its alert, where it is of one."""
    assert all(what.metadata["help"].endswith(".") for _, what in settings())
    described = " ".join(section.__doc__ for section in SECTIONS.values())
    assert {alert.name for alert in alerts.alerts(DEFAULT)} == set(re.findall(r"KVPressure[A-Z]\w+", described))


def numbers():
    """Every number, duration and window of an alert's section, with another value that it may have."""
    for name, what in settings():
        section = name.partition(".")[0]
        if section in ("select", "runbooks", "notify", "kubernetes"):
            continue
        if what.metadata["kind"] == "window":
            yield pytest.param(section, what.name, "1m", id=name)
        elif what.metadata["kind"] in ("number", "ratio", "count", "duration"):
            low, high = what.metadata["low"] or 0.0, what.metadata["high"] or what.default * 3 + 7
            value = (max(low, what.default) + high) / 2 if what.default != high else (low + high) / 2
            yield pytest.param(section, what.name, round(value) if what.metadata["kind"] != "ratio" else value, id=name)


@pytest.mark.parametrize(("section", "field", "value"), [*numbers()])
def test_every_number_is_read(section, field, value):
    """Changing a number changes a rule: none of them is only for show."""
    name = section.replace("-", "_")
    changed = dataclasses.replace(DEFAULT, **{name: dataclasses.replace(getattr(DEFAULT, name), **{field: value})})

    def of(config):
        return rules.rule_file(config), rules.alert_file(config), rules.raw_file(config)

    assert of(DEFAULT) != of(changed)


def test_matchers_stand_in_every_selector():
    """What `select` and `raw` pick stands in each selector of the rules, and nowhere is one without it."""
    config = dataclasses.replace(
        DEFAULT,
        select=SelectConfig(exporter='team="a"', exporter_job='job="x",team="a"'),
        raw=dataclasses.replace(DEFAULT.raw, vllm='team="a"', vllm_job='job="y",team="a"'),
    )
    texts = [alert.expr for alert in (*alerts.alerts(config), *raw.alerts(config))]
    texts += [record.expr for record in records.records(config)]

    for text in texts:
        selectors = re.findall(r"(?<![a-z:])(?:kvpressure_|vllm:|up(?=[{\[ ]))[a-z0-9_]*(\{[^}]*\})?", text)
        assert all('team="a"' in matchers for matchers in selectors), text


def test_labels_of_a_model_are_those_that_are_configured():
    """Sums are over the labels that the configuration gives to a level, and tickets on models carry them."""
    config = dataclasses.replace(DEFAULT, select=SelectConfig(model_labels=("region", "model_name")))

    by_name = {record.name: record.expr for record in records.records(config)}
    assert (
        "sum by (region, model_name) (kvpressure_requests_running)"
        == (by_name["model:kvpressure_requests_running:sum"])
    )


def test_an_exporter_that_may_vanish_is_not_told(tmp_path):
    """With exporter-down.gone at 0s only an exporter that is there and does not answer counts."""
    config = loaded("exporter-down: {gone: 0s}", tmp_path)

    (alert,) = (alert for alert in alerts.alerts(config) if alert.name == alerts.EXPORTER_DOWN)
    assert 'up{job=~"(.+/)?kvpressure"} == 0' == alert.expr


# --- the words of PromQL ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.5, "500ms"), (30, "30s"), (90, "1m30s"), (3600, "1h"), (86_400 * 1.5, "1d12h")]
)
def test_durations(seconds, text):
    """Seconds become durations as Prometheus writes them, in the largest units."""
    assert text == duration(seconds)


def test_small_words():
    """Numbers lose a needless fraction, no hold is no text, and every line is indented."""
    assert ["50", "0.05", "1000000"] == [number(50.0), number(0.05), number(1e6)]
    assert ["", "4m"] == [hold(0.0), hold(240.0)]
    assert "  a\n  and" == indent("a\nand")


def test_selectors():
    """A selector has the configured matchers, its own, a range and an offset; a label that is fixed is dropped."""
    pick = Picker('team="a"')

    assert 'kvpressure_request_output_tokens_sum{team="a",x="y"}[5m] offset 1h' == (
        pick(OUTPUT_LENGTHS, 'x="y"', part="_sum", over=300, offset=3600)
    )
    assert 'max without (regime) (kvpressure_regime{team="a",regime="churn"})' == pick.one(REGIME, "regime", "churn")
    assert "kvpressure_inter_token_gap_p99_seconds" == Picker("")(GAP_P99)
    assert 'up{team="a"}[1m]' == pick.up(over=60)


def test_upstream_selectors():
    """vLLM's series are asked for by every spelling, the newest first, with the label values that a spelling needs."""
    pick = Picker("")

    assert "(max_over_time(vllm:kv_cache_usage_perc[1m]) or max_over_time(vllm:gpu_cache_usage_perc[1m]))" == (
        pick.upstream(names.KV_USAGE, "max_over_time", over=60)
    )
    assert 'vllm:num_requests_waiting_by_reason{reason="capacity"}' == pick.upstream(names.WAITING_CAPACITY)
    assert "rate(vllm:num_preemptions_total[5m])" == pick.upstream(names.PREEMPTIONS, "rate", over=300)


@pytest.mark.parametrize(("name", "what"), [*settings()])
def test_defaults_as_yaml(name, what):
    """The example writes every default as YAML that means it."""
    assert load_value(name, example.value(what)) == what.default


def load_value(name, text):
    """A setting that was given as this text."""
    from kvpressure.settings import parse  # noqa: PLC0415

    what = dict(settings())[name]
    return parse(what, yaml.safe_load(text), name)
