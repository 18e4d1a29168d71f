"""Where the running batch stood while requests queued: what tells a concurrency cap from a cache that is full."""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

_SLACK = 0.1
"""Share of the largest batch by which running may fall short of it and still count as standing at it."""


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """
    Over a window.

    Args:
        seconds: time with a queue.
        running_max: the largest running batch, with a queue or without.
        at_max: seconds of that time at which running stood at `running_max`, or a little under it.
        usage_max: the highest KV usage (0 to 1) with a queue.
    """

    seconds: float = 0.0
    running_max: float = 0.0
    at_max: float = 0.0
    usage_max: float = 0.0


class _Held(NamedTuple):
    end: float
    seconds: float
    running: float
    queued: bool


@dataclass(slots=True)
class _Batch:
    """What the window holds of one size of the running batch."""

    states: int = 0
    queued_states: int = 0
    queued_seconds: float = 0.0


class QueueWatch:
    """
    Keeps what each reading of a window held until the next one, and the sums over it.

    Args:
        window: seconds to look back.
    """

    __slots__ = ("_batches", "_held", "_usage", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._held: deque[_Held] = deque()
        self._batches: dict[float, _Batch] = {}
        # Ends and usages with a queue, usage falling: what comes before a higher usage can never be the maximum again.
        self._usage: deque[tuple[float, float]] = deque()

    def observe(self, end: float, seconds: float, *, running: float, queued: bool, usage: float) -> None:
        """Take a state that lasted `seconds` and ended at `end`."""
        self._held.append(_Held(end, seconds, running, queued))
        batch = self._batches.setdefault(running, _Batch())
        batch.states += 1
        if queued:
            batch.queued_states += 1
            batch.queued_seconds += seconds
            while self._usage and self._usage[-1][1] <= usage:
                self._usage.pop()
            self._usage.append((end, usage))
        self._forget(end)

    def facts(self, t: float) -> QueueFacts:
        """What the window that ends at `t` holds; `t` is not before the last state, nor before an earlier `t`."""
        self._forget(t)
        seconds = sum(batch.queued_seconds for batch in self._batches.values())
        if not self._usage:
            return QueueFacts()
        top = max(self._batches)
        # A request that finishes leaves its place for a step, and a sample often finds it empty.
        nearly = max(1.0, top - max(1.0, _SLACK * top))
        at_max = sum(batch.queued_seconds for running, batch in self._batches.items() if running >= nearly)
        return QueueFacts(seconds, top, at_max, self._usage[0][1])

    def _forget(self, t: float) -> None:
        start = t - self._window
        while self._held and self._held[0].end <= start:
            gone = self._held.popleft()
            batch = self._batches[gone.running]
            batch.states -= 1
            if gone.queued:
                batch.queued_states -= 1
                # Without a state left there is no time left either, whatever rounding says.
                batch.queued_seconds = batch.queued_seconds - gone.seconds if batch.queued_states else 0.0
            if not batch.states:
                del self._batches[gone.running]
        while self._usage and self._usage[0][0] <= start:
            self._usage.popleft()
