"""
What all dashboards share: what a colour means, which series are meant, variables, links.

One colour, one meaning, everywhere; and never the colour alone: states have their names written in them, thresholds are
lines with a word in the description, sources of the same number have their own dash. Where a line is an engine, its
colour goes by its name, so it is the same in every panel.
"""

from kvpressure import signals, signals_exporter
from kvpressure.bundle import alert, grafana
from kvpressure.bundle.config import BundleConfig
from kvpressure.bundle.look import RANGE, RATE, Link, Look, Query, Step, override
from kvpressure.bundle.others import ALERTS
from kvpressure.bundle.promql import Picker, tap_else_log
from kvpressure.family import Signal

# Okabe and Ito's colours, which people who are colour-blind tell apart.
GOOD = "#009E73"
TICKET = "#E69F00"
PAGE = "#D55E00"
CAP = "#CC79A7"
ELSEWHERE = "#56B4E9"
UNKNOWN = "#8E8E8E"
USERS = "#0072B2"
LIMIT = "#B0B0B0"
CONTEXT = "#F0E442"
BY_NAME = "palette-classic-by-name"

VERDICTS = {
    "healthy": (2, "✔ healthy", GOOD),
    "kv_memory": (5, "✖ KV memory", PAGE),
    "concurrency_cap": (3, "▲ concurrency cap", CAP),
    "stall_elsewhere": (4, "◆ stall elsewhere", ELSEWHERE),
    "unknown": (1, "? unknown", UNKNOWN),
}
"""Verdict -> its rank (the worst is the highest), its text, its colour."""

REGIMES = {"unknown": 0, "calm": 1, "onset": 2, "churn": 3}
"""Regime -> its rank."""

YES_NO: dict[float | str, tuple[str, str]] = {1.0: ("✔ yes", GOOD), 0.0: ("✖ no", PAGE)}

# --- which series -----------------------------------------------------------------------------------------------------

_TARGET = ("cluster", "namespace", "job", "instance")
EXPORTER_LABELS = _TARGET
STREAM_LABELS = (*_TARGET, "model_name")
ENGINE_LABELS = (*STREAM_LABELS, "engine")

MOST = 12
"""Lines in one panel at the most: beyond it the calmer engines are left out, and the table has them all."""


def _matchers(labels: tuple[str, ...]) -> str:
    return ",".join(f'{label}=~"${label}"' for label in labels)


ENGINE, STREAM, EXPORTER = (Picker(_matchers(labels)) for labels in (ENGINE_LABELS, STREAM_LABELS, EXPORTER_LABELS))
"""Selectors of a signal, by its scope: streams know no engine, the exporter no model."""

# vLLM is another job on another port than its sidecar, so those two labels say nothing of it.
VLLM = Picker(_matchers(("cluster", "namespace", "model_name", "engine")))
"""Selectors of vLLM's own series, where Prometheus has them too."""

PLACE = _matchers(("cluster", "namespace"))

ENGINE_NAME = "{{model_name}} {{engine}} @ {{instance}}"
STREAM_NAME = "{{model_name}} @ {{instance}}"
EXPORTER_NAME = "{{instance}}"


def windowed(signal: Signal, window: str = "$window") -> str:
    """A signal of engines over one of its windows."""
    return ENGINE.one(signal, "window", window)


def worst(shown: str, ranked: str, labels: tuple[str, ...] = ENGINE_LABELS, most: int = MOST) -> str:
    """
    The part of an expression that belongs to the engines for which another one is highest.

    Args:
        shown: what is drawn.
        ranked: a number per engine; it must be the same at every step.
        labels: what makes an engine, on both sides.
        most: how many are drawn.
    """
    return f"{shown}\nand on ({', '.join(labels)})\ntopk({most}, {ranked})"


def highest(series: str) -> str:
    """The highest value in the range that is shown, read once for all its steps."""
    return f"max_over_time({series}[{RANGE}] @ end())"


def worst_of(signal: Signal, *, exporter: bool = False) -> str:
    """A gauge without further labels, of the engines where it is highest."""
    if exporter:
        return worst(EXPORTER(signal), highest(EXPORTER(signal)), EXPORTER_LABELS)
    return worst(ENGINE(signal), highest(ENGINE(signal)))


def worst_windowed(signal: Signal) -> str:
    """A signal over the window that is picked, of the engines where it is highest."""
    ranked = f"max without (window) ({highest(ENGINE(signal, WINDOW))})"
    return worst(windowed(signal), ranked)


WINDOW = 'window="$window"'


def growth(signal: Signal, labels: str, pick: Picker = ENGINE) -> str:
    """What a counter gains in a second, summed up by these labels."""
    return f"sum by ({labels}) (rate({pick(signal, over=RATE)}))"


# --- looks ------------------------------------------------------------------------------------------------------------

LINE = {
    "axisWidth": 72,
    "drawStyle": "line",
    "fillOpacity": 0,
    "lineInterpolation": "linear",
    "lineWidth": 2,
    "showPoints": "never",
    "spanNulls": False,
    "axisPlacement": "auto",
}
WITH_LIMIT = LINE | {"thresholdsStyle": {"mode": "dashed"}}
"""Thresholds are drawn as dashed lines."""


FROM_ZERO = (Step(None, UNKNOWN), Step(0, GOOD))


def graded(ticket: float | None, page: float | None) -> tuple[Step, ...]:
    """
    Good from 0, then what is worth a ticket, then what pages: the numbers of the alerts.

    Below 0 stands what Grafana gives to a value that is missing: it must not look good.
    """
    steps = [*FROM_ZERO]
    steps += [Step(ticket, TICKET)] if ticket is not None else []
    return (*steps, *([Step(page, PAGE)] if page is not None else []))


def limit(value: float, color: str) -> tuple[Step, ...]:
    """A single threshold, to be drawn as a line."""
    return (Step(None, "transparent"), Step(value, color))


def dashed(name: str, color: str, dash: tuple[int, int]) -> dict[str, object]:
    """An override: the line of this name has this colour and dash."""
    style = {"fill": "dash", "dash": list(dash)} if dash[1] else {"fill": "solid"}
    return override((name,), color={"mode": "fixed", "fixedColor": color}, custom__lineStyle=style)


SOURCES = (
    dashed("tap", USERS, (1, 0)),
    dashed("log", ELSEWHERE, (8, 4)),
    dashed("vLLM", CAP, (2, 4)),
)
"""Who measured: the tap solid, the log dashed, vLLM itself dotted."""


def lines(
    unit: str,
    *,
    color: str = BY_NAME,
    steps: tuple[Step, ...] = (),
    low: float | None = 0,
    high: float | None = None,
) -> Look:
    """The look of lines over time, from 0 where nothing else is said."""
    return Look(
        unit=unit, color=color, steps=steps, low=low, high=high, custom=WITH_LIMIT if steps else LINE, nothing="no data"
    )


# --- links, variables, annotations ------------------------------------------------------------------------------------


def runbooks(config: BundleConfig, *names: str) -> tuple[Link, ...]:
    """Links to the runbooks of these alerts."""
    return tuple(
        Link(f"Runbook: {name.removeprefix(alert.PREFIX)}", config.runbooks.url.replace("{alert}", name))
        for name in names
    )


def _values(signal: Signal, label: str, *given: str) -> str:
    return f"label_values({Picker(_matchers(given))(signal)}, {label})"


def variables(*, engines: bool = True, window: bool = True) -> tuple[object, ...]:
    """The variables of a dashboard: where to read, and what of it."""
    up, info = signals_exporter.UP, signals.UPSTREAM_INFO
    found = [
        grafana.variable("datasource", "Data source", "prometheus", kind="datasource", several=False),
        grafana.variable(
            "cluster", "Cluster", _values(up, "cluster"), about="Stays empty where series carry no such label."
        ),
        grafana.variable("namespace", "Namespace", _values(up, "namespace", "cluster")),
        grafana.variable("job", "Job", _values(up, "job", "cluster", "namespace"), about="The exporter's."),
        grafana.variable("instance", "Instance", _values(up, "instance", "cluster", "namespace", "job")),
    ]
    if engines:
        found += [
            grafana.variable("model_name", "Model", _values(info, "model_name", *_TARGET)),
            grafana.variable("engine", "Engine", _values(info, "engine", *STREAM_LABELS)),
        ]
    if window:
        found.append(
            grafana.variable(
                "window",
                "Window",
                ",".join(name for name, _ in signals.WINDOWS),
                kind="custom",
                several=False,
                default="5m",
                about="Over which shares and percentiles are taken in the charts; the big numbers use the alerts' own.",
            )
        )
    return tuple(found)


def firing(*matchers: str) -> str:
    """Our alerts that fire, of what is picked; some are about no instance and no model."""
    own = (f'alertname=~"{alert.PREFIX}.+"', 'alertstate="firing"', *matchers)
    picked = [
        f'{label}=~"${label}{"" if label in ("cluster", "namespace", "job") else "|"}"'
        for label in ("cluster", "namespace", "job", "instance")
    ]
    return f"{ALERTS}{{{','.join([*own, *picked])}}}"


def annotations() -> tuple[dict[str, object], ...]:
    """The firing alerts, as marks on the time axis."""
    return (
        {
            "name": "Pages",
            "datasource": grafana.SOURCE,
            "enable": True,
            "iconColor": PAGE,
            "expr": firing('severity="critical"'),
            "step": "60s",
            "titleFormat": "Page: {{alertname}}",
            "textFormat": "{{model_name}} {{engine}} {{instance}}",
            "tagKeys": "severity",
        },
        {
            "name": "Tickets",
            "datasource": grafana.SOURCE,
            "enable": True,
            "iconColor": TICKET,
            "expr": firing('severity="warning"'),
            "step": "60s",
            "titleFormat": "Ticket: {{alertname}}",
            "textFormat": "{{model_name}} {{engine}} {{instance}}",
            "tagKeys": "severity",
        },
    )


# --- queries that several dashboards have -----------------------------------------------------------------------------


SEEN = 'source=~"tap|log"'
"""What users get, by either observer."""

OF_VLLM = 'source="engine"'
"""The same as vLLM's own histogram has it."""


def by_source(signal: Signal, factor: int = 1) -> list[Query]:
    """What the users of the worst instance get in the window that is picked: the tap's line, and the log's over it."""
    times = "" if factor == 1 else f"{factor} * "
    matchers = {source: f'source="{source}"' for source in ("tap", "log")}
    return [Query(f"{times}max({STREAM(signal, matcher, WINDOW)})", source) for source, matcher in matchers.items()]


def users(signal: Signal, window: str) -> str:
    """One view of the same users, as the alerts take it."""
    return tap_else_log(STREAM, signal, window)
