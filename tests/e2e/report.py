"""``python -m tests.e2e.report``: docs/experiments.md and its plots, of what the experiments kept."""

import gzip
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from bench import style

from kvpressure import tables

from . import accuracy, cost, followed, likeness, overnight, plan
from .experiments import HEADER, RESULTS, cells
from .play import Run
from .stand import ROOT

PAGE = ROOT / "docs" / "experiments.md"
FOLDER = RESULTS.parent

_INK, _STORM, _CALM = style.INK, style.RED, style.BLUE
_REGIMES = {"calm": "#dfeee2", "onset": "#fdf0d2", "churn": "#f8d9d6", "unknown": "#eeeeee"}


def results() -> dict[str, dict[str, Run]]:
    """Every group's runs, by their names."""
    kept = json.loads(gzip.decompress(RESULTS.read_bytes()))
    return {group: {name: Run.of(row) for name, row in runs.items()} for group, runs in kept.items()}


def main() -> int:
    """Write the page and its plots."""
    groups, runs = {group.name: group for group in plan.groups()}, results()
    text = PAGE.read_text(encoding="utf-8")
    for name, group in groups.items():
        # In the order in which they are written down.
        seen = {setting.name: runs[name][setting.name] for setting in group.settings}
        table = tables.markdown(HEADER, [cells(each, run) for each, run in seen.items()])
        text = tables.filled(text, name, table, PAGE.name)
    for name, header, path, part in (
        ("accuracy", accuracy.HEADER, accuracy.RESULTS, "rows"),
        ("cost", cost.HEADER, cost.RESULTS, "rows"),
        ("cost-samples", cost.SAMPLE_HEADER, cost.RESULTS, "samples"),
        ("followed", followed.HEADER, followed.RESULTS, "rows"),
        ("likeness", likeness.HEADER, likeness.RESULTS, "rows"),
        ("overnight-steps", overnight.HEADER, overnight.RESULTS, "rows"),
        ("overnight-alerts", overnight.ALERTS_HEADER, overnight.RESULTS, "alerts"),
    ):
        # What has not been run is not in the page.
        if path.exists():
            text = tables.filled(text, name, tables.markdown(header, _kept(path)[part]), PAGE.name)
    PAGE.write_text(text, encoding="utf-8")
    plot_arms(runs["arms"], [setting for setting in groups["arms"].settings if setting.fits])
    plot_regimes(runs["regimes"])
    plot_step_down(runs["step_down"], groups["step_down"].settings)
    return 0


def _kept(path: Path) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return kept


def plot_arms(runs: Mapping[str, Run], settings: Sequence[plan.Setting]) -> None:
    """Preemptions of each arm, and how long its users waited."""
    names = [f"{setting.name}\n{setting.fits:g} fit" for setting in settings]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), constrained_layout=True)
    shown = [runs[setting.name] for setting in settings]
    _bars(left, names, [run.preemptions for run in shown], "preemptions of 200 requests", _STORM)
    _bars(right, names, [run.latency[1] or 0.0 for run in shown], "99th percentile of latency, s", _CALM)
    _save(figure, "arms")


def _bars(axes: Any, names: Sequence[str], values: Iterable[float], title: str, colour: str) -> None:
    bars = axes.bar(names, list(values), color=colour, width=0.6)
    axes.bar_label(bars, fmt="%.0f", color=_INK)
    axes.set_title(title)
    axes.tick_params(axis="x", labelsize=8)


def plot_regimes(runs: Mapping[str, Run]) -> None:
    """Preemptions counted over time in both runs, on what the sidecar called them while it happened."""
    figure, axes = plt.subplots(1, len(runs), figsize=(9, 3.2), constrained_layout=True)
    for place, (name, run) in zip(axes, sorted(runs.items(), reverse=True), strict=True):
        start = 0.0
        for word, spell in run.spells():
            place.axvspan(start, start + spell, color=_REGIMES[word], lw=0)
            if spell > 15:  # seconds; a word needs room
                place.text(start + 3, 0.97, word, transform=place.get_xaxis_transform(), va="top", color=_INK, size=9)
            start += spell + 0.5
        place.plot([p.t for p in run.points], [p.preemptions or 0 for p in run.points], color=_STORM, lw=2)
        place.set_title(f"{name}: preemptions so far")
        place.set_xlabel("seconds since the users came")
        place.set_xlim(0, run.points[-1].t)
        place.set_ylim(bottom=0)
    _save(figure, "regimes")


def plot_step_down(runs: Mapping[str, Run], settings: Sequence[plan.Setting]) -> None:
    """What fewer requests at a time cost and bring: preemptions against time to first token."""
    figure, axes = plt.subplots(figsize=(6.5, 3.6), constrained_layout=True)
    order = sorted(settings, key=lambda setting: -setting.server.seqs)
    x = [runs[setting.name].preemptions for setting in order]
    y = [runs[setting.name].ttft[0] or 0.0 for setting in order]
    axes.plot(x, y, color=_CALM, marker="o")
    for setting, right, up in zip(order, x, y, strict=True):
        axes.annotate(f"  {setting.server.seqs}", (right, up), color=_INK, size=9)
    axes.set_title("max-num-seqs: preemptions against waiting")
    axes.set_xlabel("preemptions of 120 requests")
    axes.set_ylabel("median time to first token, s")
    _save(figure, "step_down")


def _save(figure: Any, name: str) -> None:
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
