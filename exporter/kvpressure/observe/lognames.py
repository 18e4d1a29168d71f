"""
Which files the names and patterns of ``log.path`` mean now.

Only regular files are meant, and links to them: to open a pipe or a device is to disturb whoever uses it.
"""

import glob
import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from itertools import islice
from threading import Thread
from typing import NamedTuple

from kvpressure.observe.logfile import Ident

_COMPRESSED = (".gz", ".zst", ".xz", ".bz2", ".lz4")
_PATIENCE = 0.005  # seconds that are waited for a search, so that what it finds is seldom old


class Named(NamedTuple):
    """
    A file that has a name.

    Args:
        name: the first one of them.
        ident: the file.
        size: its bytes.
        written: when it was last written to, in seconds since 1970 by the clock of its file system.
    """

    name: str
    ident: Ident
    size: int
    written: float


class Names(NamedTuple):
    """
    What a search found.

    Args:
        chosen: the files to follow, those written to last first.
        others: more of them in the same order, up to a limit.
        total: how many there are.
        missing: the names and patterns that mean nothing.
    """

    chosen: list[Named]
    others: list[Named]
    total: int
    missing: list[str]


class Search:
    """
    Searches in a thread: that takes long where names are many, and for ever where a network volume hangs.

    Args:
        search: the search.
    """

    def __init__(self, search: Callable[[], Names]) -> None:
        self._search = search
        self._under_way: Future[Names] | None = None

    def __call__(self) -> Names | None:
        """
        Begin a search, or ask for the one that is under way, for there is never more than one.

        Returns:
            What it found, once; None where it has not ended after some milliseconds.
        """
        if self._under_way is None:
            found: Future[Names] = Future()
            # Unlike those of a pool, it does not keep the process from ending.
            Thread(target=self._run, args=(found,), name="log-search", daemon=True).start()
            self._under_way = found
            wait((found,), _PATIENCE)
        if not self._under_way.done():
            return None
        ended, self._under_way = self._under_way, None
        return ended.result()

    def _run(self, found: Future[Names]) -> None:
        try:
            found.set_result(self._search())
        except Exception as fault:  # noqa: BLE001  # it is raised where the result is asked for
            found.set_exception(fault)


def named(patterns: Sequence[str], most: int, most_others: int) -> Names:
    """
    Look for files. Compressed ones are what a rotation leaves behind, and none of them.

    Args:
        patterns: the names and patterns.
        most: files to follow at most; those that may be read come before those that may not.
        most_others: other files that are told of at most.
    """
    found: dict[Ident, Named] = {}
    missing = []
    for pattern in patterns:
        # pathlib's own does not take a pattern that begins at the root.
        names = sorted(glob.glob(pattern, recursive=True)) if is_pattern(pattern) else [pattern]  # noqa: PTH207
        known = [(name, status) for name in names if (status := _status(name)) is not None]
        regular = [(name, status) for name, status in known if stat.S_ISREG(status.st_mode)]
        # A name that means something else is told of when it is opened.
        if not (regular if is_pattern(pattern) else known):
            missing.append(pattern)
        for name, status in regular:
            ident = (status.st_dev, status.st_ino)
            found.setdefault(ident, Named(name, ident, status.st_size, status.st_mtime))
    files = sorted(found.values(), key=lambda file: file.written, reverse=True)
    chosen = list(islice((file for file in files if _may_read(file.name)), most))
    taken = {file.ident for file in chosen}
    others = [file for file in files if file.ident not in taken]
    # Where there is room, what may not be read is tried all the same, so that it is told of.
    room = most - len(chosen)
    return Names(chosen + others[:room], others[room:][:most_others], len(files), missing)


def is_pattern(path: str) -> bool:
    """Whether it is a pattern of names, and not a name."""
    return glob.has_magic(path)


def ident_of(name: str) -> Ident | None:
    """The file behind a name; None where there is none."""
    status = _status(name)
    return None if status is None else (status.st_dev, status.st_ino)


def is_closed(name: str) -> bool:
    """Whether we may not know what is behind a name: a folder on the way to it is closed to us."""
    try:
        os.stat(name)  # noqa: PTH116
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return False


def _may_read(name: str) -> bool:
    return os.access(name, os.R_OK, effective_ids=os.access in os.supports_effective_ids)


def _status(name: str) -> os.stat_result | None:
    if name.endswith(_COMPRESSED):
        return None
    try:
        return os.stat(name)  # noqa: PTH116  # a tenth of the time that a Path takes, and there may be thousands
    except (OSError, ValueError):
        return None
