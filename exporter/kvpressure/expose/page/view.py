"""A snapshot, with what the page remembers, as the tree of elements that the page shows."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvpressure.config import Config
from kvpressure.derive.snapshot import EngineSnapshot, Snapshot, StreamSnapshot
from kvpressure.expose.page import about, words
from kvpressure.expose.page.card import card, name, steps
from kvpressure.expose.page.history import Ages, History
from kvpressure.expose.page.sentences import TITLES, Case
from kvpressure.expose.page.steps import DOWN, Next
from kvpressure.expose.page.tiles import CAPTION, user_tiles
from kvpressure.expose.page.tree import Element, el, prose

FEW = 4
"""Engines that are shown in full; of more, each can be opened, and those in need are open at first."""
_OPEN = 2  # of many engines that need it, those that are open at first


@dataclass(frozen=True, slots=True)
class View:
    """
    The page's changing part.

    Args:
        title: of the window.
        main: everything below the heading.
    """

    title: str
    main: Element


class Memory:
    """What the page remembers between two snapshots."""

    def __init__(self) -> None:
        self.history = History()
        self.ages = Ages()

    def record(self, snapshot: Snapshot) -> None:
        """Take the next snapshot."""
        self.history.record(snapshot)
        self.ages.observe(
            snapshot.t,
            {
                (what, engine.model_name, engine.engine): state
                for engine in snapshot.engines
                for what, state in (("verdict", engine.verdict), ("regime", engine.regime))
            },
        )


def view(snapshot: Snapshot, memory: Memory, config: Config) -> View:
    """The page at the snapshot's moment."""
    cases = [_case(engine, snapshot, memory, config) for engine in snapshot.engines]
    of_model = Counter(engine.model_name for engine in snapshot.engines)
    many = len(cases) > FEW
    summary, notice = _summary(snapshot), _not_there(snapshot)
    # Said large right below: in the heading of the only engine, or of the notice.
    hidden = notice is not None or len(cases) == 1
    opened = _opened(cases)
    cards = [
        card(
            number,
            case,
            memory.history,
            users=of_model[case.engine.model_name] == 1,
            fold=("open" if number in opened else "closed") if many else "",
        )
        for number, case in enumerate(cases)
    ]
    main = el(
        "main",
        el("p", summary, id="summary", role="status", class_="hidden" if hidden else "summary"),
        _attention(cases) if many else None,
        notice,
        *cards,
        *_users(snapshot, memory, config, of_model),
        about.availability(snapshot),
        about.observers(snapshot),
        id="main",
    )
    return View(f"{summary} · kvpressure", main)


def _case(engine: EngineSnapshot, snapshot: Snapshot, memory: Memory, config: Config) -> Case:
    own = (engine.model_name, engine.engine)
    return Case(
        engine,
        tuple(streams for streams in snapshot.streams if streams.model_name == engine.model_name),
        config,
        regime=memory.ages.since(("regime", *own), snapshot.t),
        verdict=memory.ages.since(("verdict", *own), snapshot.t),
        answers=bool(snapshot.up),
        age=None if snapshot.last_good is None else snapshot.t - snapshot.last_good,
    )


def _summary(snapshot: Snapshot) -> str:
    """All verdicts in a line that changes only when one of them does: it is read aloud then."""
    if snapshot.up is None:
        return "Waiting for the first sample"
    if not snapshot.up:
        return "vLLM does not answer"
    if not snapshot.engines:
        return "No engine seen"
    verdicts = Counter(engine.verdict for engine in snapshot.engines)
    if len(snapshot.engines) == 1:
        return TITLES[snapshot.engines[0].verdict]
    return " \N{MIDDLE DOT} ".join(
        f"{verdicts[verdict]}\N{NO-BREAK SPACE}\N{MULTIPLICATION SIGN}\N{NO-BREAK SPACE}{title}"
        for verdict, title in TITLES.items()
        if verdicts[verdict]
    )


def _not_there(snapshot: Snapshot) -> Element | None:
    """What is wrong where there is nothing to show, or what is shown is old."""
    if snapshot.up is None or (snapshot.up and snapshot.engines):
        return None
    if snapshot.up:
        why, change = next(iter(snapshot.reasons.values()), (("vLLM exposes no engine", ""),))[0]
        text = f"{words.capital(why)}."
        return _notice(_summary(snapshot), text, Next((f"{words.capital(change)}.",) if change else (), ""))
    since = "It has not answered since the exporter started"
    if snapshot.last_good is not None:
        since = f"The last good answer is {words.span(snapshot.t - snapshot.last_good)} old"
    failed = ", ".join(f"{reason} {number:,}" for reason, number in sorted(snapshot.errors.items()))
    return _notice(
        _summary(snapshot),
        f"{since}. Failed samples so far: {failed}.",
        Next(("Is vLLM running, or still loading? Is --vllm.url right? kvpressure check says what it answers.",), DOWN),
    )


def _notice(heading: str, text: str, what: Next) -> Element:
    return el(
        "section",
        el("h2", el("span", heading, class_="verdict"), id="notice"),
        el("p", *prose(text), class_="why"),
        steps(what),
        class_="card notice",
        aria_labelledby="notice",
    )


def _attention(cases: Sequence[Case]) -> Element | None:
    """The engines of many that need somebody, as links."""
    found = [(number, case) for number, case in enumerate(cases) if case.engine.verdict not in ("healthy", "unknown")]
    if not found:
        return None
    links = (el("li", el("a", *name(case.engine), href=f"#engine-{number}")) for number, case in found)
    return el(
        "nav",
        el("h2", "Look at"),
        el("ul", *links, role="list"),
        class_="attention",
        aria_label="Engines that need attention",
    )


def _opened(cases: Sequence[Case]) -> set[int]:
    order = [number for number, case in enumerate(cases) if case.engine.verdict not in ("healthy", "unknown")]
    return set(order[:_OPEN])


def _users(snapshot: Snapshot, memory: Memory, config: Config, of_model: Mapping[str, int]) -> Iterator[Element]:
    """What the users of a model see, where its streams belong to no single engine."""
    models: dict[str, list[StreamSnapshot]] = {}
    for streams in snapshot.streams:
        # Of a model that is not served any more, nothing is left to see.
        recent = streams.open or any(window.streamed for window in streams.windows)
        if recent and of_model.get(streams.model_name, 0) != 1:
            models.setdefault(streams.model_name, []).append(streams)
    for number, (model, found) in enumerate(sorted(models.items())):
        nobody = EngineSnapshot(model, "", "V1", "unknown", "unknown")
        yield el(
            "section",
            el(
                "h2",
                el("span", el("bdi", model or "(no name)"), ", all engines", class_="who"),
                " ",
                el("span", "What users see"),
            ),
            el("p", CAPTION, class_="caption"),
            user_tiles(Case(nobody, tuple(found), config), memory.history),
            class_="card users",
            id=f"users-{number}",
        )
