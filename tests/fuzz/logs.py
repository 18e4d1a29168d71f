"""Whatever a log holds: no fault, bounded memory, and events that depend on its bytes alone, not on how it is read."""

import math
import random
import zlib
from pathlib import Path

from kvpressure.vllm.logframes import Frames
from kvpressure.vllm.loglines import MAX_LINE
from kvpressure.vllm.logmessages import MAX_ID
from kvpressure.vllm.logrecords import MAX_CHOICE
from kvpressure.vllm.logs import PROBLEMS, LogReader
from kvpressure.vllm.stream import StreamEvent

_FIXTURES = Path(__file__).parents[1] / "fixtures" / "logs"
_LINES = [path.read_bytes().splitlines(keepends=True) for path in sorted(_FIXTURES.iterdir())]
# Of each format so much that the shape of its deltas is learned.
_LOGS = [b"".join([line for line in lines if b"delta" in line][:4] or lines) for lines in _LINES]
_KINDS = {"start", "token", "last", "end", "abort"}
_ARRIVAL = 1796022992.0

# The first byte says which log comes before the input, so that its shape has been learned.
CORPUS = [bytes([number]) + b"\n" + b"".join(lines[-12:-6] + lines[:2]) for number, lines in enumerate(_LINES)]
CORPUS += [bytes([number]) + b"\n" + log for number, log in enumerate(_LOGS)]
# Ids and texts with what JSON escapes, what terminals show in colour, and what is no text.
CORPUS += [
    data.replace(b"chatcmpl-r0", rb"chat\u0041\"-0").replace(b"output: '", b"output: '\xff\x1b[0m\\n None")
    for data in CORPUS
]


def reader(data: bytes) -> None:
    """Read a log, and something behind it, in different ways that must not matter."""
    first = _LOGS[data[0] % len(_LOGS)] if data else b""
    # The last line is left open.
    pieces = [first[:-1], data[1:]]
    for arrival, since in ((None, None), (_ARRIVAL, _ARRIVAL - 0.25), (_ARRIVAL, None)):
        quick, careful = LogReader(), _Careful()
        found = _events(quick, pieces, arrival, since)
        assert found == _events(careful, pieces, arrival, since)
        assert quick.problems == careful.problems
        assert quick.lines == careful.lines
        assert quick.findings == careful.findings
        _check(quick, found)
    cut = LogReader()
    assert _events(cut, _cut(b"".join(pieces)), None, None) == _events(LogReader(), pieces, None, None)
    _check(cut, [])


class _Careful(LogReader):
    """Looks at each line."""

    def _learn(self, *_: object, **__: object) -> None:
        pass


def _events(log: LogReader, pieces: list[bytes], arrival: float | None, since: float | None) -> list[StreamEvent]:
    return [event for piece in pieces for batch in log.read(piece, arrival, since) for event in batch.events]


def _cut(data: bytes) -> list[bytes]:
    """Pieces of any length, the same ones for the same bytes."""
    chance = random.Random(zlib.crc32(data))
    pieces = []
    position = 0
    while position < len(data):
        length = chance.choice((1, 2, 5, 60, 500, 5000))
        pieces.append(data[position : position + length])
        position += length
    return pieces


def _check(log: LogReader, found: list[StreamEvent]) -> None:
    for event in found:
        assert type(event) is StreamEvent
        assert event.kind in _KINDS
        assert math.isfinite(event.t)
        assert 0 <= event.choice <= MAX_CHOICE
        assert type(event.request) is int or (type(event.request) is bytes and len(event.request) <= MAX_ID)
        assert type(event.model) is str
        assert len(event.model) <= MAX_ID
    assert set(log.problems) <= set(PROBLEMS)
    assert _held(log) <= MAX_LINE
    assert _parts(log._frames) <= 2 * MAX_LINE


def _held(log: LogReader) -> int:
    return len(log._buffer._held)


def _parts(frames: Frames) -> int:
    return sum(len(part) for parts in frames._parts.values() for part in parts or ())


TARGETS = {"reader": reader}
