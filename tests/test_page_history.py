"""What the page remembers, its charts, and trees of elements with what changes between two."""

import dataclasses
import tracemalloc
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.derive.gaps import Histogram
from kvpressure.derive.snapshot import EngineSnapshot, Snapshot, StreamSnapshot, StreamWindow, WindowSnapshot
from kvpressure.expose.page import words
from kvpressure.expose.page.chart import Chart, draw
from kvpressure.expose.page.history import POINTS, Ages, History, Since
from kvpressure.expose.page.tree import Element, changes, el, html, prose


def snapshot(t, value=1.0, *, engines=1, window=True):
    """A moment at which every engine's signals have one value."""
    windows = (WindowSnapshot("1m", value, value, value, value, value),) if window else ()
    seen = (StreamWindow("1m", 1, 1, value, value, value),)
    nothing = Histogram((), (), 0.0)
    return Snapshot(
        t,
        up=True,
        engines=tuple(EngineSnapshot("m", str(n), "V1", "calm", "healthy", windows=windows) for n in range(engines)),
        streams=(StreamSnapshot("m", "tap", 1, 0, 0, 1, 0, nothing, nothing, windows=seen),),
    )


def test_history_holds_a_quarter_of_an_hour():
    """A point is kept for every five seconds, the newest 180 of them, and a value that was not known is none."""
    history = History()
    for n in range(1000):
        history.record(snapshot(float(n), value=float(n), window=n < 990))

    points = history.points(("preemptions", "m", "0"))
    assert POINTS == len(points) == len(history.times)
    assert (995.0, 100.0) == (history.times[-1], history.times[0])
    assert (None, None, 985.0) == points[:-4:-1]
    assert 995.0 == history.points(("paused", "tap", "m"))[-1]
    assert (None,) * POINTS == history.points(("preemptions", "m", "1"))


def test_history_forgets_engines():
    """An engine that came later has no points before; one that is gone is forgotten with its last point."""
    history = History()
    history.record(snapshot(0.0))
    history.record(snapshot(5.0, engines=2))
    assert (None, 1.0) == history.points(("pinned", "m", "1"))

    for n in range(2, POINTS + 2):
        history.record(snapshot(5.0 * n))

    assert ("pinned", "m", "1") not in history._series
    assert POINTS == len(history.points(("pinned", "m", "0")))


def test_history_is_small():
    """Sixteen engines' history takes well under 200 KB."""
    one = snapshot(0.0, engines=16)
    history = History()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for n in range(2 * POINTS):
        history.record(dataclasses.replace(one, t=5.0 * n))
    took = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert took < 200_000


def test_ages():
    """A state's age counts from the first moment it was seen in; one that was there at the start is older than that."""
    ages = Ages()
    ages.observe(100.0, {"a": "calm"})
    ages.observe(105.0, {"a": "calm", "b": "calm"})
    ages.observe(110.0, {"a": "churn", "b": "calm"})

    assert Since("churn", 10.0, whole=True) == ages.since("a", 120.0)
    assert Since("calm", 15.0, whole=True) == ages.since("b", 120.0)
    ages.observe(120.0, {"b": "calm"})
    assert ages.since("a", 120.0) is None
    started = Ages()
    started.observe(100.0, {"a": "calm"})
    assert Since("calm", 5.0, whole=False) == started.since("a", 105.0)


def drawn(points, *, every=5.0, top=1.0):
    """The text alternative and the paths of a chart."""
    times = [every * n for n in range(len(points))]
    image = draw(Chart("Pinned", times, points, top, words.percent))
    label = image.attributes["aria-label"].replace("\N{NO-BREAK SPACE}", " ")
    return label, [child.attributes["d"] for child in image.children if isinstance(child, Element)]


@pytest.mark.parametrize(
    ("points", "label", "line"),
    [
        ([], "nothing known in the last 15 min", []),
        ([None, None], "nothing known in the last 15 min", []),
        ([0.5], "50 % throughout, now 50 %", ["M180 20h1"]),
        ([0.0, 0.0, 0.0], "0 % throughout, now 0 %", ["M178 39h2"]),
        ([0.0, 0.0, 1.0, 1.0], "between 0 % and 100 %, now 100 %", ["M177 39h1l1-38h1"]),
        ([1.0, 0.5, None], "between 50 % and 100 %, not known now", ["M178 1l1 19"]),
        ([1.0, None, 0.5], "between 50 % and 100 %, now 50 %", ["M178 1h1M180 20h1"]),
    ],
)
def test_chart(points, label, line):
    """The line stands at the right edge, is broken where nothing is known, and is told in words."""
    found, paths = drawn(points)

    assert found.endswith(f": {label}")
    assert found.startswith("Pinned")
    assert line == paths[1:]


def test_chart_is_broken_by_a_pause():
    """Points that are more than three steps apart are not joined."""
    assert 2 == drawn([0.1, 0.1], every=60.0)[1][1].count("M")


def test_chart_scale():
    """What is small beside the least top of the scale looks small."""
    assert drawn([1.0, 1.0], top=10.0)[1][1] == "M179 35h1"


TEXTS = st.text("<>&\"'a\u202e\x00 ", max_size=6)
TREES = st.recursive(
    TEXTS,
    lambda inner: st.builds(
        lambda tag, attributes, children: el(tag, *children, **attributes),
        st.sampled_from(["p", "b", "i"]),
        st.dictionaries(st.sampled_from(["class_", "title"]), TEXTS, max_size=2),
        st.lists(inner, max_size=3),
    ),
    max_leaves=8,
).map(lambda node: el("main", node))


class Reader(HTMLParser):
    """Reads HTML back into a tree."""

    def __init__(self):
        super().__init__()
        self.open = [["", {}, []]]

    def handle_starttag(self, tag, attrs):
        self.open.append([tag, dict(attrs), []])

    def handle_endtag(self, _tag):
        tag, attributes, children = self.open.pop()
        self.open[-1][2].append(Element(tag, attributes, tuple(children)))

    def handle_data(self, data):
        children = self.open[-1][2]
        if children and isinstance(children[-1], str):
            data = children.pop() + data
        children.append(data)


@given(TREES)
def test_html_says_the_same(tree):
    """Whatever a text or an attribute holds, a parser of HTML reads the very tree again."""
    reader = Reader()
    reader.feed(html(tree))
    reader.close()

    assert tree == reader.open[0][2][0]


def patched(node, way, new):
    """The tree with what stands at the end of the way replaced."""
    if not way:
        return new
    children = list(node.children)
    children[way[0]] = patched(children[way[0]], way[1:], new)
    return node._replace(children=tuple(children))


@given(TREES, TREES)
def test_changes_make_the_new_tree(before, after):
    """What changed, put in place one by one, makes one tree of another; equal trees have no changes."""
    tree = before
    for way, node in changes(before, after):
        tree = patched(tree, way, node)

    assert after == tree
    assert [] == list(changes(after, after))


def test_changes_are_small():
    """A number that changed is the only thing that is told."""
    before, after = (el("main", el("p", "a", class_="x"), el("p", el("b", text), " left")) for text in ("1", "2"))

    assert [([1, 0, 0], "2")] == list(changes(before, after))


def test_prose():
    """Flags in a text stand as code, and nothing else changes."""
    assert ("Raise ", el("code", "--max-num-seqs"), ".") == prose("Raise --max-num-seqs.")
    assert ("5 - 3",) == prose("5 - 3")
    assert () == prose("")
