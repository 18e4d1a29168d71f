"""
Every number of the bundle, with what it protects and when to change it.

A section's field ``per_thousand`` of ``preemption_storm`` is the YAML key ``per-thousand`` under ``preemption-storm``.
The defaults come from what was measured: the recordings of a real vLLM, and an hour each of synthetic traces.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kvpressure import runbooks, sections
from kvpressure.bundle.notify import NotifyConfig
from kvpressure.bundle.settings_health import ExporterDownConfig, LogStalledConfig, SignalMissingConfig, VllmDownConfig
from kvpressure.bundle.settings_pressure import (
    CapacityConfig,
    ChurnConfig,
    LivelockConfig,
    MemoryBoundConfig,
    PinnedConfig,
    StormConfig,
)
from kvpressure.bundle.settings_users import GapConfig, OutputShiftConfig, PausingConfig, StallConfig
from kvpressure.settings import ConfigError, setting


@dataclass(frozen=True, slots=True)
class SelectConfig:
    """Which series are meant, and what they are summed up by."""

    exporter: str = setting(
        "",
        "Matchers on every series of kvpressure. Set them where one Prometheus sees servers that another team answers "
        "for.",
        "matchers",
    )
    exporter_job: str = setting(
        'job=~"(.+/)?kvpressure"',
        "Matchers on Prometheus' own `up` of the exporter. Set them where the scrape job has another name.",
        "matchers",
    )
    model_labels: tuple[str, ...] = setting(
        ("cluster", "namespace", "job", "model_name"),
        "Labels that make a model: replicas and engines under the same ones are summed up. Labels that your series do "
        "not carry do no harm.",
        "labels",
    )
    namespace_labels: tuple[str, ...] = setting(
        ("cluster", "namespace", "job"), "Labels that make a namespace: its models are summed up.", "labels"
    )
    cluster_labels: tuple[str, ...] = setting(
        ("cluster",), "Labels that make a cluster: its namespaces are summed up.", "labels"
    )


@dataclass(frozen=True, slots=True)
class RunbooksConfig:
    """Where the runbooks stand."""

    url: str = setting(
        runbooks.URL,
        "URL of an alert's runbook; point it at your copy, with your own phone numbers in it.",
        "alert-url",
    )


@dataclass(frozen=True, slots=True)
class RawConfig:
    """A second, smaller group of alerts on vLLM's own series, for servers without the exporter beside them."""

    enabled: bool = setting(
        default=False,
        text="Write it beside the others. Not for servers that have the exporter: they would be told twice.",
        kind="switch",
    )
    vllm: str = setting("", "Matchers on vLLM's own series: the servers without an exporter.", "matchers")
    vllm_job: str = setting(
        'job=~"(.+/)?vllm"',
        "Matchers on Prometheus' own `up` of vLLM. Set them where the job has another name.",
        "matchers",
    )
    spread: float = setting(
        240.0,
        "Preemptions spread over more than this are churn. They are known by minutes only, so a burst of three and a "
        "half may pass for it; raise it where that happens, and the page comes later.",
        "duration",
        low=120,
    )
    count: int = setting(
        5, "Fewer preemptions than this in that time and two minutes more are no churn.", "count", low=1
    )
    usage: float = setting(
        0.9,
        "Mean KV usage from which a queue is taken to wait for the cache: PromQL cannot see what it waits for. Lower "
        "it for small pools, whose usage falls far with each request that ends.",
        "ratio",
        low=0,
        high=1,
    )


@dataclass(frozen=True, slots=True)
class KubernetesConfig:
    """Names and labels of the objects for Kubernetes."""

    name: str = setting("kvpressure", "Name of the objects.", "text")
    namespace: str = setting(
        "monitoring",
        "Namespace of Prometheus and Grafana, and of the objects for them; the NetworkPolicy lets it in.",
        "text",
    )
    labels: tuple[str, ...] = setting(
        ("release=prometheus",), "Labels of the objects, as name=value: what your Prometheus selects rules by.", "pairs"
    )
    secret: str = setting("kvpressure-alertmanager", "Secret with the receivers' credentials.", "text")
    scrape_interval: float = setting(
        15.0, "Time between scrapes of the sidecars. With more than 30 s pages come later.", "duration", low=1, high=60
    )
    dashboard_labels: tuple[str, ...] = setting(
        ("grafana_dashboard=1",),
        "Labels of the dashboards' ConfigMaps, as name=value: what your Grafana's sidecar looks for.",
        "pairs",
    )


@dataclass(frozen=True, slots=True)
class BundleConfig:
    """All sections. Each is a top-level key of the YAML file, with dashes for underscores."""

    select: SelectConfig = field(default_factory=SelectConfig)
    preemption_storm: StormConfig = field(default_factory=StormConfig)
    requests_pausing: PausingConfig = field(default_factory=PausingConfig)
    livelock: LivelockConfig = field(default_factory=LivelockConfig)
    vllm_down: VllmDownConfig = field(default_factory=VllmDownConfig)
    preemption_churn: ChurnConfig = field(default_factory=ChurnConfig)
    memory_bound: MemoryBoundConfig = field(default_factory=MemoryBoundConfig)
    inter_token_gap: GapConfig = field(default_factory=GapConfig)
    capacity_low: CapacityConfig = field(default_factory=CapacityConfig)
    output_length_shift: OutputShiftConfig = field(default_factory=OutputShiftConfig)
    pinned: PinnedConfig = field(default_factory=PinnedConfig)
    stall_elsewhere: StallConfig = field(default_factory=StallConfig)
    exporter_down: ExporterDownConfig = field(default_factory=ExporterDownConfig)
    signal_missing: SignalMissingConfig = field(default_factory=SignalMissingConfig)
    log_stalled: LogStalledConfig = field(default_factory=LogStalledConfig)
    runbooks: RunbooksConfig = field(default_factory=RunbooksConfig)
    notify: NotifyConfig = field(default_factory=NotifyConfig)
    kubernetes: KubernetesConfig = field(default_factory=KubernetesConfig)
    raw: RawConfig = field(default_factory=RawConfig)


SECTIONS: sections.Sections = {what.name.replace("_", "-"): what.type for what in dataclasses.fields(BundleConfig)}
"""The sections by their key; the order is that of the documentation."""


def settings() -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Every setting with its dotted name: ``("preemption-storm.per-thousand", field)``."""
    return sections.named(SECTIONS)


def load(path: str) -> BundleConfig:
    """
    The settings from a YAML file; the defaults where `path` is empty.

    Raises:
        ConfigError: the file cannot be read, or a key or a value is not understood.
    """
    values = sections.values(SECTIONS, path)
    config = BundleConfig(**{name.replace("-", "_"): section(**values[name]) for name, section in SECTIONS.items()})
    for name, matchers in (("select.exporter-job", config.select.exporter_job), ("raw.vllm-job", config.raw.vllm_job)):
        if not matchers:
            raise ConfigError(f"{path}: {name} must not be empty; it tells whose `up` is meant, out of all targets")
    return config
