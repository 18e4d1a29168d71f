"""
Verdict: what limits an engine, over the last few minutes.

In order of precedence, each with the evidence that it needs:

1. **kv_memory**: preemption that goes on (regime churn), or KV-blocked for at least `blocked_ratio` of the time.
   A queue that waits for blocks is a cache too small for the traffic even where nothing is preempted: long prompts
   with short answers never preempt and still wait.
2. **stall_elsewhere**: streams stood still and the cache cannot be the reason: nothing was preempted, counted or
   inferred, and the engine was hardly blocked. Host, network, compute, a long prefill.
3. **concurrency_cap**: a queue while the cache has room, because running stands at its maximum. vLLM does not expose
   `max_num_seqs`, so the maximum is taken from what was seen, and three things must hold so that a flood's first
   seconds are not mistaken for it: the queue lasted `queue_seconds`, running stood at its maximum nearly all that
   time (a filling cache has a growing batch), and the cache seats `cap_room` times as many.
4. **healthy**: else.
"""

from dataclasses import dataclass
from typing import Literal

from kvpressure.config import VerdictConfig
from kvpressure.derive.queue import QueueFacts
from kvpressure.derive.regime import Regime

Verdict = Literal["healthy", "kv_memory", "concurrency_cap", "stall_elsewhere", "unknown"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """
    What the verdict weighs, over its window. None where it cannot be known.

    Args:
        regime: the regime now.
        preempted: preemptions, counted or inferred, whichever are more.
        blocked_ratio: share of time KV-blocked.
        stalled_seconds: time during which an engine with running streams gave no token.
        long_gaps_per_thousand: gaps over the pause threshold per thousand requests served, from vLLM's histogram.
        queue: the queue and the running batch.
        seats: requests that the cache seats at their mean length.
        paused_per_thousand: requests that paused per thousand that streamed, from the tap or the log.
    """

    regime: Regime
    preempted: float
    blocked_ratio: float | None
    stalled_seconds: float
    long_gaps_per_thousand: float | None
    queue: QueueFacts
    seats: float | None
    paused_per_thousand: float | None = None


def verdict(evidence: Evidence, config: VerdictConfig) -> Verdict:
    """The verdict on the evidence, by the order of precedence above."""
    blocked = evidence.blocked_ratio is not None and evidence.blocked_ratio >= config.blocked_ratio
    if evidence.regime == "churn" or blocked:
        return "kv_memory"
    # What users saw says more than what the engine counted.
    seen = evidence.long_gaps_per_thousand if evidence.paused_per_thousand is None else evidence.paused_per_thousand
    paused = evidence.stalled_seconds > 0.0 or (seen or 0.0) >= config.long_gaps
    if paused and not evidence.preempted:
        return "stall_elsewhere"
    if not evidence.preempted and _capped(evidence, config):
        return "concurrency_cap"
    return "healthy"


def _capped(evidence: Evidence, config: VerdictConfig) -> bool:
    queue = evidence.queue
    if queue.seconds < config.queue_seconds or queue.at_max < config.cap_share * queue.seconds:
        return False
    room = queue.running_max * config.cap_room
    fits_by_usage = queue.usage_max * config.cap_room <= 1.0
    return fits_by_usage and (evidence.seats is None or evidence.seats >= room)
