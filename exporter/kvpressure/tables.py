"""Plain text tables for the terminal, and the same as Markdown."""

import shutil
import textwrap
from collections.abc import Sequence

_NARROWEST = 48
_GAP = 2


def text(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """
    A table of aligned columns; the last one is wrapped to the terminal's width (100 where there is none).

    Where that leaves no room for a long last column, each of its cells stands below its row.

    Args:
        header: the column titles.
        rows: cells, as many per row as there are titles.
        width: characters per line.
    """
    width = width or shutil.get_terminal_size((100, 24)).columns
    cells = [[plain(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header) - 1)]
    left = sum(widths) + _GAP * len(widths)
    room = max(_NARROWEST, width - left)
    longest = max(len(row[-1]) for row in cells)
    if width - left < min(longest, _NARROWEST):
        return _stacked(cells, widths, width)
    lines = []
    for row in cells:
        start = "".join(cell.ljust(size + _GAP) for cell, size in zip(row[:-1], widths, strict=True))
        wrapped = textwrap.wrap(row[-1], room, break_on_hyphens=False) or [""]
        lines.append((start + wrapped[0]).rstrip())
        lines.extend(" " * left + more for more in wrapped[1:])
    rule = max(len(line) for line in lines)
    return "\n".join([lines[0], "-" * rule, *lines[1:]])


def filled(page: str, name: str, part: str, file: str = "the page") -> str:
    """
    A Markdown page with one of its generated parts made anew.

    Args:
        page: the text, in which the part stands between `<!-- generated: NAME -->` and `<!-- end -->`.
        name: of the part.
        part: what it is now.
        file: what the page is called, for the sentence.

    Raises:
        ValueError: the page has no place for it.
    """
    before, start, rest = page.partition(f"<!-- generated: {name} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not end:
        raise ValueError(f"{file} has no place for {name}")
    return f"{before}{start}{part}\n{end}{after}"


def _stacked(cells: list[list[str]], widths: list[int], width: int) -> str:
    lines = []
    for row in cells[1:]:
        start = "".join(cell.ljust(size + _GAP) for cell, size in zip(row[:-1], widths, strict=True))
        lines.append(start.rstrip())
        lines.extend("    " + line for line in textwrap.wrap(row[-1], width - 4, break_on_hyphens=False))
    return "\n".join(lines)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(plain(cell).replace("|", "\\|") for cell in row) + " |" for row in lines)


def number(value: float | None, digits: int = 4) -> str:
    """A number for people: up to `digits` significant digits, thousands grouped; "-" where it is not known."""
    if value is None:
        return "-"
    if value == int(value) and abs(value) < 1e15:  # noqa: PLR2004  # beyond it a float has no units place
        return f"{int(value):,}"
    return f"{value:,.{max(0, digits - len(str(int(abs(value)))))}f}"


def plain(cell: str) -> str:
    """A cell on one line, without what could steer a terminal: labels come from outside."""
    return "".join(c if c.isprintable() else " " for c in cell)
