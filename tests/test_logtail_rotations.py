"""Whatever order lines, rotations and looks come in, every complete line is read, once, and in the order of writing."""

import itertools
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from logtail_help import Followed

from kvpressure.observe.logfile import SAME_HEAD
from kvpressure.observe.logtail import SEARCH


class Writer(RuleBasedStateMachine):
    """A writer whose file is rotated in all ways, and a tail beside it."""

    PATTERN = "a.log"

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        (self.folder / "a.log").touch()
        self.file = (self.folder / "a.log").open("ab", buffering=0)
        self.log = Followed(self.folder, self.PATTERN)
        self.log.poll()
        self.numbers = itertools.count()
        self.rotations = itertools.count(1)
        self.half = b""
        self.written = []
        self.rotated = self.nameless = False

    def teardown(self):
        try:
            if self.half:
                self.finish()
            self.look()
            self.log.poll(2, SEARCH)
            assert self.log.sink.requests == self.written
            assert self.log.facts.dropped == 0
            # A line that took a minute to write looks like a clock that was set.
            assert set(self.log.facts.errors) <= {"clock_set"}
        finally:
            self.file.close()
            self.log.tail.close()
            shutil.rmtree(self.folder)

    @rule(count=st.integers(1, 300))
    def lines(self, count):
        """Write lines."""
        if self.half:
            self.finish()
        requests = [f"r{next(self.numbers)}" for _ in range(count)]
        self.file.write(b"".join(map(self.log.line, requests)))
        self.written += requests

    @precondition(lambda self: not self.half)
    @rule(length=st.integers(1, 40))
    def begin(self, length):
        """Write the beginning of a line."""
        self.request = f"r{next(self.numbers)}"
        line = self.log.line(self.request)
        self.file.write(line[:length])
        self.half = line[length:]

    @precondition(lambda self: self.half)
    @rule()
    def finish(self):
        """Write the rest of it."""
        self.file.write(self.half)
        self.half = b""
        self.written.append(self.request)

    @rule()
    def look(self):
        """Look at the files."""
        self.log.poll()
        self.rotated = False

    @precondition(lambda self: not self.nameless)
    @rule(seconds=st.sampled_from([SEARCH, 70.0]))
    def look_after_a_while(self, seconds):
        """Look at the files when some time has passed: a file at rest without a name is given up after a minute."""
        self.log.poll(seconds=seconds)
        self.rotated = False

    @precondition(lambda self: not self.rotated and not self.nameless)
    @rule()
    def rename(self):
        """The file is renamed; its writer does not know yet."""
        (self.folder / "a.log").rename(self.folder / f"a.log.{next(self.rotations)}")
        self.nameless = True

    @precondition(lambda self: not self.rotated and not self.nameless)
    @rule()
    def remove(self):
        """The file is removed; its writer does not know yet."""
        (self.folder / "a.log").unlink()
        self.nameless = True

    @precondition(lambda self: self.nameless)
    @rule()
    def reopen(self):
        """The writer goes on in a new file, which may have the inode of one that was removed."""
        if self.half:
            self.finish()
        self.file.close()
        self.file = (self.folder / "a.log").open("ab", buffering=0)
        self.nameless, self.rotated = False, True

    @precondition(lambda self: not self.half and not self.nameless and self.file.tell() >= SAME_HEAD)
    @rule()
    def copy(self):
        """The file is copied and cut; the writer waits for that, and for the tail to have read everything."""
        self.look()
        shutil.copy(self.folder / "a.log", self.folder / f"a.log.{next(self.rotations)}")
        os.truncate(self.folder / "a.log", 0)
        self.file.seek(0)


class PatternWriter(Writer):
    """The same, where the names of rotated files and of copies match too."""

    PATTERN = "*.log*"


@pytest.mark.parametrize("machine", [Writer, PatternWriter])
def test_every_line_is_read_once(machine):
    """No interleaving of lines, rotations and looks loses a complete line, repeats one or changes their order."""
    case = machine.TestCase
    case.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
    case().runTest()
