"""
The catalogue: every metric family that kvpressure exposes, as data.

A name, unit, help text and reason stand here (those of streams and of the exporter itself in signals_streams.py and
signals_exporter.py) and nowhere else; families, rules, dashboards, documentation and tests read them. `needs` names the
fields of an ``EngineReading`` without which a signal cannot be known; where one is missing the signal is absent, never
0, and ``kvpressure_signal_available`` says so.
"""

from kvpressure import signals_exporter, signals_streams
from kvpressure.family import Signal

WINDOWS = (("1m", 60.0), ("5m", 300.0), ("15m", 900.0))
"""The values of the label `window`, with their length in seconds."""

REGIMES = ("calm", "onset", "churn", "unknown")
VERDICTS = ("healthy", "kv_memory", "concurrency_cap", "stall_elsewhere", "unknown")

_RESETS = "survives a restart of vLLM: resets are corrected where each sample is seen"
_ONE_NAME = "one name over all versions of vLLM"
_SAMPLED = "between two scrapes of Prometheus the cache crosses the line many times; this is sampled every second"

# --- preemption -----------------------------------------------------------------------------------------------------

PREEMPTIONS = Signal(
    "preemptions_total",
    "counter",
    "preemptions",
    "Preemptions witnessed since the exporter's first reading. A lower bound: vLLM counts a preemption when its victim "
    "resumes, and never where the victim is aborted first.",
    _RESETS,
    needs=("preemptions",),
)
PREEMPTIONS_INFERRED = Signal(
    "preemptions_inferred_total",
    "counter",
    "preemptions",
    "Lower bound of the preemptions that can be seen in the queues before vLLM counts them: requests that left the "
    "running set without finishing while the queue grew and the cache was nearly full. Leads preemptions_total; "
    "never add the two.",
    "needs the differences of three series between two samples a second apart",
    needs=("running", "waiting", "finished", "kv_usage"),
)
PREEMPTIONS_PER_THOUSAND = Signal(
    "preemptions_per_thousand_requests",
    "gauge",
    "preemptions per 1000 requests",
    "Preemptions in the window per thousand requests served (finished in the window plus running at its end). Reads "
    "high where clients abort: vLLM does not count aborted requests.",
    "a livelock finishes nothing, so a ratio of two rates is undefined just when it matters",
    labels=("window",),
    needs=("preemptions", "running", "finished"),
    headline=True,
)
RECOMPUTED_TOKENS = Signal(
    "recomputed_tokens_estimate_total",
    "counter",
    "tokens (estimate)",
    "Estimate, not a measurement: preemptions times the mean tokens that a running request held in the cache at that "
    "moment. vLLM has no counter of work done twice.",
    "multiplies a counter by a gauge at the moment of each increase",
    needs=("preemptions", "kv_usage", "running", "cache"),
)
REGIME = Signal(
    "regime",
    "gauge",
    "0 or 1",
    "1 for the regime that the engine is in: calm, onset (a burst of preemptions when load arrives), churn "
    "(preemption that goes on) or unknown.",
    "depends on how preemptions are spread over time, not on their rate",
    labels=("regime",),
    needs=("preemptions",),
)
VERDICT = Signal(
    "verdict",
    "gauge",
    "0 or 1",
    "1 for what limits the engine over the last 5 minutes: healthy, kv_memory, concurrency_cap (a queue while the "
    "cache has room), stall_elsewhere (pauses without KV pressure) or unknown.",
    "weighs the regime, the queue, blocked time and stalls against each other",
    labels=("verdict",),
    needs=("kv_usage", "running", "waiting"),
    optional=("preemptions", "gaps", "generation_tokens", "cache", "prompt_lengths"),
)

# --- cache ----------------------------------------------------------------------------------------------------------

KV_OBSERVED_SECONDS = Signal(
    "kv_observed_seconds_total",
    "counter",
    "seconds",
    "Time during which KV usage was known: the denominator of pinned and blocked time.",
    _SAMPLED,
    needs=("kv_usage",),
)
KV_PINNED_SECONDS = Signal(
    "kv_pinned_seconds_total",
    "counter",
    "seconds",
    "Time during which KV usage stood at or above the pin threshold. A full cache is not a fault by itself.",
    _SAMPLED,
    needs=("kv_usage",),
)
KV_BLOCKED_SECONDS = Signal(
    "kv_blocked_seconds_total",
    "counter",
    "seconds",
    "Time during which requests waited for capacity while the free KV tokens were fewer than a typical prompt needs.",
    "joins queue, usage, capacity and prompt length at each sample",
    needs=("kv_usage", "waiting", "cache", "prompt_lengths"),
    optional=("waiting_capacity",),
)
KV_PINNED_RATIO = Signal(
    "kv_pinned_ratio",
    "gauge",
    "share of time, 0 to 1",
    "Share of the observed time in the window during which KV usage stood at or above the pin threshold.",
    _SAMPLED,
    labels=("window",),
    needs=("kv_usage",),
    headline=True,
)
KV_BLOCKED_RATIO = Signal(
    "kv_blocked_ratio",
    "gauge",
    "share of time, 0 to 1",
    "Share of the observed time in the window during which requests waited for capacity with too few free KV tokens.",
    "joins queue, usage, capacity and prompt length at each sample",
    labels=("window",),
    needs=("kv_usage", "waiting", "cache", "prompt_lengths"),
    optional=("waiting_capacity",),
)
KV_USAGE = Signal(
    "kv_usage_ratio",
    "gauge",
    "share of blocks, 0 to 1",
    "Share of KV blocks in use at the last sample; cached blocks that nobody uses count as free.",
    _ONE_NAME,
    needs=("kv_usage",),
)
CPU_KV_USAGE = Signal(
    "cpu_kv_usage_ratio",
    "gauge",
    "share of blocks, 0 to 1",
    "Share of the CPU swap space in use (V0 only).",
    _ONE_NAME,
    needs=("cpu_kv_usage",),
)
KV_CAPACITY_TOKENS = Signal(
    "kv_capacity_tokens",
    "gauge",
    "tokens",
    "Tokens that fit into the engine's KV cache.",
    "vLLM states it in label values, which PromQL cannot turn into a number",
    needs=("cache",),
)
KV_CAPACITY_REQUESTS = Signal(
    "kv_capacity_requests",
    "gauge",
    "requests (estimate)",
    "Estimate of the requests that fit into the KV cache at their full length. Footprint mean: mean prompt plus mean "
    "output. Footprint p95: p95 prompt plus p95 output, which is more than the p95 of the sum, and as coarse as "
    "vLLM's buckets.",
    "divides a label value by a window of two histograms",
    labels=("footprint",),
    needs=("cache", "prompt_lengths", "output_lengths"),
)
KV_HEADROOM_REQUESTS = Signal(
    "kv_headroom_requests",
    "gauge",
    "requests (estimate)",
    "Estimate of the requests that would still fit into the KV cache: those that fit at this footprint (see "
    "kvpressure_kv_capacity_requests), minus those running and waiting at the last sample. Below 0 are requests too "
    "many: once they have grown, some wait or are preempted.",
    "divides a label value by a window of two histograms, at the sample that tells who runs and waits",
    labels=("footprint",),
    needs=("cache", "prompt_lengths", "output_lengths", "running", "waiting"),
)
KV_RESIDENT_TOKENS = Signal(
    "kv_resident_tokens_per_request",
    "gauge",
    "tokens",
    "Mean KV tokens held per running request at the last sample. Absent while nothing runs.",
    "needs the capacity, which vLLM states in label values",
    needs=("kv_usage", "running", "cache"),
)

# --- requests -------------------------------------------------------------------------------------------------------

REQUESTS_RUNNING = Signal(
    "requests_running",
    "gauge",
    "requests",
    "Requests in the running batch at the last sample.",
    _ONE_NAME,
    needs=("running",),
)
REQUESTS_WAITING = Signal(
    "requests_waiting",
    "gauge",
    "requests",
    "Requests waiting at the last sample, preempted ones among them.",
    _ONE_NAME,
    needs=("waiting",),
)
REQUESTS_SWAPPED = Signal(
    "requests_swapped",
    "gauge",
    "requests",
    "Requests swapped to the CPU at the last sample (V0 only).",
    _ONE_NAME,
    needs=("swapped",),
)
REQUESTS_FINISHED = Signal(
    "requests_finished_total",
    "counter",
    "requests",
    "Requests finished since the exporter's first reading. Aborted requests are missing: vLLM does not count them.",
    _RESETS,
    labels=("finished_reason",),
    needs=("finished",),
)
GENERATION_TOKENS = Signal(
    "generation_tokens_total",
    "counter",
    "tokens",
    "Tokens generated since the exporter's first reading.",
    _RESETS,
    needs=("generation_tokens",),
)
PROMPT_LENGTHS = Signal(
    "request_prompt_tokens",
    "histogram",
    "tokens",
    "Prompt lengths of the requests finished since the exporter's first reading, in vLLM's own buckets. It starts "
    "again where a restart of vLLM changes these.",
    _RESETS,
    needs=("prompt_lengths",),
)
OUTPUT_LENGTHS = Signal(
    "request_output_tokens",
    "histogram",
    "tokens",
    "Output lengths of the requests finished since the exporter's first reading, in vLLM's own buckets. It starts "
    "again where a restart of vLLM changes these.",
    _RESETS,
    needs=("output_lengths",),
)

# --- gaps -----------------------------------------------------------------------------------------------------------

GAP_P99 = Signal(
    "inter_token_gap_p99_seconds",
    "gauge",
    "seconds",
    "99th percentile of the gaps between two tokens of one request in the window. From the tap or the log (source) it "
    "is within 1 %, and without the label engine; from vLLM's histogram it is interpolated as PromQL's "
    "histogram_quantile does. One preemption is one gap among hundreds: read it beside the share of paused requests, "
    "never alone.",
    "one number over all versions and sources of gaps",
    labels=("window", "source"),
    needs=("gaps",),
    headline=True,
)
LONG_GAPS_PER_THOUSAND = Signal(
    "long_gaps_per_thousand_requests",
    "gauge",
    "gaps per 1000 requests",
    "Gaps over the pause threshold in vLLM's histogram per thousand requests served. Counts gaps, not requests; a "
    "stall that still lasts, or whose victim is aborted, is missing.",
    "the threshold is an edge of a histogram whose edges differ by version; requests still running are served too",
    labels=("window",),
    needs=("gaps", "running", "finished"),
)

# --- offload: restore is not recompute --------------------------------------------------------------------------------

KV_OFFLOAD_BYTES = Signal(
    "kv_offload_bytes_total",
    "counter",
    "bytes",
    "KV bytes moved between device and host by the offloading connector. Restoring is not recomputing.",
    _RESETS,
    labels=("direction",),
    needs=("offload_loaded_bytes",),
    optional=("offload_stored_bytes",),
)
KV_OFFLOAD_SECONDS = Signal(
    "kv_offload_seconds_total",
    "counter",
    "seconds",
    "Time that the offloading connector spent moving KV blocks.",
    _RESETS,
    labels=("direction",),
    needs=("offload_load_seconds",),
    optional=("offload_store_seconds",),
)
KV_OFFLOAD_HIT_TOKENS = Signal(
    "kv_offload_hit_tokens_total",
    "counter",
    "tokens",
    "Tokens whose KV came from outside the device through a KV connector instead of being computed. Absent until a "
    "connector has been asked.",
    _RESETS,
    needs=("external_hits", "external_queries"),
)

# --- what was found -------------------------------------------------------------------------------------------------

UPSTREAM_INFO = Signal(
    "upstream_info",
    "gauge",
    "1",
    "What the exporter found out about the engine that it reads; always 1.",
    "vLLM does not say which generation of its metrics it speaks",
    labels=("era", "block_size", "cache_dtype", "prefix_caching"),
    optional=("cache",),
)
ENGINE_RESETS = Signal(
    "engine_resets_total",
    "counter",
    "resets",
    "Times that the engine's counters were seen to start again: restarts of vLLM, and rebuilt metrics.",
    "resets() over a scrape interval misses the second of two",
)

CATALOGUE: tuple[Signal, ...] = tuple(
    value
    for module in (globals(), vars(signals_streams), vars(signals_exporter))
    for value in tuple(module.values())
    if isinstance(value, Signal)
)
"""Every signal, in the order of the files."""
