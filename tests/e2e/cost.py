"""
``python -m tests.e2e.cost HOME``: what being watched costs vLLM, in throughput and in inter-token p99.

Blocks of the same load alternate, each with another way of being watched; every block is held against the block of its
own round that nobody watched. Printed is the mean of these ratios and its 95 % interval (Student's t of logarithms).
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from kvpressure import tables
from kvpressure.lab.workload import Length, Phase, Workload

from . import play
from .experiments import SCRATCH
from .stand import ROOT, Server, Vllm, sidecar, vllm

RESULTS = ROOT / "docs" / "experiments" / "cost.json"

_REQUESTS = 96
_LOAD = Workload((Phase(3600.0, 1e-9, Length(64), Length(160), burst=_REQUESTS),), patience=3600.0)
_SERVER = Server(blocks=1004, log=False)
# 97.5 % quantiles of Student's t by degrees of freedom; between two of them the larger counts.
_STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 7: 2.36, 9: 2.26, 14: 2.14, 19: 2.09, 29: 2.05}

WAYS: Mapping[str, tuple[str, ...] | None] = {
    "nobody": None,
    "every 1 s": ("--sample.interval", "1s"),
    "every 0.2 s": ("--sample.interval", "0.2s"),
    "every 0.2 s, no budget": ("--sample.interval", "0.2s", "--sample.duty-budget", "1"),
}
"""Ways of being watched by a sidecar, as its flags."""
LOGGED = "request log on"
"""Another server, which logs every chunk, and nobody watches."""


@dataclass(frozen=True, slots=True)
class Block:
    """What one block of load gave: tokens per second, and p99 of the gaps in seconds."""

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


def block(server: Vllm, flags: tuple[str, ...] | None) -> Block:
    """One block, watched in one way. Users ask vLLM itself: what is measured is sampling, not the tap."""
    with ExitStack() as beside:
        if flags is not None:
            beside.enter_context(sidecar(server, *flags, timely=False))
        run, _ = play.play(server, None, _LOAD, _REQUESTS)
    return Block(run.tokens / run.seconds, run.p99 or math.nan)


def main() -> int:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path, help="what tests/e2e/setup.sh made")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    blocks: dict[str, list[Block]] = {way: [] for way in (*WAYS, LOGGED)}
    with vllm(args.home, _SERVER, SCRATCH) as server:
        play.warm(server)
        block(server, None)
        for number in range(args.rounds):
            # The order turns, so that no way is always first.
            ways = list(WAYS)[number % len(WAYS) :] + list(WAYS)[: number % len(WAYS)]
            for way in ways:
                blocks[way].append(block(server, WAYS[way]))
                print(f"{way}: {blocks[way][-1]}", file=sys.stderr)
    plain, logged = [], []
    for _ in range(max(2, args.rounds // 3)):
        for log, into in ((False, plain), (True, logged)):
            with vllm(args.home, Server(blocks=1004, log=log), SCRATCH) as server:
                play.warm(server)
                block(server, None)
                into += [_chat(server) for _ in range(2)]
    rows = [
        (
            way,
            str(ratio([b.throughput for b in blocks[way]], [b.throughput for b in blocks["nobody"]])),
            str(ratio([b.p99 for b in blocks[way]], [b.p99 for b in blocks["nobody"]])),
        )
        for way in WAYS
        if way != "nobody"
    ]
    rows.append(
        (
            LOGGED,
            str(ratio([b.throughput for b in logged], [b.throughput for b in plain])),
            str(ratio([b.p99 for b in logged], [b.p99 for b in plain])),
        )
    )
    print(tables.text(HEADER, rows))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"rounds": args.rounds, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


def _chat(server: Vllm) -> Block:
    """A block of chat answers: only these are logged chunk by chunk."""
    run, _ = play.play(server, None, _LOAD, _REQUESTS, chat=True)
    return Block(run.tokens / run.seconds, run.p99 or math.nan)


HEADER = ("vLLM is watched", "throughput", "inter-token p99")

if __name__ == "__main__":
    sys.exit(main())
