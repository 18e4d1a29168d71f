"""Processes that a benchmark starts: fresh interpreters, and how to know that they are there."""

import contextlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

_START_WITHIN = 60.0  # seconds
_UNPACKED = Path(__file__).parents[1] / ".cache"
_PLACES = ("tools/usr/bin", "containers/debian/usr/bin")  # where the Makefile unpacks Debian's packages


@contextlib.contextmanager
def interpreter(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A fresh interpreter, gone at the end."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    """
    The next line that a process says.

    Raises:
        RuntimeError: it ended instead.
    """
    line = process.stdout.readline().strip() if process.stdout else ""
    if not line:
        raise RuntimeError("a process of the benchmark did not do its work")
    return line


@contextlib.contextmanager
def relay(upstream: int) -> Iterator[tuple[int, int]]:
    """The port and the process of a relay on asyncio that passes bytes on to an upstream and reads nothing."""
    with interpreter("-m", "bench.relay", str(upstream)) as process:
        yield int(first_line(process)), process.pid


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def find_tool(name: str) -> Path:
    """
    A program of the peers, installed or unpacked by the Makefile.

    Raises:
        RuntimeError: there is none.
    """
    installed = shutil.which(name)
    found = [Path(installed)] if installed else []
    found += [path for place in _PLACES if (path := _UNPACKED / place / name).exists()]
    if not found:
        raise RuntimeError(
            f"there is no {name}: install the package that has it (for the peers' programs also: make tools)"
        )
    return found[0]


def wait_ready(url: str) -> None:
    """
    Wait until a URL answers.

    Raises:
        RuntimeError: it did not in time.
    """
    deadline = time.monotonic() + _START_WITHIN
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1):  # noqa: S310  # our own
            return
        time.sleep(0.1)
    raise RuntimeError(f"{url} did not answer in time")
