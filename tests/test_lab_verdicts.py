"""The lab's scenarios as the sidecar sees them, once a second of model time: regime and verdict, minute by minute."""

from collections import Counter
from functools import cache

import pytest
from model_time import play

from kvpressure.config import Config
from kvpressure.derive.target import Target
from kvpressure.lab.metrics import ServerMetrics
from kvpressure.lab.scenarios import SCENARIOS


@cache
def played(name, seconds, seed=0):
    """(second, regime, verdict, preemptions) after each second of a scenario."""
    scenario = SCENARIOS[name]
    metrics, target = ServerMetrics(scenario.server, "m"), Target(Config(), interval=1.0)
    seen = []

    def sample(t):
        target.observe(t, metrics.render().decode(), 0.001)
        found = target.snapshot(t).engines[0]
        seen.append((t, found.regime, found.verdict, found.preemptions))

    play(scenario, seconds, seed, sample, metrics.record)
    return seen


def verdicts(name, start, end, seed=0):
    """How many seconds each verdict holds between two seconds."""
    return Counter(verdict for t, _, verdict, _ in played(name, end, seed) if start <= t < end)


@pytest.mark.parametrize("seed", [0, 1])
def test_queue_bound_is_a_concurrency_cap(seed):
    """With max_num_seqs too low the cap is said within a minute and then throughout, never the memory."""
    assert verdicts("queue_bound", 60, 600, seed) == {"concurrency_cap": 540}
    assert "kv_memory" not in verdicts("queue_bound", 2, 600, seed)


def test_storm_is_kv_memory():
    """A storm is kv_memory within a minute and stays it; it is churn once it has gone on for some five minutes."""
    assert verdicts("storm", 60, 480) == {"kv_memory": 420}
    assert {regime for t, regime, _, _ in played("storm", 480) if t > 330} == {"churn"}


def test_calm_is_healthy():
    """Calm traffic is healthy from the second reading on, and its regime is calm."""
    assert verdicts("calm", 2, 300) == {"healthy": 298}
    assert {regime for t, regime, _, _ in played("calm", 300) if t >= 2} == {"calm"}


def test_slow_host_is_a_stall_elsewhere():
    """A host that stands still is a stall elsewhere within a minute and a half, and never the memory."""
    assert verdicts("slow_host", 90, 300) == {"stall_elsewhere": 210}
    assert "kv_memory" not in verdicts("slow_host", 2, 300)


def test_onset_settles():
    """A burst when load arrives is onset, never churn nor a concurrency cap, and calm in the end."""
    seen = played("onset", 600)

    assert {regime for t, regime, _, _ in seen if t >= 2} == {"calm", "onset"}
    assert "concurrency_cap" not in {verdict for _, _, verdict, _ in seen}
    assert seen[-1][1] == "calm"
    assert seen[-1][3] > 50


def test_bookstore_turns():
    """Answers of 250 tokens are no memory problem; once they are 600 tokens long it is kv_memory, and stays it."""
    seen = played("bookstore", 1500)
    memory = [t for t, _, verdict, _ in seen if verdict == "kv_memory"]
    change = SCENARIOS["bookstore"].workload.phases[0].seconds

    assert not [t for t in memory if t < change]
    assert len([t for t in memory if t > change + 300]) == 1500 - change - 300
