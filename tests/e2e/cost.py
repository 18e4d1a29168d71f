"""
``python -m tests.e2e.cost HOME``: what being watched costs vLLM, in throughput and in inter-token p99.

vLLM is kept busy without a pause, and watched in one way after the other, some seconds each, round after round: all
sidecars are there, and all but one stand still. Every slice is held against that of its own round in which nobody
watched. Printed is the mean of these ratios and its 95 % interval (Student's t of logarithms). The request log cannot
be switched while vLLM runs: there, servers alternate.
"""

import argparse
import json
import math
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from kvpressure import tables
from kvpressure.lab.truth import Record
from kvpressure.lab.workload import Length, Phase, Workload

from . import play
from .experiments import SCRATCH
from .stand import ROOT, Server, Sidecar, Vllm, sidecar, vllm

RESULTS = ROOT / "docs" / "experiments" / "cost.json"

_SEQS = 4
# More than is worked off while it lasts: the batch is always full, and without preemption it costs the same always.
_LOAD = Workload((Phase(3600.0, 12.0, Length(32), Length(900), burst=60),), patience=3600.0)
_FILL = 10.0  # seconds until the batch is full
_SETTLE = 0.5  # seconds after a change that count for nothing
_SLICE = 3.0
_ASKING = 0.3  # seconds for asking vLLM twice
_CHAT_SECONDS = 20.0
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


@dataclass(frozen=True, slots=True)
class Stretch:
    """From when to when, in seconds since 1970, and how many tokens vLLM says that it made."""

    begin: float
    end: float
    tokens: float


def stretch(server: Vllm, seconds: float) -> Stretch:
    """
    The next seconds.

    The chunks that users get are no measure of tokens: where users are slow, vLLM puts several into one.
    """
    before, begin = _tokens(server), time.time()
    time.sleep(seconds)
    after, end = _tokens(server), time.time()
    return Stretch(begin, end, after - before)


def _tokens(server: Vllm) -> float:
    return server.metrics()["vllm:generation_tokens_total"]


def sliced(records: Iterable[Record], part: Stretch) -> Slice:
    """What a stretch gave."""
    gaps = [
        after - before
        for record in records
        for before, after in pairwise(record.token_ts)
        if part.begin <= after < part.end
    ]
    return Slice(part.tokens / (part.end - part.begin), play.percentile(gaps, 0.99) or math.nan)


def watched(server: Vllm, rounds: int) -> dict[str, list[Slice]]:
    """Slices of one long load, by how vLLM was watched in them: all sidecars are there, and all but one stand still."""
    parts: list[tuple[str, Stretch]] = []

    def turn(sidecars: Mapping[str, Sidecar]) -> None:
        time.sleep(_FILL)
        for number in range(rounds):
            # The order turns, so that no way is always first.
            start = number % len(WAYS)
            for way in (list(WAYS) * 2)[start : start + len(WAYS)]:
                if way in sidecars:
                    sidecars[way].process.send_signal(signal.SIGCONT)
                time.sleep(_SETTLE)
                parts.append((way, stretch(server, _SLICE)))
                if way in sidecars:
                    sidecars[way].process.send_signal(signal.SIGSTOP)

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
        turning = threading.Thread(target=turn, args=(sidecars,))
        turning.start()
        seconds = _FILL + rounds * len(WAYS) * (_SETTLE + _SLICE + _ASKING)
        _, records = play.play(server, None, _LOAD, None, duration=seconds)
        turning.join()
    found: dict[str, list[Slice]] = {way: [] for way in WAYS}
    for way, part in parts:
        if part.end > max(record.token_ts[-1] for record in records if record.token_ts):
            # The users had gone: how long it takes to ask vLLM is known only roughly.
            break
        found[way].append(sliced(records, part))
    whole = min(len(slices) for slices in found.values())
    return {way: slices[:whole] for way, slices in found.items()}


def logged(home: Path, pairs: int) -> tuple[list[Slice], list[Slice]]:
    """Slices of chat load on servers without and with the request log: only chat answers are logged by chunk."""
    both: tuple[list[Slice], list[Slice]] = ([], [])
    for _ in range(pairs):
        for log, into in zip((False, True), both, strict=True):
            with vllm(home, Server(blocks=1004, seqs=_SEQS, log=log), SCRATCH) as server:
                play.warm(server)
                into.append(_chatted(server))
    return both


def _chatted(server: Vllm) -> Slice:
    """A slice of chat load."""

    def later() -> Stretch:
        time.sleep(_FILL)
        return stretch(server, _CHAT_SECONDS)

    with ThreadPoolExecutor(1) as pool:
        part = pool.submit(later)
        _, records = play.play(server, None, _LOAD, None, duration=_FILL + _CHAT_SECONDS + 1.0, chat=True)
        return sliced(records, part.result())


def main() -> int:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path, help="what tests/e2e/setup.sh made")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=3, help="of servers without and with the request log")
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
