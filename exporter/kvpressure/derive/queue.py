"""Where the running batch stood while requests queued: what tells a concurrency cap from a cache that is full."""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """
    Over a window.

    Args:
        seconds: time with a queue.
        running_max: the largest running batch, with a queue or without.
        at_max: seconds of that time at which running stood at `running_max`.
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
    usage: float


class QueueWatch:
    """
    Keeps what each reading of a window held until the next one.

    Args:
        window: seconds to look back.
    """

    __slots__ = ("_held", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._held: deque[_Held] = deque()

    def observe(self, end: float, seconds: float, *, running: float, queued: bool, usage: float) -> None:
        """Take a state that lasted `seconds` and ended at `end`."""
        self._held.append(_Held(end, seconds, running, queued, usage))
        while self._held[0].end <= end - self._window:
            self._held.popleft()

    def facts(self, t: float) -> QueueFacts:
        """What the window that ends at `t` holds."""
        held = [h for h in self._held if h.end > t - self._window]
        if not any(h.queued for h in held):
            return QueueFacts()
        top = max(h.running for h in held)
        queued = [h for h in held if h.queued]
        return QueueFacts(
            sum(h.seconds for h in queued),
            top,
            sum(h.seconds for h in queued if h.running == top),
            max(h.usage for h in queued),
        )
