"""
``python -m tests.e2e.cost HOME``: what being watched costs vLLM, in throughput and in inter-token p99.

vLLM is kept busy without a pause, and watched in one way after the other, some seconds each, round after round. Every
slice is held against the slice of its own round in which nobody watched. Printed is the mean of these ratios and its
95 % interval (Student's t of logarithms). The request log cannot be switched while vLLM runs: there, servers alternate.
"""

import argparse
import json
import math
import statistics
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from kvpressure import tables
from kvpressure.lab.truth import Record
from kvpressure.lab.workload import Length, Phase, Workload

from . import play
from .experiments import SCRATCH
from .stand import ROOT, Server, Vllm, sidecar, vllm

RESULTS = ROOT / "docs" / "experiments" / "cost.json"

_SEQS = 8
_ANSWER = 900
_REQUESTS = 1600
# More than are worked off while it lasts: the batch is always full, and without preemption it costs the same always.
_LOAD = Workload((Phase(3600.0, 1e-9, Length(32), Length(_ANSWER), burst=_REQUESTS),), patience=3600.0)
_CHATS = 160
_CHAT_LOAD = Workload((Phase(3600.0, 1e-9, Length(32), Length(_ANSWER), burst=_CHATS),), patience=3600.0)
_FILL = 10.0  # seconds until the batch is full
_START = 2.5  # seconds in which a sidecar starts: not what is measured
_SLICE = 6.0
_CHAT_SECONDS = 15.0
# 97.5 % quantiles of Student's t by degrees of freedom; between two of them the larger counts.
_STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 7: 2.36, 9: 2.26, 14: 2.14, 19: 2.09, 29: 2.05}

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
class Slice:
    """What some seconds of load gave: tokens per second, and p99 of the gaps in seconds."""

    throughput: float
    p99: float


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


def sliced(records: Iterable[Record], begin: float, end: float) -> Slice:
    """The tokens that came between two moments."""
    tokens, gaps = 0, []
    for record in records:
        tokens += sum(begin <= t < end for t in record.token_ts)
        gaps += [after - before for before, after in pairwise(record.token_ts) if begin <= after < end]
    return Slice(tokens / (end - begin), play.percentile(gaps, 0.99) or math.nan)


def watched(server: Vllm, rounds: int) -> dict[str, list[Slice]]:
    """Slices of one long load, by how vLLM was watched in them."""
    times: list[tuple[str, float]] = []
    seconds = _FILL + rounds * len(WAYS) * (_START + _SLICE + 1.5)
    over = time.time() + seconds

    def turn() -> None:
        time.sleep(_FILL)
        for number in range(rounds):
            if time.time() + len(WAYS) * (_START + _SLICE + 1.5) > over:
                # A round counts as a whole or not at all.
                return
            # The order turns, so that no way is always first.
            start = number % len(WAYS)
            for way in (list(WAYS) * 2)[start : start + len(WAYS)]:
                flags = WAYS[way]
                with ExitStack() as beside:
                    if flags is not None:
                        beside.enter_context(sidecar(server, *flags, timely=False))
                    time.sleep(_START)
                    times.append((way, time.time()))
                    time.sleep(_SLICE)

    turning = threading.Thread(target=turn)
    turning.start()
    _, records = play.play(server, None, _LOAD, None, duration=seconds)
    turning.join()
    found: dict[str, list[Slice]] = {way: [] for way in WAYS}
    for way, begin in times[: len(times) - len(times) % len(WAYS)]:
        found[way].append(sliced(records, begin, begin + _SLICE))
    return found


def logged(home: Path, pairs: int) -> tuple[list[Slice], list[Slice]]:
    """Slices of chat load on servers without and with the request log: only chat answers are logged by chunk."""
    both: tuple[list[Slice], list[Slice]] = ([], [])
    for _ in range(pairs):
        for log, into in zip((False, True), both, strict=True):
            with vllm(home, Server(blocks=1004, seqs=_SEQS, log=log), SCRATCH) as server:
                play.warm(server)
                _, records = play.play(server, None, _CHAT_LOAD, None, duration=_CHAT_SECONDS, chat=True)
            first = min(record.start for record in records)
            into.append(sliced(records, first + _CHAT_SECONDS / 3, first + _CHAT_SECONDS - 1.0))
    return both


def main() -> int:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path, help="what tests/e2e/setup.sh made")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=2, help="of servers without and with the request log")
    args = parser.parse_args()
    with vllm(args.home, Server(blocks=1004, seqs=_SEQS, log=False), SCRATCH) as server:
        play.warm(server)
        found = watched(server, args.rounds)
    plain, with_log = logged(args.home, args.pairs)
    rows = [_row(way, slices, found[NOBODY]) for way, slices in found.items() if way != NOBODY]
    rows.append(_row(LOGGED, with_log, plain))
    print(tables.text(HEADER, rows))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"rounds": args.rounds, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


def _row(way: str, slices: Sequence[Slice], against: Sequence[Slice]) -> tuple[str, str, str]:
    print(f"{way}: {[round(each.throughput) for each in slices]}", file=sys.stderr)
    return (
        way,
        str(ratio([each.throughput for each in slices], [each.throughput for each in against])),
        str(ratio([each.p99 for each in slices], [each.p99 for each in against])),
    )


HEADER = ("vLLM is watched", "throughput", "inter-token p99")

if __name__ == "__main__":
    sys.exit(main())
