"""One log file that is being followed: how far it was read, and whether it is still the file that it was."""

import errno
import os
import stat
from collections import deque
from pathlib import Path
from typing import NamedTuple

from kvpressure.vllm.logs import LogReader

BLOCK = 32 * 1024
"""Bytes of one read at most; of lines that take long, less is read at a time."""
SAME_HEAD = 64
"""Bytes that two files must have in common at their beginning to be copies of each other."""

_FIRST_BLOCK = 4 * 1024
_DROP_BLOCK = 1024 * 1024
_HEAD = 1024
_PAST = 32  # rotations by copying whose copies are known when they are found
_LONG = 0.01  # seconds that the event loop may be held
_LAST_LINE = 64 * 1024  # bytes before a file's end in which its last newline is looked for

Ident = tuple[int, int]
"""Device and inode: a file by whatever name."""


class Mark(NamedTuple):
    """What a file begins with, without its text: so many bytes, and a number made of them."""

    size: int
    number: int


class Place(NamedTuple):
    """
    Where to go on in a file that is not followed.

    Args:
        position: how far it was read, or how long it was when it was not.
        mark: what it began with; None where it was not opened.
    """

    position: int
    mark: Mark | None = None


class LogFile:
    """
    An open file, not read yet.

    Args:
        path: its name.
        reader: makes events of it.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """

    def __init__(self, path: str, reader: LogReader) -> None:
        self.path = path
        self.reader = reader
        # Looked at before, because opening a pipe or a device is already a use of it.
        _regular(Path(path).stat())
        # A pipe with nobody at its other end must not hold us up.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.position = 0
        self.goal = 0
        """How long it was when it was last looked at."""
        self._block = _FIRST_BLOCK
        try:
            status = _regular(os.fstat(self._descriptor))
            self.mark = self.head(_HEAD)
            """What it begins with."""
        except OSError:
            self.close()
            raise
        self.ident: Ident = (status.st_dev, status.st_ino)
        self.past: deque[Mark] = deque(maxlen=_PAST)
        """What it began with before it was written anew."""
        self.predecessor: LogFile | None = None
        """The file that had this one's name before, until something was read of this one."""
        self.successor: LogFile | None = None
        """The file that got this one's name."""
        self.unnamed: float | None = None
        """When it was first seen to have no name any more."""
        self.drop_to: int | None = None
        """Everything up to here is to be dropped unread."""
        self.since: float | None = None
        """When it had not been written yet what has not been read."""
        self.behind: float | None = None
        """When reading it first took longer than one look, if it does."""
        self.grown = 0.0
        """When it was last seen to have been written to."""
        self.longer = True
        """Whether the last look found it longer, or shorter: a write that fails for want of room has a time as well."""
        self.complained = False
        """Whether it was told that the log is of no use."""
        self._seen = (0, 0)

    @property
    def done(self) -> bool:
        """Whether everything was read that was there when it was last looked at."""
        return self.position >= self.goal

    @property
    def place(self) -> Place:
        """Where to go on, should it be closed."""
        return Place(self.position, self.mark)

    def resume(self, place: Place) -> bool:
        """
        Go on at a place; False where this is another file: one can have the inode of one that is gone.

        Raises:
            OSError: it cannot be read.
        """
        same = place.mark is None or place.mark == self.head(place.mark.size)
        if not same or not 0 < place.position <= os.fstat(self._descriptor).st_size:
            return False
        self.position = place.position
        before = os.pread(self._descriptor, 1, place.position - 1)
        self.reader.leap(within_line=before != b"\n")
        return True

    def copies(self, other: "LogFile") -> bool:
        """
        Whether it begins as another one does or did: rotation by copying leaves such files behind.

        Raises:
            OSError: it cannot be read.
        """
        return any(mark.size >= SAME_HEAD and self.head(mark.size) == mark for mark in (other.mark, *other.past))

    def begin_at_end(self) -> None:
        """
        Read only what is written from now on.

        A line that is half written belongs to that, and is read whole, unless it is too long for that.

        Raises:
            OSError: it cannot be read.
        """
        size = os.fstat(self._descriptor).st_size
        start = max(0, size - _LAST_LINE)
        newline = os.pread(self._descriptor, size - start, start).rfind(b"\n") + 1
        self.position = start + newline if newline or not start else size
        self.reader.leap(within_line=bool(start and not newline))

    def look(self, now: float) -> bool:
        """
        Find out how long it is; False where it was written anew since, so that it has to be read from its beginning.

        Raises:
            OSError: it cannot be read.
        """
        status = os.fstat(self._descriptor)
        seen = (status.st_size, status.st_mtime_ns)
        self.goal = status.st_size
        self.longer = status.st_size != self._seen[0]
        if seen == self._seen:
            return True
        self.grown = now
        self._seen = seen
        same = self.goal >= self.position and self.head(self.mark.size) == self.mark
        if not same:
            self.past.append(self.mark)
            self.position, self.drop_to = 0, None
            # What it had begun goes on nowhere.
            self.reader = self.reader.successor()
        if not same or self.mark.size < _HEAD:
            self.mark = self.head(_HEAD)
        return same

    def is_stuck(self) -> bool:
        """Whether it got no longer, and cannot: its disk is full."""
        if self.longer:
            return False
        try:
            disk = os.fstatvfs(self._descriptor)
        except OSError:
            return False
        # Some file systems do not say how large they are.
        return disk.f_blocks > 0 and not disk.f_bavail

    def read(self) -> bytes:
        """
        The next bytes, up to its end when it was last looked at.

        Raises:
            OSError: it cannot be read.
        """
        data = os.pread(self._descriptor, min(self._block, self.goal - self.position), self.position)
        # Passed whatever comes of it: what cannot be dealt with must not come again. A file that was cut short
        # meanwhile has nothing up to its goal.
        self.position = self.position + len(data) if data else self.goal
        return data

    def took(self, seconds: float) -> None:
        """Learn from the time that it took to deal with what was read, so that others need not wait for long."""
        if seconds > _LONG:
            self._block = max(_FIRST_BLOCK, self._block // 2)
        elif seconds < _LONG / 3:
            self._block = min(BLOCK, 2 * self._block)

    def drop(self, to: int) -> int:
        """
        Pass some bytes unread, at most up to `to`; the number of lines that ended in them.

        Raises:
            OSError: it cannot be read.
        """
        data = os.pread(self._descriptor, min(_DROP_BLOCK, to - self.position), self.position)
        self.position = self.position + len(data) if data else to
        within_line = bool(data) and not data.endswith(b"\n")
        self.reader.leap(within_line=within_line)
        # Where reading goes on within a line, the rest of that is dropped too.
        return data.count(b"\n") + (within_line and self.position >= to)

    def close(self) -> None:
        """Close it: nothing more can be read of it."""
        self.goal = self.position
        os.close(self._descriptor)

    def head(self, size: int) -> Mark:
        """
        What it begins with, up to `size` bytes.

        Raises:
            OSError: it cannot be read.
        """
        head = os.pread(self._descriptor, size, 0)
        return Mark(len(head), hash(head))


def _regular(status: os.stat_result) -> os.stat_result:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return status
