"""Which signals cannot be derived from a vLLM, and why."""

from collections.abc import Iterable, Mapping

from kvpressure.signals import CATALOGUE
from kvpressure.vllm import advice
from kvpressure.vllm.reading import EngineReading

Reason = tuple[str, str]
"""Why something is missing, and what to change; the second half is empty where nothing is wrong."""


def unavailable(readings: list[EngineReading]) -> dict[str, tuple[str, ...]]:
    """
    The signals that cannot be derived from these readings, each with the fields that some engine does not give.

    Without any engine none can be derived.
    """
    missing: dict[str, tuple[str, ...]] = {}
    for signal in CATALOGUE:
        if signal.scope != "engine" or not signal.needs:
            continue
        lacking = tuple(
            need for need in signal.needs if not readings or any(_lacks(reading, need) for reading in readings)
        )
        if lacking:
            missing[signal.name] = lacking
    return missing


def reasons(readings: list[EngineReading], missing: Mapping[str, Iterable[str]]) -> dict[str, tuple[Reason, ...]]:
    """
    Why each field that some signal lacks is missing, each reason once; the same one for all without any engine.

    Args:
        readings: one per engine.
        missing: what `unavailable` said of them.
    """
    lacking = dict.fromkeys(field for fields in missing.values() for field in fields)
    if not readings:
        return dict.fromkeys(lacking, (advice.NO_SERIES,))
    return {
        field: tuple(dict.fromkeys(advice.why_missing(field, each) for each in readings if _lacks(each, field)))
        for field in lacking
    }


def _lacks(reading: EngineReading, need: str) -> bool:
    if need == "cache":
        # vLLM may expose its cache configuration before it knows the size.
        return reading.capacity_tokens is None
    return getattr(reading, need) is None
