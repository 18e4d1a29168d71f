"""
The log observer: follows vLLM's log through rotations, and hands every event of its streams to a sink.

Files are polled: a notification would come no earlier than the next look, and does not come over every file system.
What exists at the start is read from its end on, what comes later from its beginning. A file that lost its name, by
rotation or removal, is read on until it is quiet, and the file that got the name is read after it. A file is read as
far as it reached when it was looked at, so that it is known between which two looks each of its lines was written.
Names are looked for in a thread. Files that are followed are read in the event loop: they must be on a volume that
answers.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from kvpressure.log import RateLimitedLog
from kvpressure.observe.logfile import LogFile
from kvpressure.observe.logfiles import LogFiles
from kvpressure.observe.lognames import Names, Search
from kvpressure.vllm.logs import PROBLEMS
from kvpressure.vllm.stream import LogFacts, StreamSink

POLL = 0.25
"""Seconds from one look at the files to the next."""
SEARCH = 5.0
"""Seconds from one search for new names to the next."""
MAX_BEHIND = 64 * 1024 * 1024
"""Bytes of a file that may wait to be read; where there are more, they are dropped."""
MAX_LAG = 30.0
"""Seconds for which a file may be read without reaching its end; after that, the rest is dropped."""
SETTLE = 0.1
"""Seconds that a line may take from its time to its file."""
REASONS = (*PROBLEMS, "fault", "unreadable")
"""What errors are counted by; a fixed set, for they become values of a label."""

_READ_MOST = 4 * 1024 * 1024  # bytes of one file that are read before the next file has its turn
_DROP_MOST = 256 * 1024 * 1024

_COMPLAINTS = {
    "unknown": "log.path: no line of this file is understood; it must be vLLM's log, as text or JSON, as it is or as a "
    "container runtime stores it, or JSON lines of a gateway with request_id, event and time",
    "no_requests": "log.path: chat requests are answered, but this file tells of none; start vLLM with "
    "--enable-log-requests --enable-log-outputs --enable-log-deltas --max-log-len 0",
    "no_deltas": "log.path: this file tells of answers, but not of their chunks; start vLLM with --enable-log-deltas",
}
_PROBLEMS = {
    "bad_record": "log.path: lines of a gateway were skipped; each needs request_id, event (start, token, end or "
    "abort) and time (seconds since 1970, or RFC 3339)",
    "clock_set": "log.path: the clock of the log was set, or its lines come late; no gap is counted across that",
    "line_too_long": "log.path: lines of more than 1 MiB, or of more than 4096 parts, were skipped",
}

_log = logging.getLogger(__name__)


class LogTail:
    """
    Follows vLLM's log.

    Args:
        paths: names of files, and patterns of names.
        sink: takes the events.
        now: seconds since 1970 that never jump.
    """

    def __init__(self, paths: Sequence[str], sink: StreamSink, now: Callable[[], float]) -> None:
        self._sink = sink
        self._now = now
        self._problems: Counter[str] = Counter()
        self._warnings = RateLimitedLog(_log, clock=now)
        self._files = LogFiles(paths, self._problems, self._warnings)
        self._searched: float | None = None
        self._polled: float | None = None
        self._told: Counter[str] = Counter()
        self._behind = False
        self._lines = 0
        self._dropped = 0
        self._lag: float | None = None
        self._finishing = False

    async def run(self) -> None:
        """
        Follow until cancelled, or until all was read after a call of ``finish``.

        No exception ends it, and the event loop is held for a few milliseconds at a time.
        """
        search = Search(self._files.search)
        try:
            while True:
                finishing = self._finishing
                try:
                    for _ in self.poll(search):
                        await asyncio.sleep(0)
                except Exception as fault:  # noqa: BLE001  # a monitor that dies of its own fault is worse than a gap
                    self._behind = finishing = False
                    self._tell_fault(fault)
                if finishing and not self._behind and self._searched is not None:
                    return
                await asyncio.sleep(0 if self._behind else POLL)
        finally:
            self.close()

    def finish(self) -> None:
        """Have ``run`` return once all is read that was written before this call, in files not found yet too."""
        self._searched = None
        self._finishing = True

    def poll(self, search: Callable[[], Names | None] | None = None) -> Iterator[None]:
        """
        Look at all files once and read what is new in them; it yields wherever others may have their turn.

        Args:
            search: looks for names and gives what it found, or None while it is not done; without it, this waits for
                it.
        """
        before = self._now()
        blind = self._polled is not None and not self._files
        if self._searched is None or before - self._searched >= SEARCH:
            self._search(before, search or self._files.search)
            yield
        if not self._files.searched:
            # Until it is known what exists, it is not known what is to be read from its end on.
            return
        self._files.follow(before, self._polled)
        self._polled = before
        if blind and self._files:
            # Without any file, nothing was seen of anybody.
            self._sink.lose(before)
        # The later of two files first: what the earlier one gets until it is looked at, it got before.
        for file in reversed(tuple(self._files)):
            self._look(file, before)
        yield
        after = self._now()
        for file in self._files:
            try:
                yield from self._catch_up(file, before, after)
            except OSError as fault:
                self._files.give_up(file, fault)
        self._advance(before)
        self._files.retire(before)
        self._complain()

    def facts(self) -> LogFacts:
        """What is known of the log and its reading."""
        return LogFacts(
            files=len(self._files),
            lines=self._lines,
            dropped=self._dropped,
            lag=self._lag,
            errors={reason: self._problems[reason] for reason in REASONS if self._problems[reason]},
        )

    def close(self) -> None:
        """Close all files."""
        self._files.close()

    def _search(self, now: float, search: Callable[[], Names | None]) -> None:
        last, self._searched = self._searched, now
        names = search()
        if names is not None:
            self._files.take(names)
        else:
            self._searched = last

    def _look(self, file: LogFile, now: float) -> None:
        try:
            same = file.look(now)
        except OSError as fault:
            self._files.give_up(file, fault)
            return
        if not same:
            # Nobody knows what was written between the last look and the moment at which it was cut.
            self._sink.lose(now)

    def _catch_up(self, file: LogFile, before: float, after: float) -> Iterator[None]:
        """Read what a file has had at a look that began and ended at these moments."""
        if not self._is_next(file):
            file.since = before if file.done else file.since
            return
        if file.drop_to is None and self._hopeless(file, before):
            file.drop_to = file.goal
        if file.drop_to is not None:
            yield from self._drop(file, file.drop_to)
        end = file.position + _READ_MOST
        while not file.done and file.drop_to is None and file.position < end:
            start = self._now()
            self._read(file, file.read(), after)
            file.took(self._now() - start)
            yield
        if file.done:
            file.since, file.behind = before, None
        elif file.behind is None:
            file.behind = before

    def _is_next(self, file: LogFile) -> bool:
        """Whether the file that had its name before has been read."""
        last = file.predecessor
        if last is None:
            return True
        if file.done or not last.done:
            return False
        file.predecessor = None
        file.reader, file.complained = last.reader.successor(), last.complained
        return True

    def _read(self, file: LogFile, data: bytes, arrival: float) -> None:
        reader = file.reader
        lines = reader.lines
        try:
            batches = reader.read(data, arrival, file.since)
        except Exception:
            # Whatever state it was left in, it would not find its way.
            file.reader = reader.successor()
            file.reader.leap(within_line=True)
            raise
        self._lines += reader.lines - lines
        for batch in batches:
            if batch.lost is not None:
                self._sink.lose(batch.lost)
            self._sink.feed(batch.events)
        if batches and reader.latest is not None:
            self._lag = max(0.0, self._now() - reader.latest)

    def _hopeless(self, file: LogFile, now: float) -> bool:
        """Whether reading a file falls ever further behind."""
        return file.goal - file.position > MAX_BEHIND or (file.behind is not None and now - file.behind > MAX_LAG)

    def _drop(self, file: LogFile, to: int) -> Iterator[None]:
        """Pass what waits to be read, but count its lines."""
        end = min(to, file.position + _DROP_MOST)
        while file.position < end:
            self._dropped += file.drop(to)
            yield
        if file.position < to:
            return
        file.drop_to = file.since = file.behind = None
        self._sink.lose(self._now())
        self._warnings.warning(
            "behind",
            "log.path: lines come faster than they can be read; those that waited were skipped, and no gap goes across",
            file=file.path,
            dropped_so_far=self._dropped,
        )

    def _advance(self, before: float) -> None:
        """Tell the sink up to when it has everything."""
        files = tuple(self._files)
        behind = [file.reader.latest for file in files if not file.done]
        self._behind = bool(behind)
        if self._blind(files):
            # That nothing is written, or read, is not that nobody gets anything.
            self._sink.lose(before)
            return
        late = max((file.reader.clock.late(before) for file in files), default=0.0)
        # Without a file there is no silence either: then nobody knows.
        known = [t for t in behind if t is not None]
        if files and len(known) == len(behind):
            self._sink.advance(min((before - SETTLE, *known)) - late)

    def _blind(self, files: Sequence[LogFile]) -> bool:
        """Whether vLLM cannot write its log, or we may not read it where it goes on."""
        stuck = [file.path for file in files if file.is_stuck()]
        if stuck and not any(file.longer for file in files):
            self._warnings.warning(
                "disk_full",
                "log.path: the disk of this file is full; no pause is counted while nothing can be written there",
                file=stuck[0],
            )
            return True
        return bool(files) and self._files.blind

    def _complain(self) -> None:
        """Tell what a user should change, each thing once for a file and at most once a minute."""
        for file in self._files:
            complaint = file.reader.findings.complaint
            if complaint is not None and not file.complained:
                file.complained = self._warnings.warning(complaint, _COMPLAINTS[complaint], file=file.path)
        for reason, message in _PROBLEMS.items():
            count = self._problems[reason] - self._told[reason]
            if count and self._warnings.warning(reason, message, count=count):
                self._told[reason] += count

    def _tell_fault(self, fault: Exception) -> None:
        self._problems["fault"] += 1
        self._sink.lose(self._now())
        self._warnings.fault("a fault in kvpressure lost a part of the log; please report it", fault)
