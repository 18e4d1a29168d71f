"""The dashboard "Capacity": what the cache seats, what users bring, and where the two are heading."""

from kvpressure import signals
from kvpressure.bundle import alert, records
from kvpressure.bundle.config import BundleConfig
from kvpressure.bundle.dash_parts import (
    CONTEXT,
    ENGINE,
    ENGINE_LABELS,
    ENGINE_NAME,
    LIMIT,
    PAGE,
    TICKET,
    USERS,
    VLLM,
    annotations,
    dashed,
    graded,
    growth,
    highest,
    lines,
    runbooks,
    variables,
    worst,
    worst_of,
)
from kvpressure.bundle.grafana import Gauge, Heatmap, Page, Panel, Row, Stat, Table, TimeSeries
from kvpressure.bundle.look import RANGE, RATE, Look, Query, Step, override
from kvpressure.bundle.promql import duration, number
from kvpressure.family import Signal
from kvpressure.vllm import names


def page(config: BundleConfig) -> Page:
    """The dashboard."""
    return Page(
        uid="kvpressure-capacity",
        title="KV pressure / Capacity",
        description="What the KV cache seats against what users bring, and why that changes.",
        rows=(
            Row("", _now(config)),
            Row("$model_name", _model(config), repeat="model_name"),
            Row("Where it is heading", [_forecast(config)]),
            Row("KV that is reused or lost", _traffic(config)),
            Row("KV that is moved: with a connector, or in vLLM 0.6 to 0.9", _moved(config), collapsed=True),
        ),
        variables=variables(window=False),
        annotations=annotations(),
    )


_LOW = alert.CAPACITY_LOW
_P95 = ENGINE.one(signals.KV_CAPACITY_REQUESTS, "footprint", "p95")
_MEAN = ENGINE.one(signals.KV_CAPACITY_REQUESTS, "footprint", "mean")
_LEFT = ENGINE.one(signals.KV_HEADROOM_REQUESTS, "footprint", "p95")
_LEFT_MEAN = ENGINE.one(signals.KV_HEADROOM_REQUESTS, "footprint", "mean")
_BROUGHT = f"({ENGINE(signals.REQUESTS_RUNNING)} + {ENGINE(signals.REQUESTS_WAITING)})"


def _now(config: BundleConfig) -> list[Panel]:
    return [
        Gauge(
            "Seats taken",
            "The fullest engine: requests that run or wait, against those of p95 length that fit. Over 100 % some will "
            "wait or be preempted once they have grown; for hours at a time: more memory for the cache, or shorter "
            "answers.",
            [Query(f"topk(1, {_BROUGHT} / {_P95})", ENGINE_NAME, instant=True)],
            (6, 5),
            look=Look(unit="percentunit", low=0, high=2, decimals=0, steps=graded(1, None), nothing="? not known"),
            links=runbooks(config, _LOW),
        ),
        Stat(
            "Fewest seats, p95 length",
            "Requests of p95 length that fit into the smallest engine's cache: an estimate on the safe side. Plan for "
            "this number of requests at once.",
            [Query(f"bottomk(1, {_P95})", ENGINE_NAME, instant=True)],
            (6, 5),
            look=Look(decimals=0, color="text", nothing="? not known"),
            options={"colorMode": "none"},
            links=runbooks(config, _LOW),
        ),
        Stat(
            "Fewest seats, mean length",
            "The same for requests of mean length: what fits while lengths are mixed as they are. Between this and the "
            "p95 lies where preemption begins.",
            [Query(f"bottomk(1, {_MEAN})", ENGINE_NAME, instant=True)],
            (6, 5),
            look=Look(decimals=0, color="text", nothing="? not known"),
            options={"colorMode": "none"},
            links=runbooks(config, _LOW),
        ),
        Stat(
            "Tokens of KV cache, all engines",
            "What vLLM has room for. It follows from --gpu-memory-utilization, its type and the model; FP8 "
            "about doubles it, after an accuracy check.",
            [Query(f"sum by (model_name) ({ENGINE(signals.KV_CAPACITY_TOKENS)})", "{{model_name}}", instant=True)],
            (6, 5),
            look=Look(unit="short", color="text", nothing="? not known"),
            options={"colorMode": "none"},
        ),
    ]


def _model(config: BundleConfig) -> list[Panel]:
    shift = config.output_length_shift
    brought = f"({highest(ENGINE(signals.REQUESTS_RUNNING))} + {highest(ENGINE(signals.REQUESTS_WAITING))})"
    return [
        TimeSeries(
            "Requests: brought, against seats",
            "Solid: running and waiting. Dashed: seats at p95 length; dotted: at mean length, of the smallest engine. "
            "Solid above dashed for hours is a ticket: the cache is too small for this traffic.",
            [
                Query(worst(_BROUGHT, brought), ENGINE_NAME),
                Query(f"min({_P95})", "seats at p95 length"),
                Query(f"min({_MEAN})", "seats at mean length"),
            ],
            (8, 8),
            look=lines("short"),
            overrides=[dashed("seats at p95 length", PAGE, (8, 4)), dashed("seats at mean length", LIMIT, (2, 4))],
            links=runbooks(config, _LOW),
        ),
        TimeSeries(
            "Headroom: requests that would still fit",
            "Seats minus running and waiting, of the engine with the least; dotted: at mean length. Below 0 are "
            "requests too many: hours of it, while some wait for blocks, are a ticket. An estimate on the safe side.",
            [
                Query(f"min({_LEFT})", "at p95 length"),
                Query(f"min({_LEFT_MEAN})", "at mean length"),
            ],
            (8, 8),
            look=lines("short", low=None),
            overrides=[dashed("at mean length", LIMIT, (2, 4))],
            links=runbooks(config, _LOW),
        ),
        TimeSeries(
            "Tokens: in use, against capacity",
            "Blocks that running requests hold, in tokens; dashed: all that fit, of the smallest engine. Full is what "
            "vLLM aims for: it matters where somebody waits (On call, blocked time).",
            [
                Query(worst(_IN_USE, highest(ENGINE(signals.KV_USAGE))), ENGINE_NAME),
                Query(f"min({ENGINE(signals.KV_CAPACITY_TOKENS)})", "capacity"),
            ],
            (8, 8),
            look=lines("short"),
            overrides=[dashed("capacity", PAGE, (8, 4))],
            links=runbooks(config, alert.PINNED),
        ),
        _lengths("Prompt lengths", names.PROMPT_LENGTHS, "Longer prompts take more room from the start.", config),
        _lengths("Output lengths", names.OUTPUT_LENGTHS, "Longer answers take room while they grow.", config),
        TimeSeries(
            "Lengths: drift",
            f"Mean output of the last {duration(shift.window)} against what it was before (dashed). Apart by "
            f"{number(100 * shift.change)} % it is a ticket: ask which client changed, then cap max_tokens. Needs the "
            "recording rules.",
            [
                Query(f"max({records.output_mean(config)}{_RECORDED})", "now"),
                Query(f"max({records.OUTPUT_MEAN_BEFORE}{_RECORDED})", "before"),
                Query(_mean_prompt(), "prompt, now"),
            ],
            (8, 7),
            look=lines("short", color=USERS),
            overrides=[dashed("before", LIMIT, (8, 4)), dashed("prompt, now", CONTEXT, (2, 4))],
            links=runbooks(config, alert.OUTPUT_LENGTH_SHIFT),
        ),
        TimeSeries(
            "max_tokens asked, tokens used",
            "Means of the requests that finished. Asked far above used: a cap at what the product needs costs nobody "
            "anything and keeps a runaway answer from taking the cache. Reads vLLM's own series.",
            [
                Query(_mean_of(names.MAX_TOKENS), "asked"),
                Query(_mean_of(names.OUTPUT_LENGTHS), "used"),
            ],
            (8, 7),
            look=lines("short", color=USERS),
            overrides=[dashed("asked", TICKET, (8, 4))],
            links=runbooks(config, alert.OUTPUT_LENGTH_SHIFT),
        ),
        TimeSeries(
            "KV tokens held per running request",
            "What a request takes at this moment. Rising at the same load: prompts or answers got longer, and the same "
            "cache seats fewer.",
            [Query(worst_of(signals.KV_RESIDENT_TOKENS), ENGINE_NAME)],
            (8, 7),
            look=lines("short"),
            links=runbooks(config, _LOW),
        ),
    ]


_IN_USE = f"{ENGINE(signals.KV_USAGE)} * {ENGINE(signals.KV_CAPACITY_TOKENS)}"
_RECORDED = '{cluster=~"$cluster",namespace=~"$namespace",job=~"$job",model_name=~"$model_name"}'
"""A record of a model knows no instance and no engine."""


def _lengths(title: str, family: names.Family, about: str, config: BundleConfig) -> Panel:
    return Heatmap(
        title,
        f"{about} Lighter is more requests. A second band that appears is a client that changed; see drift, below. "
        "Reads vLLM's own histogram: empty where Prometheus scrapes the sidecar alone.",
        [
            Query(
                f"sum by (le) ({VLLM.upstream(family, 'increase', part='_bucket', over=RATE)})",
                "{{le}}",
                form="heatmap",
            )
        ],
        (12, 8),
        look=Look(
            unit="short",
            custom={"scaleDistribution": {"type": "linear"}},
            nothing="no vLLM scraped",
            color="thresholds",
        ),
        links=runbooks(config, alert.OUTPUT_LENGTH_SHIFT),
    )


def _mean_prompt() -> str:
    sums, counts = (f"sum(rate({ENGINE(signals.PROMPT_LENGTHS, part=part, over=RATE)}))" for part in ("_sum", "_count"))
    return f"{sums}\n/\n{counts}"


def _mean_of(family: names.Family) -> str:
    sums, counts = (VLLM.upstream(family, "rate", part=part, over=RATE) for part in ("_sum", "_count"))
    return f"sum({sums})\n/\nsum({counts})"


def _forecast(config: BundleConfig) -> Panel:
    """A line through the range that is shown, as far again: it reads what the dashboard draws, once."""
    by = ", ".join(ENGINE_LABELS)

    def ahead(signal: Signal) -> str:
        return f"predict_linear({ENGINE(signal)}[{RANGE}], {RANGE}_s)"

    coming = f"clamp_min({ahead(signals.REQUESTS_RUNNING)} + {ahead(signals.REQUESTS_WAITING)}, 0)"
    columns = {"A": "seats p95", "B": "brought now", "C": "brought then", "D": "headroom then"}
    expressions = (_P95, _BROUGHT, coming, f"{_P95} - {coming}")
    renamed = {f"Value #{ref}": name for ref, name in columns.items()}
    return Table(
        "Headroom forecast: as far ahead as the range that is shown",
        "A straight line through running and waiting requests, against the seats at p95 length: pick a day to look "
        "a day ahead. Below 0: plan more memory, another replica or a cap on max_tokens. It knows nothing of peaks.",
        [Query(f"max by ({by}) ({expression})", form="table", instant=True) for expression in expressions],
        (24, 7),
        look=Look(unit="short", decimals=0, nothing="-", color="thresholds", custom={"align": "auto"}),
        overrides=[
            override(
                ("headroom then",),
                thresholds={
                    "mode": "absolute",
                    "steps": [
                        {"value": step.value, "color": step.color} for step in (Step(None, TICKET), Step(0, "text"))
                    ],
                },
                custom__cellOptions={"type": "color-text"},
            )
        ],
        transformations=[
            {"id": "merge", "options": {}},
            {
                "id": "organize",
                "options": {
                    "excludeByName": {"Time": True, "job": True},
                    "indexByName": {
                        name: index for index, name in enumerate(("model_name", "engine", "instance", *renamed))
                    },
                    "renameByName": {"model_name": "model", **renamed},
                },
            },
        ],
        options={"sortBy": [{"displayName": "headroom then", "desc": False}]},
        links=runbooks(config, _LOW),
    )


def _traffic(config: BundleConfig) -> list[Panel]:
    hits, asked = (VLLM.upstream(family, "rate", over=RATE) for family in (names.PREFIX_HITS, names.PREFIX_QUERIES))
    return [
        TimeSeries(
            "Prefix cache: tokens found",
            "Share of prompt tokens whose KV was there already. A fall with full cache: prefixes are evicted for "
            "running requests. That is no preemption and stops nobody. Reads vLLM's own series.",
            [Query(f"sum by (model_name) ({hits})\n/\nsum by (model_name) ({asked})", "{{model_name}}")],
            (8, 7),
            look=lines("percentunit", high=1),
        ),
        TimeSeries(
            "Preempted: tokens to compute again",
            "An estimate: preemptions times what a request held. This is work done twice; compare with the tokens per "
            "second on On call. Offload, beside, restores instead.",
            [Query(growth(signals.RECOMPUTED_TOKENS, "model_name"), "{{model_name}}")],
            (8, 7),
            look=lines("short"),
            links=runbooks(config, alert.PREEMPTION_CHURN),
        ),
        TimeSeries(
            "Preemptions: counted, and seen before they are counted",
            "vLLM counts late, and never where the victim gives up. The dotted line leads; both are lower bounds and "
            "are never added. Dotted without solid for minutes: a livelock.",
            [
                Query(growth(signals.PREEMPTIONS, ""), "counted"),
                Query(growth(signals.PREEMPTIONS_INFERRED, ""), "seen"),
            ],
            (8, 7),
            look=lines("cps", color=PAGE),
            overrides=[dashed("seen", CONTEXT, (2, 4))],
            links=runbooks(config, alert.LIVELOCK, alert.PREEMPTION_CHURN),
        ),
    ]


def _moved(config: BundleConfig) -> list[Panel]:
    by = "model_name, direction"
    return [
        TimeSeries(
            "KV offload: bytes moved",
            "By the offloading connector, where there is one. Loads that rise with load are restores: cheaper than "
            "computing again, and no preemption.",
            [Query(growth(signals.KV_OFFLOAD_BYTES, by), "{{model_name}} {{direction}}")],
            (8, 7),
            look=lines("Bps"),
        ),
        TimeSeries(
            "KV offload: share of time spent moving",
            "Near 1 the link is the limit: offload fewer blocks, or use a faster path.",
            [Query(growth(signals.KV_OFFLOAD_SECONDS, by), "{{model_name}} {{direction}}")],
            (8, 7),
            look=lines("percentunit"),
        ),
        TimeSeries(
            "KV from a connector: tokens not computed",
            "Tokens per second whose KV came from outside the device. Falling to 0 while the connector is configured: "
            "look at its own metrics; prefills will take longer.",
            [Query(growth(signals.KV_OFFLOAD_HIT_TOKENS, "model_name"), "{{model_name}}")],
            (8, 7),
            look=lines("short"),
        ),
        TimeSeries(
            "V0: requests swapped to the CPU",
            "Of vLLM 0.6 to 0.9 alone: swapped requests stand still until they come back. Treat it as preemption.",
            [Query(f"sum by (model_name) ({ENGINE(signals.REQUESTS_SWAPPED)})", "{{model_name}}")],
            (12, 6),
            look=lines("short"),
            links=runbooks(config, alert.PREEMPTION_CHURN),
        ),
        TimeSeries(
            "V0: swap space in use",
            "Of vLLM 0.6 to 0.9 alone. Full: the next victim is computed again instead; raise --swap-space.",
            [Query(f"max by (model_name) ({ENGINE(signals.CPU_KV_USAGE)})", "{{model_name}}")],
            (12, 6),
            look=lines("percentunit", high=1),
            links=runbooks(config, alert.PREEMPTION_CHURN),
        ),
    ]
