"""A million lines of a container's log: kvpressure's reader against mtail, which is made for counting log lines."""

import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

from bench.measure import Spread, ratio
from bench.results import Row

GOAL = 3.0
"""Times as many lines per second as the peer, each on one core, from the start of its process to its end."""

_ROUNDS = 3
_DELTAS = 1_000_000
_RUNNING = 50
_MTAIL = Path(__file__).parents[1] / ".cache" / "mtail" / "usr" / "bin" / "mtail"

# The peer does what we do, no more: it counts deltas, those that end an answer, and aborts.
_COUNTING = {
    "deltas.mtail": r"""
counter deltas_total
/Generated response \S+ \(streaming delta\)/ {
  deltas_total++
}
""",
    "ends.mtail": r"""
counter last_total
counter aborted_total
/\(streaming delta\): .* finish_reason: [^N]\w*$/ {
  last_total++
}
/Aborted request/ {
  aborted_total++
}
""",
}
# And here it finds the gap of each delta to the one before of its request, by the runtime's clock.
_GAPS = {
    "gaps.mtail": r"""
hidden gauge latest by id
histogram gap_seconds buckets 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10
counter gaps_total
/^(?P<date>\S+) stdout F .* Generated response (?P<id>\S+) \(streaming delta\): .*, finish_reason: (?P<why>\w+)$/ {
  strptime($date, "2006-01-02T15:04:05.999999999Z07:00")
  latest[$id] > 0 {
    gap_seconds = timestamp() - latest[$id]
    gaps_total++
  }
  latest[$id] = timestamp()
  $why != "None" {
    del latest[$id]
  }
}
"""
}


def run() -> list[Row]:
    """
    Counting against counting, and gaps against gaps, in turn and over the same file.

    Raises:
        RuntimeError: there is no mtail, or it found something else than we did.
    """
    mtail = shutil.which("mtail") or (str(_MTAIL) if _MTAIL.exists() else None)
    if mtail is None:
        raise RuntimeError("there is no mtail: run make mtail, or install the package mtail")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "vllm.log"
        with log.open("wb") as file:
            expected = write(file, _DELTAS)
        commands = {
            "counting": [sys.executable, "-m", "bench.logfeeder", str(log)],
            "mtail counting": _mtail(mtail, Path(folder) / "counting", _COUNTING, log),
            "gaps": [sys.executable, "-m", "bench.logfeeder", str(log), "gaps"],
            "mtail gaps": _mtail(mtail, Path(folder) / "gaps", _GAPS, log),
        }
        for name, command in commands.items():
            _check(name, _output(command)[1], expected)
        cpu: dict[str, list[float]] = {name: [] for name in commands}
        wall: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(_ROUNDS):
            for name, command in commands.items():
                start = time.perf_counter()
                cpu[name].append(_output(command)[0])
                wall[name].append(time.perf_counter() - start)
    lines = expected["lines"]
    return [
        _row(
            f"read a log of {lines / 1e6:.2f} million lines: count deltas and ends, against mtail",
            "counting",
            cpu,
            wall,
            lines,
        ),
        _row("the same: time them, gaps per request, against mtail", "gaps", cpu, wall, lines),
    ]


def write(file: IO[bytes], deltas: int) -> dict[str, int]:
    """
    Write a log like that of a real vLLM behind a container runtime, with some 50 requests at a time.

    Returns:
        How many lines it has, how many of them are deltas, last deltas and aborts, and how many gaps deltas make.
    """
    chance = random.Random(1)  # noqa: S311  # the same log each time
    counts = {"lines": 0, "deltas": 0, "last": 0, "aborted": 0, "gaps": 0}
    running: dict[int, int] = {}
    begun: set[int] = set()
    request = 0
    clock = 1796022992.0
    lines: list[str] = []

    def say(place: str, message: str) -> None:
        nonlocal clock
        clock += chance.uniform(5e-5, 2e-4)
        lines.append(framed(clock, place, message))
        counts["lines"] += 1

    while counts["deltas"] < deltas:
        while len(running) < _RUNNING:
            request += 1
            running[request] = chance.randint(20, 400)
            say("request_logger.py:65", f"Received request chatcmpl-r{request}: params: {_PARAMS}, lora_request: None.")
            say("async_llm.py:578", f"Added request chatcmpl-r{request}-{chance.getrandbits(32):08x}.")
        clock += 0.02
        for number in sorted(running):
            running[number] -= 1
            reason = "None" if running[number] else "length"
            counts["deltas"] += 1
            counts["gaps"] += number in begun
            begun.add(number)
            name = f"chatcmpl-r{number}"
            say(_GENERATED, _delta(name, reason))
            if not running[number]:
                counts["last"] += 1
                say(
                    _GENERATED,
                    f"Generated response {name} (streaming complete): output: '', finish_reason: {_COMPLETE}",
                )
                del running[number]
            elif chance.random() < 1e-5:
                counts["aborted"] += 1
                say("async_llm.py:820", f"Aborted request(s) {name}-{chance.getrandbits(32):08x}.")
                del running[number]
        if len(lines) > 10_000:
            file.write("".join(lines).encode())
            lines.clear()
    file.write("".join(lines).encode())
    return counts


def framed(clock: float, place: str, message: str) -> str:
    """A line of vLLM's, as a container runtime writes it down at a moment."""
    second = time.strftime("%m-%d %H:%M:%S", time.gmtime(clock))
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(clock)) + f"{clock % 1:.6f}"[1:]
    return f"{stamp}000Z stdout F (APIServer pid=14704) INFO {second} [{place}] {message}\n"


def delta(clock: float, request: str, reason: str) -> str:
    """The line of one streamed delta; `reason` is why it was the last one, or ``None``."""
    return framed(clock, _GENERATED, _delta(request, reason))


def _delta(request: str, reason: str) -> str:
    return f"Generated response {request} (streaming delta): output: '', finish_reason: {reason}"


_GENERATED = "request_logger.py:108"
_COMPLETE = "streaming_complete"
_PARAMS = "SamplingParams(n=1, temperature=1.0, top_p=1.0, stop=[], ignore_eos=True, max_tokens=157, min_tokens=0)"


def _mtail(mtail: str, folder: Path, programs: Mapping[str, str], log: Path) -> list[str]:
    """The command that runs some programs over a file once."""
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [mtail, "--one_shot", "--progs", str(folder), "--logs", str(log)]


def _output(command: Sequence[str]) -> tuple[float, str]:
    """CPU seconds of a command that has one core, and what it printed."""
    pinned = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if shutil.which("taskset") else []
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            [*pinned, *command], stdout=out, stderr=subprocess.DEVNULL, env=os.environ | {"GOMAXPROCS": "1"}
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if status:
            raise RuntimeError(f"{Path(command[0]).name} ended with status {process.returncode}")
        out.seek(0)
        return used.ru_utime + used.ru_stime, out.read().decode()


def _check(name: str, output: str, expected: Mapping[str, int]) -> None:
    """All must find what is in the log: whoever is fast and wrong wins nothing."""
    if name.startswith("mtail"):
        found = {
            label: int(value) for label, value in re.findall(r'"(\w+)_total": \[.*?"Value": (\d+),', output, re.DOTALL)
        }
    else:
        found = json.loads(output)
    wrong = {label for label in found if label in expected and found[label] != expected[label]}
    if wrong or not set(found) & set(expected):
        raise RuntimeError(f"{name} finds other numbers than there are in the log: {found}, not {dict(expected)}")


def _row(what: str, name: str, cpu: Mapping[str, list[float]], wall: Mapping[str, list[float]], lines: int) -> Row:
    ours, peer = (Spread.of([lines / seconds for seconds in cpu[who]]) for who in (name, f"mtail {name}"))
    times = ratio(cpu[f"mtail {name}"], cpu[name])
    return Row(
        what,
        ours.text(1e-3, "k lines/s", 0),
        peer.text(1e-3, "k lines/s", 0),
        times.text(1, "x as fast", 1),
        f"at least {GOAL:g}x",
        times.median >= GOAL,
        {
            "lines": lines,
            "ours_lines_per_cpu_second": asdict(ours),
            "peer_lines_per_cpu_second": asdict(peer),
            "times_as_fast": asdict(times),
            "ours_wall_seconds": statistics.median(wall[name]),
            "peer_wall_seconds": statistics.median(wall[f"mtail {name}"]),
        },
    )
