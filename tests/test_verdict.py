"""Verdict: each needs its evidence, and they have an order."""

from dataclasses import replace

import pytest

from kvpressure.config import VerdictConfig
from kvpressure.derive.queue import QueueFacts
from kvpressure.derive.verdict import Evidence, verdict

NOTHING = Evidence(
    regime="calm",
    preempted=0.0,
    blocked_ratio=0.0,
    stalled_seconds=0.0,
    long_gaps_per_thousand=0.0,
    queue=QueueFacts(),
    seats=None,
)
CAPPED = QueueFacts(seconds=60.0, running_max=8.0, at_max=60.0, usage_max=0.2)


def judged(**given):
    return verdict(replace(NOTHING, **given), VerdictConfig())


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        ({}, "healthy"),
        ({"blocked_ratio": None, "long_gaps_per_thousand": None}, "healthy"),
        ({"regime": "churn"}, "kv_memory"),
        ({"regime": "onset", "preempted": 500.0}, "healthy"),
        ({"blocked_ratio": 0.1}, "kv_memory"),
        ({"blocked_ratio": 0.099}, "healthy"),
        ({"stalled_seconds": 1.0}, "stall_elsewhere"),
        ({"long_gaps_per_thousand": 10.0}, "stall_elsewhere"),
        ({"long_gaps_per_thousand": 9.9}, "healthy"),
        ({"paused_per_thousand": 10.0}, "stall_elsewhere"),
        ({"paused_per_thousand": 9.9, "long_gaps_per_thousand": 500.0}, "healthy"),
        ({"paused_per_thousand": 500.0, "preempted": 1.0}, "healthy"),
        ({"stalled_seconds": 1.0, "preempted": 1.0}, "healthy"),
        ({"queue": CAPPED}, "concurrency_cap"),
        ({"queue": CAPPED, "seats": 12.0}, "concurrency_cap"),
        ({"queue": CAPPED, "seats": 11.9}, "healthy"),
        ({"queue": replace(CAPPED, usage_max=0.7)}, "healthy"),
        ({"queue": replace(CAPPED, seconds=29.0, at_max=29.0)}, "healthy"),
        ({"queue": replace(CAPPED, at_max=53.0)}, "healthy"),
        ({"queue": CAPPED, "preempted": 1.0}, "healthy"),
    ],
)
def test_evidence(evidence, expected):
    """Each verdict needs all of its evidence: one number under its line and it is another."""
    assert judged(**evidence) == expected


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        ({"regime": "churn", "stalled_seconds": 9.0, "queue": CAPPED}, "kv_memory"),
        ({"blocked_ratio": 1.0, "stalled_seconds": 9.0, "queue": CAPPED}, "kv_memory"),
        ({"stalled_seconds": 9.0, "queue": CAPPED}, "stall_elsewhere"),
    ],
)
def test_precedence(evidence, expected):
    """kv_memory goes before stall_elsewhere, and that before concurrency_cap."""
    assert judged(**evidence) == expected


def test_settings():
    """The lines are those of the settings."""
    config = VerdictConfig(blocked_ratio=0.5, long_gaps=1.0, queue_seconds=100.0)

    assert verdict(replace(NOTHING, blocked_ratio=0.4), config) == "healthy"
    assert verdict(replace(NOTHING, long_gaps_per_thousand=1.0), config) == "stall_elsewhere"
    assert verdict(replace(NOTHING, queue=CAPPED), config) == "healthy"
