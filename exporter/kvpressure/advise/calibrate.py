"""Whether the model gives what was observed: it is asked before anything is promised by it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvpressure.advise.advice import Calibration, Compared
from kvpressure.advise.lengths import quantile, together
from kvpressure.advise.seen import Slot
from kvpressure.advise.sweep import Run, band

_FACTOR = 2.0
"""Preemptions may be as much more or fewer: one run of the same traffic differs from the next by nearly as much."""
_FEW = 10.0
"""Per thousand requests: below it, on both sides, preemptions are as good as none."""
_RELATIVE = 0.2
_POINTS = 0.15


@dataclass(frozen=True, slots=True)
class _Row:
    """How one figure is compared; `near` is None where it is shown only."""

    name: str
    unit: str
    field: str
    observed: Callable[[Sequence[Slot]], float | None]
    modelled: Callable[[Run], float | None]
    bound: str
    near: Callable[[float, float], bool] | None


def calibration(slots: Sequence[Slot], runs: Sequence[Run], step: str, sources: dict[str, str]) -> Calibration:
    """
    The observed period held against runs of the model as things are.

    Args:
        slots: the period.
        runs: of the model, nothing changed.
        step: the step time, as a sentence.
        sources: what each field of a slot comes from.
    """
    rows = []
    for row in _ROWS:
        observed = row.observed(slots)
        modelled = band([value for run in runs if (value := row.modelled(run)) is not None])
        holds = None if observed is None or row.near is None else row.near(observed, modelled.middle)
        rows.append(Compared(row.name, row.unit, observed, modelled, row.bound, holds, sources.get(row.field, "")))
    judged = [row.holds for row in rows if row.holds is not None]
    holds = all(judged) if judged else None
    return Calibration(tuple(rows), holds, step, _says(rows, holds))


def _says(rows: Sequence[Compared], holds: bool | None) -> str:  # noqa: FBT001  # what the sentence is about
    if holds is None:
        return "Nothing was observed that the model could be held against: all it says is an estimate."
    if holds:
        return (
            "The model gives what was observed within the bounds below. What it says of changes is still an estimate."
        )
    off = ", ".join(
        row.name[:1].lower() + row.name[1:] if not row.name[1].isupper() else row.name
        for row in rows
        if row.holds is False
    )
    return (
        f"The model does not give what was observed ({off} out of bounds), so nothing is promised by it: the "
        "arithmetic and the evidence above are all that is known."
    )


def _per_thousand(slots: Sequence[Slot]) -> float | None:
    known = [slot for slot in slots if slot.preemptions is not None and slot.finished is not None]
    if not known:
        return None
    served = sum(slot.finished or 0.0 for slot in known) + (known[-1].running or 0.0)
    return 1000.0 * sum(slot.preemptions or 0.0 for slot in known) / max(1.0, served)


def _mean(of: Callable[[Slot], float | None]) -> Callable[[Sequence[Slot]], float | None]:
    def mean(slots: Sequence[Slot]) -> float | None:
        known = [(slot.seconds, value) for slot in slots if (value := of(slot)) is not None]
        time = sum(seconds for seconds, _ in known)
        return sum(seconds * value for seconds, value in known) / time if time else None

    return mean


def _pinned(slots: Sequence[Slot]) -> float | None:
    known = [slot for slot in slots if slot.pinned is not None and slot.observed]
    watched = sum(slot.observed or 0.0 for slot in known)
    return sum(slot.pinned or 0.0 for slot in known) / watched if watched else None


def _paused(slots: Sequence[Slot]) -> float | None:
    streamed = sum(slot.streamed or 0.0 for slot in slots if slot.paused is not None)
    return sum(slot.paused or 0.0 for slot in slots) / streamed if streamed else None


def _first_token(share: float) -> Callable[[Sequence[Slot]], float | None]:
    def observed(slots: Sequence[Slot]) -> float | None:
        counted = together(slot.first_tokens for slot in slots if slot.first_tokens)
        return None if counted is None else quantile(counted, share)

    return observed


def _throughput(slots: Sequence[Slot]) -> float | None:
    known = [slot for slot in slots if slot.tokens is not None]
    time = sum(slot.seconds for slot in known)
    return sum(slot.tokens or 0.0 for slot in known) / time if time else None


def _within_factor(observed: float, modelled: float) -> bool:
    if observed < _FEW and modelled < _FEW:
        return True
    return observed <= _FACTOR * modelled and modelled <= _FACTOR * observed


def _relative(observed: float, modelled: float) -> bool:
    return abs(modelled - observed) <= _RELATIVE * observed


def _points(observed: float, modelled: float) -> bool:
    return abs(modelled - observed) <= _POINTS


_ROWS = (
    _Row(
        "Preemptions per thousand requests",
        "preemptions",
        "preemptions",
        _per_thousand,
        lambda run: run.per_thousand,
        f"a factor of {_FACTOR:g}, or both below {_FEW:g}",
        _within_factor,
    ),
    _Row(
        "Requests running",
        "requests",
        "running",
        _mean(lambda slot: slot.running),
        lambda run: run.running,
        f"{100 * _RELATIVE:.0f} %",
        _relative,
    ),
    _Row(
        "KV cache in use",
        "",
        "usage",
        _mean(lambda slot: slot.usage),
        lambda run: run.usage,
        f"{100 * _POINTS:.0f} points",
        _points,
    ),
    _Row(
        "Answer tokens per second",
        "tokens/s",
        "tokens",
        _throughput,
        lambda run: run.throughput,
        f"{100 * _RELATIVE:.0f} %",
        _relative,
    ),
    _Row(
        "Time with the cache full",
        "",
        "pinned",
        _pinned,
        lambda run: run.pinned,
        "shown only: it depends on how fine the samples are",
        None,
    ),
    _Row(
        "Requests paused",
        "",
        "paused",
        _paused,
        lambda run: run.paused,
        "shown only: a tap or a log sees what lies between engine and user, too",
        None,
    ),
    _Row(
        "TTFT p50",
        "s",
        "first_tokens",
        _first_token(0.5),
        lambda run: run.ttft_p50,
        "shown only: as coarse as vLLM's buckets, and users who left are in the simulated one alone",
        None,
    ),
    _Row(
        "TTFT p95",
        "s",
        "first_tokens",
        _first_token(0.95),
        lambda run: run.ttft_p95,
        "shown only: as coarse as vLLM's buckets, and users who left are in the simulated one alone",
        None,
    ),
)
