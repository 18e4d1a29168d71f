"""What is known at one moment, frozen: what `/metrics`, the page and the JSON state are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvpressure.derive.regime import Regime
from kvpressure.derive.verdict import Evidence, Verdict
from kvpressure.vllm.reading import Era


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
class Lengths:
    """Prompt or output lengths of the requests finished since the first reading."""

    count: float
    sum: float


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """
    One engine of one vLLM. Counters are what was witnessed since the first reading; gauges are of the last one.

    None means that it cannot be known now, or ever from this vLLM. `evidence` is None where the verdict is unknown.
    """

    model_name: str
    engine: str
    era: Era
    regime: Regime
    verdict: Verdict
    evidence: Evidence | None = None
    windows: tuple[WindowSnapshot, ...] = ()
    preemptions: float | None = None
    preemptions_inferred: float | None = None
    recomputed_tokens_estimate: float | None = None
    finished: Mapping[str, float] | None = None
    generation_tokens: float | None = None
    prompt_lengths: Lengths | None = None
    output_lengths: Lengths | None = None
    kv_observed_seconds: float | None = None
    kv_pinned_seconds: float | None = None
    kv_blocked_seconds: float | None = None
    kv_usage: float | None = None
    cpu_kv_usage: float | None = None
    kv_capacity_tokens: float | None = None
    kv_capacity_requests: Mapping[str, float] = field(default_factory=dict)
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
class Snapshot:
    """
    One vLLM server.

    Args:
        t: the moment, in seconds since 1970.
        up: whether the last sample succeeded; None before the first one.
        engines: sorted by model and engine.
        unavailable: signals that cannot be derived on some engine: name -> the fields that vLLM does not give.
        samples: samples tried.
        errors: failed samples and skipped parts, by reason.
        took: seconds that the last good sample took.
        cost: seconds that a sample costs vLLM (see derive/duty.py).
        interval: seconds between samples as now scheduled.
        last_good: when the last good sample was taken, in seconds since 1970.
    """

    t: float
    up: bool | None
    engines: tuple[EngineSnapshot, ...] = ()
    unavailable: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    samples: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    took: float | None = None
    cost: float | None = None
    interval: float = 0.0
    last_good: float | None = None
