"""The sections of the report: what to do first, what there is, what limits it, what each change would do, how sure."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from kvpressure.advise import report_words as words
from kvpressure.advise.advice import Advice, Change, Compared, Line, Outcome, Settings
from kvpressure.advise.report import (
    Block,
    Cell,
    Choice,
    Choices,
    Head,
    Items,
    Numbering,
    Picture,
    Says,
    Section,
    Table,
    Tone,
    believed,
    explained,
    label,
    trust,
)
from kvpressure.expose.page.words import capital, count, percent, seconds

_Row = tuple[Cell, Outcome | None, bool | None]
_Words = Callable[[float | None], str]

_OUTCOME: tuple[tuple[str, str, _Words, str], ...] = (
    ("preemptions per 1,000", "per_thousand", count, "simulated: 1000 x preemptions / requests served"),
    ("requests paused", "paused", percent, "simulated: requests with over a second between two tokens / requests"),
    ("TTFT p50", "ttft_p50", seconds, "simulated: median over requests of (first token - arrival)"),
    ("TTFT p95", "ttft_p95", seconds, "simulated: 95th percentile over requests of (first token - arrival)"),
    ("tokens/s", "throughput", count, "simulated: tokens of answers / seconds"),
)
"""The columns of an outcome: title, field, words and formula."""

_ENDS: dict[bool | None, tuple[str, Tone]] = {
    True: ("yes", "good"),
    False: ("no", "bad"),
    None: (words.UNKNOWN, "unknown"),
}

_RESULTS = {
    "goes on": {True: "ends preemption", False: "does not end preemption"},
    "ended already": {True: "preemption stays below its target", False: "brings preemption about"},
}
"""What a change does, by whether preemption is below its target as things are."""

_LEADS = "A number in square brackets behind a value leads to the list that ends a section: where the value comes from."

_FEWEST = "simulated: the fewest blocks with which preemption counts as ended"
_IN_TOKENS = "blocks that are needed x tokens per block"
_GROWTH = "blocks that are needed / blocks now - 1"

_TRUST = {
    "holds": "",
    "fails": "The simulation did not reproduce what was observed (see 4). So nothing that it says of a change is "
    "shown, and what follows is arithmetic only.",
    "unheld": "Nothing was observed that the simulation could be held against. What follows is its word alone: an "
    "estimate that nothing has confirmed for this server.",
    "not run": "Nothing could be simulated, so what follows is arithmetic only.",
}


def sections(advice: Advice) -> tuple[Section, ...]:
    """All sections, in order: 0 is the conclusion."""
    numbering = Numbering()
    made = (
        Section(0, "What to do first", (Says(advice.conclusion), Says(_LEADS))),
        Section(1, "What you have", _with_sources(numbering, _have(advice, numbering))),
        Section(2, "What limits it", _with_sources(numbering, _limits(advice, numbering))),
        Section(3, "What each change would do", _with_sources(numbering, _changes(advice, numbering))),
        Section(4, "How sure this is", _with_sources(numbering, _sure(advice, numbering))),
    )
    return tuple(explained(made))


def _with_sources(numbering: Numbering, blocks: Iterator[Block]) -> tuple[Block, ...]:
    listed = list(blocks)
    found = numbering.fresh()
    return (*listed, found) if found else tuple(listed)


def _have(advice: Advice, numbering: Numbering) -> Iterator[Block]:
    if advice.have:
        yield _lines("Numbers of this server and its traffic", advice.have, numbering)
    else:
        yield Says("Nothing is known of this server.")


def _limits(advice: Advice, numbering: Numbering) -> Iterator[Block]:
    yield Head(words.LIMITS[advice.limit], advice.limit)
    yield Says(advice.limit_says)
    if advice.evidence:
        yield _lines("The evidence", advice.evidence, numbering)
    for shift in advice.shifts:
        known = words.times(shift.before, shift.after)
        yield Says(
            f"The {shift.what} became {known}: {words.quantity(shift.before, 'tokens')} on average before, "
            f"{words.quantity(shift.after, 'tokens')} since {words.moment(shift.since)}.",
            refs=numbering.ref(shift.source),
        )
    if not advice.shifts:
        yield Says("No shift in the lengths of prompts or answers is known.")


def _changes(advice: Advice, numbering: Numbering) -> Iterator[Block]:
    shown = believed(advice)
    if _TRUST[trust(advice)]:
        yield Says(_TRUST[trust(advice)], loud=True)
    for sentence in (advice.period, advice.targets):
        if sentence and trust(advice) != "not run":
            yield Says(sentence)
    if shown:
        yield from _need(advice, numbering)
    if advice.changes:
        if shown and any(change.outcome for change in advice.changes):
            yield Picture("bars")
            yield _outcomes(
                _bands("The changes, cheapest first", advice.seeds),
                ("change", "keeps both targets"),
                [(_named(place, change), change.outcome, _good(change)) for place, change in enumerate(advice.changes)],
                numbering,
            )
        already = any(change.key == "now" and change.ends for change in advice.changes)
        results = _RESULTS["ended already" if already else "goes on"]
        yield Choices(
            tuple(_choice(place, change, results, shown=shown) for place, change in enumerate(advice.changes))
        )
    else:
        yield Says("No change is proposed.")
    if shown and advice.settings is not None:
        yield from _settings(advice.settings, numbering, advice.seeds)


def _good(change: Change) -> bool | None:
    """Whether both targets are kept; None where that is not known."""
    return None if change.ends is None else change.ends and change.prompt


def _need(advice: Advice, numbering: Numbering) -> Iterator[Block]:
    need = advice.need
    if need is None:
        yield Says(
            "The least KV memory that ends preemption is not given: "
            "it was not looked for, or nothing that was tried ends it."
        )
        return
    yield Says(need.says)
    if need.growth <= 0.0:
        return
    lines = (
        _estimate("KV blocks", words.quantity(need.blocks, "blocks"), _FEWEST, numbering),
        _estimate("KV capacity", words.quantity(need.tokens, "tokens"), _IN_TOKENS, numbering),
        _estimate("growth", words.growth(need.growth), _GROWTH, numbering),
        _line(Line("more memory for it", need.bytes), numbering),
    )
    yield Table("The least KV memory that ends preemption", ("what", "value"), lines)
    rows = [(Cell("that much"), need.outcome, None)]
    yield _outcomes(_bands("With that much memory", advice.seeds), ("setting", ""), rows, numbering)


def _settings(settings: Settings, numbering: Numbering, seeds: int | None) -> Iterator[Block]:
    yield Says(settings.says)
    if not settings.points:
        return
    yield Picture("curve")
    yield _outcomes(
        _bands("Settings of --max-num-seqs", seeds),
        ("setting", "keeps both targets"),
        [(Cell(f"{point.seqs:,}"), point.outcome, point.good) for point in settings.points],
        numbering,
    )


def _sure(advice: Advice, numbering: Numbering) -> Iterator[Block]:
    calibration = advice.calibration
    if calibration is None:
        yield Says("Nothing could be simulated, so all of this is arithmetic.", loud=True)
    else:
        yield Says(capital(calibration.says), loud=calibration.holds is not True)
        if calibration.rows:
            yield Table(
                "What was simulated against what was observed",
                ("figure", "observed", "simulated", "close enough"),
                tuple(_compared(row, numbering) for row in calibration.rows),
            )
        if calibration.step:
            yield Says(capital(calibration.step))
    if advice.notes:
        yield Items("What was assumed, and what is missing", advice.notes)


def _estimate(name: str, text: str, source: str, numbering: Numbering) -> tuple[Cell, ...]:
    return Cell(name), Cell(f"{text} (estimate)", refs=numbering.ref(source))


def _lines(caption: str, lines: tuple[Line, ...], numbering: Numbering) -> Table:
    return Table(caption, ("what", "value"), tuple(_line(line, numbering) for line in lines))


def _line(line: Line, numbering: Numbering) -> tuple[Cell, ...]:
    return Cell(line.name), _value(words.figure(line.figure), line.figure.source, numbering)


def _value(text: str, source: str, numbering: Numbering) -> Cell:
    """A value with the number of its source; below one that is not known stands why."""
    if text == words.UNKNOWN:
        return Cell(text, source, "unknown")
    return Cell(text, refs=numbering.ref(source))


def _named(place: int, change: Change) -> Cell:
    return Cell(f"{label(place)}. {change.title}")


def _choice(place: int, change: Change, results: Mapping[bool, str], *, shown: bool) -> Choice:
    ends = change.ends if shown else None
    _, tone = _ENDS[ends]
    result = "effect not known" if ends is None else results[ends]
    if ends and change.prompt is False:
        result, tone = f"{result}, but first tokens come late", ""
    pairs = (("How", change.how), ("Price", change.price), ("Trade-off", change.says))
    return Choice(label(place), change.title, result, tone, tuple(pair for pair in pairs if pair[1]))


def _outcomes(caption: str, titles: tuple[str, str], rows: Sequence[_Row], numbering: Numbering) -> Table:
    """A table of outcomes; without a title for the last column it says nothing of what is good."""
    first, last = titles
    refs = ((), *(numbering.ref(formula) for *_, formula in _OUTCOME), *([()] if last else []))
    return Table(
        caption,
        (first, *(name for name, *_ in _OUTCOME), *([last] if last else [])),
        tuple(
            (name, *_cells(outcome), *([Cell(_ENDS[good][0], tone=_ENDS[good][1])] if last else []))
            for name, outcome, good in rows
        ),
        refs,
    )


def _bands(caption: str, seeds: int | None) -> str:
    """The caption of a table of outcomes, with what stands in its cells."""
    runs = f"{seeds} seeds" if seeds else "the seeds"
    return f"{caption}, each the median of {runs}, below it the 10th to the 90th percentile"


def _cells(outcome: Outcome | None) -> Iterator[Cell]:
    for _, name, told, _ in _OUTCOME:
        if outcome is None:
            yield Cell(words.UNKNOWN, tone="unknown")
        else:
            yield Cell(*words.band(getattr(outcome, name), told))


def _compared(row: Compared, numbering: Numbering) -> tuple[Cell, ...]:
    def told(value: float | None) -> str:
        return words.quantity(value, row.unit)

    observed = told(row.observed)
    holds, tone = _ENDS[row.holds]
    if row.holds is None:
        holds = "not observed" if observed == words.UNKNOWN else "not judged"
    return (
        Cell(row.name, f"bound: {row.bound}" if row.bound and row.holds is not None else row.bound),
        Cell(observed, tone="unknown" if observed == words.UNKNOWN else "", refs=numbering.ref(row.source)),
        Cell(*words.band(row.modelled, told)),
        Cell(holds, tone=tone),
    )
