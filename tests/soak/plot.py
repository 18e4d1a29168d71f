"""``python -m tests.soak.plot``: memory over the rounds of the soak that was kept. Needs matplotlib (extra [e2e])."""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from bench import style

from . import report
from .report import MIB, Lane

PLOT = report.RESULTS.with_name("memory.svg")
_COLOURS = (style.RED, style.BLUE, style.INK)


def draw(lanes: Sequence[Lane], path: Path) -> None:
    """A line for each sidecar, and the time in which its memory fills."""
    figure, axes = plt.subplots(figsize=(7.5, 3.4), constrained_layout=True)
    for lane, colour in zip(lanes, _COLOURS, strict=True):
        minutes, sizes = [t / 60 for t, _ in lane.rests], [size / MIB for _, size in lane.rests]
        axes.plot(minutes, sizes, marker="o", markersize=3, color=colour, label=lane.name)
    axes.axvspan(0, report.FILLS / 60, color=style.GREY, alpha=0.15, lw=0)
    axes.annotate("15 minutes of readings fill", (0.3, 0.03), xycoords=("data", "axes fraction"), size=9)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("minutes; a point for each time through all faults of the lane")
    axes.set_title("a sidecar's own memory, MiB")
    axes.legend(frameon=False, title="lane")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(report.load(report.HOURS), PLOT)
    sys.stdout.write(f"{PLOT.name} is written\n")
