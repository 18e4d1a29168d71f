"""The panels in which every engine has its line: its state over time, its numbers now, and the alerts on it."""

from kvpressure import signals, signals_streams
from kvpressure.bundle import alert
from kvpressure.bundle.config import BundleConfig
from kvpressure.bundle.dash_parts import (
    ENGINE,
    ENGINE_LABELS,
    ENGINE_NAME,
    FROM_ZERO,
    MOST,
    OF_VLLM,
    PAGE,
    REGIMES,
    STREAM_LABELS,
    TICKET,
    UNKNOWN,
    VERDICTS,
    firing,
    graded,
    runbooks,
    users,
    windowed,
    worst,
)
from kvpressure.bundle.grafana import Panel, StateTimeline, Table
from kvpressure.bundle.look import RANGE, Look, Query, Step, override
from kvpressure.bundle.promql import indent

_TENS = 10


def _code() -> str:
    """
    Verdict and regime as one number, tens and ones: the worst is the lowest.

    Negative, so that in a table the texts of these numbers cannot fall on those of another column.
    """
    states = [
        *(f"{_TENS * rank} * ({ENGINE(signals.VERDICT, _is('verdict', name))} == 1)" for name, (rank, *_) in _SORTED),
        *(f"{rank} * ({ENGINE(signals.REGIME, _is('regime', name))} == 1)" for name, rank in REGIMES.items()),
    ]
    return "-sum without (verdict, regime) (\n" + indent("\nor\n".join(states)) + "\n)"


_SORTED = sorted(VERDICTS.items(), key=lambda item: item[1])


def _is(label: str, value: str) -> str:
    return f'{label}="{value}"'


def codes() -> dict[float | str, tuple[str, str]]:
    """The texts of all these numbers: the verdict in words and colour, the regime in words."""
    return {
        -(_TENS * rank + ones): (text if regime in ("calm", "unknown") else f"{text} · {regime}", color)
        for _, (rank, text, color) in _SORTED
        for regime, ones in REGIMES.items()
    }


def timeline(config: BundleConfig) -> Panel:
    """What limited each engine, and since when."""
    healthy = ENGINE(signals.VERDICT, 'verdict="healthy"')
    ill = f"1 - avg without (verdict) (avg_over_time({healthy}[{RANGE}] @ end()))"
    return StateTimeline(
        "Since when: verdict and regime",
        "What limits each engine. KV memory: the cache is too small for the traffic. Concurrency cap: raise "
        "max_num_seqs. Stall elsewhere: look at host, network, compute. Churn is preemption that goes on, onset a "
        f"burst that ends by itself. The {MOST} engines that were longest ill; the table has all.",
        [Query(worst(_code(), ill), ENGINE_NAME)],
        (16, 8),
        look=Look(
            texts=codes(),
            custom={"fillOpacity": 80, "lineWidth": 0},
            nothing="no exporter is scraped",
            color="thresholds",
        ),
        options={"legend": {"displayMode": "list", "placement": "bottom", "showLegend": False}},
        links=runbooks(config, alert.MEMORY_BOUND, alert.STALL_ELSEWHERE),
    )


def alerts() -> Panel:
    """What fires."""
    return Table(
        "Alerts that fire now",
        "All of ours, the pages among them. The name leads to the runbook of that name. Empty is good, as long as the "
        "first panel says that there is no page.",
        [Query(f"max by (severity, alertname, model_name, engine, instance) ({firing()})", form="table", instant=True)],
        (8, 8),
        look=Look(
            texts={"critical": ("✖ page", PAGE), "warning": ("▲ ticket", TICKET), "info": ("· info", UNKNOWN)},
            nothing="none",
        ),
        overrides=[override(("severity",), custom__cellOptions={"type": "color-text"})],
        transformations=[
            {
                "id": "organize",
                "options": {
                    "excludeByName": {"Time": True, "Value": True},
                    "indexByName": {"severity": 0, "alertname": 1, "model_name": 2, "engine": 3, "instance": 4},
                    "renameByName": {"alertname": "alert", "model_name": "model"},
                },
            }
        ],
        options={"sortBy": [{"displayName": "severity", "desc": False}]},
    )


_COLUMNS = (
    "verdict",
    "preempted ‰",
    "paused %",
    "gap p99 ms",
    "pinned %",
    "blocked %",
    "running",
    "waiting",
)


def table(config: BundleConfig) -> Panel:
    """Every engine's numbers, the worst engine first."""
    storm, pausing = config.preemption_storm, config.requests_pausing
    on = ", ".join(STREAM_LABELS)
    felt = f"max by ({on}) ({users(signals_streams.PAUSED_RATIO, pausing.window)})"
    expressions = (
        _code(),
        windowed(signals.PREEMPTIONS_PER_THOUSAND, storm.window),
        f"0 * {ENGINE(signals.KV_USAGE)} + on ({on}) group_left ()\n100 * {felt}",
        f"1000 * {ENGINE.one(signals.GAP_P99, 'window', storm.window, OF_VLLM)}",
        f"100 * {windowed(signals.KV_PINNED_RATIO, storm.window)}",
        f"100 * {windowed(signals.KV_BLOCKED_RATIO, storm.window)}",
        ENGINE(signals.REQUESTS_RUNNING),
        ENGINE(signals.REQUESTS_WAITING),
    )
    by = ", ".join(ENGINE_LABELS)
    renamed = {f"Value #{chr(ord('A') + index)}": name for index, name in enumerate(_COLUMNS)}
    return Table(
        "Which engine: all of them, the worst first",
        "One line per engine, now. Paused is what the users of the model felt, over all its engines on that instance; "
        "gap p99 is vLLM's own. Sort by any column; a click on a name narrows nothing, the variables above do.",
        [Query(f"max by ({by}) ({expression})", form="table", instant=True) for expression in expressions],
        (24, 7),
        look=Look(decimals=0, texts=codes(), custom={"align": "auto", "filterable": True}, nothing="-"),
        overrides=[
            override(("verdict",), custom__cellOptions={"type": "color-text"}),
            _colored("preempted ‰", config.preemption_churn.per_thousand, storm.per_thousand),
            _colored("paused %", None, 100 * pausing.share),
            _colored("gap p99 ms", 1000 * config.inter_token_gap.p99, None),
            _colored("blocked %", 100 * config.memory_bound.blocked_ratio, None),
        ],
        transformations=[
            {"id": "merge", "options": {}},
            {
                "id": "organize",
                "options": {
                    "excludeByName": {"Time": True, "job": True},
                    "indexByName": {
                        name: index
                        for index, name in enumerate(
                            ("model_name", "engine", "instance", *renamed, "namespace", "cluster")
                        )
                    },
                    "renameByName": {"model_name": "model", **renamed},
                },
            },
        ],
        options={"sortBy": [{"displayName": "verdict", "desc": False}]},
    )


def _colored(name: str, ticket: float | None, page: float | None) -> dict[str, object]:
    """A column whose numbers have a colour from a threshold on, and none where all is well."""
    steps = (Step(None, "text"), *graded(ticket, page)[len(FROM_ZERO) :])
    return override(
        (name,),
        thresholds={"mode": "absolute", "steps": [{"value": step.value, "color": step.color} for step in steps]},
        custom__cellOptions={"type": "color-text"},
    )
