"""
All alerts, as data.

Rules of the house:

* Per engine, or per source of streams: an average over engines hides the hot one.
* Shares, never preemptions per second: a storm at 0.2 requests per second is a storm.
* Two signals are joined by set operators alone (`and`, `or`, `unless`), after labels that have but one value were
  dropped: two scrapes of the same target then make two alerts of one group, where a join would fail and page nobody.
* The tap is believed before the log, the log before vLLM's histogram; no two of them are added.
* Nothing that pages reads a recording rule, so a file that was not loaded cannot silence a page.
"""

from kvpressure.bundle import health, pressure, users
from kvpressure.bundle.alert import (
    CAPACITY_LOW,
    EXPORTER_DOWN,
    INTER_TOKEN_GAP_HIGH,
    LIVELOCK,
    LOG_STALLED,
    MEMORY_BOUND,
    OUTPUT_LENGTH_SHIFT,
    PINNED,
    PREEMPTION_CHURN,
    PREEMPTION_STORM,
    PREFIX,
    REQUESTS_PAUSING,
    SIGNAL_MISSING,
    STALL_ELSEWHERE,
    VLLM_DOWN,
    Alert,
    Severity,
)
from kvpressure.bundle.config import BundleConfig

__all__ = [
    "CAPACITY_LOW",
    "EXPORTER_DOWN",
    "INTER_TOKEN_GAP_HIGH",
    "LIVELOCK",
    "LOG_STALLED",
    "MEMORY_BOUND",
    "OUTPUT_LENGTH_SHIFT",
    "PINNED",
    "PREEMPTION_CHURN",
    "PREEMPTION_STORM",
    "PREFIX",
    "REQUESTS_PAUSING",
    "SIGNAL_MISSING",
    "STALL_ELSEWHERE",
    "VLLM_DOWN",
    "Alert",
    "Severity",
    "alerts",
]


def alerts(config: BundleConfig) -> tuple[Alert, ...]:
    """Every alert, those that page first."""
    return (
        pressure.storm(config),
        users.pausing(config),
        pressure.livelock(config),
        health.vllm_down(config),
        pressure.churn(config),
        pressure.memory_bound(config),
        users.gap_high(config),
        pressure.capacity_low(config),
        users.output_shift(config),
        users.stall_elsewhere(config),
        health.exporter_down(config),
        health.signal_missing(config),
        health.log_stalled(config),
        pressure.pinned(config),
    )
