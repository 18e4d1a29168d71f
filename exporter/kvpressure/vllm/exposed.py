"""
What vLLM 0.32 exposes by itself, as data: every ``vllm:`` family in the order of its exposition.

This is the other direction of ``names``: the lab serves it, nothing of the sidecar reads it. Names, HELP texts, labels
and edges are those of a recorded exposition; ``tests/test_lab_metrics.py`` compares them with it, sample by sample.
A family's ``_created`` gauge is prometheus-client's doing and stands in no table.
"""

from dataclasses import dataclass

from kvpressure.vllm.names import Kind


@dataclass(frozen=True, slots=True)
class Exposed:
    """
    One family as vLLM 0.32 exposes it.

    Args:
        name: its name without prefix, and without ``_total`` if it is a counter.
        kind: its Prometheus type.
        help: its HELP text, word for word.
        label: its label beside ``model_name`` and ``engine``, if any.
        values: the values that this label always has, in the order of the exposition.
        edges: a histogram's finite bucket edges.
        by_model_length: the edges are 1, 2, 5, 10, ... up to ``max_model_len`` tokens instead.
        per_engine: it has the label ``engine``.
    """

    name: str
    kind: Kind
    help: str
    label: str = ""
    values: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    by_model_length: bool = False
    per_engine: bool = True


# fmt: off
FIRST_TOKEN_EDGES = (  # seconds
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)
GAP_EDGES = (  # seconds
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
LATENCY_EDGES = (  # seconds
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)
# fmt: on


ESTIMATED_FLOPS_PER_GPU = Exposed(
    "estimated_flops_per_gpu",
    "counter",
    "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).",
)
ESTIMATED_READ_BYTES_PER_GPU = Exposed(
    "estimated_read_bytes_per_gpu",
    "counter",
    "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).",
)
ESTIMATED_WRITE_BYTES_PER_GPU = Exposed(
    "estimated_write_bytes_per_gpu",
    "counter",
    "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).",
)
NUM_REQUESTS_RUNNING = Exposed("num_requests_running", "gauge", "Number of requests in model execution batches.")
NUM_REQUESTS_WAITING = Exposed("num_requests_waiting", "gauge", "Number of requests waiting to be processed.")
NUM_REQUESTS_WAITING_BY_REASON = Exposed(
    "num_requests_waiting_by_reason",
    "gauge",
    "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
    "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all "
    "reasons equals vllm:num_requests_waiting.",
    label="reason",
    values=("capacity", "deferred"),
)
ENGINE_SLEEP_STATE = Exposed(
    "engine_sleep_state",
    "gauge",
    "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
    "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
    label="sleep_state",
    values=("awake", "weights_offloaded", "discard_all"),
)
KV_CACHE_USAGE_PERC = Exposed("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.")
PREFIX_CACHE_QUERIES = Exposed(
    "prefix_cache_queries", "counter", "Prefix cache queries, in terms of number of queried tokens."
)
PREFIX_CACHE_HITS = Exposed("prefix_cache_hits", "counter", "Prefix cache hits, in terms of number of cached tokens.")
EXTERNAL_PREFIX_CACHE_QUERIES = Exposed(
    "external_prefix_cache_queries",
    "counter",
    "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of "
    "queried tokens.",
)
EXTERNAL_PREFIX_CACHE_HITS = Exposed(
    "external_prefix_cache_hits",
    "counter",
    "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.",
)
MM_CACHE_QUERIES = Exposed(
    "mm_cache_queries", "counter", "Multi-modal cache queries, in terms of number of queried items."
)
MM_CACHE_HITS = Exposed("mm_cache_hits", "counter", "Multi-modal cache hits, in terms of number of cached items.")
NUM_PREEMPTIONS = Exposed("num_preemptions", "counter", "Cumulative number of preemption from the engine.")
PROMPT_TOKENS = Exposed("prompt_tokens", "counter", "Number of prefill tokens processed.")
PROMPT_TOKENS_BY_SOURCE = Exposed(
    "prompt_tokens_by_source",
    "counter",
    "Number of prompt tokens by source.",
    label="source",
    values=("local_compute", "local_cache_hit", "external_kv_transfer"),
)
PROMPT_TOKENS_CACHED = Exposed("prompt_tokens_cached", "counter", "Number of cached prompt tokens (local + external).")
PROMPT_TOKENS_CACHED_BY_SOURCE = Exposed(
    "prompt_tokens_cached_by_source",
    "counter",
    "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to "
    "DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; "
    "sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
    label="source",
    values=("device", "host", "p2p", "disk", "external_unspecified"),
)
GENERATION_TOKENS = Exposed("generation_tokens", "counter", "Number of generation tokens processed.")
REQUEST_SUCCESS = Exposed(
    "request_success",
    "counter",
    "Count of successfully processed requests.",
    label="finished_reason",
    values=("stop", "length", "abort", "error", "repetition"),
)
ADMISSION_REJECTIONS = Exposed(
    "admission_rejections",
    "counter",
    "Number of admission attempts rejected by a queue limit, by reason.",
    label="reason",
    values=("max_num_queued_reqs", "max_num_queued_tokens"),
    per_engine=False,
)
REQUEST_PROMPT_TOKENS = Exposed(
    "request_prompt_tokens", "histogram", "Number of prefill tokens processed.", by_model_length=True
)
REQUEST_GENERATION_TOKENS = Exposed(
    "request_generation_tokens", "histogram", "Number of generation tokens processed.", by_model_length=True
)
ITERATION_TOKENS_TOTAL = Exposed(
    "iteration_tokens_total",
    "histogram",
    "Histogram of number of tokens per engine_step.",
    edges=(1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0),
)
REQUEST_MAX_NUM_GENERATION_TOKENS = Exposed(
    "request_max_num_generation_tokens",
    "histogram",
    "Histogram of maximum number of requested generation tokens.",
    by_model_length=True,
)
REQUEST_PARAMS_N = Exposed(
    "request_params_n", "histogram", "Histogram of the n request parameter.", edges=(1.0, 2.0, 5.0, 10.0, 20.0)
)
REQUEST_PARAMS_MAX_TOKENS = Exposed(
    "request_params_max_tokens", "histogram", "Histogram of the max_tokens request parameter.", by_model_length=True
)
TIME_TO_FIRST_TOKEN_SECONDS = Exposed(
    "time_to_first_token_seconds", "histogram", "Histogram of time to first token in seconds.", edges=FIRST_TOKEN_EDGES
)
INTER_TOKEN_LATENCY_SECONDS = Exposed(
    "inter_token_latency_seconds", "histogram", "Histogram of inter-token latency in seconds.", edges=GAP_EDGES
)
REQUEST_TIME_PER_OUTPUT_TOKEN_SECONDS = Exposed(
    "request_time_per_output_token_seconds",
    "histogram",
    "Histogram of time_per_output_token_seconds per request.",
    edges=GAP_EDGES,
)
E2E_REQUEST_LATENCY_SECONDS = Exposed(
    "e2e_request_latency_seconds", "histogram", "Histogram of e2e request latency in seconds.", edges=LATENCY_EDGES
)
REQUEST_QUEUE_TIME_SECONDS = Exposed(
    "request_queue_time_seconds",
    "histogram",
    "Histogram of time spent in WAITING phase for request.",
    edges=LATENCY_EDGES,
)
REQUEST_INFERENCE_TIME_SECONDS = Exposed(
    "request_inference_time_seconds",
    "histogram",
    "Histogram of time spent in RUNNING phase for request.",
    edges=LATENCY_EDGES,
)
REQUEST_PREFILL_TIME_SECONDS = Exposed(
    "request_prefill_time_seconds",
    "histogram",
    "Histogram of time spent in PREFILL phase for request.",
    edges=LATENCY_EDGES,
)
REQUEST_DECODE_TIME_SECONDS = Exposed(
    "request_decode_time_seconds",
    "histogram",
    "Histogram of time spent in DECODE phase for request.",
    edges=LATENCY_EDGES,
)
REQUEST_NUM_PREEMPTIONS = Exposed(
    "request_num_preemptions",
    "histogram",
    "Histogram of the number of times a request was preempted.",
    edges=(1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
)
REQUEST_PREFILL_KV_COMPUTED_TOKENS = Exposed(
    "request_prefill_kv_computed_tokens",
    "histogram",
    "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
    by_model_length=True,
)
CACHE_CONFIG = Exposed("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")

EXPOSED: tuple[Exposed, ...] = (
    ESTIMATED_FLOPS_PER_GPU,
    ESTIMATED_READ_BYTES_PER_GPU,
    ESTIMATED_WRITE_BYTES_PER_GPU,
    NUM_REQUESTS_RUNNING,
    NUM_REQUESTS_WAITING,
    NUM_REQUESTS_WAITING_BY_REASON,
    ENGINE_SLEEP_STATE,
    KV_CACHE_USAGE_PERC,
    PREFIX_CACHE_QUERIES,
    PREFIX_CACHE_HITS,
    EXTERNAL_PREFIX_CACHE_QUERIES,
    EXTERNAL_PREFIX_CACHE_HITS,
    MM_CACHE_QUERIES,
    MM_CACHE_HITS,
    NUM_PREEMPTIONS,
    PROMPT_TOKENS,
    PROMPT_TOKENS_BY_SOURCE,
    PROMPT_TOKENS_CACHED,
    PROMPT_TOKENS_CACHED_BY_SOURCE,
    GENERATION_TOKENS,
    REQUEST_SUCCESS,
    ADMISSION_REJECTIONS,
    REQUEST_PROMPT_TOKENS,
    REQUEST_GENERATION_TOKENS,
    ITERATION_TOKENS_TOTAL,
    REQUEST_MAX_NUM_GENERATION_TOKENS,
    REQUEST_PARAMS_N,
    REQUEST_PARAMS_MAX_TOKENS,
    TIME_TO_FIRST_TOKEN_SECONDS,
    INTER_TOKEN_LATENCY_SECONDS,
    REQUEST_TIME_PER_OUTPUT_TOKEN_SECONDS,
    E2E_REQUEST_LATENCY_SECONDS,
    REQUEST_QUEUE_TIME_SECONDS,
    REQUEST_INFERENCE_TIME_SECONDS,
    REQUEST_PREFILL_TIME_SECONDS,
    REQUEST_DECODE_TIME_SECONDS,
    REQUEST_NUM_PREEMPTIONS,
    REQUEST_PREFILL_KV_COMPUTED_TOKENS,
    CACHE_CONFIG,
)
"""Every family of vLLM 0.32, in the order of its exposition."""

CACHE_CONFIG_LABELS: tuple[tuple[str, str], ...] = (
    ("_block_size_resolved", "True"),
    ("block_size", "32"),
    ("cache_dtype", "auto"),
    ("cache_hit_alignment_tokens", "None"),
    ("effective_attention_block_size", "32"),
    ("enable_mamba_shared_prefix_checkpoint", "False"),
    ("enable_prefix_caching", "True"),
    ("gpu_memory_utilization", "0.92"),
    ("hash_block_size", "None"),
    ("is_attention_free", "False"),
    ("kv_cache_dtype_skip_layers", "[]"),
    ("kv_cache_layout", "None"),
    ("kv_cache_max_concurrency", "1.875"),
    ("kv_cache_memory_bytes", "2147483648"),
    ("kv_cache_size_tokens", "1920"),
    ("kv_offloading_backend", "native"),
    ("kv_offloading_size", "None"),
    ("kv_sharing_fast_prefill", "False"),
    ("mamba_block_size", "None"),
    ("mamba_cache_dtype", "auto"),
    ("mamba_cache_mode", "none"),
    ("mamba_page_size_padded", "None"),
    ("mamba_ssm_cache_dtype", "auto"),
    ("num_cpu_blocks", "None"),
    ("num_gpu_blocks", "60"),
    ("num_gpu_blocks_override", "60"),
    ("prefix_cache_retention_interval", "0"),
    ("prefix_caching_hash_algo", "sha256"),
    ("prefix_match_unit", "None"),
    ("replayssm_buffer_len", "16"),
    ("skip_page_size_padded", "None"),
    ("sliding_window", "None"),
    ("swa_bounded_replay", "True"),
    ("use_kda_recoverssm", "False"),
    ("use_replayssm", "False"),
    ("user_specified_block_size", "True"),
)
"""The labels of ``cache_config_info`` beside ``engine``, with the values of a recorded server (60 blocks of 32)."""
