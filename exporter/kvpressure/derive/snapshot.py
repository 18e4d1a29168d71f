"""What is known at one moment, frozen: what `/metrics`, the page and the JSON state are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvpressure.derive.availability import Reason
from kvpressure.derive.gaps import Histogram
from kvpressure.derive.regime import Regime
from kvpressure.derive.verdict import Evidence, Verdict
from kvpressure.vllm import reading
from kvpressure.vllm.reading import Era
from kvpressure.vllm.stream import LogFacts, Source, TapFacts

WhyUnknown = Literal["", "stale", "first", "asleep", "alternating", "missing"]
"""
Why there is no verdict, or empty where there is one:

* ``stale``: the last reading no longer speaks of the present.
* ``first``: there has been a single reading.
* ``asleep``: vLLM is asleep.
* ``alternating``: counters start again so often that several servers must be answering in turn.
* ``missing``: vLLM does not give what a verdict needs.
"""


@dataclass(frozen=True, slots=True)
class WindowSnapshot:
    """One window that ends now. None: cannot be known, or nothing happened that it could speak of."""

    window: str
    preemptions_per_thousand: float | None
    pinned_ratio: float | None
    blocked_ratio: float | None
    gap_p99_seconds: float | None
    long_gaps_per_thousand: float | None


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """
    One engine of one vLLM. Counters are what was witnessed since the first reading; gauges are of the last one.

    None means that it cannot be known now, or ever from this vLLM. `evidence` is None where the verdict is unknown, and
    `why_unknown` says why.
    """

    model_name: str
    engine: str
    era: Era
    regime: Regime
    verdict: Verdict
    why_unknown: WhyUnknown = ""
    evidence: Evidence | None = None
    windows: tuple[WindowSnapshot, ...] = ()
    preemptions: float | None = None
    preemptions_inferred: float | None = None
    recomputed_tokens_estimate: float | None = None
    finished: Mapping[str, float] | None = None
    generation_tokens: float | None = None
    prompt_lengths: reading.Histogram | None = None
    """Of the requests finished since the first reading, in vLLM's own buckets; anew where these change."""
    output_lengths: reading.Histogram | None = None
    kv_observed_seconds: float | None = None
    kv_pinned_seconds: float | None = None
    kv_blocked_seconds: float | None = None
    kv_usage: float | None = None
    cpu_kv_usage: float | None = None
    kv_capacity_tokens: float | None = None
    kv_capacity_requests: Mapping[str, float] = field(default_factory=dict)
    kv_headroom_requests: Mapping[str, float] = field(default_factory=dict)
    kv_resident_tokens: float | None = None
    running: float | None = None
    waiting: float | None = None
    swapped: float | None = None
    offload_bytes: Mapping[str, float] = field(default_factory=dict)
    offload_seconds: Mapping[str, float] = field(default_factory=dict)
    offload_hit_tokens: float | None = None
    resets: float = 0.0
    block_size: float | None = None
    cache_dtype: str = ""
    prefix_caching: str = ""


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """
    Streams in one window that ends now.

    Args:
        window: the label.
        streamed: requests that got a chunk in it, or are paused now.
        paused: those of them that were paused in it.
        paused_ratio: paused / streamed; None where none streamed.
        gap_p99_seconds: 99th percentile of the gaps, within 1 %; None where there was none.
        gap_max_seconds: the longest gap, exactly; None where there was none.
    """

    window: str
    streamed: int
    paused: int
    paused_ratio: float | None
    gap_p99_seconds: float | None
    gap_max_seconds: float | None


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """
    The streams of one model as one source sees them. Counters are since the exporter started.

    Args:
        model_name: out of a bounded set.
        source: who saw them.
        streamed: requests that got a first chunk.
        paused: requests that had a pause.
        abandoned: requests forgotten without an end.
        open: requests between first chunk and end now.
        paused_now: those of them that pause at this moment.
        gaps: all gaps.
        longest_gaps: the longest gap of each request that ended.
        windows: as for engines.
    """

    model_name: str
    source: Source
    streamed: int
    paused: int
    abandoned: int
    open: int
    paused_now: int
    gaps: Histogram
    longest_gaps: Histogram
    windows: tuple[StreamWindow, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """
    One vLLM server.

    Args:
        t: the moment, in seconds since 1970.
        up: whether the last sample succeeded; None before the first one.
        engines: sorted by model and engine.
        unavailable: signals that cannot be derived on some engine: name -> the fields that vLLM does not give.
        reasons: why each of those fields is not given, and what to change.
        samples: samples tried.
        errors: failed samples and skipped parts, by reason.
        took: seconds that the last good sample took.
        cost: seconds that a sample costs vLLM (see derive/duty.py).
        interval: seconds between samples as now scheduled.
        last_good: when the last good sample was taken, in seconds since 1970.
        streams: sorted by model, and of each the observer that is believed first.
        untracked: chunks of streams that were not followed, by source.
        log: what the log observer says of itself, where there is one.
        tap: what the tap says of itself, where there is one.
        refused: what the web server refused, by reason, where there is one.
    """

    t: float
    up: bool | None
    engines: tuple[EngineSnapshot, ...] = ()
    unavailable: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reasons: Mapping[str, tuple[Reason, ...]] = field(default_factory=dict)
    samples: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    took: float | None = None
    cost: float | None = None
    interval: float = 0.0
    last_good: float | None = None
    streams: tuple[StreamSnapshot, ...] = ()
    untracked: Mapping[Source, int] = field(default_factory=dict)
    log: LogFacts | None = None
    tap: TapFacts | None = None
    refused: Mapping[str, int] = field(default_factory=dict)
