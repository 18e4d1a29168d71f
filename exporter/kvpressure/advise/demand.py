"""
The traffic to plan for: the busiest ten minutes, and runs that are like them.

Arrivals are not counted by vLLM. Requests that ended in a slot, and those that were there at its end less those that
were there at its begin, are those that came and stayed. Users who left while they waited are in none of its counters;
but they were in the queue, so Little's law tells how many came: mean queue / mean time to first token.
A run like the observed one is a bootstrap: minutes in a new order, each with as many arrivals as chance gives for its
rate (Poisson), at even moments within it, and with lengths drawn from the histograms. The rates of minutes differ by as
much as chance alone does not explain. Prompt and answer are drawn
independently, since two histograms say nothing of how they go together.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvpressure.advise.lengths import Lengths, lengths, together
from kvpressure.advise.seen import AdviseError, Slot
from kvpressure.lab.leap import Job

PERIOD = 600.0
"""Seconds that are planned for."""
RUN_IN = 60.0
"""Seconds before them, simulated and not counted: a run begins with an empty server."""
_REQUESTS = 20
"""Fewer say nothing of lengths or rates."""
_QUEUE = 5.0
"""Requests waiting, on average, from which they tell how many came."""
_HOLE = 60.0
"""Seconds that nobody watched, from which on the two sides are no neighbours."""
_ROUNDING = 1e-3
"""Seconds, far more than the difference of two moments since 1970 is wrong by."""
_BLOCK = 60.0
"""Seconds that stay together when they are put in a new order: what comes in bursts, stays so."""


@dataclass(frozen=True, slots=True)
class Demand:
    """
    What users ask for.

    Args:
        rates: stretches of about a minute, as (seconds, requests per second).
        prompts: their lengths.
        answers: their lengths.
        unseen: of the rate, the share that left while it waited, 0 to 1; None where that cannot be known.
        queue: requests that waited for their first token, on average; None where not known.
        first_token: mean seconds until it; None where not known.
    """

    rates: tuple[tuple[float, float], ...]
    prompts: Lengths
    answers: Lengths
    unseen: float | None = None
    queue: float | None = None
    first_token: float | None = None

    @property
    def seconds(self) -> float:
        """Its length."""
        return sum(seconds for seconds, _ in self.rates)

    @property
    def rate(self) -> float:
        """Requests per second, on the whole."""
        return sum(seconds * rate for seconds, rate in self.rates) / self.seconds

    @property
    def run_in(self) -> float:
        """Seconds at the begin of a run that fill the server and do not count."""
        return RUN_IN

    def jobs(self, seed: int) -> list[Job]:
        """A run like it, with as much before it as `run_in`."""
        chance = random.Random(seed)  # noqa: S311 - a model wants reproducible chance, not secrets
        limit = self.answers.most
        jobs: list[Job] = []
        now = 0.0
        for seconds, rate in (*_run_in(self.rates), *_shuffled(self.rates, chance)):
            count = _poisson(seconds * rate, chance)
            times = sorted(now + seconds * chance.random() for _ in range(count))
            jobs += [self._job(time, limit, chance) for time in times]
            now += seconds
        return jobs

    def _job(self, time: float, limit: int, chance: random.Random) -> Job:
        return Job(time, self.prompts.draw(chance), self.answers.draw(chance), limit)


def busiest(slots: Sequence[Slot], period: float = PERIOD) -> tuple[Slot, ...]:
    """
    The stretch with most preemptions; where nothing was preempted, with most requests present.

    Args:
        slots: in order of time.
        period: its seconds, at the most; shorter where less was seen without a hole.
    """

    def weight(some: Sequence[Slot]) -> tuple[float, float]:
        # What is shorter than the period counts for less: a few crowded seconds are not a busy time.
        time = max(period, sum(slot.seconds for slot in some))
        there = sum(slot.seconds * _present(slot) for slot in some)
        return sum(slot.preemptions or 0.0 for slot in some), there / time

    stretches = (some for whole in _unbroken(slots) for some in _stretches(whole, period))
    return max(stretches, key=weight, default=())


def _unbroken(slots: Sequence[Slot]) -> Iterable[Sequence[Slot]]:
    """The slots, parted where nobody watched."""
    breaks = [number for number in range(1, len(slots)) if not _neighbours(slots[number - 1], slots[number])]
    for first, after in pairwise((0, *breaks, len(slots))):
        yield slots[first:after]


def _neighbours(before: Slot, after: Slot) -> bool:
    return _begin(after) - before.end < _HOLE


def _begin(slot: Slot) -> float:
    return slot.end - slot.seconds


def _stretches(slots: Sequence[Slot], period: float) -> Iterable[tuple[Slot, ...]]:
    """Every run of neighbours that is as long as `period`, or all of them where there is none."""
    least = period - _ROUNDING
    first = 0
    found = False
    for last, slot in enumerate(slots):
        while slot.end - slots[first].end >= least:
            first += 1
        if slot.end - _begin(slots[first]) >= least:
            found = True
            yield tuple(slots[first : last + 1])
    if not found and slots:
        yield tuple(slots)


def demand(slots: Sequence[Slot], chosen: Sequence[Slot], most: float | None = None) -> Demand:
    """
    The traffic of some slots.

    Args:
        slots: all, in order of time.
        chosen: neighbours among them.
        most: tokens that no request exceeds, where known.

    Raises:
        AdviseError: too little was seen to plan for.
    """
    prompts = together(slot.prompts for slot in chosen if slot.prompts)
    answers = together(slot.answers for slot in chosen if slot.answers)
    if prompts is None or answers is None or min(prompts.count, answers.count) < _REQUESTS:
        raise AdviseError(
            f"fewer than {_REQUESTS} requests ended in the busiest {PERIOD / 60:g} minutes, too little to plan for: "
            "choose a longer range, or describe the traffic with --workload"
        )
    came = _arrived(slots, chosen)
    time = sum(slot.seconds for slot in chosen)
    queue, first_token = _queue(chosen)
    more: float | None = None
    if queue is not None and first_token and sum(came):
        # Where hardly anybody waits hardly anybody leaves, and the first token takes longer than the queue.
        more = max(1.0, time * queue / first_token / sum(came)) if queue >= _QUEUE else 1.0
    rates = [(slot.seconds, (more or 1.0) * count / slot.seconds) for slot, count in zip(chosen, came, strict=True)]
    return Demand(
        # Where users left, it is not known when: then no minute is told from another.
        rates=_evened(rates, constant=more is not None and more > 1.0),
        prompts=lengths(prompts, most),
        answers=lengths(answers, most),
        unseen=None if more is None else 1.0 - 1.0 / more,
        queue=queue,
        first_token=first_token,
    )


def _queue(chosen: Sequence[Slot]) -> tuple[float | None, float | None]:
    """Requests that waited for their first token, on average, and how long it took."""
    seen = together(slot.first_tokens for slot in chosen if slot.first_tokens)
    if seen is None or any(slot.waiting is None or slot.first_tokens is None for slot in chosen):
        return None, None
    # Those that were preempted wait again, behind their first token: what their gaps add up to, less the time that they
    # ran, they waited.
    again = sum(max(0.0, slot.gaps.sum - (slot.running or 0.0) * slot.seconds) for slot in chosen if slot.gaps)
    waited = max(0.0, sum((slot.waiting or 0.0) * slot.seconds for slot in chosen) - again)
    return waited / sum(slot.seconds for slot in chosen), seen.sum / seen.count


def _arrived(slots: Sequence[Slot], chosen: Sequence[Slot]) -> list[float]:
    """Requests that came in each of the chosen slots."""
    first = slots.index(chosen[0])
    after = first + len(chosen)
    there = [_present(slot) for slot in chosen]
    before = slots[first - 1] if first else None
    # Beyond a hole or the end nothing is known, and no growth is made up.
    start = 0.0 if before is None else _present(before if _neighbours(before, chosen[0]) else chosen[0])
    follows = after < len(slots) and _neighbours(chosen[-1], slots[after])
    there = [start, *there, _present(slots[after]) if follows else there[-1]]
    came = []
    for number, slot in enumerate(chosen, start=1):
        # The gauges are means over a slot: at its end there is what lies between its own and the next one's.
        grown = (there[number + 1] - there[number - 1]) / 2
        came.append((slot.finished or 0.0) + grown)
    # A slot cannot lose arrivals; what it would owe, its neighbours have too much.
    short = -sum(value for value in came if value < 0)
    rest = sum(value for value in came if value > 0)
    scale = max(0.0, 1.0 - short / rest) if rest else 1.0
    return [max(0.0, value) * scale for value in came]


def _present(slot: Slot) -> float:
    return (slot.running or 0.0) + (slot.waiting or 0.0)


def _run_in(rates: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The mean rate for a while."""
    time = sum(seconds for seconds, _ in rates)
    return [(RUN_IN, sum(seconds * rate for seconds, rate in rates) / time)]


def _evened(rates: Sequence[tuple[float, float]], *, constant: bool) -> tuple[tuple[float, float], ...]:
    """
    Minutes with their rates, drawn to the mean by as much as chance explains of their differences.

    Counts of a constant rate scatter as well (Poisson): drawn again as they are, they would scatter twice. Where they
    scatter no more than two standard deviations beyond that, the rate is taken to be constant.
    """
    minutes: list[tuple[float, float]] = []
    seconds, count = 0.0, 0.0
    for length, rate in rates:
        seconds, count = seconds + length, count + length * rate
        if seconds >= _BLOCK - 1e-6:
            minutes.append((seconds, count / seconds))
            seconds, count = 0.0, 0.0
    if seconds:
        minutes.append((seconds, count / seconds))
    mean = sum(length * rate for length, rate in minutes) / sum(length for length, _ in minutes)
    if not mean or len(minutes) == 1:
        return tuple(minutes)
    scatter = sum((length * (rate - mean)) ** 2 / (length * mean) for length, rate in minutes) / (len(minutes) - 1)
    by_chance = 1.0 + 2.0 * math.sqrt(2.0 / (len(minutes) - 1))
    kept = math.sqrt(1.0 - 1.0 / scatter) if scatter > by_chance and not constant else 0.0
    return tuple((length, mean + kept * (rate - mean)) for length, rate in minutes)


def _shuffled(rates: Sequence[tuple[float, float]], chance: random.Random) -> list[tuple[float, float]]:
    """Minutes drawn with replacement, until as much time is full."""
    drawn = [rates[chance.randrange(len(rates))] for _ in rates[1:]]
    # The last one may be shorter, and the time is to be the same.
    return [*drawn, rates[-1]]


def _poisson(mean: float, chance: random.Random) -> int:
    """How many come, where `mean` come on average: by the times between them (Knuth)."""
    count, time = 0, chance.expovariate(1.0) if mean > 0 else math.inf
    while time < mean:
        count += 1
        time += chance.expovariate(1.0)
    return count
