"""The plots of docs/benchmarks.md, of rows of results."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench import style
from bench.detect import INTERVALS
from bench.results import Row

_INK, _OURS, _PEER, _GREY = style.INK, style.RED, style.BLUE, style.GREY
_SHADES = ("#e79a94", "#d7655d", _OURS)


def draw(found: Mapping[str, Sequence[Row]], folder: Path) -> None:
    """Write the plots of what was run into a folder, and leave no other ones there."""
    for old in folder.glob("*.svg"):
        old.unlink()
    for name, plot in (("agent", _agent), ("matrix", _matrix), ("tap", _tap), ("detect", _detect)):
        if name not in found:
            continue
        figure = plot(found[name])
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)


def _agent(rows: Sequence[Row]) -> Figure:
    """CPU seconds per thousand scrapes of both, by the number of engines."""
    figure, axes = plt.subplots(figsize=(6.5, 3.4), constrained_layout=True)
    rows = [row for row in rows if "engines" in row.figures]
    engines = [row.figures["engines"] for row in rows]
    for name, colour, label, above in (("ours", _OURS, "kvpressure", -14), ("peer", _PEER, "Prometheus agent", 6)):
        seconds = [row.figures[f"{name}_cpu_seconds"]["median"] for row in rows]
        axes.plot(engines, seconds, marker="o", color=colour, label=label)
        for engine, value in zip(engines, seconds, strict=True):
            axes.annotate(f"{value:.1f}", (engine, value), (0, above), textcoords="offset points", ha="center", size=9)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(engines, [f"{number}" for number in engines])
    axes.minorticks_off()
    axes.margins(y=0.25)
    axes.set_xlabel("engines")
    axes.set_title("CPU seconds per thousand scrapes")
    axes.legend(frameon=False)
    return figure


def _matrix(rows: Sequence[Row]) -> Figure:
    """CPU and memory of the sidecar over stream events, a line for each number of engines."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True)
    cells = [row.figures for row in rows if row.figures.get("source") == "tap" and not row.figures.get("uvloop")]
    for shade, engines in zip(_SHADES, sorted({cell["engines"] for cell in cells}), strict=True):
        of = sorted((cell for cell in cells if cell["engines"] == engines), key=lambda cell: cell["events"])
        events, name = [cell["events"] for cell in of], f"{engines} engine{'s' * (engines > 1)}"
        left.plot(events, [100 * cell["cpu"] for cell in of], marker="o", color=shade, label=name)
        right.plot(events, [cell["bytes"] / 2**20 for cell in of], marker="o", color=shade, label=name)
    for axes, title in ((left, "percent of a core"), (right, "resident, MiB")):
        axes.set_title(title)
        axes.set_xlabel("stream events per second, through the tap")
        axes.set_ylim(bottom=0)
    left.legend(frameon=False)
    return figure


def _tap(rows: Sequence[Row]) -> Figure:
    """What the tap adds to a chunk's way, and what nginx does."""
    figure, axes = plt.subplots(figsize=(6.5, 3.4), constrained_layout=True)
    added = {row.what.split()[1]: row.figures for row in rows if "added_seconds" in row.figures}
    _pairs(
        axes,
        list(added),
        [1000 * figures["added_seconds"]["median"] for figures in added.values()],
        [1000 * figures.get("peer_added_seconds", {"median": math.nan})["median"] for figures in added.values()],
        "nginx, which reads nothing of it",
    )
    axes.set_title("milliseconds added to a chunk's way")
    return figure


def _detect(rows: Sequence[Row]) -> Figure:
    """From the first preemption to the first page: ours as a line, every peer that pages as a point."""
    traces: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row.figures["by"] is not None:
            traces.setdefault(row.figures["trace"], []).append(row.figures)
    silent = [row.figures["peers"] for row in rows if row.figures["by"] is None]
    false = {name for peers in silent for name, when in peers.items() if when is not None}
    figure, panels = plt.subplots(1, len(traces), figsize=(11, 3.6), sharey=True, constrained_layout=True)
    for axes, (trace, found) in zip(panels, traces.items(), strict=True):
        for number, figures in enumerate(found):
            for name, when in figures["peers"].items():
                if when is not None:
                    filled = _GREY if name in false else _PEER
                    axes.plot(
                        number, when - figures["first"], "o", ms=5, mfc="none" if name in false else filled, mec=filled
                    )
        ours = [(number, one["ours"] - one["first"]) for number, one in enumerate(found) if one["ours"] is not None]
        axes.plot(*zip(*ours, strict=True), color=_OURS, lw=2.5, marker="s", ms=5)
        axes.axhline(found[0]["by"] - found[0]["first"], color=_GREY, lw=0.8, ls="--")
        axes.set_xticks(range(len(INTERVALS)), [f"{interval}" for interval in INTERVALS])
        axes.set_title(trace, size=9)
        axes.set_ylim(0, 900)
    panels[0].set_ylabel("s from first preemption to page")
    figure.supxlabel("seconds between scrapes", size=10)
    marks = (
        Line2D([], [], color=_OURS, lw=2.5, marker="s", label="kvpressure"),
        Line2D([], [], ls="", marker="o", color=_PEER, label="peers that page on no quiet trace"),
        Line2D([], [], ls="", marker="o", mfc="none", mec=_GREY, label="peers that also page on a quiet one"),
        Line2D([], [], color=_GREY, lw=0.8, ls="--", label="at the latest"),
    )
    figure.legend(handles=marks, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return figure


def _pairs(axes: Axes, names: Sequence[str], ours: Sequence[float], peer: Sequence[float], who: str) -> None:
    """Bars of ours and of one peer, side by side."""
    for shift, values, colour, label in ((-0.19, ours, _OURS, "kvpressure"), (0.19, peer, _PEER, who)):
        bars = axes.bar([place + shift for place in range(len(names))], values, width=0.36, color=colour, label=label)
        axes.bar_label(bars, fmt="%.2f", color=_INK, size=9)
    axes.set_xticks(range(len(names)), names)
    axes.legend(frameon=False)
