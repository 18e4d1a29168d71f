"""Why vLLM does not say something, and what makes it say it: one sentence per field that is missing."""

from kvpressure.vllm import names
from kvpressure.vllm.reading import EngineReading

NO_SERIES = (
    "started with --disable-log-stats: no vllm: series",
    "restart vLLM without --disable-log-stats; if this is not vLLM, give the URL of vLLM's own /metrics",
)
"""For an exposition without any vllm: series. The first half is why, the second what to change."""

NO_OBSERVER = (
    "comes with the tap (--tap.listen) or vLLM's request log (--log.path, and vLLM with --enable-log-requests "
    "--enable-log-outputs --enable-log-deltas --max-log-len 0)"
)
"""For signals of streams, of which vLLM's metrics say nothing."""

_FIRST_REQUEST = (
    "not exposed before the first request where there are several API servers, or several engines",
    "send one request and look again",
)
_TOO_OLD = ("this version of vLLM does not expose it on V1", "upgrade vLLM to 0.8.0 or later")
_V0_ONLY = ("V0 only", "")
_NO_OFFLOADING = ("no KV offloading is configured", "")
_CONNECTOR = ("no KV connector, or vLLM before 0.11.1", "")

OPTIONAL = frozenset(
    family.field
    for family in (
        names.SWAPPED,
        names.CPU_KV_USAGE,
        names.EXTERNAL_HITS,
        names.EXTERNAL_QUERIES,
        names.OFFLOAD_LOADED_BYTES,
        names.OFFLOAD_STORED_BYTES,
        names.OFFLOAD_LOAD_SECONDS,
        names.OFFLOAD_STORE_SECONDS,
    )
)
"""Fields that a healthy vLLM may lack: nothing is wrong without them."""


def why_missing(field: str, reading: EngineReading) -> tuple[str, str]:
    """Why a field of this reading is missing, and what to change; an empty second half where nothing is wrong."""
    if field in reading.unreadable:
        return "its value cannot be used (NaN, or a histogram that is not whole)", "look at vLLM's own log"
    if field == names.CACHE_CONFIG.field:
        return _why_no_capacity(reading)
    if field in (names.SWAPPED.field, names.CPU_KV_USAGE.field):
        return _V0_ONLY
    if field in (names.EXTERNAL_HITS.field, names.EXTERNAL_QUERIES.field):
        return _CONNECTOR
    if field in OPTIONAL:
        return _NO_OFFLOADING
    if field in (names.RUNNING.field, names.WAITING.field, names.KV_USAGE.field):
        return _FIRST_REQUEST
    if reading.era in ("Ray", "Rust"):
        return f"{_FRONT[reading.era]} exposes a series with its first value", "send one request and look again"
    return _TOO_OLD


_FRONT = {"Ray": "Ray", "Rust": "the Rust front end"}


def _why_no_capacity(reading: EngineReading) -> tuple[str, str]:
    if reading.cache is not None:
        return "vLLM stated its cache before it knew the size (num_gpu_blocks is None)", "upgrade vLLM to 0.9 or later"
    if reading.era == "Rust":
        return "the Rust front end does not expose cache_config_info", "unset VLLM_USE_RUST_FRONTEND"
    return "cache_config_info is not exposed", "upgrade vLLM to 0.8.0 or later"


def preemption_mode(reading: EngineReading) -> str:
    """What this engine does to a request that it preempts."""
    if reading.era in ("V1", "Rust"):
        return "V1 recomputes: the victim's prompt and answer are prefilled again"
    if reading.era == "Ray":
        return "recompute (V1), or by engine version as V0 does"
    if reading.cache is not None and reading.cache.swap_blocks:
        return "V0 recomputes, or swaps to the CPU where a request has several sequences (--swap-space is set)"
    return "V0 recomputes"
