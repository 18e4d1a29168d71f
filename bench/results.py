"""Rows of results: the table that people read and the file that other programs read."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "results.json"

HEADER = ("what", "ours", "peer", "ratio", "goal", "met")
_MET = {True: "yes", False: "NO", None: "-"}


@dataclass(frozen=True, slots=True)
class Row:
    """
    One result.

    Args:
        what: what was measured, and the peer by name where there is one.
        ours: kvpressure's figure, with its unit.
        peer: the peer's figure, or a dash.
        ratio: one against the other, or a dash.
        goal: what was hoped for, or a dash where a figure only stands beside another.
        met: whether it was; None without a goal.
        figures: the bare numbers behind the texts, in base units.
    """

    what: str
    ours: str
    peer: str = "-"
    ratio: str = "-"
    goal: str = "-"
    met: bool | None = None
    figures: dict[str, Any] = field(default_factory=dict)


def table(rows: Sequence[Row]) -> str:
    """The rows as plain text, aligned."""
    lines_of = [HEADER, *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines_of) for column in range(len(HEADER))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines_of
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def cells(row: Row) -> tuple[str, ...]:
    """A row as the cells of a table."""
    return (row.what, row.ours, row.peer, row.ratio, row.goal, _MET[row.met])


def write(rows: Mapping[str, Sequence[Row]], failed: Sequence[str]) -> None:
    """
    Write the results, with what they were measured on.

    Those of benchmarks that were not run this time stay, so that one can be repeated alone.
    """
    packages = ("kvpressure", "prometheus_client", "aiohttp")
    kept = json.loads(RESULTS.read_text(encoding="utf-8")).get("benchmarks", {}) if RESULTS.exists() else {}
    document = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": {name: version(name) for name in packages},
        "failed": list(failed),
        "benchmarks": kept | {name: [asdict(row) for row in some] for name, some in rows.items()},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, list[Row]]:
    """The rows of each benchmark, as they were written."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return {name: [Row(**row) for row in rows] for name, rows in document["benchmarks"].items()}
