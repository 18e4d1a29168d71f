"""What one sample of vLLM's metrics says, as frozen values without a spelling or a version left in them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Era = Literal["V0", "V1", "Ray", "Rust"]
"""Which generation of metrics an engine speaks: V0, V1, either of them through Ray, V1 behind the Rust front end."""

EngineKey = tuple[str, str]
"""(model_name, engine): what tells one engine from another within a vLLM server."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """
    A classic Prometheus histogram at one moment.

    Args:
        edges: upper bounds, ascending, the last one infinite.
        counts: cumulative counts, one per edge; the last one is the number of observations.
        sum: the sum of all observations.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float

    @property
    def count(self) -> float:
        """The number of observations."""
        return self.counts[-1]

    @property
    def mean(self) -> float | None:
        """The mean of all observations, or None where there is none."""
        return self.sum / self.count if self.count else None


@dataclass(frozen=True, slots=True)
class Cache:
    """
    The labels of ``cache_config_info`` that matter here; None where vLLM does not know yet.

    Args:
        tokens: ``kv_cache_size_tokens`` (0.24 and later), the capacity of one engine.
        blocks: ``num_gpu_blocks`` of one engine.
        block_size: tokens per block; for hybrid models the smallest over the cache groups.
        swap_blocks: ``num_cpu_blocks``: more than 0 on a V0 that can swap.
        concurrency: ``kv_cache_max_concurrency`` (0.24 and later), requests of the longest length that fit.
        dtype: ``cache_dtype``.
        prefix_caching: ``enable_prefix_caching``.
    """

    tokens: float | None = None
    blocks: float | None = None
    block_size: float | None = None
    swap_blocks: float | None = None
    concurrency: float | None = None
    dtype: str = ""
    prefix_caching: str = ""

    @property
    def capacity(self) -> float | None:
        """
        Tokens that one engine's KV cache holds, the null block among them.

        ``num_gpu_blocks`` times ``block_size`` where vLLM does not state tokens: too high for hybrid models, whose
        block size label is a minimum over groups. A capacity of 0, as attention-free models state it, is none.
        """
        if self.tokens:
            return self.tokens
        return self.blocks * self.block_size if self.blocks and self.block_size else None


@dataclass(frozen=True, slots=True)
class EngineReading:
    """
    One engine at one sample. None means that vLLM did not say: it is never 0.

    Counters hold vLLM's own value. `finished` maps a finished_reason to its counter; vLLM creates these lazily in
    some eras, where an empty mapping means that nothing finished yet.
    """

    era: Era
    running: float | None = None
    waiting: float | None = None
    waiting_capacity: float | None = None
    swapped: float | None = None
    kv_usage: float | None = None
    cpu_kv_usage: float | None = None
    awake: float | None = None
    preemptions: float | None = None
    finished: Mapping[str, float] | None = None
    generation_tokens: float | None = None
    external_queries: float | None = None
    external_hits: float | None = None
    offload_loaded_bytes: float | None = None
    offload_stored_bytes: float | None = None
    offload_load_seconds: float | None = None
    offload_store_seconds: float | None = None
    gaps: Histogram | None = None
    prompt_lengths: Histogram | None = None
    output_lengths: Histogram | None = None
    cache: Cache | None = None
    unreadable: frozenset[str] = frozenset()
    """Fields that are in the exposition with a value that cannot be used, such as NaN."""

    @property
    def capacity_tokens(self) -> float | None:
        """Tokens that this engine's KV cache holds, the null block among them."""
        return None if self.cache is None else self.cache.capacity

    @property
    def usable_tokens(self) -> float | None:
        """Capacity without the null block, which vLLM reserves and never hands out."""
        capacity = self.capacity_tokens
        if capacity is None:
            return None
        null_block = (self.cache.block_size or 0.0) if self.cache else 0.0
        return max(0.0, capacity - null_block) if self.era != "V0" else capacity

    @property
    def used_tokens(self) -> float | None:
        """KV tokens in blocks that some request holds."""
        usable = self.usable_tokens
        return None if usable is None or self.kv_usage is None else self.kv_usage * usable

    @property
    def free_tokens(self) -> float | None:
        """KV tokens in blocks that nobody holds; reusable prefixes among them."""
        usable = self.usable_tokens
        return None if usable is None or self.kv_usage is None else (1.0 - self.kv_usage) * usable

    @property
    def queued(self) -> float | None:
        """Requests that wait for capacity; without the deferred ones where vLLM tells them apart (0.20.2 and later)."""
        return self.waiting if self.waiting_capacity is None else self.waiting_capacity

    @property
    def asleep(self) -> bool:
        """Whether the engine was put to sleep (``engine_sleep_state``), which is not pressure."""
        return self.awake == 0.0


@dataclass(frozen=True, slots=True)
class Exposition:
    """
    Everything that one exposition said.

    Args:
        readings: by engine.
        problems: parts that were skipped, counted by reason.
    """

    readings: Mapping[EngineKey, EngineReading]
    problems: Mapping[str, int] = field(default_factory=dict)


class ExpositionError(ValueError):
    """
    A body that cannot be used at all.

    Args:
        reason: one word for the label `reason`: empty, truncated, not_exposition or too_many_series.
        sentence: what is wrong, for a person.
    """

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Taken:
    """
    What became of one body.

    Args:
        engines: engines that it spoke of.
        problems: parts of it that were skipped, counted by reason.
        refused: why nothing of it could be used, or None.
    """

    engines: int = 0
    problems: Mapping[str, int] = field(default_factory=dict)
    refused: ExpositionError | None = None
