"""Who asks for what and when: phases as data, and the seeded stream of arrivals that they mean."""

import random
from collections.abc import Hashable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Length:
    """
    Token counts, drawn evenly from ``mean * (1 - spread)`` to ``mean * (1 + spread)``.

    Args:
        mean: tokens, at least 1.
        spread: 0 (all equal) to 1.
    """

    mean: int
    spread: float = 0.0

    def draw(self, chance: random.Random) -> int:
        """One length, at least 1 token."""
        if not self.spread:
            return self.mean
        return max(1, round(chance.uniform(self.mean * (1 - self.spread), self.mean * (1 + self.spread))))

    @property
    def most(self) -> int:
        """The longest that can be drawn, in tokens."""
        return round(self.mean * (1 + self.spread))


@dataclass(frozen=True, slots=True)
class Phase:
    """
    A stretch of time with the same kind of load.

    Args:
        seconds: how long it lasts, in model time; the last phase of a workload goes on for ever.
        rate: requests per second, Poisson.
        prompt: prompt lengths.
        answer: answer lengths; ``max_tokens`` is what is drawn, so answers end with "length".
        burst: requests that come at once when the phase begins.
        shared_prefix: tokens that all prompts have in common (a system prompt).
    """

    seconds: float
    rate: float
    prompt: Length
    answer: Length
    burst: int = 0
    shared_prefix: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """
    All the load of a scenario.

    Args:
        phases: one after the other.
        patience: seconds after which a user who has not seen a first token leaves (the request is aborted). It keeps
            the queue of an overloaded server finite, as impatience does in life; a stream that has begun is never left.
    """

    phases: tuple[Phase, ...]
    patience: float = 60.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when (model seconds), its lengths in tokens, and how much of its prompt is the shared prefix."""

    time: float
    prompt_tokens: int
    answer_tokens: int
    shared_prefix: int

    def block_keys(self, block_size: int) -> tuple[Hashable, ...]:
        """What the prompt's shared full blocks contain (see ``Request.block_keys``)."""
        return tuple(("shared", index) for index in range(min(self.shared_prefix, self.prompt_tokens) // block_size))


def arrivals(workload: Workload, seed: int) -> Iterator[Arrival]:
    """Every request of the workload in order of time, without end. The same seed gives the same stream."""
    chance = random.Random(seed)  # noqa: S311 - a model wants reproducible chance, not secrets
    start = 0.0
    for number, phase in enumerate(workload.phases):
        last = number == len(workload.phases) - 1
        end = float("inf") if last else start + phase.seconds
        for _ in range(phase.burst):
            yield _draw(phase, start, chance)
        time = start + chance.expovariate(phase.rate)
        while time < end:
            yield _draw(phase, time, chance)
            time += chance.expovariate(phase.rate)
        start = end


def _draw(phase: Phase, time: float, chance: random.Random) -> Arrival:
    return Arrival(time, phase.prompt.draw(chance), phase.answer.draw(chance), phase.shared_prefix)
