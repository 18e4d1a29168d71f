"""The report in the terminal: plain text, as wide as the terminal, the conclusion first."""

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvpressure import tables
from kvpressure.advise import report
from kvpressure.advise.advice import Advice
from kvpressure.advise.report import Block, Cell, Choices, Head, Items, Picture, Says, Section, Sources, Table, Terms
from kvpressure.advise.report_sections import sections
from kvpressure.tables import plain

_WIDEST = 110  # longer lines are hard to read
_LEAST = 20  # nothing can be set in less
_GAP = 2
_NARROWEST = 14  # of the first column of a wide table


def text(advice: Advice, width: int | None = None) -> str:
    """
    The report as text.

    Args:
        advice: what is advised.
        width: characters per line; that of the terminal where it is None (100 where there is none), at most 110.
    """
    width = max(_LEAST, min(width or shutil.get_terminal_size((100, 24)).columns, _WIDEST))
    name = report.title(advice)
    title = f"Capacity advice for {name}" if name else "Capacity advice"
    head = (_wrapped(title, width), _wrapped(report.about(advice), width))
    parts = ["\n".join(head), *(_section(section, width) for section in sections(advice))]
    return "\n\n".join(parts) + "\n"


def _section(section: Section, width: int) -> str:
    title = f"{section.number} {section.title}" if section.number else section.title
    parts = [f"{title}\n{'=' * len(title)}", *filter(None, (_block(block, width) for block in section.blocks))]
    return "\n\n".join(parts)


def _block(block: Block, width: int) -> str:
    match block:
        case Head():
            return _wrapped(block.text.upper(), width)
        case Says():
            return _wrapped(("NOTE: " if block.loud else "") + block.text + _refs(block.refs), width)
        case Terms():
            return "\n".join(["In other words:", *(_item(f"{name}: {means}", width) for name, means in block.pairs)])
        case Items():
            return "\n".join([f"{block.title}:", *(_item(item, width) for item in block.items)])
        case Sources():
            listed = (_wrapped(source, width, f"  [{number}] ") for number, source in block.entries)
            return "\n".join(["Where the numbers come from:", *listed])
        case Choices():
            return "\n\n".join(_choices(block, width))
        case Picture():
            return ""
        case Table():
            return f"{_wrapped(block.caption, width)}:\n{_table(block, width)}"


def _choices(block: Choices, width: int) -> Iterator[str]:
    for choice in block.choices:
        lines = [_wrapped(f"{choice.title}: {choice.result}", width, f"{choice.label}. ")]
        lines.extend(_wrapped(said, width, f"   {name}: ") for name, said in choice.pairs)
        yield "\n".join(lines)


def _table(table: Table, width: int) -> str:
    if len(table.header) == 2:  # noqa: PLR2004  # a name and its value, which may be a long one
        return tables.text(table.header, [(row[0].text, _value(row[1])) for row in table.rows], width)
    header = [Cell(title) for title in table.header]
    if table.refs:
        header = [replace(cell, refs=refs) for cell, refs in zip(header, table.refs, strict=True)]
    return _grid(header, table.rows, width)


def _value(cell: Cell) -> str:
    small = f": {cell.small}" if cell.small else ""
    return f"{cell.text}{small}{_refs(cell.refs)}"


def _grid(header: Sequence[Cell], rows: Sequence[Sequence[Cell]], width: int) -> str:
    """
    Aligned columns of numbers, their bands below them; titles and the first column are wrapped to what is left.

    Where the columns do not fit side by side, those that are left stand in a table of their own below.
    """
    widths = [max(_broad(title, row[i]) for row in rows) for i, title in enumerate(header)]
    parts, taken = [], 1
    while taken < len(widths):
        fits, room = taken + 1, width - _NARROWEST - _GAP - widths[taken]
        while fits < len(widths) and widths[fits] + _GAP <= room:
            room -= widths[fits] + _GAP
            fits += 1
        first = min(widths[0], _NARROWEST + max(0, room))
        parts.append(_part(header, rows, [first, *widths[taken:fits]], taken))
        taken = fits
    return "\n\n".join(parts)


def _part(header: Sequence[Cell], rows: Sequence[Sequence[Cell]], widths: Sequence[int], begin: int) -> str:
    """The first column, and as many as there are widths for from `begin` on."""

    def of(row: Sequence[Cell]) -> list[str]:
        return list(_row([row[0], *row[begin : begin + len(widths) - 1]], widths))

    rule = "-" * (sum(widths) + _GAP * (len(widths) - 1))
    return "\n".join([*of(header), rule, *(line for row in rows for line in of(row))])


def _broad(title: Cell, cell: Cell) -> int:
    """The width that a column needs: a title may break between its words, a value may not."""
    words = plain(title.text + _refs(title.refs)).split()
    return max(*map(len, words), len(plain(cell.text + _refs(cell.refs))), len(plain(cell.small)))


def _row(row: Sequence[Cell], widths: Sequence[int]) -> Iterator[str]:
    stacks = []
    for place, (cell, size) in enumerate(zip(row, widths, strict=True)):
        lines = [
            line
            for part in (cell.text + _refs(cell.refs), cell.small)
            for line in textwrap.wrap(plain(part), size, break_on_hyphens=False)
        ]
        stacks.append([line.ljust(size) if place == 0 else line.rjust(size) for line in lines])
    for level in range(max(map(len, stacks))):
        cells = (stack[level] if level < len(stack) else " " * size for stack, size in zip(stacks, widths, strict=True))
        yield (" " * _GAP).join(cells).rstrip()


def _item(said: str, width: int) -> str:
    return _wrapped(said, width, "  * ")


def _wrapped(said: str, width: int, start: str = "") -> str:
    """A paragraph on lines of this width; a word of a query that is longer stays whole, so that it can be copied."""
    return textwrap.fill(
        plain(said),
        width,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _refs(refs: tuple[int, ...]) -> str:
    return "".join(f" [{ref}]" for ref in refs)
