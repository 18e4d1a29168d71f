"""What a panel asks and how it shows the answer, as data: Grafana's words for it, and nothing of grafanalib."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

RATE = "$__rate_interval"
"""Grafana's variable: long enough for a rate at every resolution."""

RANGE = "$__range"
"""The same: the range that is shown."""


@dataclass(frozen=True, slots=True)
class Query:
    """
    One query of a panel.

    Args:
        expr: PromQL.
        legend: name of its series; a template over their labels.
        form: how Grafana takes the answer.
        instant: only the newest value is asked for.
    """

    expr: str
    legend: str = ""
    form: Literal["time_series", "table", "heatmap"] = "time_series"
    instant: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A link from a panel to elsewhere."""

    title: str
    url: str


@dataclass(frozen=True, slots=True)
class Step:
    """From this value on (None: from below) a panel has this colour."""

    value: float | None
    color: str


@dataclass(frozen=True, slots=True)
class Look:
    """
    How values are shown.

    Args:
        unit: an id of Grafana's.
        steps: thresholds, the lowest first.
        texts: value -> its text and its colour.
        decimals: digits after the point; None leaves it to Grafana.
        low: least of the axis.
        high: most of the axis.
        nothing: what stands there where there is no value.
        color: ``thresholds``, ``palette-classic-by-name`` or a colour that all have.
        custom: what only this kind of panel knows.
    """

    unit: str = "none"
    steps: tuple[Step, ...] = ()
    texts: Mapping[float | str, tuple[str, str]] = field(default_factory=dict)
    decimals: int | None = None
    low: float | None = None
    high: float | None = None
    nothing: str = ""
    color: str = "thresholds"
    custom: Mapping[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """Grafana's fieldConfig.defaults."""
        modes = ("thresholds", "palette-classic-by-name")
        mode = {"mode": self.color} if self.color in modes else {"mode": "fixed", "fixedColor": self.color}
        options: dict[str, dict[str, Any]] = {
            _key(value): {"text": text, "color": color} for value, (text, color) in self.texts.items()
        }
        for index, value in enumerate(options.values()):
            value["index"] = index
        return {
            "unit": self.unit,
            "thresholds": {
                "mode": "absolute",
                "steps": [{"value": step.value, "color": step.color} for step in self.steps or (Step(None, "text"),)],
            },
            "mappings": [{"type": "value", "options": options}] if options else [],
            "decimals": self.decimals,
            "min": self.low,
            "max": self.high,
            "noValue": self.nothing or None,
            "color": mode,
            "custom": dict(self.custom),
        }


def _key(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def override(names: Sequence[str], **properties: Mapping[str, Any]) -> dict[str, Any]:
    """
    Other properties for the fields of these names; a double underscore stands for a dot.

    The published schema wants an object wherever an override has a value, so this matcher is the one to use, and no
    unit, number or text can be overridden: a table says its units in the names of its columns.
    """
    return {
        "matcher": {"id": "byNames", "options": {"mode": "include", "names": list(names)}},
        "properties": [{"id": key.replace("__", "."), "value": value} for key, value in properties.items()],
    }
