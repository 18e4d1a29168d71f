"""The report as one HTML file: no script, nothing from elsewhere, light and dark, on a phone too."""

from collections.abc import Iterator
from importlib.resources import files
from string import Template

from kvpressure import __version__
from kvpressure.advise import report, report_plots
from kvpressure.advise.advice import Advice
from kvpressure.advise.report import (
    Block,
    Cell,
    Choice,
    Choices,
    Head,
    Items,
    Picture,
    Says,
    Section,
    Sources,
    Table,
    Terms,
)
from kvpressure.advise.report_sections import sections
from kvpressure.expose.page.tree import Element, Node, el, html, prose

_PICTURES = {"bars": report_plots.bars, "curve": report_plots.curve}


def page(advice: Advice) -> str:
    """The report as a whole HTML document. What comes from outside is escaped."""
    name = report.title(advice)
    main = el(
        "main",
        el("h1", "Capacity advice for ", el("bdi", name)) if name else el("h1", "Capacity advice"),
        el("p", el("bdi", report.about(advice)), class_="observed"),
        *(_section(section, advice) for section in sections(advice)),
    )
    return Template(_file("kvpressure.advise", "report.html")).substitute(
        title=html(_clean(f"{name} · capacity advice" if name else "Capacity advice")),
        made=html(f"kvpressure {__version__}"),
        style=_file("kvpressure.expose.page", "page.css") + _file("kvpressure.advise", "report.css"),
        main=html(_clean(main)),
    )


def _clean(node: Node) -> Node:
    """The tree without what no text in HTML may hold, or what would turn the direction of a line."""
    if isinstance(node, str):
        return "".join(c if c.isprintable() or c == "\N{NO-BREAK SPACE}" else " " for c in node)
    attributes = {name: str(_clean(value)) for name, value in node.attributes.items()}
    return Element(node.tag, attributes, tuple(_clean(child) for child in node.children))


def _file(package: str, name: str) -> str:
    return (files(package) / name).read_text(encoding="utf-8")


def _section(section: Section, advice: Advice) -> Element:
    name = f"section-{section.number}"
    title = f"{section.number} {section.title}" if section.number else section.title
    heading = el("h2", title, id=f"{name}-title")
    blocks = (_block(block, advice) for block in section.blocks)
    return el("section", heading, *blocks, class_="card", id=name, aria_labelledby=f"{name}-title")


def _block(block: Block, advice: Advice) -> Element | None:
    match block:
        case Head():
            return el("p", block.text, data_limit=block.key)
        case Says():
            return el("p", *prose(block.text), *_refs(block.refs), class_="loud" if block.loud else None)
        case Terms():
            pairs = (part for name, means in block.pairs for part in (el("dt", *prose(name)), el("dd", *prose(means))))
            return el("div", el("h3", "In other words"), el("dl", *pairs), class_="terms")
        case Items():
            items = (el("li", *prose(item)) for item in block.items)
            return el("div", el("h3", block.title), el("ul", *items), class_="listed")
        case Sources():
            return _sources(block)
        case Choices():
            return el("ul", *(_choice(choice) for choice in block.choices), class_="choices", role="list")
        case Picture():
            return _PICTURES[block.name](advice)
        case Table():
            return _table(block)


def _sources(block: Sources) -> Element:
    entries = (
        el("li", el("span", f"[{number}]"), el("code", source), id=f"source-{number}")
        for number, source in block.entries
    )
    summary = el("summary", "Where the numbers come from")
    return el("details", summary, el("ol", *entries, role="list"), class_="sources", open="")


def _choice(choice: Choice) -> Element:
    pairs = (part for name, said in choice.pairs for part in (el("dt", name), el("dd", *prose(said))))
    return el(
        "li",
        el("h3", f"{choice.label}. ", *prose(choice.title)),
        el("p", choice.result, class_=choice.tone),
        el("dl", *pairs),
    )


def _table(table: Table) -> Element:
    """A table; on a narrow window each row stands by itself, so roles are told and titles repeated by the style."""
    refs = table.refs or ((),) * len(table.header)
    head = (
        el("th", *prose(title), *_refs(of), scope="col", role="columnheader")
        for title, of in zip(table.header, refs, strict=True)
    )
    name, _, more = table.caption.partition(", ")
    two = len(table.header) == 2  # noqa: PLR2004  # a name and its value
    return el(
        "table",
        el("caption", *prose(name), el("small", more[:1].upper() + more[1:]) if more else None),
        el("thead", el("tr", *head, role="row"), role="rowgroup"),
        el("tbody", *(_row(table, row) for row in table.rows), role="rowgroup"),
        class_="figures" if two else "numbers",
        role="table",
    )


def _row(table: Table, row: tuple[Cell, ...]) -> Element:
    first, *rest = row
    refs = table.refs or ((),) * len(table.header)
    titles = [title + "".join(f" [{ref}]" for ref in of) for title, of in zip(table.header, refs, strict=True)]
    return el(
        "tr",
        el("th", *_cell(first), scope="row", role="rowheader"),
        *(
            el("td", *_cell(cell), class_=cell.tone or None, data_title=title, role="cell")
            for title, cell in zip(titles[1:], rest, strict=True)
        ),
        role="row",
    )


def _cell(cell: Cell) -> Iterator[Node]:
    yield el("span", *prose(cell.text), *_refs(cell.refs))
    if cell.small:
        yield el("small", *prose(cell.small))


def _refs(refs: tuple[int, ...]) -> Iterator[Node]:
    for ref in refs:
        yield " "
        yield el("a", f"[{ref}]", href=f"#source-{ref}", class_="refs", aria_label=f"source {ref}")
