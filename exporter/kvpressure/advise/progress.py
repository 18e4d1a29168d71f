"""One line on the terminal while simulations run: a bar, how many are done, and the time that is left."""

import contextlib
import os
import sys
import time
from types import TracebackType
from typing import Self, TextIO

from kvpressure.expose.page.words import span

_BAR = 20
_COLUMNS = 80  # where the terminal does not tell
_AGAIN = 0.1  # seconds between two drawings
_CLEAR = "\r\x1b[K"


class Progress:
    """
    A progress bar on stderr, which clears itself at the end. Where the output is no terminal, nothing is written.

    Args:
        title: what goes on.
        total: steps until the end, at least 1.
        out: where it is written; stderr where it is None.
    """

    def __init__(self, title: str, total: int, out: TextIO | None = None) -> None:
        self._title = title
        self._total = max(1, total)
        self._out = sys.stderr if out is None else out
        # Started with its stderr closed, a program has none.
        self._on = self._out is not None and self._out.isatty()
        self._done = 0
        self._began = time.monotonic()
        self._drawn = 0.0

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, where: TracebackType | None
    ) -> None:
        self._write(_CLEAR)

    def step(self, n: int = 1) -> None:
        """Say that `n` more steps are done."""
        self._done = min(self._total, self._done + n)
        if self._done == self._total or time.monotonic() - self._drawn >= _AGAIN:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        full = _BAR * self._done // self._total
        line = f"{self._title} [{'#' * full}{'.' * (_BAR - full)}] {self._done}/{self._total}{self._left()}"
        # A line that is broken by the terminal could not be cleared.
        self._write(_CLEAR + line[: self._columns() - 1])

    def _columns(self) -> int:
        if self._on:
            with contextlib.suppress(OSError, ValueError):
                # Some terminals do not tell, and say 0.
                return os.get_terminal_size(self._out.fileno()).columns or _COLUMNS
        return _COLUMNS

    def _left(self) -> str:
        if not 0 < self._done < self._total:
            return ""
        left = (self._drawn - self._began) * (self._total - self._done) / self._done
        return f", {span(left)} left".replace("\N{NO-BREAK SPACE}", " ")

    def _write(self, text: str) -> None:
        if not self._on:
            return
        try:
            self._out.write(text)
            self._out.flush()
        except OSError:
            # The terminal went away; the work goes on without it.
            self._on = False
