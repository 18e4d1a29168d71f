"""
The memory of 15 minutes of readings of 16 engines, and of hours of one, without waiting for them (see ``feeder``).

Of the hours some are of one engine alone, and some of one beside which others come and go. Sockets and their buffers
are not in it: a sidecar that runs with the same history has 1 to 4 MiB more.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bench.exposition import LONG_MODEL, Fleet
from bench.feeder import LOOK_EVERY
from bench.proc import MIB, imports_memory
from bench.results import Row
from bench.sidecar import BARE, MEMORY_GOAL

READINGS = 900
"""At one a second: as many as a history holds."""

_ENGINES = 16
_HOURS = 4
_ROUND, _THERE = 200, 15  # seconds from one visit of the others to the next, and of one; looks are between them
_FULL_AFTER = 1200  # seconds: two looks, when the history is full
GROWTH_GOAL = 0.1 * MIB
"""Bytes an hour, once the history is full."""


def run() -> list[Row]:
    """Memory with the full history, what each reading of an engine adds to it, and what hours more of them add."""
    report = _feed(_steady(_ENGINES, READINGS))
    if report["readings"] != READINGS or report["engines"] != _ENGINES or not report["scrape_bytes"]:
        raise RuntimeError(f"the pipeline did not take the readings: {report}")
    before, after, peak = report["before"]["resident"], report["after"]["resident"], report["after"]["peak"]
    bare = imports_memory(BARE)
    each = (after - before) / (READINGS * _ENGINES)
    return [
        Row(
            f"history, {_ENGINES} engines, {READINGS} readings: resident, against importing {BARE}",
            f"{after / MIB:.1f} MiB",
            f"{bare / MIB:.1f} MiB",
            f"{after / bare:.2f}x as large",
            f"under {MEMORY_GOAL / MIB:.0f} MiB",
            after < MEMORY_GOAL,
            {"bytes": after, "peak_bytes": peak, "bare_bytes": bare, "report": report},
        ),
        Row(
            f"history: resident before the first reading; each then adds {each:.0f} bytes",
            f"{before / MIB:.1f} MiB",
            f"{bare / MIB:.1f} MiB",
            f"{before / bare:.2f}x as large",
            figures={"bytes": before, "bytes_per_reading": each, "bare_bytes": bare},
        ),
        _growth("1 engine", _steady(1, _HOURS * 3600)),
        _growth(f"1 engine, and {_ENGINES - 1} more for {_THERE} s of every {_ROUND}", _come_and_go(_HOURS * 3600)),
    ]


def _growth(who: str, texts: Iterator[str]) -> Row:
    """What hours of readings add when the history is full: nothing, if nothing leaks."""
    looks = _feed(texts)["looks"]
    full = looks[_FULL_AFTER // LOOK_EVERY :]
    an_hour = hourly(full, LOOK_EVERY)
    return Row(
        f"history, {who}, {_HOURS} hours of readings: growth in an hour once 15 minutes are kept",
        f"{an_hour / MIB:.3f} MiB",
        goal=f"under {GROWTH_GOAL / MIB:g} MiB",
        met=an_hour < GROWTH_GOAL,
        figures={"bytes_per_hour": an_hour, "bytes": looks, "seconds_between": LOOK_EVERY},
    )


def hourly(looks: Sequence[int], every: float) -> float:
    """The slope of a line fitted to looks that are `every` seconds apart, per hour."""
    return float(np.polyfit(np.arange(len(looks)) * every / 3600, looks, 1)[0])


def _steady(engines: int, readings: int) -> Iterator[str]:
    fleet = Fleet(engines, LONG_MODEL)
    return (fleet.text(step) for step in range(readings))


def _come_and_go(readings: int) -> Iterator[str]:
    one, all_of_them = Fleet(1, LONG_MODEL), Fleet(_ENGINES, LONG_MODEL)
    for step in range(readings):
        yield (all_of_them if step % _ROUND < _THERE else one).text(step)


def _feed(texts: Iterator[str]) -> dict[str, Any]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.feeder"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as feeder:
        if feeder.stdin is None or feeder.stdout is None:
            raise RuntimeError("there are no pipes to the feeder")
        for text in texts:
            body = text.encode()
            feeder.stdin.write(len(body).to_bytes(8) + body)
        feeder.stdin.close()
        report: dict[str, Any] = json.loads(feeder.stdout.read())
    return report
