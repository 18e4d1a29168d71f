"""
Grafana's dashboards as JSON. No other module knows grafanalib.

grafanalib is old: what it writes by itself is refused by Grafana's published schema. So it has the base here (the frame
of panels, variables and dashboards), the kinds of panels that changed since are our own on this base, and what
Grafana no longer knows is dropped at the end.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from grafanalib import core
from grafanalib._gen import DashboardEncoder

from kvpressure.bundle.clean import cleaned
from kvpressure.bundle.look import Link, Look, Query

SCHEMA_VERSION = 39
"""Of Grafana 10.3: later ones migrate from it by themselves, and an earlier one would have to guess."""

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
"""What every panel, query and variable reads from: the variable, so that an import asks for nothing."""

COLUMNS = 24
"""Width of the grid."""


class Panel(core.Panel):
    """
    A panel: grafanalib's frame around what a kind of our own says.

    Args:
        title: of the panel.
        description: what is seen and what to do.
        queries: what it asks.
        size: width and height on the grid.
        look: how values are shown.
        links: where to read on.
        overrides: what is other for some fields.
        options: of this kind, over its own.
        transformations: of the answers.
    """

    kind: ClassVar[str]
    own_options: ClassVar[Mapping[str, Any]] = {}

    def __init__(  # noqa: PLR0913  # what Grafana asks of a panel
        self,
        title: str,
        description: str,
        queries: Sequence[Query],
        size: tuple[int, int],
        *,
        look: Look | None = None,
        links: Iterable[Link] = (),
        overrides: Iterable[dict[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
        transformations: Iterable[dict[str, Any]] = (),
    ) -> None:
        super().__init__(
            dataSource=SOURCE,
            targets=[_target(query, number) for number, query in enumerate(queries)],
            title=title,
            description=description,
            links=[_link(link) for link in links],
            maxDataPoints=None,
            transformations=list(transformations),
        )
        self.size = size
        self._look = look or Look()
        self._overrides = list(overrides)
        self._options = {**self.own_options, **(options or {})}

    def to_json_data(self) -> dict[str, Any]:
        """Grafana's JSON, before it is cleaned."""
        whole: dict[str, Any] = self.panel_json({"type": self.kind, "options": self._options})
        whole["fieldConfig"] = {"defaults": self._look.json(), "overrides": self._overrides}
        return whole


_REDUCE = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_TOOLTIP = {"mode": "multi", "sort": "desc"}
_LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}


class TimeSeries(Panel):
    """Lines over time."""

    kind = "timeseries"
    own_options: ClassVar = {"tooltip": _TOOLTIP, "legend": _LEGEND}


class Stat(Panel):
    """A big number, and whose it is."""

    kind = "stat"
    own_options: ClassVar = {
        "reduceOptions": _REDUCE,
        "colorMode": "background",
        "graphMode": "none",
        "justifyMode": "center",
        "orientation": "auto",
        "textMode": "value_and_name",
        "wideLayout": False,
    }


class Gauge(Panel):
    """A share of a whole."""

    kind = "gauge"
    own_options: ClassVar = {
        "reduceOptions": _REDUCE,
        "orientation": "auto",
        "showThresholdLabels": False,
        "showThresholdMarkers": True,
        "sizing": "auto",
        "minVizWidth": 75,
        "minVizHeight": 75,
    }


class Heatmap(Panel):
    """Buckets over time; the colour of a cell and the number in its tooltip say how many."""

    kind = "heatmap"
    own_options: ClassVar = {
        "calculate": False,
        "cellGap": 1,
        "cellValues": {"unit": "short", "decimals": 0},
        # Nothing is left blank: a darker cell is fewer, whatever one's eyes make of the hue.
        "color": {
            "mode": "scheme",
            "scheme": "Viridis",
            "scale": "exponential",
            "exponent": 0.5,
            "steps": 64,
            "reverse": False,
            "fill": "dark-orange",
        },
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": True, "showColorScale": True},
        "yAxis": {"axisPlacement": "left", "axisWidth": 72, "reverse": False},
    }


class StateTimeline(Panel):
    """States over time, a line each; the state's name stands in it."""

    kind = "state-timeline"
    own_options: ClassVar = {
        "alignValue": "left",
        "legend": _LEGEND,
        "mergeValues": True,
        "perPage": 20,
        "rowHeight": 0.85,
        "showValue": "auto",
        "tooltip": {"mode": "single", "sort": "none"},
    }


class Table(Panel):
    """Rows and columns."""

    kind = "table"
    own_options: ClassVar = {"cellHeight": "sm", "showHeader": True, "footer": {"show": False, "reducer": ["sum"]}}


class Text(Panel):
    """Words, as Markdown."""

    kind = "text"


class Row(core.RowPanel):
    """
    A heading, and the panels under it.

    Args:
        title: of the row.
        panels: what stands under it, left to right; a tuple is a column, top to bottom.
        repeat: a variable; the row is there once for each of its values.
        collapsed: what stands under it is shown, and asked for, when somebody opens it.
    """

    def __init__(
        self, title: str, panels: Sequence[Panel | tuple[Panel, ...]], repeat: str = "", *, collapsed: bool = False
    ) -> None:
        super().__init__(
            title=title, collapsed=collapsed, repeat=core.Repeat(variable=repeat or None), maxDataPoints=None
        )
        self.below = tuple(panel if isinstance(panel, tuple) else (panel,) for panel in panels)

    def to_json_data(self) -> dict[str, Any]:
        """Grafana's JSON of the heading alone."""
        keys = ("collapsed", "gridPos", "id", "panels", "repeat", "title", "type")
        whole: dict[str, Any] = super().to_json_data()
        return {key: whole[key] for key in keys}


def variable(  # noqa: PLR0913
    name: str, label: str, query: str, *, kind: str = "query", several: bool = True, default: str = "", about: str = ""
) -> Any:  # noqa: ANN401  # grafanalib's
    """
    A variable that the user picks.

    Args:
        name: what queries call it.
        label: what the user sees.
        query: PromQL's `label_values(...)`, values with commas between them, or a type of data source.
        kind: ``query``, ``custom`` or ``datasource``.
        several: more than one can be picked, and all of them are at first.
        default: the value at first, of a custom one.
        about: what it does.
    """
    made = _Variable(
        name=name,
        label=label,
        query=query,
        type=kind,
        dataSource=SOURCE if kind == "query" else None,
        includeAll=several,
        multi=several,
        # Also where the label does not exist at all.
        allValue=".*" if several else None,
        refresh=2 if kind == "query" else 1,
        default=default or None,
    )
    made.about = about
    return made


class _Variable(core.Template):  # type: ignore[misc,unused-ignore]
    about = ""

    def to_json_data(self) -> dict[str, Any]:
        """Grafana's JSON, before it is cleaned."""
        whole: dict[str, Any] = super().to_json_data()
        current = {"selected": True, "text": ["All"], "value": ["$__all"]} if self.multi else whole["current"]
        kept = {key: whole[key] for key in _VARIABLE_KEYS} | {"description": self.about or None}
        # Grafana picks the first data source by itself; an empty choice would be none.
        kept["current"] = None if self.type == "datasource" else current
        return kept | {"definition": self.query if self.type == "query" else None, "auto": None}


_VARIABLE_KEYS = (
    *("allValue", "datasource", "hide", "includeAll", "label", "multi", "name"),
    *("options", "query", "refresh", "regex", "sort", "type"),
)


@dataclass(frozen=True, slots=True)
class Page:
    """
    One dashboard.

    Args:
        uid: in its address; never changed.
        title: of the dashboard.
        description: what it answers.
        rows: headings with panels; the first one's heading is left out where it has no title.
        variables: made by `variable`.
        annotations: Grafana's own JSON of each.
    """

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Any, ...]
    annotations: tuple[dict[str, Any], ...] = ()


TAG = "kvpressure"
_GENERATED = "Generated by `kvpressure bundle`: a change in Grafana is lost with the next version."


def text(page: Page) -> str:
    """The file of a dashboard."""
    made = core.Dashboard(
        title=page.title,
        uid=page.uid,
        description=f"{page.description} {_GENERATED}",
        tags=[TAG],
        timezone="browser",
        schemaVersion=SCHEMA_VERSION,
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        refresh="30s",
        time=core.Time("now-1h", "now"),
        editable=False,
        templating=core.Templating(list=list(page.variables)),
        annotations=core.Annotations(list=list(page.annotations)),
        links=[core.DashboardLink(title="KV pressure", asDropdown=False, includeVars=True, keepTime=True, tags=[TAG])],
        panels=_placed(page.rows),
    )
    whole = json.loads(json.dumps(made.to_json_data(), cls=DashboardEncoder))
    return json.dumps(cleaned(whole), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _placed(rows: Iterable[Row]) -> list[Any]:
    """All panels with a place on the grid, left to right and top to bottom, and a number each."""
    panels: list[Any] = []
    everything: list[Any] = []
    y = 0
    for row in rows:
        below: list[Any] = []
        if row.title:
            row.gridPos = core.GridPos(h=1, w=COLUMNS, x=0, y=y)
            panels.append(row)
            everything.append(row)
            y += 1
        x = tallest = 0
        for column in row.below:
            width = max(panel.size[0] for panel in column)
            if x + width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            down = 0
            for panel in column:
                panel.gridPos = core.GridPos(h=panel.size[1], w=panel.size[0], x=x, y=y + down)
                below.append(panel)
                down += panel.size[1]
            x, tallest = x + width, max(tallest, down)
        everything += below
        if row.collapsed:
            row.panels = below
        else:
            panels += below
            y += tallest
    for number, panel in enumerate(everything, start=1):
        panel.id = number
    return panels


def _target(query: Query, number: int) -> Any:  # noqa: ANN401  # grafanalib's
    return core.Target(
        expr=query.expr,
        legendFormat=query.legend or "__auto",
        format=query.form,
        instant=query.instant,
        refId=chr(ord("A") + number),
        datasource=SOURCE,
    )


def _link(link: Link) -> Any:  # noqa: ANN401  # grafanalib's
    return core.DashboardLink(
        title=link.title, type="link", uri=link.url, targetBlank=True, keepTime=False, icon="doc", tooltip=link.title
    )
