"""CPU time of calls that take turns."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_BATCH = 0.05  # seconds of CPU time that one timed batch takes at least


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of repeated figures."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Spread":
        """The spread of `figures`."""
        return cls(statistics.median(figures), min(figures), max(figures))

    def text(self, scale: float = 1.0, unit: str = "", digits: int = 2) -> str:
        """As ``0.42 ms (0.41-0.45)``, multiplied by `scale`."""
        median, low, high = (f"{figure * scale:.{digits}f}" for figure in (self.median, self.low, self.high))
        return f"{median}{unit} ({low}-{high})"


def in_turn(subjects: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds per call of each subject, one figure per round. A round times them all in turn."""
    calls = {name: _calls_per_batch(subject) for name, subject in subjects.items()}
    figures: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, subject in subjects.items():
            figures[name].append(_batch(subject, calls[name]) / calls[name])
    return figures


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """The ratio of two subjects, round by round."""
    return Spread.of([a / b for a, b in zip(above, below, strict=True)])


def _calls_per_batch(subject: Callable[[], object]) -> int:
    """So many calls that timing them is worth it; the calls made to find out are the warm-up."""
    calls = 1
    while (spent := _batch(subject, calls)) < _BATCH:
        calls = max(calls + 1, int(calls * min(10.0, 1.2 * _BATCH / max(spent, 1e-9))))
    return calls


def _batch(subject: Callable[[], object], calls: int) -> float:
    # The collector stays on, as it is in a real process, but nobody pays for the garbage of the one before.
    gc.collect()
    start = time.process_time()
    for _ in range(calls):
        subject()
    return time.process_time() - start
