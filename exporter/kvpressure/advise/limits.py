"""What limits an engine, and whether lengths changed, from what was seen: no model."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from kvpressure.advise.advice import Limit, Line, Shift
from kvpressure.advise.seen import Counted, Figure, Seen, Slot

_BLOCKED = 0.02
"""Share of the time with requests that wait for KV blocks, from which the cache limits."""
_CHANGE = 0.3
"""Relative change of a mean length from which it is told; that of the alert on it."""
_REQUESTS = 100
"""That either side of a change must have, at the least; that of the alert on it."""


def limit(seen: Seen) -> tuple[Limit, str, tuple[Line, ...]]:
    """What limits it, the same as a sentence, and the numbers behind it."""
    slots = seen.slots
    preempted = _sum(slots, lambda slot: slot.preemptions)
    watched = _sum(slots, lambda slot: slot.observed)
    blocked = _share(_sum(slots, lambda slot: slot.blocked), watched)
    pinned = _share(_sum(slots, lambda slot: slot.pinned), watched)
    times = {word: _all([slot for slot in slots if slot.regime == word]) for word in ("onset", "churn")}
    capped = _all([slot for slot in slots if slot.verdict == "concurrency_cap"])
    known = any(slot.regime or slot.verdict for slot in slots)
    lines = [_line("Preemptions", preempted, "preemptions", seen, "preemptions")]
    if known:
        for word, where in times.items():
            during = _sum([slot for slot in slots if slot.regime == word], lambda slot: slot.preemptions)
            text = f"preemptions while the regime was {word}, {where:.0f} s in all: {seen.sources.get('regime', '')}"
            lines.append(Line(f"of them in {word}", Figure(during or 0.0, "preemptions", text)))
    lines.append(_line("Time blocked", blocked, "", seen, "blocked"))
    lines.append(_line("Time with the cache full", pinned, "", seen, "pinned"))
    if known:
        text = f"time under the verdict concurrency_cap: {seen.sources.get('verdict', '')}"
        lines.append(Line("Time at the concurrency cap", Figure(_share(capped, _all(slots)), "", text)))
    word, says = _judged(preempted, blocked, times, capped, slots, known=known)
    return word, says, tuple(lines)


def _judged(  # noqa: PLR0913  # the evidence
    preempted: float | None,
    blocked: float | None,
    times: dict[str, float],
    capped: float,
    slots: Sequence[Slot],
    *,
    known: bool,
) -> tuple[Limit, str]:
    if preempted is None and blocked is None:
        return "unknown", "It is not known what limits this engine: neither preemptions nor blocked time were recorded."
    if times["churn"] or (blocked or 0.0) >= _BLOCKED:
        return "kv_memory", (
            "The KV cache is too small for this traffic: "
            + (f"preemption went on for {times['churn'] / 60:.0f} min" if times["churn"] else "")
            + (" and " if times["churn"] and blocked is not None else "")
            + (f"requests waited for KV blocks {100 * blocked:.1f} % of the time." if blocked is not None else ".")
        )
    if not known and preempted:
        steady = sum(1 for slot in slots if slot.preemptions) * 4 >= len(slots)
        if steady:
            return "kv_memory", "The KV cache is too small for this traffic: preemption goes on in most of the range."
    if capped >= max(60.0, 0.02 * _all(slots)):
        return "concurrency_cap", (
            "Requests queue while the KV cache has room: --max-num-seqs, the most requests that run at once, limits."
        )
    if preempted:
        return "neither", "Nothing limits it for long: preemption came in bursts when load arrived, and settled."
    return (
        "neither",
        "Neither the KV cache nor the concurrency cap limits it: nothing was preempted and hardly anybody waited.",
    )


def shifts(seen: Seen) -> tuple[Shift, ...]:
    """Lengths of prompts and answers that changed for good within the range."""
    slots, told = seen.slots, seen.sources
    found = (
        _shift("answers", told, [(slot.end - slot.seconds, slot.answers) for slot in slots if slot.answers]),
        _shift("prompts", told, [(slot.end - slot.seconds, slot.prompts) for slot in slots if slot.prompts]),
    )
    return tuple(shift for shift in found if shift is not None)


def _shift(what: str, sources: Mapping[str, str], parts: Sequence[tuple[float, Counted]]) -> Shift | None:
    """The moment that splits the means best, where the two sides differ by enough."""
    count, total = sum(part.count for _, part in parts), sum(part.sum for _, part in parts)
    best: tuple[float, Shift] | None = None
    before, held = 0.0, 0.0
    for (_, part), (since, _) in pairwise(parts):
        before, held = before + part.count, held + part.sum
        after = count - before
        if min(before, after) < _REQUESTS:
            continue
        old, new = held / before, (total - held) / after
        # What the two means explain of the squared deviations: the split that explains most is where it changed.
        explained = before * after / count * (new - old) ** 2
        if best is None or explained > best[0]:
            best = explained, Shift(what, old, new, since, sources.get(what, ""))
    if best is None or abs(best[1].after / best[1].before - 1.0) < _CHANGE:
        return None
    return best[1]


def _sum(slots: Sequence[Slot], of: Callable[[Slot], float | None]) -> float | None:
    values = [value for slot in slots if (value := of(slot)) is not None]
    return sum(values) if values else None


def _all(slots: Sequence[Slot]) -> float:
    return sum(slot.seconds for slot in slots)


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _line(name: str, value: float | None, unit: str, seen: Seen, field: str) -> Line:
    return Line(name, Figure(value, unit, seen.sources.get(field, "not recorded")))
