"""
A snapshot -> Prometheus metric families.

Every signal of the catalogue has one function here that gives its samples; a test holds the two sets equal. Families
are built for each scrape and dropped, so a series that cannot be known any more is gone with the next scrape.
"""

import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric, Sample
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.registry import Collector

from kvpressure import __version__, signals, signals_exporter, signals_streams
from kvpressure.derive.gaps import Histogram
from kvpressure.derive.snapshot import (
    EngineSnapshot,
    Snapshot,
    StreamSnapshot,
    StreamWindow,
    WindowSnapshot,
)
from kvpressure.family import ENGINE_LABEL, ENGINE_LABELS, MODEL_LABEL, Scope, Signal
from kvpressure.signals import CATALOGUE, REGIMES, VERDICTS
from kvpressure.vllm import names
from kvpressure.vllm.reading import Histogram as Lengths
from kvpressure.vllm.stream import LogFacts, TapFacts

Labels = tuple[str, ...]
Samples = Iterable[tuple[Labels, float]]


def exposition(snapshot: Snapshot) -> bytes:
    """The text of the snapshot's families alone, in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(lambda: snapshot))
    return generate_latest(registry)


def render(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """What a registry says in the format that `accept` asks for, with its content type."""
    encoder, content_type = _choose(accept)
    return encoder(registry), content_type


def plainest(accept: str) -> str:
    """
    An Accept header for the same format, of a choice of two.

    Clients can ask for any version and any escaping of names. Both change the content type alone here: no name of ours
    has to be escaped.
    """
    kind = _choose(accept)[1].partition(";")[0]
    return f"{kind};version=1.0.0" if kind == "application/openmetrics-text" else ""


def _choose(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):
        # A version that is no number; the plain format is what every scraper reads.
        return choose_encoder("")


class SnapshotCollector(Collector):
    """
    Gives the families of a fresh snapshot at each scrape.

    Args:
        take: takes the snapshot.
    """

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take

    def collect(self) -> Iterator[Metric]:
        """Every family of the catalogue that has a sample."""
        yield from families(self._take())


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """Every family of the catalogue that has a sample in this snapshot, in the catalogue's order."""
    engines = [(engine, {MODEL_LABEL: engine.model_name, ENGINE_LABEL: engine.engine}) for engine in snapshot.engines]
    for signal in CATALOGUE:
        # prometheus_client gives a counter's family without the suffix, and its sample with it.
        family = Metric(signal.metric.removesuffix("_total"), _HELP[signal], signal.kind)
        if signal.scope == "stream":
            family.samples = list(_stream_samples(signal, snapshot))
        elif signal.scope == "exporter":
            family.samples = _samples(signal, {}, _EXPORTER[signal](snapshot))
        elif signal.kind == "histogram":
            lengths = _LENGTHS[signal]
            family.samples = [
                sample
                for engine, own in engines
                if (found := lengths(engine)) is not None
                for sample in _histogram(signal, own, found)
            ]
        else:
            per_engine = _ENGINE[signal]
            family.samples = [sample for engine, own in engines for sample in _samples(signal, own, per_engine(engine))]
            if signal in _STREAM:
                family.samples += _stream_samples(signal, snapshot)
        if family.samples:
            yield family


def _samples(signal: Signal, own: dict[str, str], values: Samples) -> list[Sample]:
    """The signal's samples; those without labels of their own share one dict, which nobody changes."""
    name, labels = signal.metric, signal.labels
    if not labels:
        return [Sample(name, own, value) for _, value in values]
    if len(labels) == 1:
        label = labels[0]
        return [Sample(name, {**own, label: given[0]}, value) for given, value in values]
    return [Sample(name, {**own, **dict(zip(labels, given, strict=True))}, value) for given, value in values]


def _stream_samples(signal: Signal, snapshot: Snapshot) -> Iterator[Sample]:
    """The signal's samples for the streams of each model, as each source sees them."""
    for streams in snapshot.streams:
        own = {MODEL_LABEL: streams.model_name}
        if signal.kind == "histogram":
            yield from _histogram(signal, own | {_SOURCE_LABEL: streams.source}, _HISTOGRAMS[signal](streams))
        else:
            yield from _samples(signal, own, _STREAM[signal](streams))


def _histogram(signal: Signal, own: dict[str, str], histogram: Histogram | Lengths) -> Iterator[Sample]:
    name = f"{signal.metric}_bucket"
    for edge, count in zip(histogram.edges, histogram.counts, strict=True):
        yield Sample(name, {**own, "le": "+Inf" if math.isinf(edge) else repr(edge)}, float(count))
    yield Sample(f"{signal.metric}_count", own, float(histogram.counts[-1]))
    yield Sample(f"{signal.metric}_sum", own, histogram.sum)


def full_help(signal: Signal) -> str:
    """The signal's help with the upstream series that it is made of."""
    series = [family.series for family in names.FAMILIES if family.field in (*signal.needs, *signal.optional)]
    return f"{signal.help} From {', '.join(series)}." if series else signal.help


def labels_of(signal: Signal) -> Labels:
    """All label names of a signal."""
    return (*_LABELS[signal.scope], *signal.labels)


_LABELS: Mapping[Scope, Labels] = {"engine": ENGINE_LABELS, "stream": (MODEL_LABEL,), "exporter": ()}
_SOURCE_LABEL = "source"
_HELP = {signal: full_help(signal) for signal in CATALOGUE}


def _one(value: float | None, *labels: str) -> Samples:
    """One sample, or none where the value cannot be known."""
    return () if value is None else ((labels, value),)


def _each(values: Mapping[Any, float] | None) -> Samples:
    return (((label,), value) for label, value in (values or {}).items())


def _windows(value: Callable[[WindowSnapshot], float | None], *labels: str) -> Callable[[EngineSnapshot], Samples]:
    """One sample per window in which the value is known."""

    def samples(engine: EngineSnapshot) -> Iterator[tuple[Labels, float]]:
        for window in engine.windows:
            found = value(window)
            if found is not None:
                yield (window.window, *labels), found

    return samples


def _states(now: str, states: Iterable[str]) -> Samples:
    """One sample per state, 1 for the present one."""
    return (((state,), float(state == now)) for state in states)


_LENGTHS: Mapping[Signal, Callable[[EngineSnapshot], Lengths | None]] = {
    signals.PROMPT_LENGTHS: lambda e: e.prompt_lengths,
    signals.OUTPUT_LENGTHS: lambda e: e.output_lengths,
}

_ENGINE: Mapping[Signal, Callable[[EngineSnapshot], Samples]] = {
    signals.PREEMPTIONS: lambda e: _one(e.preemptions),
    signals.PREEMPTIONS_INFERRED: lambda e: _one(e.preemptions_inferred),
    signals.PREEMPTIONS_PER_THOUSAND: _windows(lambda w: w.preemptions_per_thousand),
    signals.RECOMPUTED_TOKENS: lambda e: _one(e.recomputed_tokens_estimate),
    signals.REGIME: lambda e: _states(e.regime, REGIMES),
    signals.VERDICT: lambda e: _states(e.verdict, VERDICTS),
    signals.KV_OBSERVED_SECONDS: lambda e: _one(e.kv_observed_seconds),
    signals.KV_PINNED_SECONDS: lambda e: _one(e.kv_pinned_seconds),
    signals.KV_BLOCKED_SECONDS: lambda e: _one(e.kv_blocked_seconds),
    signals.KV_PINNED_RATIO: _windows(lambda w: w.pinned_ratio),
    signals.KV_BLOCKED_RATIO: _windows(lambda w: w.blocked_ratio),
    signals.KV_USAGE: lambda e: _one(e.kv_usage),
    signals.CPU_KV_USAGE: lambda e: _one(e.cpu_kv_usage),
    signals.KV_CAPACITY_TOKENS: lambda e: _one(e.kv_capacity_tokens),
    signals.KV_CAPACITY_REQUESTS: lambda e: _each(e.kv_capacity_requests),
    signals.KV_HEADROOM_REQUESTS: lambda e: _each(e.kv_headroom_requests),
    signals.KV_RESIDENT_TOKENS: lambda e: _one(e.kv_resident_tokens),
    signals.REQUESTS_RUNNING: lambda e: _one(e.running),
    signals.REQUESTS_WAITING: lambda e: _one(e.waiting),
    signals.REQUESTS_SWAPPED: lambda e: _one(e.swapped),
    signals.REQUESTS_FINISHED: lambda e: _each(e.finished),
    signals.GENERATION_TOKENS: lambda e: _one(e.generation_tokens),
    signals.GAP_P99: _windows(lambda w: w.gap_p99_seconds, "engine"),
    signals.LONG_GAPS_PER_THOUSAND: _windows(lambda w: w.long_gaps_per_thousand),
    signals.KV_OFFLOAD_BYTES: lambda e: _each(e.offload_bytes),
    signals.KV_OFFLOAD_SECONDS: lambda e: _each(e.offload_seconds),
    signals.KV_OFFLOAD_HIT_TOKENS: lambda e: _one(e.offload_hit_tokens),
    signals.UPSTREAM_INFO: lambda e: _one(
        1.0, e.era, "" if e.block_size is None else f"{e.block_size:g}", e.cache_dtype, e.prefix_caching
    ),
    signals.ENGINE_RESETS: lambda e: _one(e.resets),
}


def _stream_windows(value: Callable[[StreamWindow], float | None]) -> Callable[[StreamSnapshot], Samples]:
    """One sample per window in which the value is known, with the source."""

    def samples(streams: StreamSnapshot) -> Iterator[tuple[Labels, float]]:
        for window in streams.windows:
            found = value(window)
            if found is not None:
                yield (window.window, streams.source), found

    return samples


def _stream(value: Callable[[StreamSnapshot], int]) -> Callable[[StreamSnapshot], Samples]:
    return lambda streams: _one(float(value(streams)), streams.source)


_HISTOGRAMS: Mapping[Signal, Callable[[StreamSnapshot], Histogram]] = {
    signals_streams.GAPS: lambda s: s.gaps,
    signals_streams.REQUEST_MAX_GAPS: lambda s: s.longest_gaps,
}

_STREAM: Mapping[Signal, Callable[[StreamSnapshot], Samples]] = {
    signals.GAP_P99: _stream_windows(lambda w: w.gap_p99_seconds),
    signals_streams.GAP_MAX: _stream_windows(lambda w: w.gap_max_seconds),
    signals_streams.REQUESTS_STREAMED: _stream(lambda s: s.streamed),
    signals_streams.REQUESTS_PAUSED: _stream(lambda s: s.paused),
    signals_streams.PAUSED_RATIO: _stream_windows(lambda w: w.paused_ratio),
    signals_streams.REQUESTS_PAUSING: _stream(lambda s: s.paused_now),
    signals_streams.REQUESTS_STREAMING: _stream(lambda s: s.open),
    signals_streams.STREAMS_ABANDONED: _stream(lambda s: s.abandoned),
}

_AVAILABLE = tuple(signal for signal in CATALOGUE if signal.scope != "exporter" and signal.needs)


def _log(value: Callable[[LogFacts], Samples]) -> Callable[[Snapshot], Samples]:
    return lambda snapshot: () if snapshot.log is None else value(snapshot.log)


def _tap(value: Callable[[TapFacts], Samples]) -> Callable[[Snapshot], Samples]:
    return lambda snapshot: () if snapshot.tap is None else value(snapshot.tap)


_EXPORTER: Mapping[Signal, Callable[[Snapshot], Samples]] = {
    signals_exporter.UP: lambda s: _one(None if s.up is None else float(s.up)),
    signals_exporter.SIGNAL_AVAILABLE: lambda s: (
        ()
        if s.last_good is None
        else (((signal.name,), float(signal.name not in s.unavailable)) for signal in _AVAILABLE)
    ),
    signals_exporter.SAMPLE_DURATION: lambda s: _one(s.took),
    signals_exporter.SAMPLE_COST: lambda s: _one(s.cost),
    signals_exporter.SAMPLE_INTERVAL: lambda s: _one(s.interval),
    signals_exporter.SAMPLES: lambda s: _one(float(s.samples)),
    signals_exporter.SAMPLE_ERRORS: lambda s: _each(s.errors),
    signals_exporter.SAMPLE_TIMESTAMP: lambda s: _one(s.last_good),
    signals_exporter.BUILD_INFO: lambda _: _one(1.0, __version__, platform.python_version()),
    signals_exporter.WEB_REFUSED: lambda s: _each(s.refused),
    signals_exporter.CHUNKS_UNTRACKED: lambda s: _each(s.untracked),
    signals_exporter.LOG_FILES: _log(lambda log: _one(log.files)),
    signals_exporter.LOG_LINES: _log(lambda log: _one(log.lines)),
    signals_exporter.LOG_DROPPED_LINES: _log(lambda log: _one(log.dropped)),
    signals_exporter.LOG_LAG: _log(lambda log: _one(log.lag)),
    signals_exporter.LOG_ERRORS: _log(lambda log: _each(log.errors)),
    signals_exporter.TAP_REQUESTS: _tap(lambda tap: _one(tap.open)),
    signals_exporter.TAP_RESPONSES: _tap(lambda tap: _each(tap.responses)),
    signals_exporter.TAP_REFUSED: _tap(lambda tap: _each(tap.refused)),
    signals_exporter.TAP_BROKEN: _tap(lambda tap: _each(tap.broken)),
    signals_exporter.TAP_UNOBSERVED: _tap(lambda tap: _each(tap.unobserved)),
    signals_exporter.TAP_FAULTS: _tap(lambda tap: _one(tap.faults)),
    signals_exporter.TAP_BLOCKED_SECONDS: _tap(lambda tap: _one(tap.blocked)),
}
