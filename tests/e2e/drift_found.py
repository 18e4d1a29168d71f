"""What a vLLM exposes, wherever it was read: in an exposition here, in a package's source in `drift_package`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvpressure.vllm import names

_TYPE = re.compile(r"# TYPE (\S+) (\w+)")
_SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+\S')
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_PARTS = ("_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True)
class Found:
    """
    One family as it was found.

    Args:
        name: its name in vLLM's own spelling, without prefix, and without ``_total`` if it is a counter.
        kind: its Prometheus type; empty where the source does not show it.
        labels: the labels of its series.
        whole: these are all of its labels; in a source some may come from a caller.
        values: by label, the values that were seen; empty for a source.
        edges: a histogram's finite bucket edges; None where they are not known.
        note: under which condition a source makes it; empty for none.
    """

    name: str
    kind: str = ""
    labels: frozenset[str] = frozenset()
    whole: bool = False
    values: Mapping[str, frozenset[str]] = field(default_factory=dict)
    edges: tuple[float, ...] | None = None
    note: str = ""


Families = dict[str, Found]
"""Families by their name."""


def bare(written: str) -> str | None:
    """A name without what Ray and vLLM put before it, whatever became of the colon; None where it is not vLLM's."""
    rest = written.removeprefix(names.RAY_PREFIX)
    for prefix in (names.PREFIX, names.PREFIX.replace(":", "_")):
        if rest.startswith(prefix):
            return rest.removeprefix(prefix)
    return None


def exposed(text: str) -> Families:
    """
    vLLM's families in an exposition, text format or OpenMetrics.

    What the client library adds (``_created``) is left out. A family whose TYPE stands there without a series is found,
    with nothing known of its labels.
    """
    families: Families = {}
    for line in text.splitlines():
        if (found := _TYPE.match(line)) and (name := bare(found[1])) is not None and not name.endswith("_created"):
            kind = found[2]
            name = name.removesuffix("_total") if kind == "counter" else name
            families.setdefault(name, Found(name, kind))
    edges: dict[str, set[float]] = {}
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        name = bare(found[1]) if found else None
        base = _family(name, families) if name is not None else None
        if found is None or base is None:
            continue
        labels = dict(_LABEL.findall(found[2] or ""))
        if base.kind == "histogram" and "le" in labels:
            edges.setdefault(base.name, set()).add(float(labels.pop("le")))
        families[base.name] = _with(base, labels)
    for name, some in edges.items():
        families[name] = replace(families[name], edges=tuple(sorted(some - {float("inf")})))
    return families


def _family(name: str, families: Families) -> Found | None:
    """The family of a sample. One without a TYPE line is taken as it is written."""
    if name.endswith("_created"):
        return None
    for part in _PARTS:
        base = families.get(name.removesuffix(part))
        if name.endswith(part) and base is not None and base.kind == "histogram":
            return base
    if name in families:
        return families[name]
    if name.endswith("_bucket"):
        return Found(name.removesuffix("_bucket"), "histogram")
    counter = name.removesuffix("_total")
    return families.get(counter) or Found(counter, "counter" if counter != name else "")


def _with(family: Found, labels: Mapping[str, str]) -> Found:
    values = dict(family.values)
    for label, value in labels.items():
        values[label] = values.get(label, frozenset()) | {value}
    return replace(family, labels=family.labels | labels.keys(), whole=True, values=values)
