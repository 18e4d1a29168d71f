r"""
What is around a log line: the prefix of a container runtime, or Docker's JSON, and the time that it knows.

* CRI (containerd, CRI-O): ``2026-11-30T05:16:32.400430000Z stdout F ...``. A long line comes in parts marked ``P``, the
  last one marked ``F``.
* ``2026-11-30T05:16:32.400430000Z ...``, as ``kubectl logs --timestamps`` prints them.
* Docker's json-file: ``{"log":"...\n","stream":"stdout","time":"2026-...Z"}``. A part has no newline at its end.

The parts of a line are joined, because the text of a user could begin any but the first. A joined line has the time of
its last part: then it was complete. A line of too many parts is skipped like one that is too long.
"""

import json
import re
from collections import Counter

from kvpressure.vllm.logclock import MINUTE, SECONDS, ZONE
from kvpressure.vllm.loglines import MAX_LINE
from kvpressure.vllm.logmessages import PROCESS

MAX_PARTS = 4096
"""Parts of the longest line that is joined; runtimes cut after some kilobytes, or where a program's writes end."""
MAX_OBJECT = 64 * 1024
"""Bytes of the longest JSON object that is read whatever it consists of; a longer one must be a few long strings."""

_CRI = re.compile(rb"(%s%s(?:%s)) (?:(stdout|stderr) ([FP])(?::[^ ]*)?(?: |$))?" % (MINUTE, SECONDS, ZONE))
_COLOUR = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
_PROCESS = re.compile(PROCESS)
_MAX_COLOURS = 4096  # in one line
# Reading a string is fast, however long. A million brackets would hold up everybody else.
_FEW_STRINGS = re.compile(rb'(?:[^"]{0,128}+"[^"\\]*+(?:\\.[^"\\]*+)*+"){1,512}+[^"]{0,128}+', re.DOTALL)


Framed = tuple[bytes, bytes, dict[str, object] | None, bool]
"""
A line without what is around it (no named tuple, which would take as long as all the rest of it):

* the line, without colours;
* when, as the runtime has it; empty where there is none;
* what the line says where it is a JSON object, else None;
* whether it stands in the log as it is, and not inside JSON.
"""


class Frames:
    """
    Takes the lines of one log out of their frames.

    Args:
        problems: counts ``line_too_long``, for lines that are too long when they are joined, or in too many parts.
    """

    def __init__(self, problems: Counter[str]) -> None:
        self._problems = problems
        self._parts: dict[object, list[bytes] | None] = {}
        """Parts of unfinished lines by stream, ``stdout`` or ``stderr``; None where they became too long."""
        self._sizes: Counter[str] = Counter()
        """Their bytes."""

    @property
    def pending(self) -> bool:
        """Whether a line has been begun and not ended, so that the next one may be its continuation."""
        return bool(self._parts)

    def open(self, line: bytes) -> Framed | None:
        """A line without its frame; None where its end is still to come, or where it is too long."""
        found = _CRI.match(line)
        if found:
            content = line[found.end() :]
            if found[2]:
                joined = self._join(found[2].decode(), content, partial=found[3] == b"P")
                if joined is None:
                    return None
                content = joined
            return _inner(content, found[1], plain=True)
        framed = _inner(line, b"", plain=True)
        record = framed[2]
        if record is None or not isinstance(record.get("log"), str) or not isinstance(record.get("time"), str):
            return framed
        text, stream = _bytes(record["log"]), record.get("stream")
        whole = text.endswith(b"\n")
        joined = self._join("stderr" if stream == "stderr" else "stdout", text[: len(text) - whole], partial=not whole)
        return None if joined is None else _inner(joined, _bytes(record["time"]), plain=False)

    def _join(self, stream: str, content: bytes, *, partial: bool) -> bytes | None:
        if not partial and not self._parts:
            return content
        parts = self._parts.setdefault(stream, [])
        if parts is not None:
            parts.append(content)
            self._sizes[stream] += len(content)
            if self._sizes[stream] > MAX_LINE or len(parts) > MAX_PARTS:
                self._parts[stream] = parts = None
        if partial:
            return None
        del self._parts[stream], self._sizes[stream]
        if parts is None:
            self._problems["line_too_long"] += 1
            return None
        return b"".join(parts)


def _inner(content: bytes, stamp: bytes, *, plain: bool) -> Framed:
    """The content of a frame, and what it says where it is JSON."""
    if content.endswith(b"\r"):
        content = content[:-1]
    if b"\x1b" in content:
        content = _COLOUR.sub(b"", content, _MAX_COLOURS)
    # Before vLLM 0.31 the name of the process stands in front of JSON too.
    process = _PROCESS.match(content)
    start = process.end() if process else 0
    record = _object(content[start:]) if content.startswith(b"{", start) else None
    return content, stamp, record, plain


def _object(text: bytes) -> dict[str, object] | None:
    """A JSON object; None where it is none, or one that takes long to read."""
    if len(text) > MAX_OBJECT and not _FEW_STRINGS.fullmatch(text):
        return None
    try:
        found = json.loads(text.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _bytes(value: object) -> bytes:
    return str(value).encode("utf-8", "replace")
