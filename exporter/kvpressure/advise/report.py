"""
The advice as sections of plain parts, in the order in which they are read: the terminal and HTML draw the same ones.

Every number leads to its source: a cell carries the number of an entry in the list at the end of its section.
"""

from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from itertools import takewhile
from typing import Literal

from kvpressure.advise import report_words as words
from kvpressure.advise.advice import Advice, Calibration

Tone = Literal["", "good", "bad", "unknown"]
Trust = Literal["holds", "fails", "unheld", "not run"]


@dataclass(frozen=True, slots=True)
class Cell:
    """
    One cell of a table.

    Args:
        text: what it says.
        small: what stands below it: a band, a bound, why a value is not known.
        tone: whether that is good or bad; the words say so too.
        refs: numbers of the sources.
    """

    text: str
    small: str = ""
    tone: Tone = ""
    refs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """
    Rows of cells, as many as the header has titles.

    Args:
        caption: what it is.
        header: the titles; the first column names the row.
        rows: the cells.
        refs: by column, the numbers of the sources of all its numbers.
    """

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    refs: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Head:
    """What limits the engine, in a few words, and its key for the style."""

    text: str
    key: str


@dataclass(frozen=True, slots=True)
class Says:
    """A sentence or more; `loud` where the reader must not miss it, `refs` are the numbers of its sources."""

    text: str
    loud: bool = False
    refs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Terms:
    """Words that stand here for the first time, with what they mean."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Items:
    """A list of sentences below a title."""

    title: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """
    One change in words.

    Args:
        label: the letter that it has in the table.
        title: what is done.
        result: whether it ends preemption.
        tone: of the result.
        pairs: how, at what price, and the trade-off, each with its name.
    """

    label: str
    title: str
    result: str
    tone: Tone
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Choices:
    """The changes in words, cheapest first."""

    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """What only HTML can draw: the curve over ``--max-num-seqs``, or bars by change."""

    name: Literal["curve", "bars"]


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the numbers of a section come from."""

    entries: tuple[tuple[int, str], ...]


Block = Table | Head | Says | Terms | Items | Choices | Picture | Sources


@dataclass(frozen=True, slots=True)
class Section:
    """
    A part of the report.

    Args:
        number: 1 to 4; 0 is what comes before them, the conclusion.
        title: its heading.
        blocks: what stands in it.
    """

    number: int
    title: str
    blocks: tuple[Block, ...]


@dataclass(slots=True)
class Numbering:
    """The sources, each numbered once, in the order in which they come up."""

    known: dict[str, int] = field(default_factory=dict)
    _new: list[str] = field(default_factory=list)

    def ref(self, source: str) -> tuple[int, ...]:
        """The number of a source; none where there is no source."""
        if not source:
            return ()
        if source not in self.known:
            self.known[source] = len(self.known) + 1
            self._new.append(source)
        return (self.known[source],)

    def fresh(self) -> Sources | None:
        """Those that have come up since the last time that this was asked; None where there are none."""
        entries = tuple((self.known[source], source) for source in self._new)
        self._new.clear()
        return Sources(entries) if entries else None


def trust(advice: Advice) -> Trust:
    """How far the simulation may be believed, by how it compares with what was observed."""
    calibration: Calibration | None = advice.calibration
    if calibration is None:
        return "not run"
    if calibration.holds is None:
        return "unheld"
    return "holds" if calibration.holds else "fails"


def believed(advice: Advice) -> bool:
    """Whether simulated outcomes are shown at all."""
    return trust(advice) in ("holds", "unheld")


def title(advice: Advice) -> str:
    """The engine; empty where it has no name, as with a workload."""
    if not advice.model and not advice.engine:
        return ""
    return f"{advice.model or '(no name)'}, engine {advice.engine or '(no rank)'}"


def about(advice: Advice) -> str:
    """Where and when it was observed."""
    if advice.begin is None or advice.end is None:
        return advice.source
    return f"{advice.source}; from {words.moment(advice.begin)} to {words.moment(advice.end)}"


def label(place: int) -> str:
    """The letter of a change, by its place in the list from 0 on; a number where letters end."""
    return chr(ord("A") + place) if place < 26 else str(place + 1)  # noqa: PLR2004  # letters


def explained(sections: tuple[Section, ...]) -> Iterator[Section]:
    """The sections, each with the terms that stand in it for the first time, behind its first sentences."""
    known: set[str] = set()
    for section in sections:
        # What sources say is code and quoted as it is; a term in it is not one that the reader must know.
        texts = [text for block in section.blocks if not isinstance(block, Sources) for text in _texts(astuple(block))]
        found = words.terms(texts, known)
        at = sum(1 for _ in takewhile(lambda block: isinstance(block, Head | Says), section.blocks))
        added: tuple[Block, ...] = (Terms(found),) if found else ()
        yield Section(section.number, section.title, (*section.blocks[:at], *added, *section.blocks[at:]))


def _texts(parts: object) -> Iterator[str]:
    if isinstance(parts, str):
        yield parts
    elif isinstance(parts, tuple | list):
        for part in parts:
            yield from _texts(part)
