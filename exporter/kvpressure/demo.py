"""`kvpressure demo`: the lab under a scenario and the sidecar beside it, and a line every few seconds."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import requests

from kvpressure.tables import number

_HOST = "127.0.0.1"
_START_SECONDS = 30.0
_STOP_SECONDS = 5.0
_ASK_SECONDS = 5.0


class DemoError(RuntimeError):
    """The demo cannot go on; the message is one sentence."""


def run(scenario: str, seed: int, every: float, lab_port: int, port: int) -> None:
    """
    Run until SIGINT or SIGTERM, then stop both processes.

    Args:
        scenario: what the lab plays.
        seed: of the lab's users.
        every: seconds between two lines.
        lab_port: where the lab should listen; a free port where it is taken.
        port: the same for the sidecar.

    Raises:
        DemoError: one of the two did not start, or ended by itself.
    """
    lab_port, port = _free(lab_port), _free(port)
    lab, sidecar = f"http://{_HOST}:{lab_port}", f"http://{_HOST}:{port}"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    play = ("lab", "--scenario", scenario, "--seed", str(seed), "--web.listen-address", f"{_HOST}:{lab_port}")
    watch = ("serve", "--vllm.url", f"{lab}/metrics", "--web.listen-address", f"{_HOST}:{port}", "--log.level", "warn")
    with contextlib.suppress(KeyboardInterrupt), _process(*play) as stand_in:
        _wait_for(f"{lab}/health", stand_in)
        with _process(*watch) as exporter:
            _wait_for(f"{sidecar}/-/ready", exporter)
            _say(f"vLLM stand-in (scenario {scenario}): {lab}/metrics")
            _say(f"kvpressure: {sidecar}/metrics, and its page {sidecar}/")
            _say("Ctrl-C stops both.\n")
            while True:
                time.sleep(every)
                for process in (stand_in, exporter):
                    if process.poll() is not None:
                        raise DemoError(f"a process of the demo ended by itself with status {process.returncode}")
                _say(_line(sidecar))
    _say("\nstopped")


def line_of(engine: dict[str, Any]) -> str:
    """
    One readable line of the headline signals of an engine.

    Args:
        engine: as in ``/api/v1/state``.
    """
    window: dict[str, Any] = next(iter(engine["windows"]), {})
    pinned, p99 = window.get("pinned_ratio"), window.get("gap_p99_seconds")
    return "  ".join(
        (
            f"{engine['verdict']:15s} {engine['regime']:7s}",
            f"preempt/1k {number(window.get('preemptions_per_thousand'), 3):>5s}",
            f"pinned {'-' if pinned is None else f'{pinned:.0%}':>4s}",
            f"gap p99 {'-' if p99 is None else f'{p99:.2f}s':>6s}",
            f"gaps>1s/1k {number(window.get('long_gaps_per_thousand'), 3):>5s}",
            f"run {number(engine['running']):>3s}",
            f"wait {number(engine['waiting']):>3s}",
        )
    )


def _line(sidecar: str) -> str:
    now = time.strftime("%H:%M:%S")
    try:
        engines = requests.get(f"{sidecar}/api/v1/state", timeout=_ASK_SECONDS).json()["engines"]
    except (requests.RequestException, ValueError):
        return f"{now}  the sidecar did not answer"
    return "\n".join(f"{now}  {line_of(engine)}" for engine in engines) or f"{now}  no engine seen yet"


def _free(port: int) -> int:
    """The port itself, or another one where it is taken."""
    for wanted in (port, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((_HOST, wanted))
            return int(probe.getsockname()[1])
    raise DemoError(f"no port is free on {_HOST}")


@contextlib.contextmanager
def _process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of kvpressure in a session of its own, so that Ctrl-C reaches it only by us."""
    command: Sequence[str] = (sys.executable, "-m", "kvpressure", *words)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise DemoError(f"the process behind {url} ended with status {process.returncode}")
        with contextlib.suppress(requests.RequestException):
            if requests.get(url, timeout=1).ok:
                return
        time.sleep(0.1)
    raise DemoError(f"{url} did not answer within {_START_SECONDS:g} s")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
