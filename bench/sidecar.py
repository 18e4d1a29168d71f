"""The whole sidecar as a process: `kvpressure serve` samples a stand-in for vLLM and is scraped as by Prometheus."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.exposition import LONG_MODEL, Fleet
from bench.proc import MIB, cpu_seconds, imports_memory, memory
from bench.results import Row
from bench.watching import SCRAPE_EVERY, check, scrape, sidecar
from kvpressure.signals_exporter import SAMPLE_COST, SAMPLES

CPU_GOAL = 0.03
"""Share of one core."""
MEMORY_GOAL = 64 * MIB
"""Resident bytes."""
BARE = "aiohttp, prometheus_client, yaml"
"""What any exporter of this make has to import."""

_ENGINES = (16, 1)
_WARM_UP = 10.0
_SCRAPES = 2


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen of one sidecar after its warm-up."""

    engines: int
    seconds: float
    cpu: float
    memory: dict[str, int]
    samples: float
    cost: float


def run() -> list[Row]:
    """Sixteen engines and one, each with a sidecar of its own and at the same time."""
    bare = imports_memory(BARE)
    with ThreadPoolExecutor(len(_ENGINES)) as pool:
        return [row for watched in pool.map(watch, _ENGINES) for row in _rows(watched, bare)]


def watch(engines: int) -> Watched:
    """
    Watch a sidecar that samples `engines` engines.

    Raises:
        RuntimeError: it did not start, or did not do its work.
    """
    with sidecar(engines) as running:
        time.sleep(_WARM_UP)
        before = scrape(running.listen)
        start, cpu = time.monotonic(), cpu_seconds(running.pid)
        for number in range(_SCRAPES):
            time.sleep(start + (number + 1) * SCRAPE_EVERY - time.monotonic())
            after = scrape(running.listen)
        watched = Watched(
            engines,
            time.monotonic() - start,
            cpu_seconds(running.pid) - cpu,
            memory(running.pid),
            after[SAMPLES.metric] - before[SAMPLES.metric],
            after[SAMPLE_COST.metric],
        )
    check(after, engines)
    return watched


def _rows(watched: Watched, bare: int) -> Iterator[Row]:
    who = f"sidecar, {watched.engines} engine{'s' * (watched.engines > 1)}"
    size = f"{len(Fleet(watched.engines, LONG_MODEL).text(0)) / 1000:.0f} KB"
    share = watched.cpu / watched.seconds
    yield Row(
        f"{who}: CPU, one core, {size} a second",
        f"{share:.2%}",
        goal=f"under {CPU_GOAL:.0%}",
        met=share < CPU_GOAL,
        figures={"cpu_share": share, "cpu_seconds": watched.cpu, "seconds": watched.seconds},
    )
    interval = watched.seconds / watched.samples
    yield Row(
        f"{who}: interval kept ({watched.samples:g} samples, {watched.cost * 1000:.1f} ms each)",
        f"{interval:.2f} s",
        goal="1 s",
        # One sample more or less falls into the time watched by chance.
        met=abs(watched.samples - watched.seconds) <= 1.5,
        figures={"interval_seconds": interval, "samples": watched.samples, "sample_cost_seconds": watched.cost},
    )
    resident = watched.memory["resident"]
    yield Row(
        f"{who}: resident, against importing {BARE}",
        f"{resident / MIB:.1f} MiB",
        f"{bare / MIB:.1f} MiB",
        f"{resident / bare:.2f}x as large",
        f"under {MEMORY_GOAL / MIB:.0f} MiB",
        resident < MEMORY_GOAL,
        {"bytes": watched.memory, "bare_bytes": bare},
    )
