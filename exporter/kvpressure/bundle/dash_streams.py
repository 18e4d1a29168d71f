"""The dashboard "Streams": what users get, and why vLLM's own numbers look better."""

from kvpressure import signals, signals_streams
from kvpressure.bundle import alert
from kvpressure.bundle.config import BundleConfig
from kvpressure.bundle.dash_parts import (
    ENGINE,
    OF_VLLM,
    PAGE,
    SOURCES,
    STREAM,
    STREAM_NAME,
    TICKET,
    WINDOW,
    annotations,
    by_source,
    graded,
    limit,
    lines,
    runbooks,
    users,
    variables,
)
from kvpressure.bundle.grafana import Heatmap, Page, Panel, Row, Stat, Text, TimeSeries
from kvpressure.bundle.look import RATE, Look, Query
from kvpressure.bundle.promql import number
from kvpressure.family import Signal

_PAUSE = 1.0
"""The pause threshold's default, an edge of the histogram."""

_WORDS = """
**vLLM's histogram counts gaps; users count requests.** One request in four may have stood still while its one gap is \
lost among the thousand others: a low p99 proves nothing.

* **Solid above dotted:** time is lost after vLLM: a slow network, a proxy that buffers, a client that does not read.
* **vLLM's gaps lag behind:** it learns of a gap when the next token comes. A stall that lasts is not in its numbers at
  all, and an aborted victim never will be.
* **Paused, and no long gap in vLLM:** the front end or the host stood still, not the engine.
* **Tap and log apart:** one of them lost lines or streams; see *Exporter*.
"""


def page(config: BundleConfig) -> Page:
    """The dashboard."""
    return Page(
        uid="kvpressure-streams",
        title="KV pressure / Streams",
        description="What the users' streams look like, as the tap and the request log see them.",
        rows=(
            Row("", _now(config)),
            Row("$model_name", [*_over_time(config), *_views()], repeat="model_name"),
        ),
        variables=variables(),
        annotations=annotations(),
    )


def _now(config: BundleConfig) -> list[Panel]:
    pausing = config.requests_pausing
    return [
        Stat(
            "Paused at this moment",
            "Requests without a token for longer than the pause threshold, now. Each is a user who looks at half an "
            "answer. Above 0 for minutes: see On call for the verdict.",
            [_sources_now(signals_streams.REQUESTS_PAUSING)],
            (6, 4),
            look=Look(steps=graded(1, None), decimals=0, nothing="? no tap, no log"),
            links=runbooks(config, alert.REQUESTS_PAUSING),
        ),
        Stat(
            "Streaming at this moment",
            "Requests with a first token and no end yet. vLLM's running requests lack those that it preempted; "
            "these have them.",
            [_sources_now(signals_streams.REQUESTS_STREAMING)],
            (6, 4),
            look=Look(color="text", decimals=0, nothing="? no tap, no log"),
            options={"colorMode": "none"},
        ),
        Stat(
            f"Requests paused, {pausing.window}",
            f"The worst model. Page from {number(100 * pausing.share)} %. The verdict on the dashboard On call tells "
            "whether the cache is the reason.",
            [Query(f"topk(1, {users(signals_streams.PAUSED_RATIO, pausing.window)})", STREAM_NAME, instant=True)],
            (6, 4),
            look=Look(unit="percentunit", decimals=1, steps=graded(None, pausing.share), nothing="? no tap, no log"),
            links=runbooks(config, alert.REQUESTS_PAUSING),
        ),
        Stat(
            f"Longest gap, {config.inter_token_gap.window}",
            f"The worst model. Ticket over {number(config.inter_token_gap.longest)} s, where it stays there. Somebody "
            "has looked at half an answer for so long.",
            [
                Query(
                    f"topk(1, {users(signals_streams.GAP_MAX, config.inter_token_gap.window)})",
                    STREAM_NAME,
                    instant=True,
                )
            ],
            (6, 4),
            look=Look(unit="s", steps=graded(config.inter_token_gap.longest, None), nothing="? no tap, no log"),
            links=runbooks(config, alert.INTER_TOKEN_GAP_HIGH),
        ),
    ]


def _sources_now(signal: Signal) -> Query:
    return Query(f"sum by (source) ({STREAM(signal)})", "by the {{source}}", instant=True)


def _over_time(config: BundleConfig) -> list[Panel | tuple[Panel, ...]]:
    pausing, gap = config.requests_pausing, config.inter_token_gap
    return [
        TimeSeries(
            "Requests paused, by who saw it",
            f"Share of the requests that stood still in the window. Dashed: page from {number(100 * pausing.share)} %. "
            "It counts while the pause lasts. Tap and log see the same users: never add them.",
            by_source(signals_streams.PAUSED_RATIO),
            (12, 7),
            look=lines("percentunit", steps=limit(pausing.share, PAGE)),
            overrides=SOURCES,
            links=runbooks(config, alert.REQUESTS_PAUSING),
        ),
        TimeSeries(
            "The longest gap",
            f"Exact, of the gaps that ended in the window. Dashed: ticket over {number(gap.longest)} s. Where it rises "
            "while preemptions do (On call), victims wait for room to come back.",
            by_source(signals_streams.GAP_MAX),
            (12, 7),
            look=lines("s", steps=limit(gap.longest, TICKET)),
            overrides=SOURCES,
            links=runbooks(config, alert.INTER_TOKEN_GAP_HIGH),
        ),
        Heatmap(
            "Gaps between tokens",
            "All gaps by length; lighter is more. A band that climbs is a server that slows down for all: look at load "
            "and batch size. Specks far above a steady band are single victims: look at preemptions.",
            [Query(_gaps(), "{{le}}", form="heatmap")],
            (12, 10),
            look=_HEAT,
            links=runbooks(config, alert.INTER_TOKEN_GAP_HIGH),
        ),
        (_longest(config, paused=True), _longest(config, paused=False)),
    ]


_HEAT = Look(unit="s", custom={"scaleDistribution": {"type": "linear"}}, nothing="? no tap, no log")
_NOT_PAUSED = "|".join(repr(edge) for edge in signals_streams.GAP_EDGES if edge <= _PAUSE)


def _longest(config: BundleConfig, *, paused: bool) -> Panel:
    """A heatmap has no line of its own to draw: this is the part above the pause line, or the one below."""
    if paused:
        title = "Requests by their longest gap: paused"
        description = (
            "Requests that ended, by the worst moment that each had. All in this panel were paused: its lower edge is "
            f"the pause line ({number(_PAUSE)} s, the exporter's default). Any light cell here is somebody who waited."
        )
    else:
        title = "Requests by their longest gap: not paused"
        description = (
            "The same for the requests whose every gap was shorter: its upper edge is the pause line. Where this thins "
            "out while the panel above fills, the server did not get slower for all; it let some stand."
        )
    matcher = f'le!~"{_NOT_PAUSED}"' if paused else f'le=~"{_NOT_PAUSED}"'
    parts = [_cumulated(source, matcher, paused=paused) for source in ("tap", "log")]
    return Heatmap(
        title,
        description,
        [Query("\nor\n".join(parts), "{{le}}", form="heatmap")],
        (12, 5),
        look=_HEAT,
        links=runbooks(config, alert.REQUESTS_PAUSING),
    )


def _gaps() -> str:
    """All gaps by their length, as the tap has them, else the log."""
    seen = (STREAM(signals_streams.GAPS, f'source="{source}"', part="_bucket", over=RATE) for source in ("tap", "log"))
    return "\nor\n".join(f"sum by (le) (increase({series}))" for series in seen)


def _cumulated(source: str, matcher: str, *, paused: bool) -> str:
    """Requests by their longest gap, cumulated as a histogram is, from 0 or from the pause line on."""

    def gained(*matchers: str) -> str:
        own = f'source="{source}"'
        return f"increase({STREAM(signals_streams.REQUEST_MAX_GAPS, own, *matchers, part='_bucket', over=RATE)})"

    below = gained(f'le="{_PAUSE}"')
    from_line = f"\n- on () group_left ()\nsum({below})" if paused else ""
    return f"(sum by (le) ({gained(matcher)}){from_line})"


def _views() -> list[Panel]:
    return [
        TimeSeries(
            "Gap p99: users beside vLLM",
            "The same percentile by three observers. All three together and high: the engine is slow for all. Solid or "
            "dashed above dotted: time is lost between engine and user. See the words beside.",
            [
                *by_source(signals.GAP_P99),
                Query(f"max({ENGINE(signals.GAP_P99, WINDOW, OF_VLLM)})", "vLLM"),
            ],
            (8, 9),
            look=lines("s"),
            overrides=SOURCES,
        ),
        TimeSeries(
            "Long gaps per 1000 requests: vLLM beside users",
            "vLLM: gaps over the pause threshold per thousand requests. Users: paused requests per thousand. Users far "
            "above vLLM: stalls that vLLM does not see, so look at host, front end and proxy.",
            [
                *by_source(signals_streams.PAUSED_RATIO, 1000),
                Query(f"max({ENGINE(signals.LONG_GAPS_PER_THOUSAND, WINDOW)})", "vLLM"),
            ],
            (8, 9),
            look=lines("short"),
            overrides=SOURCES,
        ),
        Text(
            "Why the two differ",
            "How to read the charts beside it.",
            [],
            (8, 9),
            options={"mode": "markdown", "content": _WORDS.strip()},
        ),
    ]
