"""Which signals cannot be derived, why, and why there is no verdict."""

import pytest

from kvpressure.config import Config
from kvpressure.derive.availability import reasons, unavailable
from kvpressure.derive.target import Target
from kvpressure.vllm import advice
from kvpressure.vllm.metrics import ExpositionReader


def readings(*texts):
    """The readings of an exposition."""
    return list(ExpositionReader().read("".join(texts)).readings.values())


def test_reasons(vllm_text):
    """Each field that some engine lacks has its reasons, each once, and what would enable it."""
    found = readings(vllm_text(engine="0"), vllm_text(engine="1", preemptions=None))
    missing = unavailable(found)

    why = reasons(found, missing)

    assert missing["preemptions_total"] == ("preemptions",)
    assert why["preemptions"] == (("this version of vLLM does not expose it on V1", "upgrade vLLM to 0.8.0 or later"),)
    assert why["cache"] == (("cache_config_info is not exposed", "upgrade vLLM to 0.8.0 or later"),)
    assert "running" not in why
    assert set(why) == {field for fields in missing.values() for field in fields}


def test_reasons_without_any_engine():
    """Where there is no engine, one reason holds for all."""
    missing = unavailable([])

    assert set(reasons([], missing).values()) == {(advice.NO_SERIES,)}


def test_the_snapshot_has_them(vllm_text):
    """A snapshot says why its missing fields are missing."""
    target = Target(Config())
    target.observe(0.0, vllm_text(preemptions=None), 0.01)

    assert "preemptions" in target.snapshot(0.0).reasons


@pytest.mark.parametrize(
    ("why", "samples"),
    [
        ("first", [{}]),
        ("", [{}, {}]),
        ("missing", [{}, {"waiting": None}]),
        ("asleep", [{}, {"awake": 0}]),
        ("alternating", [{"preemptions": n % 2} for n in range(12)]),
    ],
)
def test_why_there_is_no_verdict(vllm_text, why, samples):
    """The snapshot says why the verdict is unknown, and nothing where there is one."""
    target = Target(Config(), interval=1.0)
    for t, given in enumerate(samples):
        target.observe(float(t), vllm_text(**given), 0.01)

    (engine,) = target.snapshot(len(samples) - 1.0).engines
    assert why == engine.why_unknown
    assert ("unknown" == engine.verdict) == bool(why) == (engine.evidence is None)


def test_no_verdict_on_what_is_old(vllm_text):
    """A reading that no longer speaks of the present is why."""
    target = Target(Config(), interval=1.0)
    target.observe(0.0, vllm_text(), 0.01)
    target.failed(1.0, "refused")

    assert "stale" == target.snapshot(60.0).engines[0].why_unknown
