"""Alerts on the KV cache itself, each for one engine."""

from kvpressure import signals
from kvpressure.bundle import alert
from kvpressure.bundle.alert import Alert
from kvpressure.bundle.config import BundleConfig
from kvpressure.bundle.promql import Picker, duration, hold, number

_WHOLE, _ONE_DIGIT, _TWO_DIGITS = (f'{{{{ printf "%.{digits}f" $value }}}}' for digits in range(3))
_ENGINE = f"Engine {{{{ $labels.engine }}}} of model {{{{ $labels.model_name }}}} ({alert.WHERE})"
_SLOTS, _BURST = 6, 4
"""Parts of the slow window, of which all but one must have brought a preemption; and as many as are a burst in one."""


def storm(config: BundleConfig) -> Alert:
    """Preemption that goes on at a rate that users feel."""
    own = config.preemption_storm
    return Alert(
        alert.PREEMPTION_STORM,
        "critical",
        _churning(config, own.window, own.per_thousand),
        hold(own.hold),
        hold(own.keep),
        "vLLM interrupts running requests because its KV cache is too small for the traffic.",
        f"{_ENGINE} preempts {_WHOLE} times per thousand requests (page from "
        f"{number(own.per_thousand)}), and has for more than four minutes. Each time a user's answer stands still "
        "while its KV is computed again.",
    )


def churn(config: BundleConfig) -> Alert:
    """Preemption that goes on, and that few users feel yet."""
    own, pick = config.preemption_churn, Picker(config.select.exporter)
    long, slot = own.slow_window, own.slow_window / _SLOTS
    finished = f"sum without (finished_reason) (increase({pick(signals.REQUESTS_FINISHED, over=long)}))"
    preempted = f"increase({pick(signals.PREEMPTIONS, over=slot)})"
    slow = (
        f"1000 * increase({pick(signals.PREEMPTIONS, over=long)})\n/\n"
        f"clamp_min({finished} + {pick(signals.REQUESTS_RUNNING)}, 1)\n>= {number(own.per_thousand)}\nand\n"
        f"sum_over_time((({preempted} > 0) < bool {_BURST})[{duration(long)}:{duration(slot)}]) >= {_SLOTS - 1}"
    )
    return Alert(
        alert.PREEMPTION_CHURN,
        "warning",
        f"{_churning(config, own.window, own.per_thousand)}\nor\n{slow}",
        hold(own.hold),
        hold(own.keep),
        "vLLM keeps preempting requests: its KV cache no longer fits the traffic.",
        f"{_ENGINE} preempts {_WHOLE} times per thousand requests (ticket from "
        f"{number(own.per_thousand)}), not in a burst but all the time. More load or longer answers will make it a "
        "storm.",
    )


def _churning(config: BundleConfig, window: str, per_thousand: float) -> str:
    pick = Picker(config.select.exporter)
    rate = pick.one(signals.PREEMPTIONS_PER_THOUSAND, "window", window)
    regime = pick.one(signals.REGIME, "regime", "churn")
    return f"{rate} >= {number(per_thousand)}\nand\n{regime} == 1"


def livelock(config: BundleConfig) -> Alert:
    """Requests run and preempt one another, and hardly a token comes out."""
    own, pick = config.livelock, Picker(config.select.exporter)
    counted = f"increase({pick(signals.PREEMPTIONS, over=own.window)}) > 0"
    # The victims of a livelock never come back to be counted.
    inferred = f"increase({pick(signals.PREEMPTIONS_INFERRED, over=own.window)}) > 0"
    unknown = pick.one(signals.REGIME, "regime", "unknown")
    return Alert(
        alert.LIVELOCK,
        "critical",
        f"rate({pick(signals.GENERATION_TOKENS, over=own.window)})\n/\n"
        f"avg_over_time({pick(signals.REQUESTS_RUNNING, over=own.window)})\n< {number(own.tokens_per_second)}\n"
        f"and\n(\n  {counted}\nor\n  {inferred}\n)\nunless\n{unknown} == 1",
        hold(own.hold),
        hold(own.keep),
        "vLLM preempts its requests so much that hardly a token comes out.",
        f"{_ENGINE} gives {_TWO_DIGITS} tokens per second and running request (page under "
        f"{number(own.tokens_per_second)}) while it preempts: requests take the KV cache from one another and none "
        "gets on.",
    )


def memory_bound(config: BundleConfig) -> Alert:
    """A queue that does not drain because the cache has no room."""
    own, pick = config.memory_bound, Picker(config.select.exporter)
    blocked = pick.one(signals.KV_BLOCKED_RATIO, "window", own.window)
    # Windows that have only begun are windows, too: who was not there at their start says nothing of all of them.
    long_enough = pick(signals.REQUESTS_WAITING, offset=max(own.queue, dict(signals.WINDOWS)[own.window]))
    return Alert(
        alert.MEMORY_BOUND,
        "warning",
        f"{blocked} >= {number(own.blocked_ratio)}\nand\n"
        f"min_over_time({pick(signals.REQUESTS_WAITING, over=own.queue)}) >= 1\nand\n{long_enough}",
        hold(own.hold),
        hold(own.keep),
        "Requests queue for room in vLLM's KV cache, and the queue does not drain.",
        f"{_ENGINE} had requests waiting for KV blocks {{{{ $value | humanizePercentage }}}} of the last {own.window}, "
        f"and its queue has not been empty for {duration(own.queue)}. Users wait for their first token.",
    )


def capacity_low(config: BundleConfig) -> Alert:
    """The cache seats fewer requests of usual length than users bring."""
    own, pick = config.capacity_low, Picker(config.select.exporter)
    too_many = f"(-{pick.one(signals.KV_HEADROOM_REQUESTS, 'footprint', 'p95')})[{duration(own.window)}:5m]"
    return Alert(
        alert.CAPACITY_LOW,
        "warning",
        f"quantile_over_time({number(own.quantile)}, {too_many}) > 0\nand\n"
        f"increase({pick(signals.KV_BLOCKED_SECONDS, over=own.window)})\n/\n"
        f"increase({pick(signals.KV_OBSERVED_SECONDS, over=own.window)})\n>= {number(own.blocked_ratio)}",
        hold(own.hold),
        hold(own.keep),
        "vLLM's KV cache seats fewer requests than its users bring.",
        f"{_ENGINE} had {_ONE_DIGIT} requests too many within the last {duration(own.window)}: as many more ran or "
        "waited at once than its KV cache seats at their p95 length, and some waited for KV blocks.",
    )


def pinned(config: BundleConfig) -> Alert:
    """The cache is full nearly all the time: context, not a fault."""
    own, pick = config.pinned, Picker(config.select.exporter)
    ratio = pick.one(signals.KV_PINNED_RATIO, "window", own.window)
    return Alert(
        alert.PINNED,
        "info",
        f"{ratio} >= {number(own.ratio)}",
        hold(own.hold),
        hold(own.keep),
        "vLLM's KV cache is full nearly all the time.",
        f"{_ENGINE} held its KV cache full for {{{{ $value | humanizePercentage }}}} of the last {own.window}. A full "
        "cache is what vLLM aims for, and no fault by itself: it explains the alerts beside this one.",
    )
