"""`kvpressure demo`: the lab, the sidecar with its tap, users who ask through the tap, and a line every few seconds."""

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


def run(  # noqa: PLR0913  # each is a flag
    scenario: str, seed: int, every: float, lab_port: int, port: int, *, tap_port: int = 8001
) -> None:
    """
    Run until SIGINT or SIGTERM, then stop all processes, the last one started first.

    Args:
        scenario: what the users play, on the lab that it belongs to.
        seed: of the users.
        every: seconds between two lines.
        lab_port: where the lab should listen; a free port where it is taken.
        port: the same for the sidecar.
        tap_port: the same for its tap.

    Raises:
        DemoError: one of them did not start, or ended by itself.
    """
    lab_at, tap_at, sidecar_at = _addresses(lab_port, tap_port, port)
    lab, tap, sidecar = (f"http://{address}" for address in (lab_at, tap_at, sidecar_at))
    play = ("--scenario", scenario, "--seed", str(seed))
    serve = ("lab", *play, "--no-load", "--web.listen-address", lab_at)
    tapped = ("--tap.listen", tap_at, "--tap.upstream", lab)
    watch = ("serve", "--vllm.url", f"{lab}/metrics", "--web.listen-address", sidecar_at, "--log.level", "warn")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as running:
        processes = [running.enter_context(_process(*serve))]
        _wait_for(f"{lab}/health", processes[-1])
        processes.append(running.enter_context(_process(*watch, *tapped)))
        _wait_for(f"{sidecar}/-/ready", processes[-1])
        _wait_for(f"{tap}/health", processes[-1])
        processes.append(running.enter_context(_process("lab", "--users", tap, *play)))
        _say(f"vLLM stand-in (scenario {scenario}): {lab}/metrics")
        _say(f"tap in front of it: {tap} (send your own requests here: {tap}/v1/chat/completions)")
        _say(f"kvpressure: {sidecar}/metrics, and its page {sidecar}/")
        _say("Ctrl-C stops all.\n")
        while True:
            time.sleep(every)
            for process in processes:
                if process.poll() is not None:
                    raise DemoError(f"a process of the demo ended by itself with status {process.returncode}")
            _say(_lines(sidecar))
    _say("\nstopped")


def line_of(engine: dict[str, Any], streams: Sequence[dict[str, Any]] = ()) -> str:
    """
    One readable line of the headline signals of an engine and of the users of its model.

    Args:
        engine: as in ``/api/v1/state``.
        streams: the same, of which those of the tap count.
    """
    seen = next((s for s in streams if s["source"] == "tap" and s["model_name"] == engine["model_name"]), None)
    window, tap = _minute(engine), _minute(seen or {})
    pinned, paused, p99 = window.get("pinned_ratio"), tap.get("paused_ratio"), tap.get("gap_p99_seconds")
    if p99 is None:
        p99 = window.get("gap_p99_seconds")
    return "  ".join(
        (
            f"{engine['verdict']:15s} {engine['regime']:7s}",
            f"preempt/1k {number(window.get('preemptions_per_thousand'), 3):>5s}",
            f"pinned {_percent(pinned):>4s}",
            f"gap p99 {'-' if p99 is None else f'{p99:.2f}s':>6s}",
            f"paused {_percent(paused):>4s}",
            f"run {number(engine['running']):>3s}",
            f"wait {number(engine['waiting']):>3s}",
        )
    )


def _minute(of: dict[str, Any]) -> dict[str, Any]:
    """The shortest window, or nothing where there is none yet."""
    return next(iter(of.get("windows", ())), {})


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.0%}"


def _lines(sidecar: str) -> str:
    now = time.strftime("%H:%M:%S")
    try:
        state = _get(f"{sidecar}/api/v1/state", _ASK_SECONDS).json()
    except (requests.RequestException, ValueError):
        return f"{now}  the sidecar did not answer"
    lines = [f"{now}  {line_of(engine, state['streams'])}" for engine in state["engines"]]
    return "\n".join(lines) or f"{now}  no engine seen yet"


def _addresses(*ports: int) -> list[str]:
    """An address on each port, or on another one where it is taken."""
    with contextlib.ExitStack() as held:
        # All are held until the last one is found, so that no two are the same.
        found = [held.enter_context(_listener(port)) for port in ports]
        return [f"{_HOST}:{listener.getsockname()[1]}" for listener in found]


def _listener(port: int) -> socket.socket:
    """A socket that listens on the port itself, or on another one where it is taken."""
    for wanted in (port, 0):
        with contextlib.suppress(OSError, OverflowError):
            return socket.create_server((_HOST, wanted))
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
            if _get(url, 1.0).ok:
                return
        time.sleep(0.1)
    raise DemoError(f"{url} did not answer within {_START_SECONDS:g} s")


def _get(url: str, seconds: float) -> requests.Response:
    """An answer of one of the demo's own processes, which no proxy of the environment reaches."""
    with requests.Session() as session:
        session.trust_env = False
        return session.get(url, timeout=seconds)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
