"""One engine of the page: the verdict, why, the headline signals, the present, and what to change."""

from typing import Literal

from kvpressure import runbooks
from kvpressure.derive.snapshot import EngineSnapshot
from kvpressure.expose.page import words
from kvpressure.expose.page.history import History
from kvpressure.expose.page.sentences import TITLES, Case, lasting, sentence
from kvpressure.expose.page.steps import Next, next_steps
from kvpressure.expose.page.tiles import CAPTION, tiles
from kvpressure.expose.page.tree import Element, Node, el, prose

Fold = Literal["", "open", "closed"]
"""Whether a card can be folded, and how it stands at first."""


def card(number: int, case: Case, kept: History, *, users: bool, fold: Fold = "") -> Element:
    """
    The card of an engine.

    Args:
        number: its place on the page.
        case: the engine.
        kept: the points of the charts.
        users: whether what the users of its model see belongs to it.
        fold: whether the card can be folded.
    """
    engine = case.engine
    since = case.verdict if case.verdict and case.verdict.state == engine.verdict else None
    heading = el(
        "h2",
        el("span", *name(engine), class_="who"),
        " ",
        el("span", TITLES[engine.verdict], class_="verdict"),
    )
    lasts = el("span", lasting(since), class_="lasting")
    body = (
        el("p", sentence(case), class_="why"),
        el("p", CAPTION, class_="caption"),
        tiles(case, kept, users=users),
        _present(engine),
        steps(next_steps(case)),
    )
    given = {"id": f"engine-{number}", "data_verdict": engine.verdict, "data_regime": engine.regime}
    if not fold:
        return el("article", el("header", heading, lasts), *body, class_="card", **given)
    summary = el("summary", heading, lasts, el("span", _line(case), class_="line"))
    return el("details", summary, *body, class_="card", open="" if fold == "open" else None, **given)


def name(engine: EngineSnapshot) -> tuple[Node, ...]:
    """What an engine is called; the model's name is set apart, in whatever direction it is written."""
    return el("bdi", engine.model_name or "(no name)"), ", engine ", el("bdi", engine.engine)


def _line(case: Case) -> str:
    """What an engine that is not opened says of itself."""
    window, engine = case.window, case.engine
    return " · ".join(
        (
            f"{words.count(window.preemptions_per_thousand if window else None)} preempt/1k",
            f"{words.percent(engine.kv_usage)} full",
            f"{words.count(engine.waiting)} waiting",
        )
    )


def _present(engine: EngineSnapshot) -> Element:
    """The gauges of the last sample."""
    capacity = "" if engine.kv_capacity_tokens is None else f" of {words.count(engine.kv_capacity_tokens)} tokens"
    seats = engine.kv_capacity_requests.get("mean")
    pairs = (
        ("Running", words.count(engine.running), ""),
        ("Waiting", words.count(engine.waiting), ""),
        ("KV cache in use", words.percent(engine.kv_usage), capacity),
        ("Seats", words.count(None if seats is None else round(seats)), " requests of mean length"),
    )
    return el(
        "dl",
        *(
            el("div", el("dt", name), el("dd", el("b", value), more if value != words.UNKNOWN else None))
            for name, value, more in pairs
        ),
        class_="present",
    )


def steps(what: Next) -> Element | None:
    """What to change next; None where there is nothing to say."""
    if not what.steps and not what.runbook:
        return None
    listed: Element | None = el("ol", *(el("li", *prose(step)) for step in what.steps))
    if len(what.steps) <= 1:
        listed = el("p", *prose(what.steps[0])) if what.steps else None
    link = el("a", f"Runbook {what.runbook}", href=runbooks.url(what.runbook), rel="noreferrer")
    return el(
        "div",
        el("h3", "What to change next"),
        listed,
        el("p", link) if what.runbook else None,
        class_="next",
    )
