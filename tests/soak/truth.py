"""What really happened, as rows over time: written by whoever knows it, read by whoever judges."""

import bisect
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

TICK = 0.1
"""Seconds from one row to the next."""
_BEFORE = 128 * 1024  # bytes; at least two rows

PAUSE = 1.0
"""The sidecar's pause threshold, in seconds."""
DOUBT = 0.3
"""Seconds around the threshold in which nobody can tell what another process will have measured."""


@dataclass
class StreamWatch:
    """
    Streams as one side of them sees them.

    Pauses have a lower and an upper count: ``sure`` are longer than the threshold beyond doubt, ``maybe`` are not
    shorter beyond doubt.
    """

    opened: int = 0
    gaps: int = 0
    ends: int = 0
    """Gaps between a last chunk and an end, that may count as gaps."""
    sure: int = 0
    maybe: int = 0
    longest: float = 0.0
    _open: dict[int, list[float]] = field(default_factory=dict)
    _top: int = 0
    """Most streams that were open at once, since somebody asked."""
    _woken: int = 0
    """Streams that were silent, and are no longer, since somebody asked."""

    def chunk(self, key: int, now: float) -> None:
        """A chunk of the stream `key` goes out, or comes in."""
        seen = self._open.get(key)
        if seen is None:
            self.opened += 1
            self._open[key] = [now, 0.0]
            self._top = max(self._top, len(self._open))
            return
        self.gaps += 1
        self._woken += now - seen[0] > PAUSE - DOUBT
        self._silent(seen, now)
        seen[0] = now

    def end(self, key: int, now: float) -> None:
        """The stream has ended, or broke off."""
        seen = self._open.pop(key, None)
        if seen is not None:
            self.ends += now - seen[0] > PAUSE - DOUBT
            self._woken += now - seen[0] > PAUSE - DOUBT
            self._silent(seen, now)

    def tick(self, now: float) -> None:
        """Look at who is silent now."""
        for seen in self._open.values():
            self._silent(seen, now)

    def totals(self, now: float) -> dict[str, float]:
        """The counts so far, by name; since this was last called, `open` is the most, and `silent` all who were."""
        woken, self._woken = self._woken, 0
        top, self._top = self._top, len(self._open)
        return {
            "opened": self.opened,
            "gaps": self.gaps,
            "ends": self.ends,
            "sure": self.sure,
            "maybe": self.maybe,
            "longest": self.longest,
            "open": top,
            "silent": woken + sum(now - seen[0] > PAUSE - DOUBT for seen in self._open.values()),
        }

    def _silent(self, seen: list[float], now: float) -> None:
        """`seen` has the time of its latest chunk, and its longest gap so far."""
        before, gap = seen[1], now - seen[0]
        if gap > before:
            self.maybe += before <= PAUSE - DOUBT < gap
            self.sure += before <= PAUSE + DOUBT < gap
            seen[1] = gap
            self.longest = max(self.longest, gap)


def write(out: TextIO, now: float, values: Mapping[str, float]) -> None:
    """Add a row: the moment on the machine's monotonic clock, and totals and gauges by their names."""
    out.write(json.dumps({"t": now, **values}) + "\n")
    out.flush()


class Ledger:
    """
    Rows of one writer.

    Args:
        rows: in order of their `t`.
    """

    def __init__(self, rows: Iterable[Mapping[str, float]]) -> None:
        self.rows: Sequence[Mapping[str, float]] = list(rows)
        self._times = [row["t"] for row in self.rows]

    @classmethod
    def read(cls, path: Path, offset: int = 0) -> "Ledger":
        """The rows in a file from this byte on, and some before it; a last line that is not whole is left out."""
        return cls(_rows(path, max(0, offset - _BEFORE)))

    def at(self, t: float, name: str) -> float:
        """The value in the latest row up to `t`; 0 before it was first written."""
        place = bisect.bisect_right(self._times, t)
        return float(self.rows[place - 1].get(name, 0.0)) if place else 0.0

    def after(self, t: float, name: str) -> float:
        """The value in the first row from `t` on, or in the last row: what had happened by then, or a little more."""
        place = min(bisect.bisect_left(self._times, t), len(self.rows) - 1)
        return float(self.rows[place].get(name, 0.0)) if place >= 0 else 0.0

    def span(self, start: float, end: float, name: str) -> tuple[float, float] | None:
        """Lowest and highest value from the row before `start` to the one after `end`; None where there was none."""
        first, last = max(0, bisect.bisect_right(self._times, start) - 1), bisect.bisect_left(self._times, end) + 1
        values = [row[name] for row in self.rows[first:last] if name in row]
        return (min(values), max(values)) if values else None

    def held_up(self, start: float, end: float) -> float:
        """Seconds for which the writer itself was kept from its work, at most, between two moments."""
        first, last = bisect.bisect_left(self._times, start), bisect.bisect_right(self._times, end)
        times = self._times[max(0, first - 1) : last + 1]
        longest = max((after - before for before, after in itertools.pairwise(times)), default=0.0)
        return max(0.0, longest - 2 * TICK)

    def names(self, prefix: str) -> set[str]:
        """Every name that starts so."""
        return {name for row in self.rows for name in row if name.startswith(prefix)}


def _rows(path: Path, offset: int) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        file.seek(offset)
        if offset:
            file.readline()
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)
