"""
Gaps over sliding windows: their 99th percentile within one percent, their exact maximum, and a histogram of them all.

Time is cut into whole seconds. Gaps are collected as they come, and sorted and sorted into buckets once a second: that
is cheaper per gap than any sketch that is updated with each of them. A window of W seconds that ends at t covers the
last W whole seconds of the clock, the present one, still incomplete, among them.

Buckets grow by 2 %, so that the middle of one is within 1 % of whatever lies in it (the mapping of DDSketch: Masson,
Rim, Lee, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees", VLDB 2019).
"""

import math
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kvpressure.signals import WINDOWS

SHORTEST, LONGEST = 1e-6, 1e5
"""Seconds between which gaps are told apart; beyond them they count as nothing, or as the longest."""

_GROWTH = 1.02
_LOG_GROWTH = math.log(_GROWTH)
_FIRST_POWER = math.floor(math.log(SHORTEST) / _LOG_GROWTH)
_BUCKETS = math.ceil(math.log(LONGEST) / _LOG_GROWTH) - _FIRST_POWER + 1
_UPPER = [_GROWTH ** (_FIRST_POWER + number) for number in range(_BUCKETS)]
"""Upper bounds; bucket 0 holds what is shorter than anything that is told apart."""
_MIDDLE = [0.0] + [2.0 * upper / (1.0 + _GROWTH) for upper in _UPPER[1:]]

_PENDING_LIMIT = 8192


@dataclass(frozen=True, slots=True)
class Histogram:
    """
    A cumulative histogram, as Prometheus has it.

    Args:
        edges: upper bounds in seconds, the last one infinite.
        counts: observations up to each edge.
        sum: of all observations, in seconds.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class Observations:
    """
    A cumulative histogram that is being filled.

    Args:
        edges: finite upper bounds in seconds, rising.
    """

    __slots__ = ("_counts", "_edges", "_sum")

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = tuple(edges)
        self._counts = [0] * (len(self._edges) + 1)
        self._sum = 0.0

    def add_sorted(self, values: Sequence[float]) -> None:
        """Add rising values, in seconds."""
        start = 0
        for number, edge in enumerate(self._edges):
            end = bisect_right(values, edge, start)
            self._counts[number] += end - start
            start = end
        self._counts[-1] += len(values) - start
        self._sum += math.fsum(values)

    def histogram(self) -> Histogram:
        """What has been added so far."""
        total, counts = 0, []
        for count in self._counts:
            total += count
            counts.append(total)
        return Histogram((*self._edges, math.inf), tuple(counts), self._sum)


class _Second:
    """The gaps of one second: filled buckets and their counts, and the longest gap."""

    __slots__ = ("buckets", "counts", "longest", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.buckets = array("H")
        self.counts = array("I")
        self.longest = 0.0


class _Window:
    """The seconds of one window and the sum of their buckets."""

    __slots__ = ("_length", "_seconds", "count", "counts")

    def __init__(self, length: int) -> None:
        self._length = length
        self._seconds: deque[_Second] = deque()
        self.counts = [0] * _BUCKETS
        self.count = 0

    def add(self, second: _Second, buckets: Sequence[int], counts: Sequence[int]) -> None:
        """Add gaps of a second, which may have some already."""
        if not self._seconds or self._seconds[-1] is not second:
            self._seconds.append(second)
        for bucket, count in zip(buckets, counts, strict=True):
            self.counts[bucket] += count
        self.count += sum(counts)

    def expire(self, now: int) -> None:
        """Forget the seconds that are out of the window whose last second is `now`."""
        while self._seconds and self._seconds[0].number <= now - self._length:
            second = self._seconds.popleft()
            for bucket, count in zip(second.buckets, second.counts, strict=True):
                self.counts[bucket] -= count
            self.count -= sum(second.counts)

    def longest(self) -> float | None:
        """The longest gap, exactly, in seconds; None where there is none."""
        return max((second.longest for second in self._seconds), default=None)


class GapWindows:
    """
    All gaps of one kind of stream.

    Args:
        edges: upper bounds of the histogram over all of them, in seconds.
    """

    def __init__(self, edges: Sequence[float]) -> None:
        self.pending: list[float] = []
        """Gaps of the present second, for whoever appends to it; in seconds, never negative."""
        self._observations = Observations(edges)
        self._second = _Second(0)
        self._windows = {seconds: _Window(int(seconds)) for _, seconds in WINDOWS}
        self._whole = _Window(0)
        self._longest: float | None = None

    def turn(self, second: int) -> None:
        """Go on to a second: what is pending belongs to the one before. Earlier ones are the present one."""
        if second <= self._second.number:
            if len(self.pending) >= _PENDING_LIMIT:
                self._settle()
            return
        self._settle()
        self._second = _Second(second)
        for window in self._windows.values():
            window.expire(second)

    def quantile(self, q: float, seconds: float | None) -> float | None:
        """
        The q-quantile (above 0, to 1) of the gaps in a window, by nearest rank and within 1 % of its value.

        Args:
            q: which.
            seconds: the window's length, one of ``signals.WINDOWS``; None for everything so far.
        """
        self._settle()
        window = self._whole if seconds is None else self._windows[seconds]
        if not window.count:
            return None
        above = window.count - math.ceil(q * window.count)
        for bucket in range(_BUCKETS - 1, -1, -1):
            above -= window.counts[bucket]
            if above < 0:
                return _MIDDLE[bucket]
        return None

    def longest(self, seconds: float | None) -> float | None:
        """The longest gap in a window, exactly, in seconds; None where there is none. `seconds` as in `quantile`."""
        self._settle()
        return self._longest if seconds is None else self._windows[seconds].longest()

    def histogram(self) -> Histogram:
        """All gaps so far."""
        self._settle()
        return self._observations.histogram()

    def _settle(self) -> None:
        """Sort what is pending into the present second."""
        if not self.pending:
            return
        gaps = sorted(self.pending)
        self.pending.clear()
        self._observations.add_sorted(gaps)
        buckets, counts = _bucketed(gaps)
        second = self._second
        second.longest = max(second.longest, gaps[-1])
        self._longest = max(self._longest or 0.0, gaps[-1])
        for window in self._windows.values():
            window.add(second, buckets, counts)
        self._whole.add(_FOREVER, buckets, counts)
        merged = dict(zip(second.buckets, second.counts, strict=True))
        for bucket, count in zip(buckets, counts, strict=True):
            merged[bucket] = merged.get(bucket, 0) + count
        second.buckets, second.counts = array("H", merged), array("I", merged.values())


_FOREVER = _Second(0)


def _bucketed(gaps: Sequence[float]) -> tuple[list[int], list[int]]:
    """The buckets that rising gaps fall into, each with its count."""
    buckets, counts = [], []
    start = 0
    while start < len(gaps):
        bucket = _bucket(gaps[start])
        end = bisect_right(gaps, _UPPER[bucket], start) if bucket < _BUCKETS - 1 else len(gaps)
        # At a bound, the logarithm may round one way and the power the other.
        end = max(end, start + 1)
        buckets.append(bucket)
        counts.append(end - start)
        start = end
    return buckets, counts


def _bucket(gap: float) -> int:
    if gap <= SHORTEST:
        return 0
    return min(_BUCKETS - 1, math.ceil(math.log(gap) / _LOG_GROWTH) - _FIRST_POWER)
