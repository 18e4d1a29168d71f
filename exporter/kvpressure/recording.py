"""Recordings of vLLM's metrics: a row per sample, as JSON lines, gzip or not."""

import contextlib
import gzip
import json
import statistics
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import BinaryIO, TypeGuard

FILE_NAMES = ("metrics.jsonl.gz", "metrics.jsonl")
"""What is looked for in a folder, in this order."""

LOG_NAMES = ("server.log.gz", "server.log")
"""The log of the same server, where it was kept. Nothing else in the folder is read."""

LONGEST_JUMP = 7 * 86400.0
"""Seconds between two rows, or of one sample, beyond which a time is taken to be a mistake."""

_ROWS_FOR_INTERVAL = 200
_BLOCK = 256 * 1024


class RecordingError(ValueError):
    """A recording that cannot be read; the message is one sentence that names it."""


@dataclass(frozen=True, slots=True)
class Row:
    """
    One sample.

    Args:
        t: when it was taken, in seconds since 1970.
        body: the exposition, or None where the sample failed.
        took: seconds that it took.
    """

    t: float
    body: str | None
    took: float


def find(path: str) -> Path:
    """
    The file of a recording that is given as a folder or as the file itself.

    Raises:
        RecordingError: there is none.
    """
    given = Path(path)
    if given.is_dir():
        for name in FILE_NAMES:
            if (given / name).is_file():
                return given / name
        raise RecordingError(f"{path}: the folder has no {' or '.join(FILE_NAMES)}")
    if not given.is_file():
        raise RecordingError(f"{path}: there is no such file or folder")
    return given


def find_log(path: str) -> Path | None:
    """The log in the folder of a recording, if there is one."""
    return next((file for name in LOG_NAMES if (file := Path(path) / name).is_file()), None)


def blocks(path: Path, complain: Callable[[str], None]) -> Iterator[bytes]:
    """The content of a file, gzip or not, piece by piece; see `rows` for what goes wrong with it."""
    with _reading(path, complain) as file:
        while block := file.read(_BLOCK):
            yield block


def rows(path: Path, complain: Callable[[str], None]) -> Iterator[Row]:
    """
    The rows of a recording, in the file's order.

    What cannot be used is skipped and told to `complain` in one sentence that names the line; a file that is cut off
    gives what stands before the cut.
    """
    last: float | None = None
    with _reading(path, complain) as file:
        for number, line in enumerate(file, start=1):
            if line.isspace():
                continue
            try:
                row = _row(line)
                if last is not None and abs(row.t - last) > LONGEST_JUMP:
                    raise ValueError("its time is more than a week from the row before")  # noqa: TRY301
            except ValueError as fault:
                complain(f"{path}: line {number} is skipped: {fault}")
                continue
            last = row.t
            yield row


@contextlib.contextmanager
def _reading(path: Path, complain: Callable[[str], None]) -> Iterator[BinaryIO]:
    """A file that is open for reading; what ends that early is told."""
    try:
        with gzip.open(path, "rb") if _is_gzip(path) else path.open("rb") as file:
            yield file  # type: ignore[misc]  # a GzipFile reads like any other
    except EOFError:
        complain(f"{path}: the file is cut off; what stands before the cut was read")
    except zlib.error:
        complain(f"{path}: the file is damaged; what stands before the damage was read")
    except OSError as fault:
        complain(f"{path}: cannot be read any further: {fault.strerror or fault}")


def interval(path: Path, configured: float) -> float:
    """Seconds that were scheduled between samples: the configured ones, or the recording's own where it is slower."""
    times = [row.t for row in islice(rows(path, lambda _: None), _ROWS_FOR_INTERVAL)]
    gaps = [b - a for a, b in pairwise(times) if b > a]
    return max(configured, statistics.median(gaps)) if gaps else configured


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _row(line: bytes) -> Row:
    """
    One row of JSON.

    Raises:
        ValueError: it is not one; the message ends a sentence.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as fault:
        raise ValueError("it is not JSON") from fault
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004  # one kind of fault: a bad row
    t, took, body = row.get("t"), row.get("took", 0.0), row.get("body")
    if not _is_number(t):
        raise ValueError('"t" is not a number of seconds')
    if not _is_number(took) or not 0.0 <= took <= LONGEST_JUMP:
        raise ValueError('"took" is not a number of seconds')
    if body is not None and not isinstance(body, str):
        raise ValueError('"body" is not text')
    if body is None and "error" not in row:
        raise ValueError('it has neither "body" nor "error"')
    if body is not None and not body.isascii():
        # JSON can hold half a surrogate pair, which no text format can.
        body = body.encode("utf-8", "replace").decode("utf-8")
    return Row(float(t), None if "error" in row else body, float(took))


def _is_number(value: object) -> TypeGuard[float]:
    # An integer beyond the range of a float has no finite value either.
    return isinstance(value, float | int) and not isinstance(value, bool) and abs(value) < sys.float_info.max
