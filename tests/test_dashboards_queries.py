"""The dashboards' queries against a real Prometheus that holds an hour of the lab's storm and calm."""

import dataclasses
import math
from pathlib import Path

import dash_history
import pytest
from dash_history import END, HOUR, ask
from dashboards_help import PAGES, QUERIES, filled

CACHE = Path(__file__).parents[1] / ".cache" / "history"
NOW = END - 1020.0
"""In the middle of both storms."""

STEP = 30.0

EMPTY = {
    "kvpressure-capacity": {
        "KV offload: bytes moved": "the lab has no offloading connector",
        "KV offload: share of time spent moving": "the lab has no offloading connector",
        "KV from a connector: tokens not computed": "the lab has no connector",
        "V0: requests swapped to the CPU": "the lab is a vLLM of today",
        "V0: swap space in use": "the lab is a vLLM of today",
    },
    "kvpressure-exporter": {
        "Samples per second, and errors by reason C": "the web port refused nobody",
        "Responses, refusals and broken answers B": "the tap refused nobody",
        "What the tap could not time A": "every stream could be timed",
        "Files followed, errors by reason B": "the log had no fault",
    },
}
"""Panels, or single queries of panels, without data here, and why."""

SAMPLES = 64
"""
Samples that a query may read for each point of each line that it draws: a rate takes four, a share is made of two, tap
and log are both read where one is drawn, and a sum over engines draws one line of all.
"""


@pytest.fixture(scope="module")
def prometheus():
    """The URL of a Prometheus with the hour in it."""
    with dash_history.serving(dash_history.kept(CACHE)) as url:
        yield url


@pytest.fixture(scope="module")
def crowd(prometheus, tmp_path_factory):
    """The URL of a Prometheus with sixty-four engines in it."""
    folder = dash_history.crowd(prometheus, tmp_path_factory.mktemp("crowd"), 64)
    with dash_history.serving(folder) as url:
        yield url


def answer(url, asked, now, seconds=HOUR, **values):
    """What Prometheus says to a query, as Grafana would ask it; how many samples it read for that."""
    expr = filled(asked.expr, seconds, **values)
    if asked.instant:
        found = ask(url, "query", query=expr, time=now, stats="all")
    else:
        found = ask(url, "query_range", query=expr, start=now - seconds, end=now, step=STEP, stats="all")
    return found["result"], found["stats"]["samples"]["totalQueryableSamples"]


def reason(asked):
    """Why a query is allowed to be empty here."""
    own = EMPTY.get(asked.uid, {})
    title = asked.panel["title"]
    return own.get(title) or own.get(f"{title} {asked.ref}")


def numbers(result):
    """Every value of an answer that is a number."""
    pairs = [pair for series in result for pair in (series["values"] if "values" in series else [series["value"]])]
    return [float(value) for _, value in pairs if not math.isnan(float(value))]


@pytest.mark.parametrize("asked", QUERIES, ids=str)
def test_every_query_gives_data(prometheus, asked):
    """Each returns numbers over the hour, or is on the list of those that cannot, and is there with reason."""
    result, _ = answer(prometheus, asked, NOW)

    assert bool(numbers(result)) is (reason(asked) is None)


def test_the_list_of_reasons_is_no_longer_than_it_must_be():
    """Every entry is about a query that exists."""
    titles = {
        (asked.uid, name) for asked in QUERIES for name in (asked.panel["title"], f"{asked.panel['title']} {asked.ref}")
    }

    assert {(uid, name) for uid, names in EMPTY.items() for name in names} <= titles


@pytest.mark.parametrize(
    "asked", [asked for asked in QUERIES if "$engine" in asked.expr and not reason(asked)], ids=str
)
def test_one_engine_can_be_picked(prometheus, asked):
    """With every variable at one value, as after a click, the same queries give data still."""
    one = {"namespace": "shop", "job": "kvpressure", "instance": "books-0:10938", "model_name": "bookstore-14b"}
    # vLLM's own series stand under its own job and instance; the dashboards do not ask them for the sidecar's.
    result, _ = answer(prometheus, asked, NOW, **one, engine="0")

    assert numbers(result)


@pytest.mark.parametrize("asked", QUERIES, ids=str)
def test_the_cost_of_a_query(prometheus, asked):
    """No query reads more than a few times what the panel could draw of five engines in this time."""
    # Prometheus evaluates what has `@ end()` once and counts it at every step, so it is asked for by itself.
    shown, _, ranked = asked.expr.partition("\nand on (")
    drawn = 1 if asked.instant else HOUR / STEP + 1
    result, read = answer(prometheus, dataclasses.replace(asked, expr=shown), NOW)
    if ranked:
        ranking = dataclasses.replace(asked, expr=ranked.partition(")\n")[2], instant=True)
        read += answer(prometheus, ranking, NOW)[1]

    # A line through the range reads what the range has of each engine, for running and for waiting requests.
    forecast = 2 * 5 * HOUR / 15 if asked.instant and "$__range" in asked.expr else 0
    assert read <= SAMPLES * max(5, len(result)) * drawn + forecast


@pytest.mark.parametrize("asked", [asked for asked in QUERIES if not asked.panel["type"].startswith("table")], ids=str)
def test_sixty_four_engines(crowd, asked):
    """However many engines there are, a panel draws so many lines at most that they can be told apart."""
    result, _ = answer(crowd, asked, END, 600.0)

    assert len(result) <= (12 if asked.panel["type"] != "heatmap" else 20)


def test_the_table_has_all_sixty_four(crowd):
    """Nothing is left out of the table of engines."""
    rows = {
        len(answer(crowd, asked, END, 600.0)[0]) for asked in QUERIES if asked.panel["title"].startswith("Which engine")
    }

    assert {64} == rows


def test_the_story_is_on_the_screen(prometheus):
    """In the middle of the storms: pages fire, the right engines are in the table as KV memory, the calm one is not."""
    first = {asked.panel["title"]: asked for asked in reversed(QUERIES) if asked.uid == "kvpressure-oncall"}
    (pages,) = numbers(answer(prometheus, first["Page?"], NOW)[0])
    table = next(asked for asked in QUERIES if asked.panel["title"].startswith("Which engine") and asked.ref == "A")
    mappings = table.panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    verdicts = {
        f"{series['metric']['instance']} {series['metric']['engine']}": mappings[series["value"][1]]["text"]
        for series in answer(prometheus, table, NOW)[0]
    }

    assert pages >= 2
    assert {
        "books-0:10938 0": "✖ KV memory · churn",
        "chat-0:10938 0": "✖ KV memory · churn",
        "chat-0:10938 1": "✔ healthy",
        "chat-1:10938 0": "✔ healthy",
        "code-0:10938 0": "✔ healthy",
    } == verdicts


def test_annotations_give_data(prometheus):
    """The queries of the annotations find the alerts of the hour."""
    for page in PAGES.values():
        for one in page["annotations"]["list"]:
            found = ask(prometheus, "query_range", query=filled(one["expr"]), start=NOW - HOUR, end=NOW, step=60)
            assert found["result"], one["name"]
