"""
The series that kvpressure reads from vLLM, with every spelling since 0.6, as data.

vLLM renames series on a schedule (deprecated, hidden, removed over three minors), so each family lists
its spellings newest first and a reader takes the first one that is present; it never adds two of them.
Names stand here in vLLM's own spelling, without the ``vllm:`` prefix and without a counter's ``_total``.
Version facts: vLLM's source at 42 releases from 0.6.0 to 0.33.0, and the recordings in tests/.
"""

from dataclasses import dataclass
from typing import Literal

PREFIX = "vllm:"
"""What vLLM's own exporter puts before every name."""

RAY_PREFIX = "ray_"
"""What Ray puts before vLLM's names: ``ray_vllm:`` up to 0.10.2, ``ray_vllm_`` after."""

Kind = Literal["gauge", "counter", "histogram", "info"]


@dataclass(frozen=True, slots=True)
class Alias:
    """
    One spelling of a family.

    Args:
        name: vLLM's name without prefix and without ``_total``.
        where: label values that a series must have, where the name alone is not enough.
        versions: the releases that expose it, as far as they were sampled.
    """

    name: str
    versions: str
    where: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """
    One thing that kvpressure reads, whatever vLLM calls it.

    Args:
        field: the attribute of ``EngineReading`` that it fills.
        kind: the Prometheus type upstream.
        aliases: its spellings, the one to prefer first.
        split: the label that tells apart the series which are kept apart, if any.
    """

    field: str
    kind: Kind
    aliases: tuple[Alias, ...]
    split: str = ""

    @property
    def series(self) -> str:
        """The newest spelling as PromQL sees it (base name for a histogram)."""
        return PREFIX + self.aliases[0].name + ("_total" if self.kind == "counter" else "")


RUNNING = Family("running", "gauge", (Alias("num_requests_running", "all"),))
# Preempted requests are part of `waiting`: V1 puts them back at the head of that queue.
WAITING = Family("waiting", "gauge", (Alias("num_requests_waiting", "all"),))
WAITING_CAPACITY = Family(
    "waiting_capacity",
    "gauge",
    (Alias("num_requests_waiting_by_reason", "0.20.2+", (("reason", "capacity"),)),),
)
SWAPPED = Family("swapped", "gauge", (Alias("num_requests_swapped", "V0 to 0.8.2, hidden to 0.9.0.1"),))
# 0.9.2 to 0.10.2 expose both names at once: read one.
KV_USAGE = Family(
    "kv_usage",
    "gauge",
    (
        Alias("kv_cache_usage_perc", "V1 0.9.2+"),
        Alias("gpu_cache_usage_perc", "V0 to 0.10.2, V1 0.7.1 to 0.10.2, hidden to 0.11.2"),
    ),
)
CPU_KV_USAGE = Family("cpu_kv_usage", "gauge", (Alias("cpu_cache_usage_perc", "V0 to 0.8.2, hidden to 0.9.0.1"),))
AWAKE = Family("awake", "gauge", (Alias("engine_sleep_state", "0.11.1+", (("sleep_state", "awake"),)),))

PREEMPTIONS = Family("preemptions", "counter", (Alias("num_preemptions", "V0 all, V1 0.8.0+"),))
FINISHED = Family("finished", "counter", (Alias("request_success", "V0 all, V1 0.7.3+"),), split="finished_reason")
GENERATION_TOKENS = Family("generation_tokens", "counter", (Alias("generation_tokens", "all"),))
EXTERNAL_QUERIES = Family("external_queries", "counter", (Alias("external_prefix_cache_queries", "0.11.1+"),))
EXTERNAL_HITS = Family("external_hits", "counter", (Alias("external_prefix_cache_hits", "0.11.1+"),))
OFFLOAD_LOADED_BYTES = Family(
    "offload_loaded_bytes",
    "counter",
    (
        Alias("kv_offload_load_bytes", "0.24.0+"),
        Alias("kv_offload_total_bytes", "0.16.0+, deprecated 0.24.0", (("transfer_type", "CPU_to_GPU"),)),
    ),
)
OFFLOAD_STORED_BYTES = Family(
    "offload_stored_bytes",
    "counter",
    (
        Alias("kv_offload_store_bytes", "0.24.0+"),
        Alias("kv_offload_total_bytes", "0.16.0+, deprecated 0.24.0", (("transfer_type", "GPU_to_CPU"),)),
    ),
)
OFFLOAD_LOAD_SECONDS = Family(
    "offload_load_seconds",
    "counter",
    (
        Alias("kv_offload_load_time", "0.24.0+"),
        Alias("kv_offload_total_time", "0.16.0+, deprecated 0.24.0", (("transfer_type", "CPU_to_GPU"),)),
    ),
)
OFFLOAD_STORE_SECONDS = Family(
    "offload_store_seconds",
    "counter",
    (
        Alias("kv_offload_store_time", "0.24.0+"),
        Alias("kv_offload_total_time", "0.16.0+, deprecated 0.24.0", (("transfer_type", "GPU_to_CPU"),)),
    ),
)

# Edges end at 2.5 s up to 0.8.2, at 80 s since 0.8.4, and can be set by the user since 0.32: always read `le`.
GAPS = Family(
    "gaps",
    "histogram",
    (
        Alias("inter_token_latency_seconds", "0.10.2+"),
        Alias("time_per_output_token_seconds", "V0 all, V1 0.7.1 to 0.11.2, hidden to 0.14.1"),
    ),
)
PROMPT_LENGTHS = Family("prompt_lengths", "histogram", (Alias("request_prompt_tokens", "V0 all, V1 0.7.3+"),))
OUTPUT_LENGTHS = Family("output_lengths", "histogram", (Alias("request_generation_tokens", "V0 all, V1 0.7.3+"),))

# V1 before 0.8.4 has no `engine` label and is known by this counter, which V0 never had.
V1_MARKER = Family("v1_marker", "counter", (Alias("gpu_prefix_cache_queries", "V1 0.7.3 to 0.10.2, hidden to 0.11.2"),))
CACHE_CONFIG = Family("cache", "info", (Alias("cache_config_info", "V0 all, V1 0.8.0+"),))

FAMILIES: tuple[Family, ...] = (
    RUNNING,
    WAITING,
    WAITING_CAPACITY,
    SWAPPED,
    KV_USAGE,
    CPU_KV_USAGE,
    AWAKE,
    PREEMPTIONS,
    FINISHED,
    GENERATION_TOKENS,
    EXTERNAL_QUERIES,
    EXTERNAL_HITS,
    OFFLOAD_LOADED_BYTES,
    OFFLOAD_STORED_BYTES,
    OFFLOAD_LOAD_SECONDS,
    OFFLOAD_STORE_SECONDS,
    GAPS,
    PROMPT_LENGTHS,
    OUTPUT_LENGTHS,
    V1_MARKER,
    CACHE_CONFIG,
)
"""Everything the sampler reads; any other series is skipped without being looked at twice."""

# Read by the dashboards alone: the sampler needs none of them, so no field of a reading is filled.
MAX_TOKENS = Family("max_tokens", "histogram", (Alias("request_params_max_tokens", "V0 0.6.6+, V1 0.8.5+"),))
PREFIX_QUERIES = Family(
    "prefix_queries",
    "counter",
    (
        Alias("prefix_cache_queries", "V1 0.9.2+"),
        Alias(
            "gpu_prefix_cache_queries", "V1 0.7.3 to 0.10.2, hidden to 0.11.2; blocks instead of tokens before 0.9.0"
        ),
    ),
)
PREFIX_HITS = Family(
    "prefix_hits",
    "counter",
    (
        Alias("prefix_cache_hits", "V1 0.9.2+"),
        Alias("gpu_prefix_cache_hits", "V1 0.7.3 to 0.10.2, hidden to 0.11.2; blocks instead of tokens before 0.9.0"),
    ),
)

DRAWN: tuple[Family, ...] = (MAX_TOKENS, PREFIX_QUERIES, PREFIX_HITS)
"""What dashboards read from vLLM beside the above."""

# Read by advice alone, out of recordings and from Prometheus: no sample pays for it.
# Edges end at 7.5 or 10 s up to 0.8.2, at 2560 s since 0.8.4.
FIRST_TOKENS = Family("first_tokens", "histogram", (Alias("time_to_first_token_seconds", "all"),))

ADVISED: tuple[Family, ...] = (FIRST_TOKENS,)
"""What advice reads from vLLM beside the above."""

# Labels of the cache's info. The block size is the smallest over the groups of a hybrid model.
CACHE_TOKENS_LABEL = "kv_cache_size_tokens"
CACHE_BLOCKS_LABEL = "num_gpu_blocks"
CACHE_SWAP_BLOCKS_LABEL = "num_cpu_blocks"
CACHE_BLOCK_SIZE_LABEL = "block_size"
CACHE_CONCURRENCY_LABEL = "kv_cache_max_concurrency"
"""Requests of the longest length that fit at once (0.24 and later): the capacity over ``max_model_len``."""
CACHE_DTYPE_LABEL = "cache_dtype"
CACHE_PREFIX_LABEL = "enable_prefix_caching"

MODEL_LABEL = "model_name"
ENGINE_LABEL = "engine"
PID_LABEL = "pid"
"""A gauge without a multiprocess mode appears once per API server process (0.9.2 to 0.11.0): take the maximum."""
