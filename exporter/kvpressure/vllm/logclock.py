"""
Time in logs: what a line's timestamp says, and what that is on our clock.

A stamp without a zone is some local time; a clock can be wrong, or be set while we read. While a log is followed, the
moments between which a line was written are known, and a stamp outside them gives the disagreement away.
"""

import calendar
import re
from functools import lru_cache
from typing import NamedTuple

AGREE = 5.0
"""Seconds by which a stamp may lie before the moments between which its line was written."""
AHEAD = 1.0
"""Seconds by which a stamp may lie after the moment at which its line was read."""
QUARTER = 900.0
"""Seconds; every zone of the world is a whole number of these away from UTC."""

MINUTE = rb"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:"
"""A pattern for a stamp up to its seconds."""
SECONDS = rb"[0-6][0-9](?:[.,][0-9]++)?+"
ZONE = rb"Z|[+-][0-9]{2}:?[0-9]{2}"

_MINUTE = re.compile(MINUTE)
_STAMP = re.compile(rb"(%s)(%s)(%s|)" % (MINUTE, SECONDS, ZONE))
_MEMORY = 60.0  # seconds for which the latest lateness is remembered at least


class Stamp(NamedTuple):
    """A timestamp: seconds since 1970, as if in UTC where it is not `zoned`."""

    seconds: float
    zoned: bool


def parse_stamp(text: bytes) -> Stamp | None:
    """RFC 3339, or the same with a space, a comma or no zone, as Python's logging writes it; None where it is not."""
    found = _STAMP.fullmatch(text)
    if found is None:
        return None
    base = minute(found[1], found[3])
    return None if base is None else Stamp(base + seconds(found[2]), bool(found[3]))


def seconds(text: bytes) -> float:
    """The seconds of a stamp, of the form ``SECONDS``."""
    return float(text.replace(b",", b"."))


@lru_cache(maxsize=256)
def minute(text: bytes, zone: bytes) -> float | None:
    """
    Seconds from 1970 to a minute of the form ``MINUTE`` in a zone (``ZONE``, or empty for UTC).

    None where there is none, or `text` is none. Remembered, because the stamps of a log seldom change in it.
    """
    if not _MINUTE.fullmatch(text):
        return None
    year, month, day, hour, minutes = int(text[:4]), int(text[5:7]), int(text[8:10]), int(text[11:13]), int(text[14:16])
    if year < 1 or not 1 <= month <= 12 or not 1 <= day <= 31 or hour > 23 or minutes > 59:  # noqa: PLR2004
        return None
    offset = 0
    if len(zone) > 1:
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        offset = -offset if zone.startswith(b"-") else offset
    return float(calendar.timegm((year, month, day, hour, minutes, 0)) - offset)


class LogClock:
    """
    Takes the stamps of one log to our clock.

    Args:
        reference: where lines are not read as they are written: a moment near which the log's first stamp lies, so
            that stamps without a zone find theirs. Without it they are taken for UTC.
    """

    def __init__(self, reference: float | None = None) -> None:
        self._reference = reference
        self._shifts: dict[bool, float] = {}
        """What is added to stamps with a zone (True) and without."""
        self._late = [0.0, 0.0]
        self._late_since = 0.0

    def shift(self, low: Stamp, high: Stamp, arrival: float | None, since: float | None) -> float | None:
        """
        What to add to the stamps of some lines.

        Args:
            low: the lowest of them.
            high: the highest of them.
            arrival: when they were read, on our clock; None where they are not read as they are written.
            since: when they had not been written yet; None where that is not known.

        Returns:
            Seconds, or None where that is not known, or they do not fit: then each has to be placed by itself.
        """
        shift = self._shifts.get(low.zoned)
        if shift is None or arrival is None:
            return shift
        fits = _fits(low.seconds + shift, arrival, since) and _fits(high.seconds + shift, arrival, since)
        return shift if fits else None

    def place(self, stamp: Stamp, arrival: float | None, since: float | None) -> tuple[float, bool]:
        """The moment of one line on our clock, and whether the log's clock was set since the line before."""
        shift = self._shifts.get(stamp.zoned)
        stepped = False
        if shift is None:
            shift = self._anchor(stamp, arrival, since)
        elif arrival is not None and not _fits(stamp.seconds + shift, arrival, since):
            shift = self._anchor(stamp, arrival, since)
            self._late = [0.0, 0.0]
            stepped = True
        return stamp.seconds + shift, stepped

    def note(self, low: float, arrival: float, since: float) -> None:
        """Take note that the earliest line of those written after `since` has the moment `low` on our clock."""
        if arrival - self._late_since > _MEMORY:
            self._late = [0.0, self._late[0]]
            self._late_since = arrival
        self._late[0] = max(self._late[0], since - low)

    def late(self, now: float) -> float:
        """Seconds by which lines have lately come later than their stamps say: that much is not known yet."""
        return max(self._late) if now - self._late_since <= 2 * _MEMORY else 0.0

    def _anchor(self, stamp: Stamp, arrival: float | None, since: float | None) -> float:
        near = self._reference if arrival is None else arrival
        shift = 0.0
        if not stamp.zoned and near is not None:
            shift = round((near - stamp.seconds) / QUARTER) * QUARTER
        if arrival is not None and not _fits(stamp.seconds + shift, arrival, since):
            shift = arrival - stamp.seconds
        self._shifts[stamp.zoned] = shift
        return shift


def _fits(t: float, arrival: float, since: float | None) -> bool:
    return t <= arrival + AHEAD and (since is None or t >= since - AGREE)
