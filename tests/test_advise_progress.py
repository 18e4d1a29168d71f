"""The progress line, on a real pseudo-terminal and without one."""

import os
import pty
import re
import subprocess
import sys
import termios

import pytest

from kvpressure.advise.progress import Progress

PROGRAM = (
    "from kvpressure.advise.progress import Progress\n"
    "import time\n"
    "with Progress('Simulating', 40) as progress:\n"
    "    for _ in range(20):\n"
    "        time.sleep(0.02)\n"
    "        progress.step(n=2)\n"
    "print('done')\n"
)


@pytest.fixture
def terminal():
    """A terminal of 60 columns: what is written to its end `inner` is read at `outer`."""
    outer, inner = pty.openpty()
    termios.tcsetwinsize(inner, (24, 60))
    yield outer, inner
    for end in (outer, inner):
        os.close(end)


def test_a_line_on_a_terminal_that_clears_itself(terminal):
    """stderr shows a bar, a count and the time left on one line, ends cleared; stdout has nothing of it."""
    outer, inner = terminal
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, stdout=subprocess.PIPE, stderr=inner, text=True)
    said = os.read(outer, 65536).decode()

    assert "done\n" == done.stdout
    assert "\n" not in said
    lines = said.split("\r\x1b[K")
    assert "" == lines[-1]
    assert "Simulating [....................] 0/40" == lines[1]
    assert "Simulating [####################] 40/40" == lines[-2]
    assert any(re.fullmatch(r"Simulating \[#+\.+\] \d+/40, \d+ s left", line) for line in lines)
    assert max(map(len, lines)) < 60


def test_nothing_where_there_is_no_terminal():
    """With stderr in a pipe, not a byte is written to it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)

    assert ("done\n", "") == (done.stdout, done.stderr)


def test_without_stderr():
    """A program whose stderr is closed works as well."""
    done = subprocess.run(["sh", "-c", f'exec {sys.executable} -c "$1" 2>&-', "sh", PROGRAM], check=True, stdout=-1)

    assert b"done\n" == done.stdout


def test_a_narrow_terminal(terminal):
    """The line never reaches the edge, where the terminal would break it and it could not be cleared."""
    outer, inner = terminal
    termios.tcsetwinsize(inner, (24, 20))
    with os.fdopen(os.dup(inner), "w") as out, Progress("Simulating", 2, out) as progress:
        progress.step()
        progress.step()
    said = os.read(outer, 65536).decode()

    assert {19} == {len(line) for line in said.split("\r\x1b[K") if line}


def test_it_clears_itself_where_the_work_fails(terminal):
    """An error passes through, and leaves no half line behind."""
    outer, inner = terminal
    with os.fdopen(os.dup(inner), "w") as out, pytest.raises(ZeroDivisionError):
        _failing(out)
    assert os.read(outer, 65536).decode().endswith("\r\x1b[K")


def test_more_steps_than_were_told(terminal):
    """Steps beyond the end, or a total of 0, do no harm."""
    outer, inner = terminal
    with os.fdopen(os.dup(inner), "w") as out, Progress("Simulating", 0, out) as progress:
        progress.step(5)
    assert "1/1" in os.read(outer, 65536).decode()


def _failing(out):
    with Progress("Simulating", 3, out) as progress:
        progress.step(1 // 0)
