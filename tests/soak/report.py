"""What came of the faults: kept as JSON, told as a table."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvpressure import tables

from .machine import ROOT

PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "docs" / "reliability" / "soak.json"
HOURS = RESULTS.with_name("hours.json")
SLOPE = 0.1
"""MiB an hour that the sidecar's memory may grow by, once it is full."""
PACED = 15.0
"""Minutes that a run must last to say anything of pages at a usual scrape interval: alerts wait for minutes."""
MIB = 1024 * 1024
FILLS = 900.0
"""Seconds for which the sidecar keeps readings: until then its memory grows because it must."""
BUSY = 1.0
"""Seconds from which a machine is too busy to tell who is late."""
_HEADER = ("fault", "lasted", "absent meanwhile", "whole again after", "pages, 15 times as long", "memory", "wrong")


@dataclass
class Row:
    """
    One fault.

    Args:
        fault: its name.
        seconds: how long it lasted.
        absent: seconds of absence, by signal.
        wrong: everything wrong, with how often it was seen.
        back: seconds until everything was there again; None where it was not.
        pages: critical alerts, where each second is taken for fifteen.
        unexpected: those of them that should not have fired.
        memory: bytes of the sidecar's own pages before the fault and behind it.
        skipped: why it was not tried; empty where it was.
        busy: seconds for which others kept the stand-in from its work; where it is more than ``BUSY``, nothing that
            depends on time was judged.
    """

    fault: str
    seconds: float = 0.0
    absent: dict[str, float] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)
    back: float | None = None
    pages: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    memory: tuple[float, float] = (0.0, 0.0)
    skipped: str = ""
    busy: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether it did not go as it must."""
        return bool(self.wrong or self.unexpected)


@dataclass
class Lane:
    """
    One sidecar through its faults.

    Args:
        name: the lane.
        minutes: how long it ran.
        paced: critical alerts over all of it, scraped every fifteen seconds; None where it was too short to tell.
        complaints: what its log says of a defect.
        rows: its faults, of the last time round where it went through them more than once.
        rounds: how many times it went through them.
        rests: at the end of every round, seconds since the first began and bytes of its own pages.
        failures: faults that failed in any round, with the number of rounds.
    """

    name: str
    minutes: float = 0.0
    paced: list[str] | None = None
    complaints: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    rounds: int = 0
    rests: list[tuple[float, float]] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)

    @property
    def slope(self) -> float | None:
        """MiB an hour that its memory grew by in the second half; None where it did not run for long enough."""
        return slope([(t, size) for t, size in self.rests if t > 30 * self.minutes])

    @property
    def failed(self) -> bool:
        """Whether anything did not go as it must."""
        grows = self.slope is not None and self.slope > SLOPE
        return bool(self.failures or self.paced or self.complaints or grows or any(row.failed for row in self.rows))


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """
    The straight line through memory over time, in MiB an hour.

    Args:
        points: seconds since the first round began and bytes, one of each round.

    Returns:
        None for fewer than four rounds after the time in which memory fills.
    """
    late = [(t, size) for t, size in points if t > FILLS]
    if len(late) < 4:
        return None
    middle = sum(t for t, _ in late) / len(late)
    mean = sum(size for _, size in late) / len(late)
    spread = sum((t - middle) ** 2 for t, _ in late)
    return 3600 / MIB * sum((t - middle) * (size - mean) for t, size in late) / spread


def load(path: Path = RESULTS) -> list[Lane]:
    """The lanes that were kept in a file; none before the first run."""
    if not path.exists():
        return []
    kept = json.loads(path.read_text(encoding="utf-8"))["lanes"]
    return [
        Lane(**{**lane, "rows": [_row(row) for row in lane["rows"]], "rests": [(t, size) for t, size in lane["rests"]]})
        for lane in kept
    ]


def save(lanes: Sequence[Lane]) -> None:
    """Keep them, those of hours beside those of once through, and write the page."""
    path = HOURS if any(lane.rounds > 1 for lane in lanes) else RESULTS
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"lanes": [asdict(lane) for lane in lanes]}, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), load(), load(HOURS)), encoding="utf-8")


def filled(page: str, lanes: Sequence[Lane], hours: Sequence[Lane]) -> str:
    """The page with the table of one run in it, and the sentences of another that took hours."""
    page = tables.filled(page, "soak", markdown(lanes).rstrip("\n"), PAGE.name)
    said = "\n".join(f"* {_sentence(lane)}" for lane in hours) or "No run of hours has been kept yet."
    return tables.filled(page, "soak-hours", said, PAGE.name)


def markdown(lanes: Sequence[Lane]) -> str:
    """A table of every fault, and a line for each sidecar."""
    if not lanes:
        return "No run has been kept yet: `make soak` writes the table.\n"
    rows = [cells(row) for lane in lanes for row in lane.rows]
    table = tables.markdown(_HEADER, rows).rstrip("\n")
    return table + "\n\n" + "".join(f"* {_sentence(lane)}\n" for lane in lanes)


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table."""
    if row.skipped:
        return (row.fault, "not tried", row.skipped, "-", "-", "-", "-")
    return (
        row.fault,
        f"{row.seconds:.0f} s",
        _absent(row.absent),
        "not" if row.back is None else f"{row.back:.1f} s",
        ", ".join(f"{name}{'' if name not in row.unexpected else ' (FALSE)'}" for name in row.pages) or "none",
        f"{row.memory[0] / MIB:.1f} → {row.memory[1] / MIB:.1f} MiB",
        ("; ".join([*row.wrong, *(f"{name} paged" for name in row.unexpected)]) or "nothing")
        + (f" (others kept the machine busy for {row.busy:.0f} s: times were not judged)" if row.busy > BUSY else ""),
    )


def _absent(absent: dict[str, float]) -> str:
    """The signals that were absent for about as long are told together."""
    groups: dict[int, list[str]] = {}
    for name, seconds in absent.items():
        groups.setdefault(round(seconds), []).append(name.removeprefix("kvpressure_"))
    told = []
    for seconds, names in sorted(groups.items(), reverse=True):
        names.sort()
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        told.append(f"`{names[0]}`{others}: {seconds} s")
    return "; ".join(told) or "nothing"


def _sentence(lane: Lane) -> str:
    paced = "" if lane.paced is None else f", scraped every 15 s {', '.join(lane.paced) or 'nothing'} paged"
    crash = f" It complained: {'; '.join(lane.complaints)}." if lane.complaints else ""
    drift = "" if lane.slope is None else f" Memory in the second half: {lane.slope:+.2f} MiB an hour."
    times = f"{lane.rounds} times through" if lane.rounds > 1 else "once through"
    worst = max(lane.failures, key=lambda name: lane.failures[name], default="")
    others = f" and {len(lane.failures) - 1} more" if len(lane.failures) > 1 else ""
    failures = f" Not as it must be: {worst} in {lane.failures[worst]} rounds{others}." if worst else ""
    return f"Lane {lane.name}: {times}, {lane.minutes:.0f} min{paced}.{crash}{drift}{failures}"


def _row(kept: dict[str, Any]) -> Row:
    return Row(**{**kept, "memory": tuple(kept["memory"])})
