"""What an alert is, and the names of all."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning", "info"]

PREFIX = "KVPressure"

_POD = "{{ with $labels.namespace }}{{ . }}/{{ end }}{{ . }}"
WHERE = f"{{{{ with $labels.pod }}}}{_POD}{{{{ else }}}}{{{{ $labels.instance }}}}{{{{ end }}}}"
"""Whom an alert is about: on Kubernetes the pod, for an address says nothing there."""


PREEMPTION_STORM = PREFIX + "PreemptionStorm"
REQUESTS_PAUSING = PREFIX + "RequestsPausing"
LIVELOCK = PREFIX + "Livelock"
VLLM_DOWN = PREFIX + "VLLMDown"
PREEMPTION_CHURN = PREFIX + "PreemptionChurn"
MEMORY_BOUND = PREFIX + "MemoryBound"
INTER_TOKEN_GAP_HIGH = PREFIX + "InterTokenGapHigh"
CAPACITY_LOW = PREFIX + "CapacityLow"
OUTPUT_LENGTH_SHIFT = PREFIX + "OutputLengthShift"
STALL_ELSEWHERE = PREFIX + "StallElsewhere"
EXPORTER_DOWN = PREFIX + "ExporterDown"
SIGNAL_MISSING = PREFIX + "SignalMissing"
LOG_STALLED = PREFIX + "LogStalled"
PINNED = PREFIX + "Pinned"


@dataclass(frozen=True, slots=True)
class Alert:
    """
    One alerting rule.

    Args:
        name: one of the names here.
        severity: critical pages, warning is a ticket, info notifies nobody.
        expr: PromQL.
        hold: how long it must be true before it fires (`for`), as Prometheus writes durations; empty for at once.
        keep: how long it fires on after it was last true (`keep_firing_for`); empty for not at all.
        summary: one sentence, the same whoever it is about: alerts of a group can be told together.
        description: what is seen, on whom, and where to look first; a template.
    """

    name: str
    severity: Severity
    expr: str
    hold: str
    keep: str
    summary: str
    description: str
