"""
The shape of a log's delta lines, so that most lines are read without looking at each.

Nearly every line of a busy log is a delta, and within one log deltas differ in their time, request and text only. From
one of them that was understood a pattern is made which finds all others of a block in one call. It must not find
anything that would have been understood otherwise: what stands around the three is taken literally (but for digits,
since processes have numbers), ids are plain, and text inside JSON ends where its string ends.
"""

import re
from itertools import compress
from typing import NamedTuple

from kvpressure.vllm.logclock import MINUTE, SECONDS, ZONE
from kvpressure.vllm.logmessages import DELTA, GENERATED, MAX_ID, UNFINISHED

_ZONE = re.compile(rb"%s%s(%s|)" % (MINUTE, SECONDS, ZONE))
_STAMP = rb"([^\n]{%d})(%s)" % (len("2026-11-30T05:16:"), SECONDS)  # whether the first is a minute is looked at later
_NO_STAMP = rb"()()"
_ID = rb"([^ \n\x1b]{1,%d}+)" % MAX_ID
_TEXT = rb"[^\n]*"
_JSON_ID = rb"([!#-\[\]-~]{1,%d}+)" % MAX_ID  # nothing that JSON escapes
_JSON_TEXT = rb'(?:[^"\\\n\x1b]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+'
_CLOSES = (b"", b"\r")
_JSON_CLOSES = (b"", rb"\n", rb"\r\n")
_LONGEST = 1024  # bytes of what stands around text, on either side
_MOST_HEADS = 256


class Found(NamedTuple):
    """
    Deltas, and where other lines stand among them.

    Args:
        minutes: of each delta, its stamp up to the minute; empty where deltas have no stamp.
        seconds: the seconds of its stamp.
        requests: its request.
        others: the numbers of the lines that are of another shape, from 0.
    """

    minutes: tuple[bytes, ...]
    seconds: tuple[bytes, ...]
    requests: tuple[bytes, ...]
    others: list[int]


class Shape:
    """
    What the delta lines of one log look like.

    Args:
        pattern: finds the lines of a block one by one, with groups for those that are deltas: the minute and the
            seconds of the stamp, what stands before the request, and the request.
        head: what may stand before the request. Comparing it once for many lines is faster than finding it in each.
        zone: the zone of the stamps; empty where they have none.
        stamped: whether there are stamps.
        stamp_last: whether they stand behind the request.
    """

    def __init__(
        self, pattern: re.Pattern[bytes], head: re.Pattern[bytes], zone: bytes, *, stamped: bool, stamp_last: bool
    ) -> None:
        self.zone = zone
        self.stamped = stamped
        self._pattern = pattern
        self._head = head
        self._stamp_last = stamp_last
        self._heads: set[bytes] = set()

    def find(self, block: bytes) -> Found | None:
        """The deltas among the lines of a block; None where one of them is of another shape after all."""
        a, b, c, d = zip(*self._pattern.findall(block), strict=True)
        minutes, seconds, heads, requests = (c, d, a, b) if self._stamp_last else (a, b, c, d)
        others = _empty(requests)
        if others:
            minutes, seconds, heads, requests = (
                tuple(compress(column, requests)) for column in (minutes, seconds, heads, requests)
            )
        for head in distinct(heads) - self._heads:
            if not self._head.fullmatch(head):
                return None
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            self._heads.add(head)
        return Found(minutes, seconds, requests, others)


def distinct(texts: tuple[bytes, ...]) -> set[bytes]:
    """What differs among texts that are mostly alike: comparing them is faster than making a set of them."""
    if texts and texts.count(texts[0]) == len(texts):
        return {texts[0]}
    return set(texts)


def shape_of(line: bytes, stamp: bytes, request: bytes, *, quoted: bool) -> Shape | None:
    """
    The shape of a delta line without a finish reason.

    Args:
        line: the line.
        stamp: its time, as it stands in the line; empty where it has none.
        request: the request, as the message has it.
        quoted: whether the message is a JSON string.

    Returns:
        None where the line has no shape that others could share.
    """
    head, beginning, rest = line.partition(GENERATED + request + DELTA)
    _, unfinished, tail = rest.rpartition(UNFINISHED)
    # Of what follows the finish reason, the rest of the JSON string, or of the line, is found as text.
    close = tail.partition(b'"')[0] if quoted else tail
    tail = tail[len(close) :]
    if not beginning or not unfinished or close not in (_JSON_CLOSES if quoted else _CLOSES):
        return None
    if len(head + tail) > _LONGEST or (quoted and b"\\" in head + tail):
        return None  # after a backslash it is not seen at a glance where strings begin and end
    if stamp and (head + tail).count(stamp) != 1:
        return None
    ends = _ZONE.fullmatch(stamp) if stamp else None
    zone = ends[1] if ends else b""
    stamp_last = stamp not in head
    start, _, middle = head.partition(stamp) if stamp and not stamp_last else (b"", b"", head)
    at_head = b"" if stamp_last else zone
    pattern = (
        _literal(start, quoted=quoted)
        + (b"" if stamp_last else _STAMP if stamp else _NO_STAMP)
        + rb"([^\n]{%d})" % len(at_head + middle + GENERATED)
        + (_JSON_ID if quoted else _ID)
        + re.escape(DELTA)
        + (_JSON_TEXT + rb"(?<=\ None%s)" if quoted else _TEXT + rb"\ None%s") % re.escape(close)
        + (_behind(tail, stamp, zone) if stamp_last else _literal(tail, quoted=quoted, inside=True))
        + rb"\n|[^\n]*\n"
    )
    middle = _literal(middle, quoted=quoted, inside=start.count(b'"') % 2 == 1)
    before = re.compile(re.escape(at_head) + middle + re.escape(GENERATED))
    shape = Shape(re.compile(pattern), before, zone, stamped=bool(stamp), stamp_last=stamp_last)
    found = shape.find(line + b"\n")
    return shape if found is not None and found.requests == (request,) else None


def _empty(texts: tuple[bytes, ...]) -> list[int]:
    """The places of empty texts."""
    places: list[int] = []
    place = -1
    try:
        while True:
            place = texts.index(b"", place + 1)
            places.append(place)
    except ValueError:
        return places


def _behind(tail: bytes, stamp: bytes, zone: bytes) -> bytes:
    """A pattern for what stands behind a message in JSON, with the stamp in it."""
    before, _, after = tail.partition(stamp)
    inside = before.count(b'"') % 2 == 0
    return (
        _literal(before, quoted=True, inside=True)
        + _STAMP
        + re.escape(zone)
        + _literal(after, quoted=True, inside=inside)
    )


def _literal(part: bytes, *, quoted: bool, inside: bool = False) -> bytes:
    """A pattern for a text in which only numbers change; `inside` tells whether a JSON string is open before it."""
    pattern = []
    position = 0
    for number in re.finditer(rb"[0-9]+", part):
        text = part[position : number.start()]
        inside ^= bool(text.count(b'"') % 2)
        pattern += [re.escape(text), _digits(number[0], bare=quoted and not inside)]
        position = number.end()
    return b"".join((*pattern, re.escape(part[position:])))


def _digits(number: bytes, *, bare: bool) -> bytes:
    """A pattern for numbers like one. Two digits are part of a date; bare ones in JSON have no leading zero."""
    if bare:
        return number if number.startswith(b"0") else b"[1-9][0-9]{0,9}"
    return b"[0-9]{2}" if len(number) == 2 else b"[0-9]{1,10}"  # noqa: PLR2004
