"""
Reset-corrected increases of counters and histograms.

A counter that went down was reset, and its new value is the increase, as in PromQL. Each counter is judged by
itself: vLLM can rebuild some series without a restart. The buckets of one histogram are judged together, because
buckets reset one by one would not be a histogram any more.
"""

from array import array
from collections.abc import Iterable
from itertools import accumulate

from kvpressure.derive.windows import Buckets
from kvpressure.vllm.reading import Histogram


class Increase:
    """
    What one counter gained since the first value given, over all of its resets.

    Args:
        first: the value to count from: the first one read, or 0 for a series that appears on an engine already read.
    """

    __slots__ = ("_last", "resets", "total")

    def __init__(self, first: float) -> None:
        self._last = first
        self.total = 0.0
        self.resets = 0

    def add(self, value: float) -> float:
        """Take the counter's next value; the increase since the last one."""
        gained = value - self._last
        if gained < 0.0:
            gained = value
            self.resets += 1
        self._last = value
        if gained:
            self.total += gained
        return gained


class HistogramIncrease:
    """
    What one histogram gained since the first one given, over all of its resets.

    Edges can change with a restart of vLLM: then the totals' `epoch` rises and their `counts` start again, while
    `count` and `sum` go on.

    Args:
        first: the histogram to count from, or None for one that appears on an engine already read.
    """

    __slots__ = ("_before", "_last", "_odd", "edges", "resets", "total")

    def __init__(self, first: Histogram | None) -> None:
        self._last = first
        self.edges = first.edges if first else ()
        """Upper bounds that the totals' counts belong to; empty before the first histogram."""
        self.total = Buckets(counts=array("d", bytes(8 * len(self.edges))))
        self.resets = 0
        self._before = 0.0
        """Sum of all epochs before this one."""
        self._odd: tuple[float, ...] = ()

    def add(self, histogram: Histogram) -> None:
        """Take the histogram's next state."""
        last, total = self._last, self.total
        if last is not None and histogram.edges != self._odd and _lost_a_line(last, histogram):
            # Believed only where the next reading has the same edges.
            self._odd = histogram.edges
            return
        self._odd = ()
        self._last = histogram
        if last is not None and histogram.counts == last.counts and histogram.edges == last.edges:
            return
        gained: Iterable[float]
        if last is None or _was_reset(last, histogram):
            self.resets += last is not None
            gained, summed = histogram.counts, histogram.sum
        else:
            # Where no bucket fell and what they gained is no histogram, a restart was missed, or a series is there
            # twice: then each gained at least what the one below it did, as in PromQL.
            gained = accumulate(map(float.__sub__, histogram.counts, last.counts), max)
            summed = max(0.0, histogram.sum - last.sum)
        counts = array("d", gained)
        count, epoch = total.count + counts[-1], total.epoch
        if histogram.edges != self.edges:
            self.edges, self._before, epoch = histogram.edges, total.sum, epoch + 1
        else:
            counts = array("d", map(float.__add__, total.counts, counts))
        self.total = Buckets(epoch, counts, count, total.sum + summed)

    def missed(self) -> None:
        """A reading lacks it: what looked odd before that is not borne out by what comes after it."""
        self._odd = ()

    @property
    def histogram(self) -> Histogram:
        """
        What was gained with the present edges, as a histogram that is whole.

        Other edges are a reset of all of it, its sum among it: whoever reads a series with one `le` gone and the others
        going on would take buckets for a distribution that they are not.
        """
        return Histogram(self.edges, tuple(self.total.counts), max(0.0, self.total.sum - self._before))


def _lost_a_line(last: Histogram, now: Histogram) -> bool:
    """Whether edges are missing while nothing fell: other edges come with a restart, after which there is less."""
    return set(now.edges) < set(last.edges) and now.count >= last.count


def _was_reset(last: Histogram, now: Histogram) -> bool:
    """Whether the histogram started again: other edges, or any bucket that went down."""
    return now.edges != last.edges or any(new < old for new, old in zip(now.counts, last.counts, strict=True))
