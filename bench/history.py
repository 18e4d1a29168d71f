"""
The memory of 15 minutes of readings of 16 engines, and of four hours of one, without waiting for them (see ``feeder``).

Sockets and their buffers are not in it: a sidecar that runs with the same history has 1 to 4 MiB more.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.exposition import LONG_MODEL, Fleet
from bench.feeder import LOOK_EVERY
from bench.proc import MIB, imports_memory
from bench.results import Row
from bench.sidecar import BARE, MEMORY_GOAL

READINGS = 1150
"""At one a second. A history holds 900 and lets go of old ones 256 at a time: just before it does, it is largest."""

_ENGINES = 16
_HOURS = 4
_FULL_AFTER = 1200  # seconds: two looks, when the history is full and has let go of old readings
GROWTH_GOAL = 0.1 * MIB
"""Bytes an hour, once the history is full."""


def run() -> list[Row]:
    """Memory with the full history, what each reading of an engine adds to it, and what hours more of them add."""
    report = _feed(_ENGINES, READINGS)
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
        _growth(),
    ]


def _growth() -> Row:
    """What hours of readings add when the history is full: nothing, if nothing leaks."""
    looks = _feed(1, _HOURS * 3600)["looks"]
    full = looks[_FULL_AFTER // LOOK_EVERY :]
    an_hour = hourly(full, LOOK_EVERY)
    return Row(
        f"history, 1 engine, {_HOURS} hours of readings: growth in an hour once 15 minutes are kept",
        f"{an_hour / MIB:.3f} MiB",
        goal=f"under {GROWTH_GOAL / MIB:g} MiB",
        met=an_hour < GROWTH_GOAL,
        figures={"bytes_per_hour": an_hour, "bytes": looks, "seconds_between": LOOK_EVERY},
    )


def hourly(looks: Sequence[int], every: float) -> float:
    """The slope of a line fitted to looks that are `every` seconds apart, per hour."""
    return float(np.polyfit(np.arange(len(looks)) * every / 3600, looks, 1)[0])


def _feed(engines: int, readings: int) -> dict[str, Any]:
    fleet = Fleet(engines, LONG_MODEL)
    with subprocess.Popen(
        [sys.executable, "-m", "bench.feeder"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as feeder:
        if feeder.stdin is None or feeder.stdout is None:
            raise RuntimeError("there are no pipes to the feeder")
        for step in range(readings):
            body = fleet.text(step).encode()
            feeder.stdin.write(len(body).to_bytes(8) + body)
        feeder.stdin.close()
        report: dict[str, Any] = json.loads(feeder.stdout.read())
    return report
