"""How often vLLM may be sampled: its metrics are rendered on the event loop that streams tokens."""

import math
from collections import deque

from kvpressure.config import SampleConfig

_RECENT = 60


class Duty:
    """
    The time from one sample to the next.

    The cost of a sample is the mean of the fastest quarter of the recent ones: under load most of the time that a
    sample takes is spent waiting for the event loop, which costs nobody anything. The next sample is due after
    ``cost / duty_budget``, but not before `interval` and not after `max_interval`.
    """

    __slots__ = ("_config", "_took", "cost", "interval")

    def __init__(self, config: SampleConfig) -> None:
        self._config = config
        self._took: deque[float] = deque(maxlen=_RECENT)
        self.cost = 0.0
        self.interval = config.interval

    def observe(self, took: float) -> None:
        """Take the seconds that a sample took, or an answer that could not be used."""
        self._took.append(took)
        fastest = sorted(self._took)[: max(1, len(self._took) // 4)]
        self.cost = math.fsum(fastest) / len(fastest)
        wanted = max(self._config.interval, self.cost / self._config.duty_budget)
        self.interval = min(wanted, self._config.max_interval)
