"""
Alerts on vLLM's own series, for servers without the exporter beside them: the same names, on less evidence.

What they cannot know as the exporter does:

* Churn is told by the minutes in which the counter rose, not by the moments: a burst of over three minutes can pass for
  it, and a storm whose preemptions are more than a minute apart shows late.
* How long requests waited for KV blocks: PromQL knows no capacity, so a queue while usage is high is taken for it.
* Pauses, gaps of requests, preemptions that vLLM has not counted yet, stalls that last.
"""

from kvpressure.bundle import alert
from kvpressure.bundle.alert import Alert
from kvpressure.bundle.config import BundleConfig
from kvpressure.bundle.health import down
from kvpressure.bundle.promql import Picker, duration, hold, number
from kvpressure.vllm import names

_WHOLE, _TWO_DIGITS = '{{ printf "%.0f" $value }}', '{{ printf "%.2f" $value }}'
_ENGINE = f"Engine {{{{ $labels.engine }}}} of model {{{{ $labels.model_name }}}} ({alert.WHERE})"
_STEP = 15.0
_USAGE_WINDOW = 900.0
_NO_EXPORTER = " Seen in vLLM's own series alone."


def alerts(config: BundleConfig) -> tuple[Alert, ...]:
    """The raw group, those that page first."""
    return (_storm(config), _livelock(config), _vllm_down(config), _churn(config), _memory_bound(config))


def _storm(config: BundleConfig) -> Alert:
    own = config.preemption_storm
    return Alert(
        alert.PREEMPTION_STORM,
        "critical",
        _churning(config, own.per_thousand),
        hold(own.hold),
        hold(own.keep),
        "vLLM interrupts running requests because its KV cache is too small for the traffic.",
        f"{_ENGINE} preempts {_WHOLE} times per thousand requests (page from "
        f"{number(own.per_thousand)}), and has for more than {duration(config.raw.spread)}.{_NO_EXPORTER}",
    )


def _churn(config: BundleConfig) -> Alert:
    own = config.preemption_churn
    return Alert(
        alert.PREEMPTION_CHURN,
        "warning",
        _churning(config, own.per_thousand),
        hold(own.hold),
        hold(own.keep),
        "vLLM keeps preempting requests: its KV cache no longer fits the traffic.",
        f"{_ENGINE} preempts {_WHOLE} times per thousand requests (ticket from "
        f"{number(own.per_thousand)}), not in a burst but all the time.{_NO_EXPORTER}",
    )


def _churning(config: BundleConfig, per_thousand: float) -> str:
    pick = Picker(config.raw.vllm)
    running = pick.upstream(names.RUNNING)
    finished = f"sum without (finished_reason) ({pick.upstream(names.FINISHED, 'increase', over=300.0)})"
    reach = config.raw.spread + 120.0
    # The moments at which the counter had risen within the minute before.
    moments = f"(({pick.upstream(names.PREEMPTIONS, 'increase', over=60.0)} > 0) * 0 + time())"
    span = f"[{duration(reach)}:{duration(_STEP)}]"
    return (
        f"1000 * {pick.upstream(names.PREEMPTIONS, 'increase', over=300.0)}\n/\n"
        f"clamp_min(({finished} or 0 * {running}) + {running}, 1)\n>= {number(per_thousand)}\nand\n"
        f"max_over_time({moments}{span})\n-\nmin_over_time({moments}{span})\n> {number(config.raw.spread)}\nand\n"
        f"{pick.upstream(names.PREEMPTIONS, 'increase', over=reach)} >= {number(config.raw.count)}"
    )


def _livelock(config: BundleConfig) -> Alert:
    own, pick = config.livelock, Picker(config.raw.vllm)
    return Alert(
        alert.LIVELOCK,
        "critical",
        f"{pick.upstream(names.GENERATION_TOKENS, 'rate', over=own.window)}\n/\n"
        f"{pick.upstream(names.RUNNING, 'avg_over_time', over=own.window)}\n< {number(own.tokens_per_second)}\n"
        f"and\n{pick.upstream(names.PREEMPTIONS, 'increase', over=own.window)} > 0",
        hold(own.hold),
        hold(own.keep),
        "vLLM preempts its requests so much that hardly a token comes out.",
        f"{_ENGINE} gives {_TWO_DIGITS} tokens per second and running request (page under "
        f"{number(own.tokens_per_second)}) while it preempts.{_NO_EXPORTER}",
    )


def _memory_bound(config: BundleConfig) -> Alert:
    own, pick = config.memory_bound, Picker(config.raw.vllm)
    long_enough = pick.upstream(names.WAITING, offset=max(own.queue, _USAGE_WINDOW))
    return Alert(
        alert.MEMORY_BOUND,
        "warning",
        f"{pick.upstream(names.KV_USAGE, 'avg_over_time', over=_USAGE_WINDOW)} >= {number(config.raw.usage)}\nand\n"
        f"{pick.upstream(names.WAITING, 'min_over_time', over=own.queue)} >= 1\nand\n{long_enough}",
        hold(own.hold),
        hold(own.keep),
        "Requests queue for room in vLLM's KV cache, and the queue does not drain.",
        f"{_ENGINE} used {{{{ $value | humanizePercentage }}}} of its KV cache over the last "
        f"{duration(_USAGE_WINDOW)}, and its queue has "
        f"not been empty for {duration(own.queue)}. Users wait for their first token.{_NO_EXPORTER}",
    )


def _vllm_down(config: BundleConfig) -> Alert:
    own, pick = config.vllm_down, Picker(config.raw.vllm_job)
    return Alert(
        alert.VLLM_DOWN,
        "critical",
        down(pick.up(), pick.up(over=own.served), pick.up(over=own.start), pick.up(offset=own.start)),
        hold(own.hold),
        "",
        "vLLM does not answer.",
        f"Prometheus gets no metrics from vLLM {alert.WHERE}, which answered within the last "
        f"{duration(own.served)} or has had {duration(own.start)} to start. Most likely nobody is served.",
    )
