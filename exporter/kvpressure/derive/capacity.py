"""How much fits into an engine's KV cache, in tokens and in requests."""

from dataclasses import dataclass

from kvpressure.derive.quantile import histogram_quantile
from kvpressure.derive.windows import Buckets
from kvpressure.vllm.reading import EngineReading, Histogram

_P95 = 0.95


@dataclass(frozen=True, slots=True)
class Lengths:
    """
    Tokens per request over a window, or since vLLM's start where nothing finished in the window.

    Args:
        mean: the mean.
        p95: the 95th percentile, interpolated in vLLM's buckets.
    """

    mean: float
    p95: float | None


def lengths(now: Buckets, then: Buckets, whole: Histogram | None) -> Lengths | None:
    """Lengths gained between two totals; else those of the whole histogram as vLLM gives it; else None."""
    if whole is None:
        return None
    count = now.count - then.count
    if count > 0.0:
        counts = now.since(then)
        p95 = histogram_quantile(_P95, whole.edges, counts) if len(counts) == len(whole.edges) else None
        return Lengths((now.sum - then.sum) / count, p95)
    if whole.mean is None:
        return None
    return Lengths(whole.mean, histogram_quantile(_P95, whole.edges, whole.counts))


def blocked(reading: EngineReading, typical_prompt: float | None) -> bool | None:
    """
    Whether requests wait for capacity while fewer KV tokens are free than a typical prompt needs.

    None where that is not known. Nothing waits: not blocked, whatever else is known.
    """
    if reading.queued is None:
        return None
    if reading.queued == 0.0:
        return False
    free = reading.free_tokens
    return None if free is None or typical_prompt is None else free < typical_prompt


def resident_tokens(reading: EngineReading) -> float | None:
    """
    Mean KV tokens per running request; None while nothing runs.

    Blocks that a request holds without running (KV transfers, delayed frees) are counted among them.
    """
    used, running = reading.used_tokens, reading.running or 0.0
    # Less than one request is none: divided by next to nothing, anything is infinite.
    return used / running if used is not None and running >= 1.0 else None


def seats(capacity: float | None, prompt: float | None, output: float | None) -> float | None:
    """Requests that fit into `capacity` tokens at a footprint of prompt plus output tokens, which is at least one."""
    if capacity is None or prompt is None or output is None or prompt + output < 1.0:
        return None
    return capacity / (prompt + output)


def headroom(seats: float | None, running: float | None, waiting: float | None) -> float | None:
    """
    Requests that would still fit beside those that run and wait, all of them at the footprint of `seats`.

    Negative where more are there than would fit. Mind that what a request holds now is less than what it grows to: a
    cache with requests too many is not full yet.
    """
    if seats is None or running is None or waiting is None:
        return None
    return seats - running - waiting
