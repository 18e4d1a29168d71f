"""Why vLLM does not say something."""

import pytest

from kvpressure.vllm import advice, names
from kvpressure.vllm.advice import preemption_mode, why_missing
from kvpressure.vllm.reading import Cache, EngineReading

V1 = EngineReading("V1")
V1_0_8 = EngineReading("V1", cache=Cache(block_size=16.0))


@pytest.mark.parametrize(
    ("field", "reading", "why", "change"),
    [
        ("gaps", EngineReading("V1", unreadable=frozenset({"gaps"})), "cannot be used", "vLLM's own log"),
        ("cache", V1_0_8, "num_gpu_blocks is None", "0.9"),
        ("cache", EngineReading("Rust"), "Rust front end does not expose", "VLLM_USE_RUST_FRONTEND"),
        ("cache", V1, "cache_config_info is not exposed", "0.8.0"),
        ("swapped", V1, "V0 only", ""),
        ("cpu_kv_usage", V1, "V0 only", ""),
        ("external_hits", V1, "no KV connector", ""),
        ("offload_load_seconds", V1, "no KV offloading", ""),
        ("running", V1, "before the first request", "send one request"),
        ("gaps", EngineReading("Ray"), "Ray exposes a series with its first value", "send one request"),
        ("gaps", EngineReading("Rust"), "the Rust front end exposes a series with its first", "send one request"),
        ("preemptions", V1, "this version of vLLM does not expose it", "0.8.0"),
    ],
)
def test_why_missing(field, reading, why, change):
    """Each missing field has a reason that fits the engine, and what to change only where something is wrong."""
    found_why, found_change = why_missing(field, reading)

    assert why in found_why
    assert change in found_change
    assert (change == "") is (found_change == "")


def test_optional_fields():
    """The fields that a healthy vLLM may lack are fields of a reading, and need no change."""
    assert {family.field for family in names.FAMILIES} > advice.OPTIONAL
    assert {why_missing(field, V1)[1] for field in advice.OPTIONAL} == {""}


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (V1, "V1 recomputes"),
        (EngineReading("Rust"), "V1 recomputes"),
        (EngineReading("Ray"), "recompute (V1), or by engine version"),
        (EngineReading("V0", cache=Cache(swap_blocks=512.0)), "V0 recomputes, or swaps"),
        (EngineReading("V0", cache=Cache(swap_blocks=0.0)), "V0 recomputes"),
        (EngineReading("V0"), "V0 recomputes"),
    ],
)
def test_preemption_mode(reading, expected):
    """What happens to a preempted request is told by the era, and by V0's swap space."""
    assert preemption_mode(reading).startswith(expected)
    assert ("swaps" in preemption_mode(reading)) is ("swaps" in expected)
