"""The dashboard "On call": page or not, which engine, since when, who feels it."""

from kvpressure import signals, signals_streams
from kvpressure.bundle import alert, dash_engines, records
from kvpressure.bundle.config import BundleConfig
from kvpressure.bundle.dash_parts import (
    ENGINE,
    ENGINE_NAME,
    FROM_ZERO,
    GOOD,
    LIMIT,
    OF_VLLM,
    PAGE,
    PLACE,
    SEEN,
    SOURCES,
    STREAM,
    STREAM_NAME,
    TICKET,
    UNKNOWN,
    USERS,
    WINDOW,
    annotations,
    by_source,
    dashed,
    firing,
    graded,
    growth,
    limit,
    lines,
    runbooks,
    users,
    variables,
    windowed,
    worst_of,
    worst_windowed,
)
from kvpressure.bundle.grafana import Page, Panel, Row, Stat, TimeSeries
from kvpressure.bundle.look import Look, Query, Step
from kvpressure.bundle.others import GPU_UTILISATION
from kvpressure.bundle.promql import number


def page(config: BundleConfig) -> Page:
    """The dashboard."""
    engines = dash_engines.timeline(config), dash_engines.alerts(), dash_engines.table(config)
    return Page(
        uid="kvpressure-oncall",
        title="KV pressure / On call",
        description="Page or not, and which engine; below, since when and who feels it.",
        rows=(
            Row("", [*_numbers(config), *engines]),
            Row("$model_name", _pressure(config), repeat="model_name"),
            Row("Useful work", _work()),
        ),
        variables=variables(),
        annotations=annotations(),
    )


# --- the first screen -------------------------------------------------------------------------------------------------


def _numbers(config: BundleConfig) -> list[Panel]:
    storm, churn, pausing = config.preemption_storm, config.preemption_churn, config.requests_pausing
    pinned, gap = config.pinned, config.inter_token_gap
    # Where the rules are not loaded no alert can fire, and that is not the same as none firing.
    loaded = f"model:{signals.REQUESTS_RUNNING.metric}:sum"
    assert loaded in {record.name for record in records.records(config)}  # noqa: S101  # a typo would look like calm
    return [
        Stat(
            "Page?",
            "Critical alerts that fire now. Above 0: read the alert's runbook, beside. Without a number the rules are "
            "not loaded, or no exporter is scraped.",
            [Query(f"count({firing(_CRITICAL)})\nor\n0 * count({loaded})", "pages firing", instant=True)],
            (4, 4),
            look=Look(steps=(*FROM_ZERO, Step(1, PAGE)), texts={0: ("✔ no page", GOOD)}, nothing="? rules not loaded"),
            options={"textMode": "value"},
            links=runbooks(config, alert.PREEMPTION_STORM, alert.REQUESTS_PAUSING, alert.LIVELOCK, alert.VLLM_DOWN),
        ),
        Stat(
            f"Preemptions per 1000 requests, {storm.window}",
            f"The worst engine. Page from {number(storm.per_thousand)} while the regime is churn, ticket from "
            f"{number(churn.per_thousand)}. Cap max_tokens or give the cache more memory; the runbook has the order.",
            [_worst_now(windowed(signals.PREEMPTIONS_PER_THOUSAND, storm.window), ENGINE_NAME)],
            (5, 4),
            look=_big("none", graded(churn.per_thousand, storm.per_thousand), 0),
            links=runbooks(config, alert.PREEMPTION_STORM, alert.PREEMPTION_CHURN),
        ),
        Stat(
            f"Requests paused over the threshold, {pausing.window}",
            f"The worst model: the share of its requests that stood still. Page from {number(100 * pausing.share)} %. "
            "The verdict below tells whether the cache is the reason. Needs the tap or the log.",
            [_worst_now(users(signals_streams.PAUSED_RATIO, pausing.window), STREAM_NAME)],
            (5, 4),
            look=_big("percentunit", graded(None, pausing.share), 1),
            links=runbooks(config, alert.REQUESTS_PAUSING, alert.STALL_ELSEWHERE),
        ),
        Stat(
            f"Gap p99, {gap.window}",
            f"The worst model: 99 of 100 gaps between tokens are shorter. Ticket over {number(gap.p99)} s. It finds a "
            "server that is slow for all, and no storm: read it beside the paused share.",
            [_worst_now(_gap(config), STREAM_NAME)],
            (5, 4),
            look=_big("s", graded(gap.p99, None), None),
            links=runbooks(config, alert.INTER_TOKEN_GAP_HIGH),
        ),
        Stat(
            f"KV cache pinned, {pinned.window}",
            f"The worst engine: share of time at or above the pin threshold. From {number(100 * pinned.ratio)} % it is "
            "worth knowing and no fault by itself: a full cache is what vLLM aims for. Act on the other three.",
            [_worst_now(windowed(signals.KV_PINNED_RATIO, pinned.window), ENGINE_NAME)],
            (5, 4),
            look=_big("percentunit", (*FROM_ZERO, Step(pinned.ratio, UNKNOWN)), 0),
            links=runbooks(config, alert.PINNED),
        ),
    ]


_CRITICAL = 'severity="critical"'


def _worst_now(expression: str, legend: str) -> Query:
    return Query(f"topk(1, {expression})", legend, instant=True)


def _big(unit: str, steps: tuple[Step, ...], decimals: int | None) -> Look:
    return Look(unit=unit, steps=steps, decimals=decimals, nothing="? not known")


def _gap(config: BundleConfig) -> str:
    """The users' own view where there is one, else what vLLM's histogram says."""
    window = config.inter_token_gap.window
    vllm = ENGINE.one(signals.GAP_P99, "window", window, OF_VLLM)
    seen = STREAM.one(signals.GAP_P99, "window", window, SEEN)
    return f"{users(signals.GAP_P99, window)}\nor\n{vllm}\nunless ignoring (source, engine)\n{seen}"


# --- one model, over time ---------------------------------------------------------------------------------------------


def _pressure(config: BundleConfig) -> list[Panel]:
    storm, gap, bound = config.preemption_storm, config.inter_token_gap, config.memory_bound
    return [
        TimeSeries(
            "Preemptions per 1000 requests",
            f"Dashed: page from {number(storm.per_thousand)} while the regime is churn. A burst that ends is an onset "
            "and needs nobody. One that goes on: cap max_tokens, or give the cache more memory.",
            [Query(worst_windowed(signals.PREEMPTIONS_PER_THOUSAND), ENGINE_NAME)],
            (24, 6),
            look=lines("short", steps=limit(storm.per_thousand, PAGE)),
            links=runbooks(config, alert.PREEMPTION_STORM, alert.PREEMPTION_CHURN, alert.LIVELOCK),
        ),
        TimeSeries(
            "Time with requests waiting for KV blocks",
            f"The cache has no room for the next prompt while somebody waits. Dashed: ticket from "
            f"{number(100 * bound.blocked_ratio)} %. More memory for the cache, or fewer and shorter requests.",
            [Query(worst_windowed(signals.KV_BLOCKED_RATIO), ENGINE_NAME)],
            (12, 6),
            look=lines("percentunit", steps=limit(bound.blocked_ratio, TICKET), high=1),
            links=runbooks(config, alert.MEMORY_BOUND),
        ),
        TimeSeries(
            "Time with a pinned KV cache",
            "At or above the exporter's pin threshold. High here and nothing elsewhere: a well-used server, leave it.",
            [Query(worst_windowed(signals.KV_PINNED_RATIO), ENGINE_NAME)],
            (12, 6),
            look=lines("percentunit", steps=limit(config.pinned.ratio, LIMIT), high=1),
            links=runbooks(config, alert.PINNED),
        ),
        TimeSeries(
            "Requests waiting",
            "Preempted ones among them. With blocked time beside it the cache is the reason; without, max_num_seqs is.",
            [Query(worst_of(signals.REQUESTS_WAITING), ENGINE_NAME)],
            (12, 6),
            look=lines("short"),
            links=runbooks(config, alert.MEMORY_BOUND),
        ),
        TimeSeries(
            "Requests paused, as users see it",
            f"Share of the requests that stood still. Dashed: page from {number(100 * config.requests_pausing.share)} "
            "%. Tap and log see the same users: where they differ by much, look at the exporter's dashboard.",
            by_source(signals_streams.PAUSED_RATIO),
            (12, 6),
            look=lines("percentunit", steps=limit(config.requests_pausing.share, PAGE)),
            overrides=SOURCES,
            links=runbooks(config, alert.REQUESTS_PAUSING),
        ),
        TimeSeries(
            "Gap between tokens: p99",
            f"Dashed: ticket over {number(gap.p99)} s. vLLM is its own histogram; tap and log are what users get.",
            [
                *by_source(signals.GAP_P99),
                Query(f"max({ENGINE(signals.GAP_P99, WINDOW, OF_VLLM)})", "vLLM"),
            ],
            (12, 6),
            look=lines("s", steps=limit(gap.p99, TICKET)),
            overrides=SOURCES,
            links=runbooks(config, alert.INTER_TOKEN_GAP_HIGH),
        ),
        TimeSeries(
            "Gap between tokens: the longest",
            f"Dashed: ticket over {number(gap.longest)} s. What the one user saw that will write in. With preemptions "
            "above it is the cache; without, look at the host.",
            by_source(signals_streams.GAP_MAX),
            (12, 6),
            look=lines("s", steps=limit(gap.longest, TICKET)),
            overrides=SOURCES,
            links=runbooks(config, alert.INTER_TOKEN_GAP_HIGH, alert.STALL_ELSEWHERE),
        ),
    ]


def _work() -> list[Panel]:
    return [
        TimeSeries(
            "GPU utilisation",
            "From NVIDIA's DCGM exporter, of all GPUs of the cluster and namespace that are picked; empty without one. "
            "A busy GPU may be redoing work: read it beside the tokens, and never as a sign of health.",
            [
                Query(f"avg({GPU_UTILISATION}{{{PLACE}}})", "mean"),
                Query(f"max({GPU_UTILISATION}{{{PLACE}}})", "busiest"),
                Query(f"min({GPU_UTILISATION}{{{PLACE}}})", "idlest"),
            ],
            (12, 7),
            look=lines("percent", color=USERS, high=100),
            overrides=[dashed("busiest", LIMIT, (8, 4)), dashed("idlest", LIMIT, (2, 4))],
        ),
        TimeSeries(
            "Tokens per second: useful, and computed again",
            "Useful: given to users. Again (an estimate): KV that preempted requests had and that is computed anew. "
            "Where useful falls while again rises, the GPU is busy with the same work twice: act as for a storm.",
            [
                Query(growth(signals.GENERATION_TOKENS, ""), "useful"),
                Query(growth(signals.RECOMPUTED_TOKENS, ""), "again (estimate)"),
            ],
            (12, 7),
            look=lines("short"),
            overrides=[dashed("useful", USERS, (1, 0)), dashed("again (estimate)", PAGE, (8, 4))],
        ),
    ]
