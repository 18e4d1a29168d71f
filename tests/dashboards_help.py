"""The dashboards as tests and pictures read them: panels, queries, and variables filled in as Grafana does."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import promql_parser

from kvpressure.bundle import dashboards, records
from kvpressure.bundle.config import BundleConfig
from kvpressure.bundle.others import ALERTS, CPU_SECONDS, GPU_UTILISATION, MEMORY_BYTES
from kvpressure.signals import CATALOGUE
from kvpressure.vllm import names

DEFAULT = BundleConfig()
FILES = dashboards.files(DEFAULT)
PAGES: dict[str, dict[str, Any]] = {name.removesuffix(".json"): json.loads(text) for name, text in FILES.items()}

ALL = dict.fromkeys(("cluster", "namespace", "job", "instance", "model_name", "engine"), ".*")
"""What Grafana puts in for "All", by each variable's own allValue."""

_PARTS = {"summary": ("_sum", "_count"), "histogram": ("_sum", "_count", "_bucket")}
OURS = {signal.metric + part for signal in CATALOGUE for part in _PARTS.get(signal.kind, ("",))}
UPSTREAM = {
    names.PREFIX + alias.name + part
    for family in (*names.FAMILIES, *names.DRAWN)
    for alias in family.aliases
    for part in {"counter": ("_total",), "histogram": _PARTS["histogram"]}.get(family.kind, ("",))
}
RECORDED = {record.name for record in records.records(DEFAULT)}
OTHERS = {ALERTS, CPU_SECONDS, GPU_UTILISATION, MEMORY_BYTES}


@dataclass(frozen=True)
class Asked:
    """One query of one panel."""

    uid: str
    panel: dict[str, Any]
    ref: str
    expr: str
    instant: bool

    def __str__(self) -> str:
        return f"{self.uid} / {self.panel['title']} / {self.ref}"


def panels(page: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The panels of a page that are no headings, those under closed headings too."""
    return (one for panel in page["panels"] for one in panel.get("panels") or (panel,) if one["type"] != "row")


QUERIES = [
    Asked(uid, panel, target["refId"], target["expr"], target["instant"])
    for uid, page in PAGES.items()
    for panel in panels(page)
    for target in panel.get("targets", ())
]


def filled(text: str, seconds: float = 3600, rate: str = "1m", window: str = "5m", **values: str) -> str:
    """A query with its variables filled in."""
    known: Mapping[str, str] = {
        **ALL,
        **values,
        "window": window,
        "__rate_interval": rate,
        "__range_s": f"{seconds:g}",
        "__range": f"{seconds:g}s",
    }
    return re.sub(r"\$(\w+)", lambda found: known[found[1]], text)


def metrics(node: Any) -> set[str]:
    """Every metric below a node of a syntax tree."""
    kinds = promql_parser
    if isinstance(node, kinds.VectorSelector):
        return {node.name}
    if isinstance(node, kinds.MatrixSelector):
        return {node.vector_selector.name}
    if isinstance(node, kinds.BinaryExpr):
        return metrics(node.lhs) | metrics(node.rhs)
    if isinstance(node, kinds.Call):
        return set().union(*(metrics(argument) for argument in node.args))
    if isinstance(node, kinds.NumberLiteral | kinds.StringLiteral):
        return set()
    return metrics(node.expr)
