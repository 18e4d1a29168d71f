"""Bytes as they are read from a log -> blocks of whole lines, whatever way the bytes were cut."""

from collections import Counter
from collections.abc import Iterator

MAX_LINE = 1024 * 1024
"""Bytes of the longest line that is read; a longer one is skipped and counted."""


class LineBuffer:
    """
    Keeps the half line at the end of a read until the rest of it comes. Holds ``MAX_LINE`` bytes at most.

    Args:
        problems: counts ``line_too_long``.
    """

    def __init__(self, problems: Counter[str]) -> None:
        self._problems = problems
        self._held = bytearray()
        self._skipping = False

    def blocks(self, data: bytes) -> Iterator[bytes]:
        """The lines that `data` completes, in blocks of up to ``MAX_LINE`` bytes and a newline at the end of each."""
        start = 0
        if self._skipping:
            start = data.find(b"\n") + 1
            if not start:
                return
            self._skipping = False
        end = data.rfind(b"\n", start) + 1
        if end:
            whole = data[start:end]
            if self._held:
                whole = bytes(self._held) + whole
                self._held.clear()
            yield from self._cut(whole)
        self._hold(data[max(start, end) :])

    def drop(self) -> None:
        """Forget the half line: the rest of it does not come."""
        self._held.clear()
        self._skipping = False

    def skip(self) -> None:
        """Forget the half line, and skip the rest of it when it comes: its beginning was not read."""
        self.drop()
        self._skipping = True

    def _hold(self, rest: bytes) -> None:
        self._held += rest
        if len(self._held) > MAX_LINE:
            self._problems["line_too_long"] += 1
            self.skip()

    def _cut(self, whole: bytes) -> Iterator[bytes]:
        start = 0
        while len(whole) - start > MAX_LINE + 1:
            end = whole.rfind(b"\n", start, start + MAX_LINE + 1) + 1
            if end:
                yield whole[start:end]
            else:
                self._problems["line_too_long"] += 1
                end = whole.index(b"\n", start + MAX_LINE) + 1
            start = end
        if start < len(whole):
            yield whole[start:]
