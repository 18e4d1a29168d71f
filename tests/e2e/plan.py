"""The experiments as data: experiments.yaml read, and its expectations held against runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvpressure.lab.workload import Length, Phase, Workload

from .play import Run
from .stand import Server

FILE = Path(__file__).with_name("experiments.yaml")

_PATIENT = 3600.0  # nobody leaves: all that was sent is worked off


@dataclass(frozen=True, slots=True)
class Setting:
    """
    One run before it happens.

    Args:
        name: within its group.
        server: what vLLM is started with.
        workload: what users do.
        requests: how many they send, if they are not gone before.
        duration: seconds after which they go, whatever is still open; None where they stay to the end.
        watch: seconds to watch the sidecar when they are gone.
        fits: requests that the cache seats, if the experiment says so.
    """

    name: str
    server: Server
    workload: Workload
    requests: int
    duration: float | None
    watch: float
    fits: float | None


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that answer one question together, and what must be true of them."""

    name: str
    title: str
    question: str
    settings: tuple[Setting, ...]
    expect: tuple[tuple[str, str, Any], ...]


def groups(path: Path = FILE) -> list[Group]:
    """All experiments."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    return [
        Group(
            name,
            group["title"],
            group["question"],
            tuple(_setting(each, row) for each, row in group["runs"].items()),
            tuple((left, how, right) for left, how, right in group["expect"]),
        )
        for name, group in document.items()
    ]


def _setting(name: str, row: Mapping[str, Any]) -> Setting:
    load = row["load"]
    spread = load.get("spread", 0.0)
    lengths = Length(load["prompt"], spread), Length(load["answer"], spread)
    rate = load.get("rate")
    phase = Phase(
        seconds=load.get("seconds", _PATIENT),
        # A flood is a burst, and nobody after it.
        rate=rate or 1e-9,
        prompt=lengths[0],
        answer=lengths[1],
        burst=0 if rate else load["requests"],
        shared_prefix=load.get("shared", 0),
    )
    requests = load.get("requests") or round(rate * load["seconds"])
    return Setting(
        name,
        Server(**row["server"]),
        Workload((phase,), patience=_PATIENT),
        requests,
        load.get("leave"),
        float(row.get("watch", 0)),
        row.get("fits"),
    )


def unmet(group: Group, runs: Mapping[str, Run]) -> list[str]:
    """A sentence for each expectation that does not hold."""
    sentences = []
    for left, how, right in group.expect:
        for subject in _subjects(left, runs):
            seen = _value(subject, runs)
            wanted = _value(right, runs) if isinstance(right, str) and " of " in right else right
            if not _HOW[how](seen, wanted):
                sentences.append(f"{subject} is {_shown(seen)}, not {how} {right}{_also(right, wanted)}")
    return sentences


def _subjects(text: str, runs: Mapping[str, Run]) -> list[str]:
    what, _, whose = text.partition(" of ")
    return [f"{what} of {name}" for name in runs] if whose == "every run" else [text]


def _value(text: str, runs: Mapping[str, Run]) -> Any:  # numbers and lists of words
    what, _, whose = text.partition(" of ")
    return _WHAT[what](runs[whose])


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _also(right: object, wanted: object) -> str:
    return "" if right is wanted else f" ({_shown(wanted)})"


def _words(run: Run, what: str) -> Sequence[str]:
    return [word for word, _ in run.spells(what)]


def _last_preemption(run: Run) -> float:
    """The moment of the last preemption that the sidecar saw counted, in seconds."""
    last = 0.0
    for before, after in zip(run.points, run.points[1:], strict=False):
        if (after.preemptions or 0) > (before.preemptions or 0):
            last = after.t
    return last


_WHAT: Mapping[str, Callable[[Run], Any]] = {
    "preemptions": lambda run: run.preemptions,
    "preemptions per thousand": lambda run: run.per_thousand,
    "paused share": lambda run: run.paused_share,
    "unfinished": lambda run: run.requests - run.finished,
    "waiting": lambda run: run.peak_waiting,
    "usage": lambda run: max((point.usage or 0.0 for point in run.points), default=0.0),
    "ttft p50": lambda run: run.ttft[0],
    "latency p99": lambda run: run.latency[1],
    "regime": lambda run: _words(run, "regime"),
    "verdict": lambda run: _words(run, "verdict"),
    "recounted prompt tokens": lambda run: run.recounted,
    "statistics printed": lambda run: run.reported,
    "preemptions printed": lambda run: run.preemptions_reported,
    "preemptions missed": lambda run: run.preemptions - run.sidecar["engines"][0]["preemptions"],
    "last preemption": _last_preemption,
}
_HOW: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": lambda seen, wanted: seen > wanted,
    "<": lambda seen, wanted: seen < wanted,
    "=": lambda seen, wanted: seen == wanted,
    "has": lambda seen, wanted: wanted in seen,
    "lacks": lambda seen, wanted: wanted not in seen,
    "ends": lambda seen, wanted: bool(seen) and seen[-1] == wanted,
}
