"""
The memory of 15 minutes of readings of 16 engines, without waiting for them (see ``feeder``).

Sockets and their buffers are not in it: a sidecar that runs with the same history has 1 to 4 MiB more.
"""

import json
import subprocess
import sys
from typing import Any

from bench.exposition import LONG_MODEL, Fleet
from bench.proc import MIB, imports_memory
from bench.results import Row
from bench.sidecar import BARE, MEMORY_GOAL

READINGS = 1150
"""At one a second. A history holds 900 and lets go of old ones 256 at a time: just before it does, it is largest."""

_ENGINES = 16


def run() -> list[Row]:
    """Memory with the full history, and what each reading of an engine adds to it."""
    report = _feed()
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
    ]


def _feed() -> dict[str, Any]:
    fleet = Fleet(_ENGINES, LONG_MODEL)
    with subprocess.Popen(
        [sys.executable, "-m", "bench.feeder"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as feeder:
        if feeder.stdin is None or feeder.stdout is None:
            raise RuntimeError("there are no pipes to the feeder")
        for step in range(READINGS):
            body = fleet.text(step).encode()
            feeder.stdin.write(len(body).to_bytes(8) + body)
        feeder.stdin.close()
        report: dict[str, Any] = json.loads(feeder.stdout.read())
    return report
