"""
The table of costs in the README, of the results that docs/benchmarks.md is made of.

Fewer rows and rounder figures than there, for who wants to know whether it is dear.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.detect import USUAL
from bench.proc import MIB
from bench.results import Row
from kvpressure import tables

README = Path(__file__).parents[1] / "README.md"
PLACE = "cost"
"""The part of the README that is made here."""
HEADER = ("what", "figure", "peer", "")

_KIB = 1024.0
_CHUNKS = 50
"""A second and stream, as in the benchmark of the tap."""
_TEN = 10.0
_MISSING = "*not in these results*"

Results = Mapping[str, Sequence[Row]]
Cells = tuple[str, str, str]


def readme(text: str, found: Results) -> str:
    """
    The README with its table of costs made anew.

    Raises:
        ValueError: it has no place for the table.
    """
    return tables.filled(text, PLACE, tables.markdown(HEADER, list(table(found))), README.name)


def table(found: Results) -> list[tuple[str, ...]]:
    """The rows. One whose benchmark was not run, or did not tell it, says so."""
    return [(what, *_cells(make, found)) for what, make in _ROWS.items()]


def _cells(make: Callable[[Results], Cells], found: Results) -> Cells:
    try:
        return make(found)
    except LookupError:
        return _MISSING, "", ""


def _one_engine(found: Results) -> Cells:
    cpu, resident = _row(found, "sidecar", "sidecar, 1 engine: CPU"), _row(found, "sidecar", "sidecar, 1 engine: res")
    figures = resident.figures
    return (
        f"{_short(100 * cpu.figures['cpu_share'])} % of a core, {_mib(figures['bytes']['resident'])}",
        f"importing its libraries: {_mib(figures['bare_bytes'])}",
        "",
    )


def _many_engines(found: Results) -> Cells:
    cpu, resident = (
        _row(found, "sidecar", "sidecar, 16 engines: CPU"),
        _row(found, "sidecar", "sidecar, 16 engines: res"),
    )
    later = _row(found, "history", "history, 16 engines")
    share = f"{_short(100 * cpu.figures['cpu_share'])} % of a core for {_size(cpu)} a sample"
    at_first, then = _mib(resident.figures["bytes"]["resident"]), _mib(later.figures["bytes"])
    return f"{share}, {at_first}; {then} once 15 minutes are kept", "the same", ""


def _scrapes(found: Results) -> Cells:
    figures = _where(found, "agent", engines=1)
    return (
        f"{_short(_median(figures, 'ours_cpu_seconds'))} s",
        f"Prometheus as an agent: {_short(_median(figures, 'peer_cpu_seconds'))} s",
        f"{_short(_median(figures, 'times_the_time'))} times the time",
    )


def _reading(state: str, peer: str) -> Callable[[Results], Cells]:
    def cells(found: Results) -> Cells:
        row = next(row for row in found["reading"] if f", {state}," in row.what)
        parser = _short(1000 * _median(row.figures, "peer_cpu_seconds"))
        return (
            f"{_short(1000 * _median(row.figures, 'ours_cpu_seconds'))} ms for {_size(row)}",
            peer.format(parser),
            f"{_short(_median(row.figures, 'times_as_fast'))} times as fast",
        )

    return cells


def _log(number: int, peer: str) -> Callable[[Results], Cells]:
    def cells(found: Results) -> Cells:
        figures = found["logs"][number].figures
        return (
            f"{_short(_median(figures, 'ours_lines_per_cpu_second') / 1e6)} million lines a second of CPU",
            f"`mtail` with {peer}: {_short(_median(figures, 'peer_lines_per_cpu_second') / 1e6)} million",
            f"{_short(_median(figures, 'times_as_fast'))} times as fast",
        )

    return cells


def _added(found: Results) -> Cells:
    both = [_row(found, "tap", f"tap: {which} of what it adds").figures for which in ("p50", "p99")]
    ours, peer = (
        " and ".join(f"{1000 * _median(figures, name):.2f}" for figures in both)
        for name in ("added_seconds", "peer_added_seconds")
    )
    return f"{ours} ms", f"nginx without buffering, which reads nothing of it: {peer} ms", ""


def _chunks(found: Results) -> Cells:
    figures = _row(found, "tap", "tap: CPU s per million chunks").figures
    ours, peer = (_median(figures, name) for name in ("cpu_seconds_per_chunk", "peer_cpu_seconds_per_chunk"))
    return (
        f"{_short(1e6 * ours)} s, so {_streams(ours)} streams of {_CHUNKS} chunks a second per core",
        f"nginx: {_short(1e6 * peer)} s, {_streams(peer)} streams",
        f"{_row(found, 'tap', 'tap: CPU s per million chunks').ratio.partition('x')[0]} times the time",
    )


def _stream(found: Results) -> Cells:
    figures = _row(found, "tap", "tap: memory of one stream").figures
    ours, peer = figures["bytes_per_stream"], figures["peer_bytes_per_stream"]
    if peer is None:
        raise LookupError("the tap stood alone")
    return f"{_short(ours / _KIB)} KiB", f"nginx: {_short(peer / _KIB)} KiB", f"{_short(ours / peer)} times as much"


def _whole(found: Results) -> Cells:
    tap, log = (
        _where(found, "matrix", engines=1, events=500, source=source, uvloop=False) for source in ("tap", "log")
    )
    share = f"{_short(100 * tap['cpu'])} % of a core by the tap, {_short(100 * log['cpu'])} % by the log"
    return (
        f"{share}, {_mib(max(tap['bytes'], log['bytes']))}",
        f"a relay on asyncio that reads nothing: {_short(100 * tap['floor_cpu'])} % of a core",
        f"{_short(tap['cpu'] / tap['floor_cpu'])} times the time, by the tap",
    )


def _metrics(found: Results) -> Cells:
    made, given = (
        _row(found, "scraping", "/metrics, 16 engines", end)
        for end in ("prometheus_client's own instruments", "prometheus_client's families already built")
    )
    peers = [_short(1000 * _median(row.figures, "peer_cpu_seconds")) for row in (made, given)]
    times = [_short(_median(row.figures, "times_the_time")) for row in (made, given)]
    return (
        f"{_short(1000 * _median(made.figures, 'ours_cpu_seconds'))} ms for {_size(made)}",
        f"`prometheus_client`'s instruments: {peers[0]} ms; rendering alone: {peers[1]} ms",
        f"{times[0]} and {times[1]} times the time",
    )


def _page(found: Results) -> Cells:
    judged = [row.figures for row in found["detect"] if row.figures["interval"] == USUAL]
    took = [figures["ours"] - figures["first"] for figures in judged if figures["ours"] is not None]
    if not took:
        raise LookupError("no trace paged")
    return (
        f"{min(took):.0f} to {max(took):.0f} s at scrapes of {USUAL} s",
        "[the rules that people use](docs/benchmarks.md#time-to-detect) page on harmless bursts, too",
        "",
    )


_ROWS: Mapping[str, Callable[[Results], Cells]] = {
    "the whole sidecar, one engine, a sample a second": _one_engine,
    "the same, 16 engines": _many_engines,
    "CPU per thousand scrapes of one engine": _scrapes,
    "reading one exposition, names seen before": _reading(
        "warm", "`prometheus_client`'s parser reads all of it: {} ms"
    ),
    "the same, never seen before": _reading("cold", "the same"),
    "reading a log of a million delta lines, and timing each request's gaps": _log(1, "a program for the same gaps"),
    "the same, counting lines only": _log(0, "two counters"),
    "the tap, 2,000 chunks a second: added to a chunk's way, median and p99": _added,
    "the tap, CPU per million chunks": _chunks,
    "the tap, memory of an open stream": _stream,
    "the whole sidecar with 500 chunks a second": _whole,
    "`/metrics`, 16 engines": _metrics,
    "from the first preemption of a storm to the page": _page,
}


def _row(found: Results, benchmark: str, start: str, end: str = "") -> Row:
    for row in found[benchmark]:
        if row.what.startswith(start) and row.what.endswith(end):
            return row
    raise LookupError(f"{benchmark} has no row {start} ... {end}")


def _where(found: Results, benchmark: str, **what: object) -> Mapping[str, Any]:
    """The figures of the row that has these; one that it does not name counts as false."""
    for row in found[benchmark]:
        if all(row.figures.get(name, False) == value for name, value in what.items()):
            return row.figures
    raise LookupError(f"{benchmark} has no row with {what}")


def _median(figures: Mapping[str, Any], name: str) -> float:
    return float(figures[name]["median"])


def _streams(seconds_per_chunk: float) -> str:
    """How many a core carries, to two digits."""
    return f"{float(f'{1 / seconds_per_chunk / _CHUNKS:.2g}'):,.0f}"


def _size(row: Row) -> str:
    """How long the text was that was read or written; the name of the row tells it."""
    found = re.search(r"\b(\d+ KB)\b", row.what)
    if not found:
        raise LookupError(f"{row.what} tells no size")
    return found[1]


def _mib(size: float) -> str:
    return f"{size / MIB:.0f} MiB"


def _short(value: float) -> str:
    """Two significant digits, or all before the point."""
    return f"{value:.0f}" if value >= _TEN else f"{value:#.2g}".rstrip(".")
