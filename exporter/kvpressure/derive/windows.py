"""Running totals of one engine at each reading, kept for as long as the longest window looks back."""

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Buckets:
    """
    What a histogram has gained so far.

    Args:
        epoch: rises where its edges changed; only buckets of one epoch can be subtracted.
        counts: cumulative counts gained in this epoch, one per edge.
        count: observations over all epochs.
        sum: their sum over all epochs.
    """

    epoch: int = 0
    counts: "array[float]" = field(default_factory=lambda: array("d"))
    count: float = 0.0
    sum: float = 0.0

    def since(self, then: "Buckets") -> list[float]:
        """Cumulative counts gained since `then`; all of this epoch where the edges have changed meanwhile."""
        if then.epoch != self.epoch or len(then.counts) != len(self.counts):
            return self.counts.tolist()
        return [now - before for now, before in zip(self.counts, then.counts, strict=True)]


_NONE = Buckets()


class Totals(NamedTuple):
    """Everything that is summed up over readings, in requests, tokens or seconds. Never falls."""

    preemptions: float = 0.0
    inferred: float = 0.0
    finished: float = 0.0
    observed: float = 0.0
    pinned: float = 0.0
    blockable: float = 0.0
    """Seconds in which it was known whether the engine was KV-blocked."""
    blocked: float = 0.0
    stalled: float = 0.0
    gaps: Buckets = _NONE
    prompts: Buckets = _NONE
    outputs: Buckets = _NONE

    def pack(self) -> bytes:
        """All numbers in a row: objects for each of them would take almost three times the memory."""
        sums: Any = self[:_SUMS]  # a slice of a tuple whose first fields are all floats
        numbers = array("d", sums)
        for buckets in (self.gaps, self.prompts, self.outputs):
            numbers.extend((buckets.epoch, len(buckets.counts), buckets.count, buckets.sum))
            numbers.extend(buckets.counts)
        return numbers.tobytes()

    @classmethod
    def unpack(cls, packed: bytes) -> "Totals":
        """What was packed."""
        numbers = array("d", packed)
        histograms = []
        start = _SUMS
        while start < len(numbers):
            epoch, length, count, total = numbers[start : start + 4]
            end = start + 4 + int(length)
            histograms.append(Buckets(int(epoch), numbers[start + 4 : end], count, total))
            start = end
        return cls._make((*numbers[:_SUMS], *histograms))


_SUMS = Totals._fields.index("gaps")


class History:
    """
    Totals by time. A window's start is the newest reading at or before it, or the first reading there is.

    Args:
        keep: seconds that the longest window looks back.
    """

    __slots__ = ("_keep", "_rows", "_times", "last")

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._times = array("d")
        self._rows: list[bytes] = []
        self.last = Totals()
        """The totals at the last reading."""

    def __len__(self) -> int:
        """Readings kept."""
        return len(self._times)

    def append(self, t: float, totals: Totals) -> None:
        """Add the totals at a reading, later than all before it."""
        self._times.append(t)
        self._rows.append(totals.pack())
        self.last = totals
        # The row that a window of `keep` starts at stays.
        oldest = bisect_right(self._times, t - self._keep) - 1
        if oldest > 0:
            del self._times[:oldest]
            del self._rows[:oldest]

    def at(self, t: float) -> Totals:
        """The totals at the newest reading at or before `t`, or at the first one."""
        return Totals.unpack(self._rows[max(0, bisect_right(self._times, t) - 1)])
