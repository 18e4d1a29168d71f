"""The files that are being followed: found by their names, kept while they are written, and given up when they rest."""

import errno
import os
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence

from kvpressure.log import RateLimitedLog
from kvpressure.observe.logfile import Ident, LogFile, Place
from kvpressure.observe.lognames import Names, ident_of, is_closed, is_pattern, named
from kvpressure.vllm.logs import LogReader

MAX_FILES = 64
"""Files followed at most, but for those that are about to be given up; of more, those that were written to last."""
QUIET = 5.0
"""Seconds for which a file without a name must be quiet to be given up for the one that got its name."""
LONG_QUIET = 60.0
"""The same where there is none, or nothing in it: its writer may not know yet that the name is gone."""

_MAX_PLACES = 4096  # files remembered that are not followed


class LogFiles:
    """
    The files behind some names and patterns.

    Args:
        paths: the names and patterns.
        problems: counts what cannot be opened as ``unreadable``.
        warnings: tells it.
    """

    def __init__(self, paths: Sequence[str], problems: Counter[str], warnings: RateLimitedLog) -> None:
        self._paths = paths
        self._plain = frozenset(path for path in paths if not is_pattern(path))
        self._problems = problems
        self._warnings = warnings
        self._files: list[LogFile] = []
        self._names: dict[str, LogFile] = {}
        """The latest file behind each name."""
        self._places: OrderedDict[Ident, Place] = OrderedDict()
        """Where to go on in files that are not followed."""
        self.searched = False
        """Whether what a search found was taken."""
        self.blind = False
        """Whether a log may go on in a file that we may not read."""
        self._refused: set[str] = set()
        """Names that could not be opened since the latest search."""
        self._told: set[str] = set()
        """Names of which it was told that they cannot be opened, or do not exist."""

    def __iter__(self) -> Iterator[LogFile]:
        """In the order in which they were found: a file comes before the one that got its name."""
        return iter(tuple(self._files))

    def __len__(self) -> int:
        return len(self._files)

    def search(self) -> Names:
        """Look for names. It changes nothing, so that it can be done in a thread."""
        return named(self._paths, MAX_FILES, _MAX_PLACES)

    def take(self, names: Names) -> None:
        """
        Follow what a search found.

        What is there at the first search is read from its end on, what is new is read whole.
        """
        chosen, others = names.chosen, names.others
        for file in others if self.searched else (*chosen, *others):
            if file.ident not in self._places:
                self._remember(file.ident, Place(file.size))
        if others:
            self._warnings.warning(
                "too_many_files",
                f"log.path: more than {MAX_FILES} files match; those written to last are followed",
                count=names.total,
            )
        wanted = {*(file.name for file in chosen), *self._plain}
        self._names = {name: file for name, file in self._names.items() if name in wanted}
        self._refused.clear()
        for file in reversed(chosen):
            if file.name not in self._names:
                self._open(file.name, file.ident, at_end=not self.searched)
        self.searched = True
        self._told &= {*wanted, *names.missing}
        for path in names.missing:
            if is_closed(path):
                self._cannot_read(path, errno.EACCES)
                continue
            self._tell(path, "missing", "log.path: there is no such file yet; it is waited for")

    def follow(self, now: float, before: float | None) -> None:
        """
        See which files have which names now.

        Args:
            now: this moment.
            before: the moment of the time before.
        """
        present = set()
        # What could not be read may have been written at any time since.
        since = None if self.blind else before
        self.blind = False
        for name in {*self._names, *self._plain} - self._refused:
            ident = ident_of(name)
            if ident is None:
                self.blind |= is_closed(name)
                continue
            present.add(ident)
            last = self._names.get(name)
            if last is None:
                self._open(name, ident)
            elif last.ident != ident and (file := self._open(name, ident)) is not None:
                file.predecessor, file.since, last.successor = last, since, file
        self.blind |= not self._refused.isdisjoint(self._names)
        for file in self._files:
            if file.ident in present:
                file.unnamed = None
            elif file.unnamed is None:
                file.unnamed = now

    def retire(self, now: float) -> None:
        """
        Give up files without a name that have come to rest, and the oldest of those where there are too many.

        Args:
            now: when all files were looked at for the last time.
        """
        unnamed = [(file, file.unnamed) for file in self._files if file.unnamed is not None]
        for file, since in unnamed:
            replaced = file.successor is not None and file.successor.goal > 0
            quiet = now - max(since, file.grown)
            at_rest = file.done and quiet > (QUIET if replaced else LONG_QUIET)
            if at_rest or len(self._files) > 2 * MAX_FILES:
                self.give_up(file)

    def give_up(self, file: LogFile, fault: OSError | None = None) -> None:
        """Close a file, to go on with it should it be found again; `fault` tells why, if it cannot be read."""
        self._files.remove(file)
        self._names = {name: other for name, other in self._names.items() if other is not file}
        self._places.pop(file.ident, None)
        self._remember(file.ident, file.place)
        file.close()
        if fault is not None:
            self._refuse(file.path, fault)

    def close(self) -> None:
        """Close all files."""
        for file in self._files:
            file.close()
        self._files.clear()
        self._names.clear()

    def _open(self, name: str, ident: Ident, *, at_end: bool = False) -> LogFile | None:
        """Give a name the file behind it; the file where it was not followed yet."""
        known = next((file for file in self._files if file.ident == ident), None)
        if known is not None:
            self._names[name] = known
            return None
        try:
            file = LogFile(name, LogReader(problems=self._problems))
        except FileNotFoundError:
            # It went since it was found.
            return None
        except OSError as fault:
            self._refuse(name, fault)
            return None
        if file.ident != ident:
            # The name went to another file at this very moment: the next look sees which.
            file.close()
            return None
        try:
            self._begin(file, at_end=at_end)
        except OSError as fault:
            file.close()
            self._refuse(name, fault)
            return None
        self._told.discard(name)
        self._names[name] = file
        self._files.append(file)
        return file

    def _begin(self, file: LogFile, *, at_end: bool) -> None:
        """Find where to begin in a file that is new to us."""
        place = self._places.pop(file.ident, None)
        known = not at_end and place is not None and file.resume(place)
        if at_end or (not known and any(file.copies(other) for other in self._files)):
            file.begin_at_end()

    def _remember(self, ident: Ident, place: Place) -> None:
        self._places[ident] = place
        while len(self._places) > _MAX_PLACES:
            self._places.popitem(last=False)

    def _refuse(self, name: str, fault: OSError) -> None:
        """Leave a name until the next search."""
        self._refused.add(name)
        self._cannot_read(name, fault.errno)

    def _cannot_read(self, name: str, number: int | None) -> None:
        self._problems["unreadable"] += 1
        reason = os.strerror(number).lower() if number else "unknown error"
        self._tell(name, "unreadable", "log.path: this file cannot be read; it is tried again", reason=reason)

    def _tell(self, name: str, key: str, message: str, **fields: str) -> None:
        """Tell something of a name once, until it has been opened."""
        if name not in self._told and self._warnings.warning(key, message, error=None, file=name, **fields):
            self._told.add(name)
