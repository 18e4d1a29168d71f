"""
How long a step of the engine takes, fitted to what was seen: ``base + decode * running + prefill * prompt tokens``.

In a step every running request gets one token, so a step takes (requests running) / (tokens per second). This holds
for slots of any length, and requests that lie preempted in the queue are not in it, as they would be in the mean gap.
Least squares over slots, drawn softly to the shape of a usual server: where the load never changed, base and decode
could not be told apart otherwise.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvpressure.advise.lengths import together
from kvpressure.advise.seen import AdviseError, Slot
from kvpressure.lab.model import StepTime

USUAL = StepTime(0.018, 0.0002, 0.00014)
"""An 8B model in 16 bit on a 24 GB card with 0.9 TB/s."""
_USUAL = (USUAL.base, USUAL.decode, USUAL.prefill, 0.03)
"""Beside these, seconds of a preemption, which has 200 tokens computed again. Only their proportions count."""
_NOISE = 0.03
"""Relative: how far a slot's own step time may be off."""
_SLACK = 0.5
"""Relative: how far each part of a step may be from the usual one before the data must say so."""
_LEAST = 3
_MERGED = 120.0
"""Seconds of a row, where the range is long enough for as many rows."""
_ROWS = 8


@dataclass(frozen=True, slots=True)
class Fit:
    """
    A step time, and how well it fits.

    Args:
        step: it.
        slots: that it was fitted to.
        error: mean relative error of these.
    """

    step: StepTime
    slots: int
    error: float

    def __str__(self) -> str:
        """The formula with its numbers."""
        return f"{said(self.step)}; fitted to {self.slots} slots with a mean error of {100 * self.error:.0f} %"


def said(step: StepTime) -> str:
    """A step time as a formula."""
    return (
        f"a step takes {1000 * step.base:.2f} ms + {1000 * step.decode:.3f} ms x requests that decode + "
        f"{1000 * step.prefill:.4f} ms x prompt tokens"
    )


def fit(slots: Sequence[Slot]) -> Fit:
    """
    The step time behind some slots.

    Raises:
        AdviseError: too few slots have running requests and tokens.
    """
    # Without the number of first tokens, when a prompt was computed is known to a minute or so only.
    exact = all(slot.first_tokens is not None for slot in slots if slot.running)
    rows = list(_rows(slots if exact else _merged(slots)))
    if len(rows) < _LEAST:
        raise AdviseError(
            "the time of a step cannot be told: fewer than three slots have both running requests and tokens; choose a "
            "longer range, wait for more samples, or give step_time with --workload"
        )
    mean = sum(step for step, _ in rows) / len(rows)
    usual = sum(_time(_USUAL, terms) for _, terms in rows) / len(rows)
    start = [value * mean / usual for value in _USUAL]
    terms = [sum(term) / len(rows) for term in zip(*(each for _, each in rows), strict=True)]
    found = _least_squares(rows, start, _slack(start, terms))
    error = sum(abs(_time(found, terms) / step - 1.0) for step, terms in rows) / len(rows)
    return Fit(StepTime(*found[:3]), len(rows), error)


def _merged(slots: Sequence[Slot]) -> list[Slot]:
    """Neighbours put together, so that what began in one slot and ended in the next is no noise."""
    total = sum(slot.seconds for slot in slots)
    wanted = min(_MERGED, total / _ROWS)
    found: list[Slot] = []
    group: list[Slot] = []
    for slot in slots:
        group.append(slot)
        if sum(each.seconds for each in group) >= wanted:
            found.append(_whole(group))
            group = []
    return found


def _whole(group: Sequence[Slot]) -> Slot:
    """Several slots as one; of what any of them does not know, nothing is known."""
    seconds = sum(slot.seconds for slot in group)

    def total(of: Callable[[Slot], float | None]) -> float | None:
        values = [of(slot) for slot in group]
        return None if None in values else sum(value or 0.0 for value in values)

    running = total(lambda slot: None if slot.running is None else slot.running * slot.seconds)
    return Slot(
        end=group[-1].end,
        seconds=seconds,
        finished=total(lambda slot: slot.finished),
        tokens=total(lambda slot: slot.tokens),
        preemptions=total(lambda slot: slot.preemptions),
        running=None if running is None else running / seconds,
        prompts=together(slot.prompts for slot in group if slot.prompts),
    )


def _rows(slots: Sequence[Slot]) -> Iterator[tuple[float, tuple[float, ...]]]:
    """Each slot's step time, and what it is to be made of: 1, and per step requests, prompt tokens and preemptions."""
    prompts = together(slot.prompts for slot in slots if slot.prompts)
    if prompts is None:
        return
    mean = prompts.sum / prompts.count
    for before, slot, after in zip((slots[0], *slots), slots, (*slots[1:], slots[-1]), strict=False):
        if not slot.running or not slot.tokens or slot.finished is None:
            continue
        step = slot.running * slot.seconds / slot.tokens
        # Prompts are counted when a request ends, and computed when it begins.
        if slot.first_tokens is not None:
            begun = slot.first_tokens.count
        else:
            begun = max(0.0, slot.finished + ((after.running or 0.0) - (before.running or 0.0)) / 2)
        # What a preempted request has computed again is not known: it is fitted, as so much time each.
        again = slot.preemptions or 0.0
        yield step, (1.0, slot.running, begun * mean / slot.seconds * step, again / slot.seconds * step)


def _time(values: Sequence[float], terms: Sequence[float]) -> float:
    return sum(value * term for value, term in zip(values, terms, strict=True))


def _slack(start: Sequence[float], terms: Sequence[float]) -> list[float]:
    """How far each value may be off; 0 for what is in no row."""
    return [_SLACK * value if term else 0.0 for value, term in zip(start, terms, strict=True)]


def _least_squares(
    rows: Sequence[tuple[float, tuple[float, ...]]], start: Sequence[float], slack: Sequence[float]
) -> tuple[float, ...]:
    """Ridge regression towards `start`, relative errors, none below 0; what is in no row stays as it starts."""
    free = [i for i, size in enumerate(slack) if size]
    while True:
        matrix = [[sum(terms[i] * terms[j] / (_NOISE * step) ** 2 for step, terms in rows) for j in free] for i in free]
        right = [sum(terms[i] / (_NOISE**2 * step) for step, terms in rows) for i in free]
        for place, i in enumerate(free):
            pull = 1.0 / slack[i] ** 2
            matrix[place][place] += pull
            right[place] += pull * start[i]
        solved = dict(zip(free, _solve(matrix, right), strict=True))
        negative = [i for i in free if solved[i] < 0.0]
        if not negative:
            return tuple(solved.get(i, 0.0 if size else start[i]) for i, size in enumerate(slack))
        free = [i for i in free if i not in negative]


def _solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Gauss elimination; the matrix is positive definite, so no pivot is needed."""
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for i in range(size):
        for j in range(i + 1, size):
            factor = rows[j][i] / rows[i][i]
            rows[j] = [below - factor * above for below, above in zip(rows[j], rows[i], strict=True)]
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][j] * found[j] for j in range(i + 1, size))
        found[i] = (rows[i][size] - rest) / rows[i][i]
    return found
