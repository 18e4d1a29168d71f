"""What limits an engine, and whether lengths changed, from what was seen: no model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kvpressure.advise.advice import Limit, Line, Shift
from kvpressure.advise.lengths import behind_mean
from kvpressure.advise.report_words import moment, times
from kvpressure.advise.seen import Counted, Figure, Seen, Slot
from kvpressure.config import VerdictConfig

_BLOCKED = 0.02
"""Share of the time with requests that wait for KV blocks, from which the cache limits."""
_LEAST = 60.0
"""Seconds that preemption must go on in all, or a queue stand, to be what limits."""
_CAPPED = 0.02
"""The share of the time that a queue must stand for it."""
_OFTEN = 0.25
"""Share of the time with preemptions from which it is said to go on, where no regime tells it."""
_QUEUE = 1.0
"""Requests waiting, on average over a slot, from which it has a queue."""
_AT_TOP = 0.95
"""Share of the most requests running from which a slot's mean is at it."""
_CHANGE = 0.3
"""Relative change of a mean length from which it is told; that of the alert on it."""
_REQUESTS = 100
"""That either side of a change must have, at the least; that of the alert on it."""
_WORDS: dict[Limit, str] = {"kv_memory": "the KV cache", "concurrency_cap": "--max-num-seqs"}
"""What limited, in a sentence on the past."""

Judged = tuple[Limit, str]


@dataclass(frozen=True, slots=True)
class _Facts:
    """
    What is judged. None is not known.

    Args:
        slots: the time.
        top: --max-num-seqs, where it is known.
        preempted: preemptions.
        blocked: share of the time with requests that wait for KV blocks.
        times: seconds in each regime that preempts.
        capped: seconds under the sidecar's verdict on the cap.
        waiting: requests in the queue, mean.
    """

    slots: Sequence[Slot]
    top: float | None
    preempted: float | None
    blocked: float | None
    times: Mapping[str, float]
    capped: float
    waiting: float | None

    @property
    def seconds(self) -> float:
        """The time that is judged."""
        return _all(self.slots)

    @property
    def regimes(self) -> bool:
        """Whether the sidecar tells onset from churn."""
        return any(slot.regime for slot in self.slots)

    @property
    def verdicts(self) -> bool:
        """Whether the sidecar tells what a queue waits for."""
        return any(slot.verdict for slot in self.slots)

    @property
    def preempting(self) -> float:
        """Seconds of slots with preemptions."""
        return _all([slot for slot in self.slots if slot.preemptions])


def limit_now(seen: Seen, slots: Sequence[Slot], changes: Sequence[Shift]) -> tuple[Limit, str, tuple[Line, ...]]:
    """
    What limits it since lengths changed last, and what did before where that was another.

    Args:
        seen: the engine.
        slots: its last ones, since then; all where lengths did not change.
        changes: of lengths.
    """
    word, says, evidence = limit(replace(seen, slots=tuple(slots)))
    if len(slots) == len(seen.slots) or not changes:
        return word, says, evidence
    last = max(changes, key=lambda shift: shift.since)
    text = f"since {moment(last.since)}, when the {last.what} changed; all lines below are of that time"
    evidence = (Line("Time that is judged", Figure(_all(slots), "seconds", text)), *evidence)
    before, _, _ = limit(replace(seen, slots=seen.slots[: -len(slots)]))
    if before in _WORDS and before != word:
        how = times(last.before, last.after)
        says += f" Until {moment(last.since)}, before the {last.what} became {how}, it was {_WORDS[before]}."
    return word, says, evidence


def limit(seen: Seen) -> tuple[Limit, str, tuple[Line, ...]]:
    """What limits it, the same as a sentence, and the numbers behind it."""
    slots = seen.slots
    watched = _sum(slots, lambda slot: slot.observed)
    pinned = _share(_sum(slots, lambda slot: slot.pinned), watched)
    facts = _Facts(
        slots=slots,
        top=seen.server.max_num_seqs.value,
        preempted=_sum(slots, lambda slot: slot.preemptions),
        blocked=_share(_sum(slots, lambda slot: slot.blocked), watched),
        times={word: _all([slot for slot in slots if slot.regime == word]) for word in ("onset", "churn")},
        capped=_all([slot for slot in slots if slot.verdict == "concurrency_cap"]),
        waiting=_mean(slots, lambda slot: slot.waiting),
    )
    lines = [_line("Preemptions", facts.preempted, "preemptions", seen, "preemptions")]
    if facts.regimes:
        for word, where in facts.times.items():
            during = _sum([slot for slot in slots if slot.regime == word], lambda slot: slot.preemptions)
            text = f"preemptions while the regime was {word}, {where:.0f} s in all: {seen.sources.get('regime', '')}"
            lines.append(Line(f"of them in {word}", Figure(during or 0.0, "preemptions", text)))
    lines.append(_shared("Time blocked", facts.blocked, seen, "blocked"))
    lines.append(_shared("Time with the cache full", pinned, seen, "pinned"))
    lines.append(_line("Requests waiting, on average", facts.waiting, "requests", seen, "waiting"))
    if facts.verdicts:
        text = f"time under the verdict concurrency_cap: {seen.sources.get('verdict', '')}"
        lines.append(Line("Time at the concurrency cap", Figure(_share(facts.capped, facts.seconds), "", text)))
    return *_judged(facts), tuple(lines)


def _judged(facts: _Facts) -> Judged:
    if facts.preempted is None and facts.blocked is None:
        return "unknown", "It is not known what limits this engine: neither preemptions nor blocked time were recorded."
    for rule in (_memory, _cap, _queued, _bursts):
        found = rule(facts)
        if found is not None:
            return found
    return _nothing(facts)


def _memory(facts: _Facts) -> Judged | None:
    """Preemption goes on, or requests wait for KV blocks."""
    reasons = []
    if facts.times["churn"] >= _LEAST:
        reasons.append(f"preemption went on for {facts.times['churn'] / 60:.0f} min")
    elif not facts.regimes and facts.preempting >= max(_LEAST, _OFTEN * facts.seconds):
        reasons.append(f"requests were preempted during {_percent(facts.preempting / facts.seconds)} of the time")
    if facts.blocked is not None and facts.blocked >= _BLOCKED:
        reasons.append(f"requests waited for KV blocks {100 * facts.blocked:.1f} % of the time")
    if not reasons:
        return None
    return "kv_memory", f"The KV cache is too small for this traffic: {' and '.join(reasons)}."


def _cap(facts: _Facts) -> Judged | None:
    """The sidecar says so for long enough."""
    if facts.capped < max(_LEAST, _CAPPED * facts.seconds):
        return None
    return "concurrency_cap", (
        "Requests queue while the KV cache has room: --max-num-seqs, the most requests that run at once, limits."
    )


def _queued(facts: _Facts) -> Judged | None:
    """A queue that no sidecar judged: the cap, by the sidecar's own rule, or nobody knows what for."""
    queue = [slot for slot in facts.slots if (slot.waiting or 0.0) >= _QUEUE]
    long = _all(queue) >= max(_LEAST, _CAPPED * facts.seconds) or (facts.waiting or 0.0) >= _QUEUE
    if facts.verdicts or not queue or not long:
        return None
    rule = VerdictConfig()
    mean = _mean(queue, lambda slot: slot.waiting) or 0.0
    said = f"Requests queued ({mean:,.0f} on average, for {_percent(_all(queue) / facts.seconds)} of the time)"
    top = facts.top or max((slot.running for slot in facts.slots if slot.running is not None), default=0.0)
    at_top = [slot for slot in queue if top and (slot.running or 0.0) >= _AT_TOP * top]
    usage = max((slot.usage for slot in queue if slot.usage is not None), default=None)
    room = usage is not None and usage * rule.cap_room <= 1.0
    if not facts.preempted and room and _all(at_top) >= rule.cap_share * _all(queue):
        return "concurrency_cap", (
            f"{said} while the KV cache was {_percent(usage or 0.0)} full at most and {top:,.0f} ran, no more: "
            "--max-num-seqs, the most requests that run at once, seems to limit."
        )
    return "unknown", f"{said}, and without kvpressure it cannot be told what they waited for."


def _bursts(facts: _Facts) -> Judged | None:
    """Preemption that does not go on."""
    if not facts.preempted:
        return None
    if not facts.regimes:
        how = f"requests were preempted during {_percent(facts.preempting / facts.seconds)} of the time"
    elif facts.times["churn"]:
        how = f"preemption went on for {facts.times['churn']:.0f} s in all"
    else:
        how = "preemption came in bursts when load arrived, and settled"
    return "neither", f"Nothing limits it for long: {how}."


def _nothing(facts: _Facts) -> Judged:
    if facts.preempted is None:
        return "unknown", (
            "It is not known what limits this engine: preemptions were not recorded. Requests waited for KV blocks "
            f"{100 * (facts.blocked or 0.0):.1f} % of the time."
        )
    if facts.waiting is None and facts.blocked is None:
        return "unknown", "Nothing was preempted, but whether requests waited was not recorded."
    waited = "hardly anybody waited" if facts.waiting is not None else "hardly anybody waited for KV blocks"
    if facts.waiting is not None and facts.waiting >= _QUEUE:
        waited = f"neither is what the queue waited for ({facts.waiting:,.0f} requests on average)"
    return "neither", f"Neither the KV cache nor the concurrency cap limits it: nothing was preempted and {waited}."


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
        if old <= 0.0:
            # Answers without tokens, as of a model that embeds: there is nothing that could have grown.
            continue
        # What the two means explain of the squared deviations: the split that explains most is where it changed.
        explained = before * after / count * (new - old) ** 2
        if best is None or explained > best[0]:
            best = explained, Shift(what, old, new, since, behind_mean(sources, what))
    if best is None or abs(best[1].after / best[1].before - 1.0) < _CHANGE:
        return None
    return best[1]


def _sum(slots: Sequence[Slot], of: Callable[[Slot], float | None]) -> float | None:
    values = [value for slot in slots if (value := of(slot)) is not None]
    return sum(values) if values else None


def _mean(slots: Sequence[Slot], of: Callable[[Slot], float | None]) -> float | None:
    known = [(slot.seconds, value) for slot in slots if (value := of(slot)) is not None]
    return _share(sum(seconds * value for seconds, value in known), sum(seconds for seconds, _ in known))


def _all(slots: Sequence[Slot]) -> float:
    return sum(slot.seconds for slot in slots)


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _percent(share: float) -> str:
    """No share that there is is none."""
    return f"{100 * share:.0f} %" if share >= 0.01 or not share else "less than 1 %"  # noqa: PLR2004  # a percent


def _shared(name: str, value: float | None, seen: Seen, field: str) -> Line:
    """A share of the time that somebody watched."""
    of, watched = seen.sources.get(field), seen.sources.get("observed")
    text = f"increase of {of} / increase of {watched}" if of and watched else of or "not recorded"
    return Line(name, Figure(value, "", text))


def _line(name: str, value: float | None, unit: str, seen: Seen, field: str) -> Line:
    return Line(name, Figure(value, unit, seen.sources.get(field, "not recorded")))
