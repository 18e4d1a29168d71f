"""Run kvpressure's own commands in tests, as a user would."""

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

ENVIRONMENT = {**os.environ, "COLUMNS": "100", "PYTHONWARNINGS": "error"}


def kvpressure(*words: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "kvpressure", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout, env=ENVIRONMENT)


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Running:
    """A command that runs until the test ends it."""

    process: subprocess.Popen[str]
    url: str
    stopped_in: float = 0.0
    stderr: str = ""

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit status."""
        began = time.monotonic()
        self.process.send_signal(number)
        _, self.stderr = self.process.communicate(timeout=10)
        self.stopped_in = time.monotonic() - began
        return self.process.returncode


@contextlib.contextmanager
def running(name: str, *words: str, ready: str, port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Running]:
    """A command that listens on a free port, from when its path `ready` answers until the block ends."""
    port = port or free_port()
    command = [sys.executable, "-m", "kvpressure", name, "--web.listen-address", f"127.0.0.1:{port}", *words]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        command_running = Running(process, f"{'https' if tls else 'http'}://127.0.0.1:{port}")
        try:
            wait_for(lambda: get(command_running.url + ready, tls=tls)[0] == 200, 20)
            yield command_running
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()


def get(url: str, headers: dict[str, str] | None = None, tls: ssl.SSLContext | None = None) -> tuple[int, str]:
    """Status and body; status 0 where nobody answers."""
    request = urllib.request.Request(url, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=5, context=tls) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as fault:
        with fault:
            return fault.code, fault.read().decode()
    except OSError:
        return 0, ""


def wait_for(true: object, seconds: float) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)
