"""
The whole sidecar in every combination of engines and stream events: CPU, memory, and what each more of them costs.

Events come through the tap, the dearer of the two observers; one more sidecar reads the same number of them from a log,
and two run on uvloop in the place of asyncio's own event loop. A relay that reads nothing says what no proxy on
asyncio can save where there is a goal.
Sidecars with few events run at the same time. What is kept for 15 minutes grows for so long and no longer, which
`history` holds over hours of readings; here it is only told how memory moved while somebody looked.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from bench.launch import first_line, free_port, interpreter, relay
from bench.proc import MIB, cpu_seconds, memory
from bench.results import Row
from bench.watching import SCRAPE_EVERY, check, fetch, scrape, sidecar
from kvpressure.signals_exporter import SAMPLES
from kvpressure.signals_streams import GAPS

ENGINES = (1, 8, 64)
EVENTS = (0, 500, 5000)
"""A second."""
GOAL = (1, 500)
"""Engines and events a second for which there is a goal."""
CPU_GOAL = 0.015
"""Share of one core."""
MEMORY_GOAL = 60 * MIB
"""Resident bytes."""
SECONDS = 15.0
LONGEST = 60.0
"""Seconds for which one with many events is watched at most: they take turns, and load the machine."""

_RATE = 50  # events per second and stream
_FEW = 500  # events a second up to which sidecars are watched at the same time
_WARM_UP = 6.0
_EVERY = 1.0
_AS_LONG = 0.9  # of the longest watch is as long
_FOUND = 0.9  # of the events that were sent must have been seen


@dataclass(frozen=True, slots=True)
class Cell:
    """
    One sidecar after its warm-up.

    Args:
        engines: how many it sampled.
        events: how many a second it was to be given.
        source: where those came through.
        seconds: how long it was watched.
        cpu: the share of one core that it took.
        seen: events a second that it counted.
        interval: seconds from one sample to the next.
        resident: bytes, at each second.
        growth: bytes a second, fitted to them.
        uvloop: whether it ran on that instead of on asyncio's own event loop.
    """

    engines: int
    events: int
    source: Literal["tap", "log"]
    seconds: float
    cpu: float
    seen: float
    interval: float
    resident: tuple[int, ...]
    growth: float
    uvloop: bool = False


def run(seconds: float = SECONDS) -> list[Row]:
    """Every combination, each for so long after its warm-up; those with many events not over ``LONGEST``."""
    few = [
        partial(watch, engines, events, "tap", seconds) for engines in ENGINES for events in EVENTS if events <= _FEW
    ]
    few += [partial(watch, *GOAL, "log", seconds), partial(watch, *GOAL, "tap", seconds, uvloop=True)]
    with ThreadPoolExecutor(len(few) + 1) as pool:
        floor = pool.submit(relayed, GOAL[1], seconds)
        cells = [task.result() for task in [pool.submit(each) for each in few]]
    for engines in ENGINES:
        cells += [watch(engines, events, "tap", min(seconds, LONGEST)) for events in EVENTS if events > _FEW]
    cells.append(watch(1, EVENTS[-1], "tap", min(seconds, LONGEST), uvloop=True))
    cells.sort(key=lambda cell: (cell.source == "log", cell.uvloop, cell.engines, cell.events))
    return [
        *(_row(cell, floor.result()) for cell in cells),
        *slopes([cell for cell in cells if cell.source == "tap" and not cell.uvloop]),
    ]


def watch(engines: int, events: int, source: Literal["tap", "log"], seconds: float, *, uvloop: bool = False) -> Cell:
    """
    Watch one.

    Raises:
        RuntimeError: it did not start, or did not do its work.
    """
    streams = events // _RATE
    with contextlib.ExitStack() as stack:
        listen = f"127.0.0.1:{free_port()}"
        if source == "tap":
            upstream = first_line(stack.enter_context(interpreter("-m", "bench.tap_load", "source")))
            flags = ["--tap.listen", listen, "--tap.upstream", f"http://127.0.0.1:{upstream}"]
            load = ["steady", listen.rpartition(":")[2], str(streams), str(_RATE)]
        else:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "vllm.log"
            path.touch()
            flags, load = ["--log.path", str(path)], ["log", str(path), str(streams), str(_RATE)]
        running = stack.enter_context(sidecar(engines, *flags, module="bench.uvlooped" if uvloop else "kvpressure"))
        if streams:
            first_line(stack.enter_context(interpreter("-m", "bench.tap_load", *load)))
        time.sleep(_WARM_UP)
        before, cpu, start = scrape(running.listen), cpu_seconds(running.pid), time.monotonic()
        resident = list(_residents(running.pid, running.listen, start, seconds))
        lasted, taken = time.monotonic() - start, cpu_seconds(running.pid) - cpu
        after = scrape(running.listen)
    check(after, engines)
    seen = (after[_EVENTS_SEEN] - before[_EVENTS_SEEN]) / lasted
    if seen < events * _FOUND:
        raise RuntimeError(f"of {events} events a second the sidecar saw {seen:.0f}")
    samples = after[SAMPLES.metric] - before[SAMPLES.metric]
    growth = float(np.polyfit(np.arange(len(resident)) * _EVERY, resident, 1)[0])
    return Cell(
        engines, events, source, lasted, taken / lasted, seen, lasted / samples, tuple(resident), growth, uvloop
    )


def relayed(events: int, seconds: float) -> float:
    """The share of one core that a relay on asyncio takes to pass on so many events a second, and to read nothing."""
    with interpreter("-m", "bench.tap_load", "source") as source, relay(int(first_line(source))) as (port, pid):
        load = ("steady", str(port), str(events // _RATE), str(_RATE))
        with interpreter("-m", "bench.tap_load", *load) as users:
            first_line(users)
            time.sleep(_WARM_UP)
            cpu, start = cpu_seconds(pid), time.monotonic()
            time.sleep(seconds)
            return (cpu_seconds(pid) - cpu) / (time.monotonic() - start)


_EVENTS_SEEN = f"{GAPS.metric}_count"
"""Every chunk but the first of a stream ends a gap."""


def _residents(pid: int, listen: str, start: float, seconds: float) -> Iterator[int]:
    """Memory each second, while it is scraped now and then."""
    scraped = start
    for number in range(1, int(seconds / _EVERY) + 1):
        time.sleep(max(0.0, start + number * _EVERY - time.monotonic()))
        if time.monotonic() - scraped >= SCRAPE_EVERY:
            scraped = time.monotonic()
            fetch(listen)
        yield memory(pid)["resident"]


def _row(cell: Cell, floor: float) -> Row:
    goal = cell.source == "tap" and (cell.engines, cell.events) == GOAL and not cell.uvloop
    resident = max(cell.resident)
    figures = {name: value for name, value in asdict(cell).items() if name != "resident"}
    return Row(
        f"sidecar, {cell.engines} engine{'s' * (cell.engines > 1)}, {cell.events:,} events/s by {cell.source}"
        f"{', on uvloop' * cell.uvloop}",
        f"{cell.cpu:.2%} of a core, {resident / MIB:.1f} MiB, every {cell.interval:.2f} s",
        f"a relay on asyncio that reads nothing: {floor:.2%} of a core" if goal else "-",
        f"{cell.cpu / floor:.1f}x the time" if goal else "-",
        goal=f"under {CPU_GOAL:.1%} and {MEMORY_GOAL / MIB:.0f} MiB" if goal else "-",
        met=cell.cpu < CPU_GOAL and resident < MEMORY_GOAL if goal else None,
        figures=figures | {"bytes": resident} | ({"floor_cpu": floor} if goal else {}),
    )


def slopes(cells: Sequence[Cell]) -> list[Row]:
    """
    What one more engine and a thousand more events a second add, and what is there without: a plane through all cells.

    Engines that make the sidecar sample less often cost less than they would; so each is told per sample a second.
    Memory grows with what is kept, so its plane is through those that were watched for the longest.
    """
    longest = [cell for cell in cells if cell.seconds > _AS_LONG * max(cell.seconds for cell in cells)]
    cpu = _plane(cells, [cell.cpu for cell in cells])
    size = _plane(longest, [float(max(cell.resident)) for cell in longest])
    whats = ("there without any", "each engine adds", "each thousand events/s add")
    return [
        Row(
            f"sidecar, all of these: {what}",
            f"{share:.3%} of a core, {bytes_ / MIB:.2f} MiB",
            figures={"cpu_share": share, "bytes": bytes_},
        )
        for what, share, bytes_ in zip(whats, cpu, size, strict=True)
    ]


def _plane(cells: Sequence[Cell], values: Sequence[float]) -> Sequence[float]:
    """What is there without any, what each engine and what each thousand events a second add; by least squares."""
    axes = np.array([[1.0, cell.engines / cell.interval, cell.events / 1000] for cell in cells])
    found: Sequence[float] = np.linalg.lstsq(axes, np.array(values), rcond=None)[0].tolist()
    return found
