"""The benchmarks' arithmetic, the bounds of the short form, and the page that is made of what they found."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from bench import agent, detect, history, matrix, page, paths, proc, results, short, startup
from bench.launch import first_line, interpreter
from bench.logs import delta
from bench.measure import Spread, ratio
from bench.results import Row
from bench.watching import ENGINES, Sidecar, check, scrape, sidecar

from kvpressure.vllm.logs import LogReader

ROOT = Path(__file__).parents[1]
BOUNDS = json.loads(short.BOUNDS.read_text(encoding="utf-8"))


# --- what is counted ------------------------------------------------------------------------------------------------


def test_a_ratio_is_taken_round_by_round():
    """A round in which the machine was slow for both tells the same ratio as the others."""
    assert Spread(2.0, 2.0, 2.0) == ratio([2.0, 20.0], [1.0, 10.0])
    assert "2.00 ms (1.00-3.00)" == Spread.of([0.001, 0.002, 0.003]).text(1000, " ms")


def test_cpu_time_of_a_process_is_finer_than_a_tick():
    """What a sidecar of one engine takes in a few seconds is less than a few ticks of ten milliseconds."""
    before, began = proc.cpu_seconds(os.getpid()), time.process_time()
    while time.process_time() - began < 0.05:
        pass
    assert 0 < proc.cpu_seconds(os.getpid()) - before < 5
    assert 0 < proc._schedstat(Path("/proc/self/task") / str(os.getpid()))


def test_cpu_per_thousand_scrapes_is_counted_per_scrape():
    """Who scrapes half as often in a round is not half as dear."""
    seen = [
        agent.Counted((1.0, 5.0), (10, 10)),
        agent.Counted((1.2, 6.0), (20, 15)),
        agent.Counted((1.3, 8.0), (25, 25)),
    ]

    assert [20.0, 20.0] == pytest.approx(agent.per_thousand(seen, 0))
    assert [200.0, 200.0] == pytest.approx(agent.per_thousand(seen, 1))


def test_who_does_not_scrape_has_no_figure():
    """A Prometheus that never began is no cheap peer."""
    with pytest.raises(RuntimeError, match=r"^Prometheus did not scrape$"):
        agent.per_thousand([agent.Counted((1, 1), (0, 0)), agent.Counted((2, 1), (1, 0))], 1)


def test_the_goal_against_the_agent_is_for_one_engine():
    """Fewer CPU seconds than the peer meet it; more engines only stand beside it."""
    seen = [agent.Counted((1.0, 1.0), (0, 0)), agent.Counted((1.1, 1.4), (100, 100))]
    ours = Sidecar(os.getpid(), "", 0)

    one, eight = (agent._row(agent.Pair(engines, ours, os.getpid(), ""), seen) for engines in (1, 8))

    assert (True, None) == (one.met, eight.met)
    assert "0.25x the time (0.25-0.25)" == one.ratio
    assert one.ours.startswith("1.00 s (1.00-1.00), ")


@pytest.mark.parametrize(("cpu", "size", "met"), [(0.014, 50, True), (0.016, 50, False), (0.014, 61, False)])
def test_the_goal_of_the_matrix_is_for_one_cell(cpu, size, met):
    """CPU and memory must both hold, at one engine and 500 events a second through the tap."""
    row = matrix._row(matrix.Cell(1, 500, "tap", 15.0, cpu, 500.0, 1.0, (0, size * 2**20), 0.0), 0.02)

    assert met is row.met
    assert matrix._row(matrix.Cell(8, 500, "tap", 15.0, cpu, 500.0, 1.0, (0, size * 2**20), 0.0), 0.02).met is None


def test_slopes_find_what_each_engine_and_each_event_costs():
    """On cells that lie on a plane, the plane; an engine that is sampled half as often counts as half of one."""
    cells = [
        matrix.Cell(
            engines,
            events,
            "tap",
            10.0,
            0.002 + 0.001 * engines / interval + 0.02 * events / 1000,
            float(events),
            interval,
            (0, int(40e6 + 1e5 * engines / interval + 2e6 * events / 1000)),
            0.0,
        )
        for engines, events, interval in ((1, 0, 1.0), (8, 0, 1.0), (64, 500, 2.0), (1, 5000, 1.0), (64, 5000, 2.0))
    ]

    without, engine, thousand = matrix.slopes(cells)

    assert [0.002, 0.001, 0.02] == pytest.approx([row.figures["cpu_share"] for row in (without, engine, thousand)])
    assert [40e6, 1e5, 2e6] == pytest.approx([row.figures["bytes"] for row in (without, engine, thousand)], rel=1e-4)


def test_growth_is_told_per_hour():
    """Sixty bytes every ten minutes are 360 an hour, and a level line is none."""
    assert 360.0 == pytest.approx(history.hourly([1000, 1060, 1120, 1180], 600))
    assert 0.0 == pytest.approx(history.hourly([1000] * 5, 600), abs=1e-6)


def test_imports_that_the_peer_has_too_are_not_counted():
    """Only what comes on top, summed up by package; the header and other output of the interpreter is no module."""
    known = "import time: self [us] | cumulative | imported package\nimport time:       100 |        100 | aiohttp\n"
    said = (
        known
        + "import time:        30 |         50 |   kvpressure.a\nimport time:        20 |         20 | kvpressure\n"
    )

    assert {"kvpressure": 50} == startup.shares(said, known)


# --- what is run ----------------------------------------------------------------------------------------------------


def test_the_stand_in_moves_once_a_second_and_never_back():
    """A counter that went back would be a restart of vLLM to whoever reads it."""
    with interpreter("-m", "bench.standin", "2") as standin:
        url = f"http://127.0.0.1:{first_line(standin)}/metrics"
        seen = []
        for _ in range(5):
            with urllib.request.urlopen(url, timeout=5) as answer:
                body = answer.read().decode()
            seen.append([float(line.split()[-1]) for line in body.splitlines() if "generation_tokens_total{" in line])
            time.sleep(0.5)

    assert [2] * 5 == [len(each) for each in seen]
    assert seen == sorted(seen)
    assert seen[0] < seen[-1]


def test_a_watched_sidecar_says_what_it_did():
    """A real one in front of the stand-in: its engines are found, and one that lacks an engine is refused."""
    with sidecar(2) as running:
        deadline = time.monotonic() + 60
        while (said := scrape(running.listen))[ENGINES] != 2 and time.monotonic() < deadline:
            time.sleep(0.2)

    check(said, 2)
    with pytest.raises(RuntimeError, match="2 of 3 engines"):
        check(said, 3)


def test_the_log_that_is_written_is_one_that_is_read():
    """The load of lines is one of deltas to the reader, the last one of a request among them."""
    lines = delta(1_800_000_000.0, "chatcmpl-r1", "None") + delta(1_800_000_000.5, "chatcmpl-r1", "length")

    events = [event for batch in LogReader().read(lines.encode()) for event in batch.events]

    assert ["token", "last"] == [event.kind for event in events]
    assert 0.5 == pytest.approx(events[1].t - events[0].t)


def test_the_paths_are_marked_in_order():
    """One part before each path and one for it, with a quarter more of everything too."""
    said = subprocess.run(
        [sys.executable, "-m", "bench.paths", "1.25"], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout

    assert [part for name in paths.paths() for part in (f"before {name}", name)] == json.loads(said)


# --- the short form -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("python", BOUNDS)
def test_every_path_has_a_bound(python):
    """A path without one could get slower unseen."""
    assert set(paths.paths()) - {paths.REFERENCE} == set(BOUNDS[python])


def test_counts_are_told_in_units_of_the_reference():
    """A Python that needs twice as many instructions for everything tells the same ratios."""
    once, twice = ({"reference": 50 * times, "reading": 100 * times} for times in (1, 2))

    assert {"reading": 2.0} == short.ratios(once) == short.ratios(twice)


@pytest.mark.parametrize(("share", "slow"), [(1.0, []), (1.19, []), (1.25, ["reading"])])
def test_a_regression_of_a_quarter_is_too_much(share, slow):
    """And what lies within the slack is not. That counting it for real comes to the same is for `--prove` to show."""
    assert slow == short.too_slow({"reading": 2.0 * share, "new": 9.0}, {"reading": 2.0})


def test_the_short_form_fails_on_a_slower_path(monkeypatch, capsys):
    """Status 1 and the path by its name, where the counts are a quarter over the bounds; 0 where they are not."""
    python = short._VERSION
    if python not in BOUNDS:
        pytest.skip(f"there are no bounds for Python {python}")
    name, bound = next(iter(BOUNDS[python].items()))
    counts = {"reference": 10_000, name: int(10_000 * bound)}
    monkeypatch.setattr(short, "count", lambda _: counts)

    assert 0 == short.main([])
    counts[name] = int(counts[name] * 1.25)
    assert 1 == short.main([])
    assert f"{name}: " in capsys.readouterr().out.splitlines()[-2]


def test_a_python_without_bounds_is_not_judged(monkeypatch, capsys):
    """It says so, and what it counted."""
    monkeypatch.setattr(short, "count", lambda _: {"reference": 10, "reading": 99})
    monkeypatch.setattr(short, "_VERSION", "4.0")

    assert 0 == short.main([])
    said = capsys.readouterr().out
    assert "there are no bounds for Python 4.0" in said
    assert "reading: 9.900 of the reference" in said


# --- time to detect -------------------------------------------------------------------------------------------------


def test_the_first_preemption_is_where_the_counter_leaves_its_beginning():
    """Over all engines, across a moment without an answer; a counter that stands had none."""
    body = 'vllm:num_preemptions_total{{engine="0"}} 7\nvllm:num_preemptions_total{{engine="1"}} {}\n'
    rows = [(0, body.format(3)), (1, None), (2, body.format(3)), (3, body.format(4)), (4, body.format(9))]

    assert 3 == detect.first_preemption(rows)
    assert detect.first_preemption(rows[:3]) is None


@pytest.mark.parametrize(
    ("by", "page", "met"),
    [(900, 700.0, True), (900, 915.0, False), (900, None, False), (None, None, True), (None, 700.0, False)],
)
def test_a_page_is_held_against_the_verdict_of_the_trace(by, page, met):
    """In time where one is wanted, and none where none is."""
    row = detect.row(detect.Found("trace", 15, by, 600, page, {"Peer": 660.0, "Silent": None}))

    assert met is row.met
    assert "1 of 2 page, first Peer: 60 s" == row.peer
    assert ("silent" if page is None else f"{page - 600:.0f} s") == row.ours


@pytest.mark.parametrize(
    ("when", "by", "first", "good"),
    [
        (700, 900, 600, True),
        (901, 900, 600, False),
        (500, 900, 600, False),
        (None, 900, 600, False),
        (None, None, 600, True),
    ],
)
def test_a_peer_is_right_by_the_same_verdict(when, by, first, good):
    """Neither late nor before anything happened, and silent where it should be."""
    assert good is page.right(when, by, first)


# --- results and the page -------------------------------------------------------------------------------------------


def test_results_of_benchmarks_that_were_not_run_stay(monkeypatch, tmp_path):
    """One can be repeated alone; what is read is what was written."""
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results" / "results.json")
    old, new = Row("a", "1 s", figures={"seconds": 1.0}), Row("a", "2 s", met=True)

    results.write({"reading": [old], "tap": [old]}, [])
    results.write({"tap": [new]}, ["logs"])

    assert {"reading": [old], "tap": [new]} == results.read(results.RESULTS)
    assert ["logs"] == json.loads(results.RESULTS.read_text(encoding="utf-8"))["failed"]


def test_stability_names_the_ratio_that_moved_most():
    """By how far a round lay from the median, on whichever side."""
    steady = Row("steady", "1", figures={"times_as_fast": {"median": 10.0, "low": 9.5, "high": 10.2}})
    loose = Row("loose", "1", figures={"times_the_time": {"median": 1.0, "low": 0.7, "high": 1.1}})

    said = page.stability([steady, loose, Row("without", "1")])

    assert said.startswith("1 of 2 ratios had every round within 10% of their median; furthest from it, by 30%,")
    assert said.endswith(": loose.")


def test_the_page_says_what_was_found():
    """Its tables are those of the results that lie beside its plots."""
    text = page.PAGE.read_text(encoding="utf-8")

    assert text == page.page(text, results.read(page.KEPT)), "run python -m bench.page"


def test_every_plot_of_the_page_is_there():
    """A picture that is named and missing is a hole in the page, and one that nobody names is waste."""
    named = set(re.findall(r"\]\(benchmarks/(\w+\.svg)\)", page.PAGE.read_text(encoding="utf-8")))

    assert named
    assert named == {path.name for path in page.FOLDER.glob("*.svg")}


def test_what_was_not_run_is_said():
    """Results of one benchmark make a page too: the others' places say that they are empty, and no plot is named."""
    text = page.page(page.PAGE.read_text(encoding="utf-8"), {"logs": [Row("a log", "1 s")]})

    assert "| a log | 1 s |" in text
    assert "<!-- generated: tap -->\n*Not in these results.*\n<!-- end -->" in text
    assert ".svg" not in text


def test_a_page_without_a_place_is_an_error():
    """A benchmark that is new must be told somewhere."""
    with pytest.raises(ValueError, match=r"^benchmarks\.md has no place for new$"):
        page.page("nothing", {"new": [Row("a", "1")]})
