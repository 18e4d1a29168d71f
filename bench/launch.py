"""Processes that a benchmark starts: fresh interpreters, and how to know that they are there."""

import contextlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

_START_WITHIN = 20.0  # seconds


@contextlib.contextmanager
def interpreter(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A fresh interpreter, gone at the end."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=15)


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


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_ready(url: str) -> None:
    """
    Wait until a URL answers.

    Raises:
        RuntimeError: it did not in time.
    """
    deadline = time.monotonic() + _START_WITHIN
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(url, timeout=1):  # noqa: S310  # our own
            return
        time.sleep(0.1)
    raise RuntimeError("kvpressure serve did not get ready")
