"""A report of drift, as Markdown: what kvpressure reads first, then everything else that vLLM exposes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvpressure import tables
from kvpressure.vllm import exposed, names

from .drift_found import Families, Found
from .drift_logs import Formats, Lines
from .drift_source import TOKENS
from .drift_table import READ, Row


@dataclass(frozen=True, slots=True)
class Engine:
    """
    One engine's part of a report.

    Args:
        name: V0, V1, Ray or Rust.
        families: what it exposes.
        rows: how what kvpressure reads of it stands.
    """

    name: str
    families: Families
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Before:
    """
    What families that kvpressure does not read are compared with.

    Args:
        what: in words.
        engines: families by engine.
    """

    what: str
    engines: Mapping[str, Families]


@dataclass(frozen=True, slots=True)
class Report:
    """
    All that was found out about one vLLM.

    Args:
        what: what was read: an address or a file's name.
        release: its version as text; empty where it is not known.
        engines: by engine.
        formats: the log messages of a source.
        gone: kinds of log messages that this release must have and its source lacks.
        lines: what a log holds.
        before: what the other families are compared with; None for the table of vLLM 0.32.
    """

    what: str
    release: str
    engines: Sequence[Engine]
    formats: Formats | None = None
    gone: Sequence[str] = ()
    lines: Lines | None = None
    before: Before | None = None

    @property
    def broken(self) -> int:
        """How many things that kvpressure reads are gone or renamed."""
        logs = len(self.gone) + bool(self.formats and self.formats.header and not self.formats.header_read)
        return sum(row.broken for engine in self.engines for row in engine.rows) + logs + self._unread

    @property
    def _unread(self) -> int:
        return len(self.lines.unread) if self.lines else 0


def known() -> Families:
    """The families of vLLM 0.32, from the table that the lab serves."""
    families = {}
    for one in exposed.EXPOSED:
        labels = {names.MODEL_LABEL} | ({names.ENGINE_LABEL} if one.per_engine else set())
        labels |= {one.label} if one.label else set()
        if one is exposed.CACHE_CONFIG:
            labels = {names.ENGINE_LABEL} | {label for label, _ in exposed.CACHE_CONFIG_LABELS}
        edges = TOKENS if one.by_model_length else (one.edges or None)
        values = {one.label: frozenset(one.values)} if one.label else {}
        families[one.name] = Found(one.name, one.kind, frozenset(labels), whole=True, values=values, edges=edges)
    return families


def markdown(report: Report) -> str:
    """The report as Markdown, ending in a newline."""
    title = f"vLLM {report.release}" if report.release else "vLLM of an unknown version"
    parts = [f"# Drift: {title}", f"Read: `{report.what}`. Written by `python -m tests.e2e.drift`.", _verdict(report)]
    if not report.release:
        parts.append("The version is not known, so the newest spellings are expected; `--version` names it.")
    before = report.before or Before("vLLM 0.32.0 as a server of text without connectors exposes it", {})
    for engine in report.engines:
        parts += [f"## What kvpressure reads, {engine.name}", _read(engine.rows)]
        parts += [f"## Everything else, {engine.name}", f"Compared with {before.what}. No signal needs any of it."]
        parts += _others(engine, before.engines.get(engine.name, {}) if report.before else known())
    if report.formats is not None:
        parts += ["## Log messages in the source", *_formats(report.formats, report.gone)]
    if report.lines is not None:
        parts += ["## The log", *_lines(report.lines)]
    return "\n\n".join(parts) + "\n"


def _verdict(report: Report) -> str:
    if not report.broken:
        return "**Nothing that kvpressure reads has changed against its table.**"
    return f"**{report.broken} of what kvpressure reads is gone or renamed against its table.**"


def _read(rows: Iterable[Row]) -> str:
    cells = [
        (
            f"**{row.family.field}**" if row.broken else row.family.field,
            f"`{names.PREFIX}{row.found}{'_total' * (row.family.kind == 'counter')}`" if row.found else "-",
            row.says,
        )
        for row in rows
    ]
    return tables.markdown(("what", "found as", "against the table"), cells)


def _others(engine: Engine, before: Families) -> list[str]:
    read = {alias.name for family in READ for alias in family.aliases}
    new = sorted(engine.families.keys() - before.keys() - read)
    gone = sorted(before.keys() - engine.families.keys() - read)
    changed = [
        (f"`{name}`", "; ".join(changes))
        for name, family in sorted(engine.families.items())
        if name in before and (changes := _changes(before[name], family))
    ]
    parts = [
        _listed("Not in it", [_told(engine.families[name]) for name in new]),
        _listed("Only in it", [f"`{name}`" for name in gone]),
    ]
    if changed:
        parts.append(tables.markdown(("in both, and not alike", "how"), changed))
    else:
        parts.append("What is in both is alike, as far as it can be seen: types, labels, edges.")
    return parts


def _listed(title: str, items: Sequence[str]) -> str:
    return f"{title} ({len(items)}): {', '.join(items)}." if items else f"{title}: nothing."


def _told(family: Found) -> str:
    note = (
        f" ({family.kind}{', ' if family.kind and family.note else ''}{family.note})"
        if family.kind or family.note
        else ""
    )
    return f"`{family.name}`{note}"


def _changes(old: Found, new: Found) -> list[str]:
    """How a family differs from what it was, where both are known."""
    changes = []
    if new.kind and old.kind and {new.kind, old.kind} != {"info", "gauge"} and new.kind != old.kind:
        changes.append(f"a {new.kind}, was a {old.kind}")
    if new.labels and new.whole and old.whole:
        changes += _sets("label", new.labels - old.labels, old.labels - new.labels)
    elif new.labels:
        changes += _sets("label", new.labels - old.labels, frozenset())
    for label in sorted(new.values.keys() & old.values.keys()):
        # What else a label can say may not have happened yet.
        more = new.values[label] - old.values[label]
        if old.values[label] and more:
            changes.append(f"{label} can be {', '.join(sorted(more))}")
    if new.edges and old.edges and not _alike(old.edges, new.edges):
        changes.append(f"edges {_numbers(new.edges)}, were {_numbers(old.edges)}")
    return changes


def _sets(what: str, more: frozenset[str], fewer: frozenset[str]) -> list[str]:
    said = [f"new {what} {', '.join(sorted(more))}"] if more else []
    return [*said, f"no {what} {', '.join(sorted(fewer))}"] if fewer else said


def _alike(old: tuple[float, ...], new: tuple[float, ...]) -> bool:
    """Whether edges agree; of those that end at max_model_len only the beginning is known."""
    if TOKENS in (old, new):
        return old[: len(TOKENS)] == new[: len(TOKENS)]
    return old == new


def _numbers(edges: tuple[float, ...]) -> str:
    return " ".join(f"{edge:g}" for edge in edges)


def _formats(formats: Formats, gone: Sequence[str]) -> list[str]:
    header = f"`{formats.header}`" if formats.header else "not seen in the source"
    parts = [f"Before each message: {header}; kvpressure {'knows' if formats.header_read else 'does **not** know'} it."]
    if gone:
        parts.append(f"**GONE: no message says any more: {', '.join(gone)}.**")
    rows = [(f"`{one.template}`", one.level, ", ".join(one.says) or "nothing") for one in formats.messages]
    return [*parts, tables.markdown(("message", "level", "kvpressure reads"), rows)]


def _lines(lines: Lines) -> list[str]:
    events = ", ".join(f"{kind} {count}" for kind, count in sorted(lines.events.items())) or "none"
    messages = (
        ", ".join(f"{beginning.strip()} {count}" for beginning, count in sorted(lines.messages.items())) or "none"
    )
    parts = [
        f"{lines.lines} lines, {lines.known} with a header that kvpressure knows.",
        f"Messages about requests: {messages}.",
    ]
    parts.append(f"Events read from them: {events}. An abort is told of under both names that its request may have.")
    if lines.unread:
        unread = ", ".join(f"{beginning} {count}" for beginning, count in sorted(lines.unread.items()))
        parts.append(f"**GONE: lines that begin as these and are not understood: {unread}.**")
    return parts
