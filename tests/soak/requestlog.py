"""vLLM's request log as a container runtime keeps it: a stamp before every line, and rotation by renaming."""

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

_KEPT = 3
_BLOCK = 10_000


class RequestLog:
    """
    A log that is written line by line.

    Args:
        folder: where its files are.
    """

    def __init__(self, folder: Path) -> None:
        self.lines = 0
        """Lines that got into a file whole."""
        self.lost = 0
        """Lines that the disk did not take."""
        self.offset = 0.0
        """Seconds by which the wall clock has been stepped."""
        self._path = folder / "0.log"
        self._rotations = 0
        self._out = self._open()

    def line(self, now: float, where: str, message: str) -> None:
        """
        One line of vLLM's.

        Args:
            now: seconds since 1970, by a clock that was not stepped.
            where: file and number.
            message: the rest.
        """
        self._write(
            (
                _stamp(now + self.offset) + f"(APIServer pid=7) INFO {_short(now + self.offset)} [{where}] {message}\n"
            ).encode(),
            1,
        )

    def burst(self, now: float, lines: int) -> None:
        """Lines as of a debug log, as fast as the disk takes them."""
        text = (_stamp(now + self.offset) + 'INFO:     127.0.0.1:5 - "GET /health HTTP/1.1" 200 OK\n').encode()
        for start in range(0, lines, _BLOCK):
            count = min(_BLOCK, lines - start)
            self._write(text * count, count)

    def rotate(self) -> None:
        """Give the file another name and begin a new one; of the old ones, three are kept."""
        self._rotations += 1
        self._path.rename(self._path.with_name(f"0.log.{self._rotations}"))
        self._out.close()
        self._out = self._open()
        with contextlib.suppress(FileNotFoundError):
            self._path.with_name(f"0.log.{self._rotations - _KEPT}").unlink()

    def close(self) -> None:
        """Close the file."""
        self._out.close()

    def _open(self) -> BinaryIO:
        return self._path.open("ab", buffering=0)

    def _write(self, data: bytes, lines: int) -> None:
        done = 0
        try:
            while done < len(data):
                done += os.write(self._out.fileno(), data[done:])
        except OSError:
            # A part of a line stays, and the next line goes on in it, as with vLLM.
            whole = data[:done].count(b"\n")
            self.lines += whole
            self.lost += lines - whole
            return
        self.lines += lines


def _stamp(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z stdout F "


def _short(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%m-%d %H:%M:%S")
