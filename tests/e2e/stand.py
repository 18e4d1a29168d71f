"""The processes of an experiment: a real vLLM on loopback, and sidecars beside it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from commands import free_port

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRATCH = ROOT / ".cache" / "e2e" / "scratch"
"""Where servers write what they print and log."""
LOGGING = ROOT / "deploy" / "kubernetes" / "parts" / "log" / "vllm-logging.json"
"""The logging configuration that goes into pods; so it is tried here too."""
DELTAS = ("--enable-log-requests", "--enable-log-outputs", "--enable-log-deltas", "--max-log-len", "0")
"""What makes vLLM log every chunk, without its text."""
BLOCK = 32
"""Tokens per block: vLLM's CPU attention wants a multiple of it."""
BATCHED = 2048
"""Tokens that vLLM's CPU build computes in a step at most, by default."""

SLOWER = ("--hf-overrides", json.dumps({"num_hidden_layers": 32}))
"""
More layers than the tiny model has, for a step of some 15 ms: what limits vLLM is its engine then, as with a GPU, and
no longer its front end, which would stand still now and then for want of a core.
"""

_START_SECONDS = 180.0
_STOP_SECONDS = 60.0
# Half a second, where a core is free; vLLM leaves none here.
_SIDECAR_SECONDS = 90.0


class StandError(RuntimeError):
    """The experiment cannot go on; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Server:
    """
    What a vLLM is started with.

    Args:
        blocks: KV blocks of 32 tokens.
        length: the longest request, in tokens; must fit into the blocks.
        seqs: most requests that run at once.
        log: log every chunk into a file of its own.
        stamp: what lines on stdout begin with; empty for what vLLM prints by itself.
        flags: further ones of `vllm serve`.
    """

    blocks: int
    length: int = 1024
    seqs: int = 256
    log: bool = True
    stamp: str = ""
    flags: tuple[str, ...] = ()


@dataclass(slots=True)
class Vllm:
    """
    A vLLM that answers.

    Args:
        url: where it listens.
        process: the whole of it, in a session of its own.
        stdout: the file with what it prints.
        requests: the file with its request log.
    """

    url: str
    process: subprocess.Popen[bytes]
    stdout: Path
    requests: Path

    def metrics(self) -> dict[str, float]:
        """The sum of each of its series over labels, by name: enough for counters of one engine."""
        sums: dict[str, float] = {}
        for line in requests.get(f"{self.url}/metrics", timeout=30).text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.partition("{")[0].split(" ")[0], float(line.rsplit(" ", 1)[1])
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def cpu_seconds(self) -> float:
        """CPU time that its processes have used so far."""
        own = subprocess.run(["ps", "-o", "pid=", "-s", str(self.process.pid)], capture_output=True, check=True)
        return sum(_cpu_seconds(int(pid)) for pid in own.stdout.split())


@dataclass(slots=True)
class Sidecar:
    """
    A kvpressure that answers.

    Args:
        url: where it listens.
        tap: where its tap listens; empty where it has none.
        process: it.
    """

    url: str
    tap: str
    process: subprocess.Popen[bytes]

    def state(self) -> dict[str, Any]:
        """Its state now."""
        state: dict[str, Any] = requests.get(f"{self.url}/api/v1/state", timeout=10).json()
        return state

    def metrics(self) -> str:
        """Its exposition now."""
        return requests.get(f"{self.url}/metrics", timeout=10).text

    def cpu_seconds(self) -> float:
        """CPU time that it has used so far."""
        return _cpu_seconds(self.process.pid)

    def value(self, name: str) -> float:
        """A number of its exposition that has no labels."""
        return next(float(line.split()[1]) for line in self.metrics().splitlines() if line.startswith(f"{name} "))


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def vllm(home: Path, server: Server, scratch: Path) -> Iterator[Vllm]:
    """
    Start a vLLM and stop it at the end of the block.

    Args:
        home: what setup.sh made.
        server: its settings.
        scratch: a folder for its logs; what is in it of an earlier server is removed.

    Raises:
        StandError: it did not start within three minutes.
    """
    # Asked to end, a command stops its vLLM first: in a session of its own it would go on, and keep the machine busy.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    scratch.mkdir(parents=True, exist_ok=True)
    stdout, log, config = scratch / "vllm.log", scratch / "requests.log", scratch / "logging.json"
    for old in (stdout, log, log.with_suffix(".log.1")):
        old.unlink(missing_ok=True)
    environment = dict(os.environ)
    if server.log or server.stamp:
        config.write_text(json.dumps(_logging(log, server.stamp)), encoding="utf-8")
        environment["VLLM_LOGGING_CONFIG_PATH"] = str(config)
    port = free_port()
    command = [str(HERE / "serve.sh"), str(home), str(port), str(server.blocks), str(server.length), str(server.seqs)]
    with stdout.open("wb") as out:
        process = subprocess.Popen(
            [*command, *(DELTAS if server.log else ()), *server.flags],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(f"{url}/health", process, _START_SECONDS, f"vLLM did not start; see {stdout}")
        yield Vllm(url, process, stdout, log)
    finally:
        _stop_session(process)


def keep_time(process: int = 0) -> None:
    """
    Let a process run whenever it can, if we may: whoever tells the time of tokens must not wait for a core.

    vLLM's processes spin on both cores of a small machine, and the others then stand still for half a second at a time.
    That is this machine's affair; a host of vLLM has a hundred cores.

    Args:
        process: its number; 0 for this one. What it starts later is as before.
    """
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(process, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


@contextlib.contextmanager
def sidecar(
    server: Vllm,
    *flags: str,
    tap: bool = False,
    log: bool = False,
    interval: float = 1.0,
    timely: bool = True,
) -> Iterator[Sidecar]:
    """
    Start a kvpressure beside a vLLM and stop it at the end of the block.

    Args:
        server: what it watches.
        flags: further ones of `kvpressure serve`.
        tap: let it listen for users.
        log: let it follow the request log.
        interval: seconds between samples.
        timely: see `keep_time`.

    Raises:
        StandError: it did not start.
    """
    web, port = free_port(), free_port()
    words = ["--vllm.url", f"{server.url}/metrics", "--web.listen-address", f"127.0.0.1:{web}", "--log.level", "warn"]
    words += ["--sample.interval", f"{interval:g}s"]
    if tap:
        words += ["--tap.listen", f"127.0.0.1:{port}", "--tap.upstream", server.url]
    if log:
        words += ["--log.path", str(server.requests)]
    process = subprocess.Popen([sys.executable, "-m", "kvpressure", "serve", *words, *flags])
    url = f"http://127.0.0.1:{web}"
    try:
        _wait(f"{url}/-/ready", process, _SIDECAR_SECONDS, "kvpressure did not start")
        if timely:
            keep_time(process.pid)
        yield Sidecar(url, f"http://127.0.0.1:{port}" if tap else "", process)
    finally:
        process.terminate()
        try:
            process.wait(_SIDECAR_SECONDS)
        finally:
            process.kill()


def _logging(path: Path, stamp: str) -> Mapping[str, Any]:
    """The pods' logging configuration, with another file, and with a stamp on what goes to stdout."""
    config: dict[str, Any] = json.loads(LOGGING.read_text(encoding="utf-8"))
    config["handlers"]["requests"]["filename"] = str(path)
    console = config["formatters"]["console"]
    console["format"] = f"{stamp} {console['format']}".lstrip()
    return config


def _wait(url: str, process: subprocess.Popen[bytes], seconds: float, otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(requests.RequestException):
            if requests.get(url, timeout=1).ok:
                return
        time.sleep(0.25)
    why = "it did not answer" if process.poll() is None else f"it ended with status {process.returncode}"
    raise StandError(f"{otherwise}: {why}")


def _stop_session(process: subprocess.Popen[bytes]) -> None:
    """vLLM is several processes; all of them are in one session."""
    try:
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(_STOP_SECONDS)
    finally:
        # Also where somebody is too impatient to wait.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
