"""
The sidecar's pipeline in a fresh interpreter that imports what `serve` imports, fed through its standard input.

Each exposition comes with its length in eight bytes before it; so nothing that makes them is in this process. It
prints its memory as JSON: before the first reading, every ten minutes of the readings' time, and after the last.
``python -m bench.feeder``
"""

import gc
import json
import sys

from prometheus_client import CollectorRegistry

from bench.proc import memory
from kvpressure import serve
from kvpressure.config import Config
from kvpressure.derive.target import Target
from kvpressure.expose.families import SnapshotCollector, render

_SCRAPE_EVERY = 15
LOOK_EVERY = 600
"""Seconds of the expositions' time between two looks at the memory."""
_START = 1_800_000_000.0


def main() -> None:
    """Take one reading a second of the expositions' own time, and answer a scrape every fifteen."""
    t = _START
    target = Target(Config())
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(lambda: target.snapshot(t)))
    gc.collect()
    gc.freeze()  # as serve does
    before = memory()
    readings = scrape = 0
    looks: list[int] = []
    while length := sys.stdin.buffer.read(8):
        body = sys.stdin.buffer.read(int.from_bytes(length))
        t += 1.0
        target.observe(t, body.decode("utf-8", errors="replace"), 0.005)
        readings += 1
        if readings % _SCRAPE_EVERY == 0:
            scrape = len(render(registry, "")[0])
        if readings % LOOK_EVERY == 0:
            looks.append(memory()["resident"])
    report = {
        "imported": serve.__name__,
        "readings": readings,
        "engines": len(target.snapshot(t).engines),
        "scrape_bytes": scrape,
        "before": before,
        "after": memory(),
        "looks": looks,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
