"""
``python -m bench.page``: docs/benchmarks.md, its plots, and the README's table of costs, of what was measured last.

The results are kept beside the plots, so that the page can be held against them: tests/test_bench.py fails where its
tables are not those of the results. Needs matplotlib, of the extra [e2e].
"""

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import readme, results
from bench.detect import INTERVALS, USUAL
from bench.results import Row
from kvpressure import tables

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
FOLDER = PAGE.parent / "benchmarks"
KEPT = FOLDER / "results.json"

_RATIOS = ("times_as_fast", "times_the_time")
_STEADY = 0.1
_PLACE = re.compile(r"^<!-- generated: (\S+) -->$", re.MULTILINE)
_MISSING = "*Not in these results.*"
_PLOTS = {
    "agent": ("agent", "CPU seconds per thousand scrapes of both, for 1, 8 and 64 engines"),
    "matrix": ("matrix", "CPU and memory over stream events, for 1, 8 and 64 engines"),
    "tap": ("tap", "Milliseconds that the tap and nginx add to a chunk's way"),
    "detect-peers": (
        "detect",
        "Time from the first preemption to the page, ours and the peers', at four scrape intervals",
    ),
}
"""Parts of the page that end in a plot: the benchmark it is drawn of, and what it shows."""


def main() -> int:
    """Take over the latest results, and make the page of them."""
    from bench import plots  # noqa: PLC0415  # whoever only checks the page needs no matplotlib

    FOLDER.mkdir(exist_ok=True)
    shutil.copyfile(results.RESULTS, KEPT)
    found = results.read(KEPT)
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    readme.README.write_text(readme.readme(readme.README.read_text(encoding="utf-8"), found), encoding="utf-8")
    plots.draw(found, FOLDER)
    return 0


def page(text: str, found: Mapping[str, Sequence[Row]]) -> str:
    """
    A page with its generated parts made anew. A part of a benchmark that was not run says so.

    Raises:
        ValueError: it has no place for one of them.
    """
    parts = dict.fromkeys(_PLACE.findall(text), _MISSING)
    for name, rows in found.items():
        if name != "detect":
            parts[name] = tables.markdown(results.HEADER, [results.cells(row) for row in rows])
    parts["stability"] = stability([row for rows in found.values() for row in rows])
    if "detect" in found:
        parts["detect-ours"] = tables.markdown(*ours(found["detect"]))
        parts["detect-peers"] = tables.markdown(*peers(found["detect"]))
    for name, (plot, alternative) in _PLOTS.items():
        if plot in found:
            parts[name] += f"\n\n![{alternative}](benchmarks/{plot}.svg)"
    for name, part in parts.items():
        text = tables.filled(text, name, part, PAGE.name)
    return text


def stability(rows: Sequence[Row]) -> str:
    """How far rounds lay from their median, over all ratios that were taken in rounds."""
    spreads = {}
    for row in rows:
        for spread in (row.figures[name] for name in _RATIOS if name in row.figures):
            far = max(spread["high"] - spread["median"], spread["median"] - spread["low"])
            spreads[row.what] = far / spread["median"]
    if not spreads:
        return _MISSING
    steady = sum(spread <= _STEADY for spread in spreads.values())
    furthest = max(spreads, key=lambda what: spreads[what])
    return (
        f"{steady} of {len(spreads)} ratios had every round within {_STEADY:.0%} of their median; "
        f"furthest from it, by {spreads[furthest]:.0%}, was one round of: {furthest}."
    )


def ours(rows: Sequence[Row]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Header and rows: seconds from the first preemption to our first page, of every trace at every interval."""
    traces: dict[str, dict[int, Row]] = {}
    for row in rows:
        traces.setdefault(row.figures["trace"], {})[row.figures["interval"]] = row
    header = ("trace", "must page", *(f"every {interval} s" for interval in INTERVALS), "right")
    return header, [
        (
            f"`{trace}`",
            next(iter(of.values())).goal.removesuffix(" of the trace"),
            *(of[interval].ours for interval in INTERVALS),
            "yes" if all(row.met for row in of.values()) else "NO",
        )
        for trace, of in traces.items()
    ]


def peers(rows: Sequence[Row]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Header and rows: every rule set on every trace at one interval, and on how many of them it is right."""
    judged = [row.figures for row in rows if row.figures["interval"] == USUAL]
    header = ("pages on", *(f"`{figures['trace']}`" for figures in judged), "right")
    table = []
    for name in ("kvpressure", *judged[0]["peers"]):
        whens = [figures["ours"] if name == "kvpressure" else figures["peers"][name] for figures in judged]
        good = [right(when, figures["by"], figures["first"]) for when, figures in zip(whens, judged, strict=True)]
        cells = [
            _cell(when, figures["first"], good=fine) for when, figures, fine in zip(whens, judged, good, strict=True)
        ]
        table.append((f"**{name}**" if name == "kvpressure" else f"`{name}`", *cells, f"{sum(good)} of {len(good)}"))
    table.sort(key=lambda line: (not line[0].startswith("*"), -int(line[-1].split()[0]), line[0]))
    return header, table


def right(when: float | None, by: float | None, first: int | None) -> bool:
    """Whether a first page, or that there is none, is what an engineer on call would want: not late, and not early."""
    if by is None or when is None:
        return when is None and by is None
    return (first or 0) <= when <= by


def _cell(when: float | None, first: int | None, *, good: bool) -> str:
    said = "silent" if when is None else f"{when - first:.0f} s" if first is not None else "pages"
    return said if good else f"{said}, wrong"


if __name__ == "__main__":
    sys.exit(main())
