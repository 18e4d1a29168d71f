"""
A trace of requests: when each came, and how long its prompt and its answer were.

CSV with a line of names first (``arrival,prompt,answer`` and, where known, ``max_tokens``, in any order), or JSON lines
with the same keys; other columns and keys are left unread. Arrivals are seconds from any origin, the first one becomes
0, and lines need not be in order.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping

from kvpressure import files
from kvpressure.advise.seen import AdviseError
from kvpressure.lab.leap import Job

LARGEST = 64 * 1024 * 1024
"""Bytes."""
MOST_REQUESTS = 1_000_000
MOST_TOKENS = 10_000_000
"""Of a prompt, or of an answer."""
_LONGEST = 7 * 86_400.0  # seconds, as of a workload

_NEEDED = ("arrival", "prompt", "answer")
_LIMIT = "max_tokens"
_WHAT = "give a trace as CSV with the columns arrival, prompt and answer, or as JSON lines with these keys"

_Line = tuple[int, Mapping[str, object]]


def read(path: str) -> tuple[Job, ...]:
    """
    The requests of a trace in order of arrival, at least one.

    Raises:
        AdviseError: the file cannot be read, has no requests, or a line of it is not one.
    """
    try:
        text = files.read(path, LARGEST).decode("utf-8-sig")
    except OSError as fault:
        raise AdviseError(f"{path}: cannot be read: {fault.strerror}; {_WHAT}") from fault
    except UnicodeDecodeError as fault:
        raise AdviseError(f"{path}: is not UTF-8 text; {_WHAT}") from fault
    lines = _json_lines if text.lstrip().startswith("{") else _csv_lines
    found: list[Job] = []
    # Not splitlines: a text of a column that is left unread may hold what that takes for the end of a line, as U+2028.
    for number, line in lines(path, io.StringIO(text, newline="")):
        if len(found) == MOST_REQUESTS:
            raise AdviseError(f"{path}: has more than {MOST_REQUESTS:,} requests; give a part of it")
        found.append(_job(line, f"{path}: line {number}"))
    if not found:
        raise AdviseError(f"{path}: has no requests; {_WHAT}")
    found.sort(key=lambda job: job.arrival)
    start = found[0].arrival
    if not found[-1].arrival - start <= _LONGEST:
        raise AdviseError(f"{path}: its requests come over more than {_LONGEST / 86_400:g} days; give a part of it")
    return tuple(Job(job.arrival - start, job.prompt, job.answer, job.limit) for job in found)


def _json_lines(path: str, lines: Iterable[str]) -> Iterator[_Line]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as fault:
            raise AdviseError(f"{path}: line {number} is not JSON; {_WHAT}") from fault
        if not isinstance(content, dict):
            raise AdviseError(f"{path}: line {number} is not a JSON object; {_WHAT}")
        yield number, content


def _csv_lines(path: str, lines: Iterable[str]) -> Iterator[_Line]:
    rows = csv.reader(lines)
    names: list[str] | None = None
    try:
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            if names is None:
                names = [cell.strip() for cell in row]
                missing = [name for name in _NEEDED if names.count(name) != 1]
                if missing:
                    raise AdviseError(
                        f"{path}: line {rows.line_num} must name each of the columns {', '.join(_NEEDED)} once, and "
                        f"does not {missing[0]}"
                    )
                continue
            if len(row) != len(names):
                raise AdviseError(f"{path}: line {rows.line_num} has {len(row)} columns of {len(names)}")
            yield rows.line_num, dict(zip(names, (cell.strip() for cell in row), strict=True))
    except csv.Error as fault:
        raise AdviseError(f"{path}: line {rows.line_num} is not CSV; {_WHAT}") from fault


def _job(line: Mapping[str, object], where: str) -> Job:
    """
    One request.

    Raises:
        AdviseError: a number is missing or makes no sense. The sentence does not repeat what stands there instead: it
            could be a prompt.
    """
    arrival = _number(line.get("arrival"))
    if arrival is None:
        raise AdviseError(f"{where}: arrival must be a number of seconds")
    limit = 0 if line.get(_LIMIT) in (None, "") else _tokens(line, _LIMIT, where)
    return Job(arrival, _tokens(line, "prompt", where), _tokens(line, "answer", where), limit)


def _tokens(line: Mapping[str, object], name: str, where: str) -> int:
    found = _number(line.get(name))
    if found is None or found % 1 or not 1 <= found <= MOST_TOKENS:
        raise AdviseError(f"{where}: {name} must be a whole number of tokens from 1 to {MOST_TOKENS:,}")
    return int(found)


def _number(given: object) -> float | None:
    """A finite number, or None."""
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        return None
    try:
        found = float(given)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
