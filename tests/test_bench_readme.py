"""The README's table of costs: made of the results of the benchmarks page, and honest about what they lack."""

import re

import pytest
from bench import page, readme, results

FOUND = results.read(page.KEPT)


def cells(row):
    """A row's cells as they are printed."""
    return " | ".join(row)


def test_the_table_is_that_of_the_kept_results():
    """No figure in the README is older than the benchmarks page."""
    text = readme.README.read_text(encoding="utf-8")

    assert text == readme.readme(text, FOUND), "run python -m bench.page"


def test_every_row_is_told_of_the_kept_results():
    """A benchmark whose row or figure was renamed would leave a hole."""
    assert [] == [row[0] for row in readme.table(FOUND) if "not in these results" in cells(row)]


def test_figures_are_those_of_the_benchmarks_page():
    """The ratios of the README stand, rounded, on the page that it leads to."""
    (ratio,) = (row.figures["times_the_time"]["median"] for row in FOUND["agent"] if row.figures.get("engines") == 1)
    told = next(row for row in readme.table(FOUND) if row[0].startswith("CPU per thousand scrapes"))

    assert f"{ratio:.1f} times the time" == told[3]
    assert f"{ratio:.2f}x the time" in page.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("benchmark", ["agent", "detect", "history", "logs", "matrix", "reading", "scraping", "tap"])
def test_a_benchmark_that_was_not_run_is_said_so(benchmark):
    """Its rows have no figure, and the others keep theirs."""
    there = readme.table({name: rows for name, rows in FOUND.items() if name != benchmark})
    missing = [row for row in there if "not in these results" in cells(row)]

    assert missing
    assert len(missing) < len(there)
    assert all(not re.search(r"\d", cells(row[1:])) for row in missing)


def test_without_a_peer_no_figure_is_made_up():
    """The tap's memory, where there was no nginx: its figures say so, and the row is not told."""
    alone = [
        results.Row(row.what, row.ours, figures=row.figures | {"peer_bytes_per_stream": None}) for row in FOUND["tap"]
    ]
    told = next(row for row in readme.table({"tap": alone}) if row[0].startswith("the tap, memory"))

    assert ("*not in these results*", "", "") == told[1:]


@pytest.mark.parametrize(
    ("value", "short"), [(0.0019, "0.0019"), (0.828, "0.83"), (1.0, "1.0"), (9.97, "10"), (33.9, "34"), (253.2, "253")]
)
def test_figures_are_rounded_to_what_can_be_trusted(value, short):
    """Two digits, or all before the point."""
    assert short == readme._short(value)
