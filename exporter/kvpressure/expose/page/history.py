"""
What the page remembers of the last quarter of an hour: points for its charts, and since when a state has lasted.

Pure: time is that of the snapshots. Bounded: 180 points of four bytes for each headline signal of each engine and of
each model's streams, for as long as one of them is known.
"""

import math
from array import array
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from kvpressure.derive.snapshot import Snapshot

SECONDS = 900.0
"""How far back it goes."""
EVERY = 5.0
"""Seconds between two points."""
POINTS = int(SECONDS / EVERY)
_EARLY = 0.5  # seconds that a point may come early

Key = tuple[str, ...]
"""A signal of an engine, ``("preemptions", model, engine)``, or of streams, ``("paused", source, model)``."""

PREEMPTIONS, PINNED, GAP_P99, LONG_GAPS = "preemptions", "pinned", "gap p99", "long gaps"
PAUSED, STREAM_GAP_P99 = "paused", "gap p99 of streams"


@dataclass(frozen=True, slots=True)
class Since:
    """
    A state and its age.

    Args:
        state: what it is.
        seconds: how long it has lasted.
        whole: whether its beginning was seen; else it has lasted at least so long.
    """

    state: str
    seconds: float
    whole: bool


class History:
    """Points of headline signals, one for every five seconds, out of the shortest window that there is."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=POINTS)
        self._series: dict[Key, array[float]] = {}

    @property
    def times(self) -> tuple[float, ...]:
        """When each point was taken, oldest first, in seconds since 1970."""
        return tuple(self._times)

    def record(self, snapshot: Snapshot) -> None:
        """Take the next point; one that comes too early is left out."""
        if self._times and snapshot.t - self._times[-1] < EVERY - _EARLY:
            return
        given = dict(_points(snapshot))
        full = len(self._times) == POINTS
        for key in [*self._series, *(key for key in given if key not in self._series)]:
            points = self._series.setdefault(key, array("f", [math.nan]) * len(self._times))
            value = given.get(key)
            points.append(math.nan if value is None else value)
            if full:
                del points[0]
        self._times.append(snapshot.t)
        for key in [key for key, points in self._series.items() if key not in given and all(map(math.isnan, points))]:
            del self._series[key]

    def points(self, key: Key) -> tuple[float | None, ...]:
        """The points of a signal, one for each of `times`; None where it was not known, or not there."""
        series = self._series.get(key)
        if series is None:
            return (None,) * len(self._times)
        return tuple(None if math.isnan(value) else value for value in series)


class Ages:
    """Since when each thing has been in its state. Bounded: it forgets what is not there any more."""

    def __init__(self) -> None:
        self._states: dict[Hashable, tuple[str, float, bool]] = {}
        self._begun = False

    def observe(self, t: float, states: dict[Hashable, str]) -> None:
        """
        Take the states of the moment.

        Args:
            t: when, in seconds since 1970.
            states: the state of each thing that there is.
        """
        before, begun = self._states, self._begun
        self._states = {
            key: before[key] if key in before and before[key][0] == state else (state, t, begun)
            for key, state in states.items()
        }
        self._begun = True

    def since(self, key: Hashable, t: float) -> Since | None:
        """The state of a thing at `t`; None where it was never observed."""
        found = self._states.get(key)
        return None if found is None else Since(found[0], max(0.0, t - found[1]), found[2])


def _points(snapshot: Snapshot) -> Iterator[tuple[Key, float | None]]:
    for engine in snapshot.engines:
        window = engine.windows[0] if engine.windows else None
        own = (engine.model_name, engine.engine)
        yield (PREEMPTIONS, *own), window.preemptions_per_thousand if window else None
        yield (PINNED, *own), window.pinned_ratio if window else None
        yield (GAP_P99, *own), window.gap_p99_seconds if window else None
        yield (LONG_GAPS, *own), window.long_gaps_per_thousand if window else None
    for streams in snapshot.streams:
        recent = streams.windows[0] if streams.windows else None
        seen = (streams.source, streams.model_name)
        yield (PAUSED, *seen), recent.paused_ratio if recent else None
        yield (STREAM_GAP_P99, *seen), recent.gap_p99_seconds if recent else None
