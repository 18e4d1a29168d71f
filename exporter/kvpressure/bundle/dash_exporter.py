"""The dashboard "Exporter": whether what the others show can be believed, and what it costs."""

from kvpressure import signals, signals_exporter, signals_streams
from kvpressure.bundle import alert
from kvpressure.bundle.config import BundleConfig
from kvpressure.bundle.dash_parts import (
    EXPORTER,
    EXPORTER_LABELS,
    EXPORTER_NAME,
    FROM_ZERO,
    GOOD,
    PAGE,
    TICKET,
    YES_NO,
    annotations,
    graded,
    growth,
    highest,
    limit,
    lines,
    runbooks,
    variables,
    worst,
    worst_of,
)
from kvpressure.bundle.grafana import Page, Panel, Row, Stat, StateTimeline, Table, TimeSeries
from kvpressure.bundle.look import RANGE, RATE, Look, Query, Step
from kvpressure.bundle.others import CPU_SECONDS, MEMORY_BYTES
from kvpressure.bundle.promql import number
from kvpressure.family import Signal

_PICKED = ",".join(f'{label}=~"${label}"' for label in EXPORTER_LABELS)


def page(config: BundleConfig) -> Page:
    """The dashboard."""
    return Page(
        uid="kvpressure-exporter",
        title="KV pressure / Exporter",
        description="Whether the other dashboards can be believed: sampling, errors, what is known, and what it costs.",
        rows=(
            Row("", _now(config)),
            Row("Sampling", _sampling(config)),
            Row("What is known", _known(config)),
            Row("Tap", _tap(config)),
            Row("Log", _log(config)),
        ),
        variables=variables(engines=False, window=False),
        annotations=annotations(),
    )


def _now(config: BundleConfig) -> list[Panel]:
    errors = EXPORTER(signals_exporter.SAMPLE_ERRORS, over=RATE)
    return [
        Stat(
            "Exporters without their vLLM",
            "vLLM did not answer the last sample. For minutes: VLLMDown pages; look at vLLM, then at the address and "
            "the credentials that the sidecar has.",
            [
                Query(
                    f"count({EXPORTER(signals_exporter.UP)} == 0)\nor\n0 * count({EXPORTER(signals_exporter.UP)})",
                    "of them",
                    instant=True,
                )
            ],
            (6, 4),
            look=Look(steps=(*FROM_ZERO, Step(1, PAGE)), texts={0: ("✔ none", GOOD)}, nothing="? no exporter"),
            options={"textMode": "value"},
            links=runbooks(config, alert.VLLM_DOWN, alert.EXPORTER_DOWN),
        ),
        Stat(
            "Oldest sample",
            "Since the last good one, of the exporter that is furthest behind. More than a few intervals: its numbers "
            "are about the past; see errors by reason.",
            [Query(f"topk(1, {_AGE})", EXPORTER_NAME, instant=True)],
            (6, 4),
            look=Look(unit="s", decimals=0, steps=graded(15, 60), nothing="? no good sample yet"),
            links=runbooks(config, alert.VLLM_DOWN),
        ),
        Stat(
            "Signals that cannot be derived",
            "Of all that there are, on the exporter that lacks most. The table below names them; `kvpressure check` "
            "says what would enable each.",
            [
                Query(
                    f"topk(1, count by ({_EACH}) ({EXPORTER(_AVAILABLE)} == 0)\nor\n"
                    f"0 * count by ({_EACH}) ({EXPORTER(_AVAILABLE)}))",
                    EXPORTER_NAME,
                    instant=True,
                )
            ],
            (6, 4),
            look=Look(color="text", texts={0: ("✔ none", GOOD)}, nothing="? no good sample yet"),
            options={"colorMode": "none"},
            links=runbooks(config, alert.SIGNAL_MISSING),
        ),
        Stat(
            "Errors per minute",
            "Samples that failed, and parts that were skipped, over all exporters. Steady errors with vLLM up: a name "
            "or a format changed; see errors by reason.",
            [Query(f"60 * sum(rate({errors}))\nor\n0 * count({EXPORTER(signals_exporter.UP)})", "all", instant=True)],
            (6, 4),
            look=Look(decimals=1, steps=graded(1, None), texts={0: ("✔ none", GOOD)}, nothing="? no exporter"),
            options={"textMode": "value"},
            links=runbooks(config, alert.VLLM_DOWN),
        ),
    ]


def _growth(signal: Signal, labels: str) -> str:
    return growth(signal, labels, EXPORTER)


_AVAILABLE = signals_exporter.SIGNAL_AVAILABLE
_EACH = ", ".join(EXPORTER_LABELS)
_AGE = f"time() - {EXPORTER(signals_exporter.SAMPLE_TIMESTAMP)}"


def _duty() -> str:
    return f"{EXPORTER(signals_exporter.SAMPLE_COST)} / {EXPORTER(signals_exporter.SAMPLE_INTERVAL)}"


def _sampling(config: BundleConfig) -> list[Panel]:
    duty_rank = (
        f"{highest(EXPORTER(signals_exporter.SAMPLE_COST))} / {highest(EXPORTER(signals_exporter.SAMPLE_INTERVAL))}"
    )
    return [
        TimeSeries(
            "Time between samples",
            "As scheduled. It grows where a sample costs vLLM so much that the duty budget would be passed; then short "
            "moments are missed. Turn off metrics of vLLM that nobody reads.",
            [Query(worst_of(signals_exporter.SAMPLE_INTERVAL, exporter=True), EXPORTER_NAME)],
            (8, 7),
            look=lines("s"),
        ),
        TimeSeries(
            "Duty: share of vLLM's event loop",
            "What sampling takes from vLLM's front end: cost of a sample over the time between two. Held under the "
            "budget (sample.duty-budget) by waiting longer.",
            [Query(worst(_duty(), duty_rank, EXPORTER_LABELS), EXPORTER_NAME)],
            (8, 7),
            look=lines("percentunit"),
        ),
        TimeSeries(
            "Time that a sample takes",
            "From request to last byte. Far above its cost under load is normal: vLLM answers when it has time. Near "
            "the timeout: samples will fail.",
            [Query(worst_of(signals_exporter.SAMPLE_DURATION, exporter=True), EXPORTER_NAME)],
            (8, 7),
            look=lines("s"),
        ),
        TimeSeries(
            "Samples per second, and errors by reason",
            "Nothing but samples is good. The reason says whether it is the network, the address, the credentials or "
            "vLLM's format; the exporter's log has a sentence on each. Refused: who asks the exporter too much, too "
            "slowly or without the password.",
            [
                Query(f"sum(rate({EXPORTER(signals_exporter.SAMPLES, over=RATE)}))", "samples"),
                Query(_growth(signals_exporter.SAMPLE_ERRORS, "reason"), "error: {{reason}}"),
                Query(_growth(signals_exporter.WEB_REFUSED, "reason"), "refused: {{reason}}"),
            ],
            (8, 7),
            look=lines("cps"),
            links=runbooks(config, alert.VLLM_DOWN),
        ),
        TimeSeries(
            "Its own CPU",
            "Cores. A twentieth is usual; steady growth with the number of streams is the tap or the log at work.",
            [Query(worst(_CPU, f"rate({CPU_SECONDS}{{{_PICKED}}}[{RANGE}] @ end())", EXPORTER_LABELS), EXPORTER_NAME)],
            (8, 7),
            look=lines("short"),
        ),
        TimeSeries(
            "Its own memory",
            "Resident. It is bounded by stream.max-tracked; growth without end is a defect: please report it.",
            [
                Query(
                    worst(
                        f"{MEMORY_BYTES}{{{_PICKED}}}",
                        highest(f"{MEMORY_BYTES}{{{_PICKED}}}"),
                        EXPORTER_LABELS,
                    ),
                    EXPORTER_NAME,
                )
            ],
            (8, 7),
            look=lines("bytes"),
        ),
    ]


# The exporter is one of many jobs that have these series: only where it says that it is ours.
_CPU = f"rate({CPU_SECONDS}{{{_PICKED}}}[{RATE}])"
_BUILD = signals_exporter.BUILD_INFO


def _known(config: BundleConfig) -> list[Panel]:
    return [
        Table(
            "Signals that are missing somewhere",
            "What vLLM's version or its flags do not give. `kvpressure check` beside that vLLM says what would enable "
            "each. Empty: everything can be derived.",
            [
                Query(
                    f"count by (signal) ({EXPORTER(_AVAILABLE)} == 0)",
                    form="table",
                    instant=True,
                )
            ],
            (8, 9),
            look=Look(nothing="✔ none"),
            transformations=[
                {
                    "id": "organize",
                    "options": {
                        "excludeByName": {"Time": True},
                        "indexByName": {"signal": 0, "Value": 1},
                        "renameByName": {"Value": "exporters"},
                    },
                }
            ],
            options={"sortBy": [{"displayName": "signal", "desc": False}]},
            links=runbooks(config, alert.SIGNAL_MISSING),
        ),
        StateTimeline(
            "Signals that the alerts read: there or not",
            "The headline signals. One that is lost after an upgrade is a ticket: its alerts cannot fire any more.",
            [Query(f"min by (signal) ({EXPORTER(_AVAILABLE, _HEADLINE)})", "{{signal}}")],
            (8, 9),
            look=Look(texts=YES_NO, custom={"fillOpacity": 80, "lineWidth": 0}, nothing="? no good sample yet"),
            options={"legend": {"displayMode": "list", "placement": "bottom", "showLegend": False}},
            links=runbooks(config, alert.SIGNAL_MISSING),
        ),
        Table(
            "Versions",
            "Of the exporters, and what they found. Two versions side by side for long: a rollout that has stopped.",
            [
                Query(f"count by (version, instance) ({EXPORTER(_BUILD)})", form="table", instant=True),
                Query(
                    f"count by (instance, {_FOUND}) ({EXPORTER(signals.UPSTREAM_INFO)})",
                    form="table",
                    instant=True,
                ),
            ],
            (8, 9),
            transformations=[
                {"id": "merge", "options": {}},
                _only("instance", "version", "era", "block_size", "cache_dtype", "prefix_caching"),
            ],
        ),
        TimeSeries(
            "Restarts of vLLM that were seen",
            "Counters that started again. Each is a restart or rebuilt metrics; the signals go on across it. Many: "
            "look at why vLLM dies.",
            [
                Query(
                    f"sum by (model_name, instance) (increase({EXPORTER(signals.ENGINE_RESETS, over=RATE)}))",
                    "{{model_name}} @ {{instance}}",
                )
            ],
            (8, 7),
            look=lines("short"),
            links=runbooks(config, alert.VLLM_DOWN),
        ),
        TimeSeries(
            "Streams not followed, streams forgotten",
            "Chunks beyond stream.max-tracked, and streams that fell silent for stream.idle-timeout. The paused share "
            "lacks them: raise the limit where it goes on.",
            [
                Query(_growth(signals_exporter.CHUNKS_UNTRACKED, "source"), "chunks not followed, {{source}}"),
                Query(_growth(signals_streams.STREAMS_ABANDONED, "source"), "streams forgotten, {{source}}"),
            ],
            (8, 7),
            look=lines("cps"),
        ),
        TimeSeries(
            "Streams begun, paused and finished requests",
            "Requests per second by who counts them. Streamed well under finished: not all traffic goes through the "
            "tap, or clients do not stream; then the paused share speaks of the others alone.",
            [
                Query(_growth(signals_streams.REQUESTS_STREAMED, "source"), "streamed, {{source}}"),
                Query(_growth(signals_streams.REQUESTS_PAUSED, "source"), "paused, {{source}}"),
                Query(f"sum(rate({EXPORTER(signals.REQUESTS_FINISHED, over=RATE)}))", "finished, vLLM"),
            ],
            (8, 7),
            look=lines("reqps"),
        ),
    ]


_HEADLINE = f'signal=~"{"|".join(signal.name for signal in signals.CATALOGUE if signal.headline)}"'


_FOUND = ", ".join(signals.UPSTREAM_INFO.labels)


def _only(*columns: str) -> dict[str, object]:
    return {
        "id": "organize",
        "options": {
            "excludeByName": {"Time": True, "Value": True, "Value #A": True, "Value #B": True},
            "indexByName": {name: index for index, name in enumerate(columns)},
            "renameByName": {},
        },
    }


def _tap(config: BundleConfig) -> list[Panel]:
    return [
        TimeSeries(
            "Requests passing through",
            "At this moment. It stays at 0 where clients still ask vLLM directly: point them at the tap.",
            [Query(worst_of(signals_exporter.TAP_REQUESTS, exporter=True), EXPORTER_NAME)],
            (8, 7),
            look=lines("short"),
        ),
        TimeSeries(
            "Responses, refusals and broken answers",
            "Responses by class of status; what the tap answered itself; answers that ended early, by side. Broken "
            "upstream: vLLM or its host. Refused: see the reason, and the tap's limits.",
            [
                Query(_growth(signals_exporter.TAP_RESPONSES, "code"), "{{code}}"),
                Query(_growth(signals_exporter.TAP_REFUSED, "reason"), "refused: {{reason}}"),
                Query(_growth(signals_exporter.TAP_BROKEN, "side"), "broken by {{side}}"),
            ],
            (8, 7),
            look=lines("reqps"),
            links=runbooks(config, alert.VLLM_DOWN),
        ),
        TimeSeries(
            "What the tap could not time",
            "Streams passed on unobserved, by reason; faults are defects: please report them. Streams blocked by "
            "clients that do not read are no pause of vLLM.",
            [
                Query(_growth(signals_exporter.TAP_UNOBSERVED, "reason"), "unobserved: {{reason}}"),
                Query(f"sum(rate({EXPORTER(signals_exporter.TAP_FAULTS, over=RATE)}))", "faults"),
                Query(
                    f"sum(rate({EXPORTER(signals_exporter.TAP_BLOCKED_SECONDS, over=RATE)}))",
                    "streams blocked by clients",
                ),
            ],
            (8, 7),
            look=lines("short"),
        ),
    ]


def _log(config: BundleConfig) -> list[Panel]:
    stalled = config.log_stalled
    return [
        TimeSeries(
            "Lines read, and dropped",
            "Dropped: reading cannot keep up, pauses are missed; give the sidecar more CPU, or use the tap.",
            [
                Query(_growth(signals_exporter.LOG_LINES, "instance"), "{{instance}} read"),
                Query(_growth(signals_exporter.LOG_DROPPED_LINES, "instance"), "{{instance}} dropped"),
            ],
            (8, 7),
            look=lines("cps"),
            links=runbooks(config, alert.LOG_STALLED),
        ),
        TimeSeries(
            "Lag from writing to reading",
            f"Dashed: ticket over {number(stalled.lag)} s. Pauses are told so much later; look at what ships the log.",
            [Query(worst_of(signals_exporter.LOG_LAG, exporter=True), EXPORTER_NAME)],
            (8, 7),
            look=lines("s", steps=limit(stalled.lag, TICKET)),
            links=runbooks(config, alert.LOG_STALLED),
        ),
        TimeSeries(
            "Files followed, errors by reason",
            "No file: the path is wrong, or vLLM logs elsewhere. The exporter's log has a sentence on each reason.",
            [
                Query(f"sum({EXPORTER(signals_exporter.LOG_FILES)})", "files"),
                Query(_growth(signals_exporter.LOG_ERRORS, "reason"), "error: {{reason}}"),
            ],
            (8, 7),
            look=lines("short"),
            links=runbooks(config, alert.LOG_STALLED),
        ),
    ]
