"""
``python -m tests.e2e.cost HOME``: what being watched costs vLLM, in throughput and in inter-token p99.

vLLM is kept busy without a pause, and watched in one way after the other, a second each, round after round: all
sidecars are there, and all but one stand still. The request log cannot be switched while vLLM runs: there are two
servers then, and one of them stands still. Every slice is held against that of its own round in which nobody watched.
Printed is the mean of these ratios and its 95 % interval (Student's t of logarithms).

The model has more layers than in the experiments, so that the engine is what limits vLLM, as it is with a GPU, and not
its front end. On two full cores throughput comes and goes by some percent from second to second; so it is also told how
much CPU time a sample takes: of vLLM, which renders, and of the sidecar.
"""

import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from kvpressure import tables
from kvpressure.signals_exporter import SAMPLES

from . import play, shared
from .busy import Slice, Users
from .stand import ROOT, SCRATCH, SLOWER, Server, Sidecar, Vllm, sidecar, vllm

RESULTS = ROOT / "docs" / "experiments" / "cost.json"

_SERVER = Server(blocks=1004, seqs=16, log=False, flags=SLOWER)
_USERS = 24
_FILL = 5.0  # seconds until the batch is full
_SETTLE = 0.3  # seconds after a change that count for nothing
_SLICE = 1.2
_CHAT_FILL = 2.0
_CHAT_SLICE = 6.0
_OFTEN = 0.2  # seconds between samples, where their CPU time is measured
_IDLE = 20.0
# 97.5 % quantiles of Student's t by degrees of freedom; between two of them the larger counts.
_STUDENT = {
    1: 12.71,
    2: 4.30,
    3: 3.18,
    4: 2.78,
    5: 2.57,
    7: 2.36,
    9: 2.26,
    14: 2.14,
    19: 2.09,
    29: 2.05,
    59: 2.0,
    119: 1.98,
}

NOBODY = "nobody"
WAYS: Mapping[str, tuple[str, ...] | None] = {
    NOBODY: None,
    "every 1 s": ("--sample.interval", "1s"),
    "every 0.2 s": ("--sample.interval", "0.2s"),
    "every 0.2 s, no budget": ("--sample.interval", "0.2s", "--sample.duty-budget", "1"),
}
"""Ways of being watched by a sidecar, as its flags."""
LOGGED = "request log on"
"""Another server, which logs every chunk, and nobody watches."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A mean ratio and how far it may be off, at 95 %."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        """As people read it."""
        return f"{self.mean - 1:+.1%} ({self.low - 1:+.1%} to {self.high - 1:+.1%})"


def ratio(of: Sequence[float], against: Sequence[float]) -> Ratio:
    """The mean ratio of pairs."""
    logs = [math.log(one / other) for one, other in zip(of, against, strict=True)]
    mean = statistics.fmean(logs)
    freedom = len(logs) - 1
    student = next((value for known, value in sorted(_STUDENT.items(), reverse=True) if known <= freedom), math.inf)
    off = student * statistics.stdev(logs) / math.sqrt(len(logs)) if freedom else math.inf
    return Ratio(math.exp(mean), math.exp(mean - off), math.exp(mean + off))


def watched(server: Vllm, rounds: int) -> dict[str, list[Slice]]:
    """Slices of one long load, by how vLLM was watched in them: all sidecars are there, and all but one stand still."""
    found: dict[str, list[Slice]] = {way: [] for way in WAYS}
    with ExitStack() as beside:
        # One that was stopped amid a sample finds, later, that the answer took too long: no news.
        quiet = ("--log.level", "error")
        sidecars = {
            way: beside.enter_context(sidecar(server, *flags, *quiet, timely=False))
            for way, flags in WAYS.items()
            if flags
        }
        for each in sidecars.values():
            each.process.send_signal(signal.SIGSTOP)
            # Only one that runs can be told to end.
            beside.callback(each.process.send_signal, signal.SIGCONT)
        users = Users(server, _USERS, chat=False)
        with users.asking():
            time.sleep(_FILL)
            for number in range(rounds):
                # The order turns, so that no way is always first.
                start = number % len(WAYS)
                for way in (list(WAYS) * 2)[start : start + len(WAYS)]:
                    found[way].append(_beside(users, sidecars.get(way)))
    return found


def _beside(users: Users, watcher: Sidecar | None) -> Slice:
    """A slice in which this sidecar alone goes on."""
    if watcher:
        watcher.process.send_signal(signal.SIGCONT)
    time.sleep(_SETTLE)
    found = users.count(_SLICE)
    if watcher:
        watcher.process.send_signal(signal.SIGSTOP)
    return found


def logged(home: Path, rounds: int) -> tuple[list[Slice], list[Slice]]:
    """Slices of chat load on servers without and with the request log: only chat answers are logged by chunk."""
    found: tuple[list[Slice], list[Slice]] = ([], [])
    with ExitStack() as both:
        servers = []
        for log in (False, True):
            place = SCRATCH / ("logging" if log else "plain")
            server = both.enter_context(vllm(home, replace(_SERVER, log=log), place))
            play.warm(server)
            os.killpg(server.process.pid, signal.SIGSTOP)
            both.callback(os.killpg, server.process.pid, signal.SIGCONT)
            servers.append(server)
        for number in range(rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                found[which].append(_chatted(servers[which]))
    return found


def _chatted(server: Vllm) -> Slice:
    """A slice of chat load on this server, which stands still before and after."""
    os.killpg(server.process.pid, signal.SIGCONT)
    users = Users(server, _USERS, chat=True)
    with users.asking():
        time.sleep(_CHAT_FILL)
        found = users.count(_CHAT_SLICE)
    os.killpg(server.process.pid, signal.SIGSTOP)
    return found


def per_sample(home: Path) -> tuple[float, float]:
    """CPU seconds of a sample on a vLLM that has nothing else to do: vLLM's beyond its idling, and the sidecar's."""
    with vllm(home, _SERVER, SCRATCH) as server:
        play.warm(server)
        time.sleep(_FILL)
        before = server.cpu_seconds()
        time.sleep(_IDLE)
        idle = server.cpu_seconds() - before
        with sidecar(server, "--sample.duty-budget", "1", interval=_OFTEN, timely=False) as watcher:
            time.sleep(_FILL)
            before, own, samples = server.cpu_seconds(), watcher.cpu_seconds(), watcher.value(SAMPLES.metric)
            time.sleep(_IDLE)
            samples = watcher.value(SAMPLES.metric) - samples
            return (server.cpu_seconds() - before - idle) / samples, (watcher.cpu_seconds() - own) / samples


def main() -> int:
    """Measure, print and keep."""
    parser = shared.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=120, help="of slices with and without a sidecar")
    parser.add_argument("--pairs", type=int, default=15, help="of slices without and with the request log")
    args = parser.parse_args()
    with vllm(args.home, _SERVER, SCRATCH) as server:
        play.warm(server)
        found = watched(server, args.rounds)
    plain, with_log = logged(args.home, args.pairs)
    theirs, ours = per_sample(args.home)
    rows = [_row(way, slices, found[NOBODY]) for way, slices in found.items() if way != NOBODY]
    rows.append(_row(LOGGED, with_log, plain))
    samples = [(f"{theirs * 1000:.1f} ms", f"{ours * 1000:.1f} ms")]
    print(tables.text(HEADER, rows))
    print(tables.text(SAMPLE_HEADER, samples))
    shared.keep(RESULTS, {"rows": rows, "samples": samples})
    return 0


def _row(way: str, slices: Sequence[Slice], against: Sequence[Slice]) -> tuple[str, str, str]:
    print(f"{way}: {[round(each.throughput) for each in slices]}", file=sys.stderr)
    return (
        way,
        str(ratio([each.throughput for each in slices], [each.throughput for each in against])),
        str(ratio([each.p99 for each in slices], [each.p99 for each in against])),
    )


HEADER = ("vLLM is watched", "throughput", "inter-token p99")
SAMPLE_HEADER = ("CPU time of a sample: vLLM's", "the sidecar's")

if __name__ == "__main__":
    sys.exit(main())
