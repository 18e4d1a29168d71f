"""
Elements of HTML as plain data: written as text for the first answer, and compared for those that follow.

A tree holds no markup as text anywhere: what comes from outside, like the name of a model, is escaped on its way into
HTML, and put in place as text by the page's script.
"""

import re
from collections.abc import Iterator
from html import escape
from typing import NamedTuple

_FLAG = re.compile(r"(--[a-z][a-z0-9.-]*[a-z0-9])")
_VOID = frozenset({"br", "path", "line", "circle"})


class Element(NamedTuple):
    """
    One element.

    Args:
        tag: its name.
        attributes: by their names; none of them is code.
        children: elements and texts; no two texts stand side by side, as no parser of HTML could tell them apart.
    """

    tag: str
    attributes: dict[str, str]
    children: "tuple[Node, ...]"


Node = Element | str
Change = tuple[list[int], Node]
"""The way from the root, child by child, and what now stands there."""


def el(tag: str, *children: Node | None, **attributes: str | None) -> Element:
    """
    An element; children and attributes that are None are left out.

    An underscore at the end of an attribute's name is dropped (``class_``), others become hyphens (``aria_label``).
    """
    given = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    return Element(tag, given, _joined(children))


def prose(text: str) -> tuple[Node, ...]:
    """A text with its flags (``--tap.listen``) set as code, so that no line breaks within them."""
    return tuple(el("code", part) if part.startswith("--") else part for part in _FLAG.split(text) if part)


def html(node: Node) -> str:
    """The node as HTML, escaped, without any space of its own."""
    if isinstance(node, str):
        return escape(node, quote=False)
    tag, attributes, children = node
    given = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    if tag in _VOID:
        return f"<{tag}{given}/>"
    return f"<{tag}{given}>{''.join(map(html, children))}</{tag}>"


def changes(before: Node, after: Node) -> Iterator[Change]:
    """What must be put in place, and where, to make one tree of another; nothing where they are equal."""
    if before == after:
        return
    if isinstance(before, str) or isinstance(after, str) or not _alike(before, after):
        yield [], after
        return
    for number, (old, new) in enumerate(zip(before.children, after.children, strict=True)):
        for way, node in changes(old, new):
            yield [number, *way], node


def _alike(before: Element, after: Element) -> bool:
    """Whether only something inside of them differs."""
    return (
        before.tag == after.tag
        and before.attributes == after.attributes
        and len(before.children) == len(after.children)
    )


def _joined(children: tuple[Node | None, ...]) -> tuple[Node, ...]:
    joined: list[Node] = []
    for child in children:
        if child is None or child == "":
            continue
        if isinstance(child, str) and joined and isinstance(joined[-1], str):
            joined[-1] += child
        else:
            joined.append(child)
    return tuple(joined)
