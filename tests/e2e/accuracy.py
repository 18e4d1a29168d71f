"""
``python -m tests.e2e.accuracy HOME``: the sidecar's signals held against what users saw, at three rates of sampling.

Three sidecars watch one vLLM under a storm, every 1, 5 and 15 s, all with its request log, the first with the tap that
users ask. The seconds during which the cache was pinned cannot be known of a real vLLM from outside; they are held
against the lab, which knows them step by step.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import model_time

from kvpressure import tables
from kvpressure.config import Config, KvConfig, SampleConfig
from kvpressure.derive.target import Target
from kvpressure.lab.engine import Iteration
from kvpressure.lab.metrics import ServerMetrics
from kvpressure.lab.scenarios import SCENARIOS
from kvpressure.lab.workload import Length, Phase, Workload

from . import play, shared
from .stand import ROOT, SCRATCH, Server, sidecar, vllm

RESULTS = ROOT / "docs" / "experiments" / "accuracy.json"
INTERVALS = (1.0, 5.0, 15.0)
"""Seconds between samples."""

_SERVER = Server(blocks=36, length=1024)
_STORM = Workload((Phase(3600.0, 6.0, Length(64), Length(320, 0.5)),), patience=3600.0)
_REQUESTS = 700
LIMITS: Mapping[str, float] = {
    "preemptions": 0.0,
    "paused share, tap": 0.02,
    "paused share, log": 0.05,
    "gap p99, tap": 0.1,
}
"""How far a signal may be off, at samples every second: shares in points, p99 as a share of it."""
PINNED_LIMIT = 0.15
"""How far the pinned seconds may be off at 1 s, as a share of the lab's own."""


def main() -> int:
    """Measure, print and keep; 1 where a limit is passed."""
    parser = shared.parser(__doc__)
    parser.add_argument("--requests", type=int, default=_REQUESTS)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to keep what was seen")
    args = parser.parse_args()
    found = real(args.home, args.requests)
    found["pinned seconds, lab"] = {f"{every:g}": pinned(every) for every in INTERVALS}
    rows = list(_rows(found))
    print(tables.text(HEADER, rows))
    shared.keep(args.out, {"requests": args.requests, "rows": rows})
    wrong = unmet(found)
    for sentence in wrong:
        print(f"NOT AS EXPECTED: {sentence}")
    return 1 if wrong else 0


HEADER = ("signal", "users saw", *(f"every {every:g} s" for every in INTERVALS), "may be off by, at 1 s")


def real(home: Path, requests: int) -> dict[str, dict[str, Any]]:
    """By signal: what users saw (``truth``), and what each sidecar said, by its interval."""
    with vllm(home, _SERVER, SCRATCH) as server, ExitStack() as beside:
        play.warm(server)
        watchers = [
            beside.enter_context(sidecar(server, tap=every == INTERVALS[0], log=True, interval=every))
            for every in INTERVALS
        ]
        run = play.play(server, watchers[0], _STORM, requests, chat=True, after=2 * INTERVALS[-1])
        states = {f"{every:g}": watcher.state() for every, watcher in zip(INTERVALS, watchers, strict=True)}
    found: dict[str, dict[str, Any]] = {
        "preemptions": {"truth": run.preemptions},
        "paused share, tap": {"truth": run.paused_share},
        "paused share, log": {"truth": run.paused_share},
        "gap p99, tap": {"truth": run.p99},
        "gap p99, log": {"truth": run.p99},
        "gap p99, engine": {"truth": run.p99},
        "pinned share, real": {"truth": None},
    }
    for every, state in states.items():
        engine = state["engines"][0]
        window = _longest(engine)
        found["preemptions"][every] = engine["preemptions"]
        found["gap p99, engine"][every] = window["gap_p99_seconds"]
        found["pinned share, real"][every] = window["pinned_ratio"]
        for streams in state["streams"]:
            source = streams["source"]
            found[f"paused share, {source}"][every] = streams["paused"] / max(1, streams["streamed"])
            found[f"gap p99, {source}"][every] = _longest(streams)["gap_p99_seconds"]
    return found


def pinned(every: float, scenario: str = "bookstore", seconds: float = 900.0, seed: int = 0) -> tuple[float, float]:
    """
    Pinned seconds of a scenario of the lab: its own, step by step, and those of a sidecar that samples.

    Args:
        every: seconds between samples.
        scenario: of the lab.
        seconds: of model time.
        seed: of its users.
    """
    of = SCENARIOS[scenario]
    metrics, start, line = ServerMetrics(of.server, "lab"), 1e9, KvConfig().pin_threshold
    target = Target(Config(sample=SampleConfig(interval=every, max_interval=every)), interval=every)
    truth, usage = 0.0, 0.0

    def sample(t: float) -> None:
        target.observe(start + t, metrics.render().decode(), 0.01)

    def finished(step: Iteration) -> None:
        nonlocal truth, usage
        # The usage that was there at the last step's end holds until this one's.
        truth += step.result.duration if usage >= line else 0.0
        usage = step.result.usage
        metrics.record(step)

    end = model_time.play(of, seconds, seed, sample, finished, every=every)
    said = target.snapshot(start + end).engines[0].kv_pinned_seconds
    return truth, float(said or 0.0)


def unmet(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each signal that is further off than it may be at samples every second."""
    wrong = []
    for signal, limit in LIMITS.items():
        truth, said = found[signal]["truth"], found[signal]["1"]
        off = abs(said - truth) / (truth if signal.startswith("gap") else 1.0)
        if off > limit + 1e-9:
            wrong.append(f"{signal}: users saw {truth:.4g}, the sidecar says {said:.4g}")
    truth, said = found["pinned seconds, lab"]["1"]
    if abs(said - truth) > PINNED_LIMIT * truth:
        wrong.append(f"pinned seconds: the lab had {truth:.0f}, the sidecar says {said:.0f}")
    return wrong


def _longest(of: Mapping[str, Any]) -> Mapping[str, Any]:
    """The longest window: all of the run is in it."""
    return max(of["windows"], key=lambda window: float(window["window"].removesuffix("m")))


def _rows(found: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for signal, values in found.items():
        cells: Sequence[str]
        if signal == "pinned seconds, lab":
            truth = values["1"][0]
            cells = [f"{values[f'{every:g}'][1] / truth - 1:+.1%}" for every in INTERVALS]
            yield (signal, f"{truth:.0f} s", *cells, f"{PINNED_LIMIT:.0%}")
            continue
        cells = [_told(signal, values["truth"], values.get(f"{every:g}")) for every in INTERVALS]
        limit = LIMITS.get(signal)
        yield (signal, _plain(signal, values["truth"]), *cells, "-" if limit is None else _allowed(signal, limit))


def _told(signal: str, truth: float | None, said: float | None) -> str:
    if said is None:
        return "-"
    if truth is None:
        return _plain(signal, said)
    if "share" in signal:
        return f"{_plain(signal, said)} ({100 * (said - truth):+.1f} points)"
    off = (said - truth) / truth if truth else math.nan
    return f"{_plain(signal, said)} ({off:+.1%})"


def _plain(signal: str, value: float | None) -> str:
    if value is None:
        return "cannot be known"
    if "share" in signal:
        return f"{value:.1%}"
    return f"{value:.3g} s" if "gap" in signal else f"{value:g}"


def _allowed(signal: str, limit: float) -> str:
    if "share" in signal:
        return f"{100 * limit:g} points"
    return "nothing" if not limit else f"{limit:.0%}"


if __name__ == "__main__":
    sys.exit(main())
