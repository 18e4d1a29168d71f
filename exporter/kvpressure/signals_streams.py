"""The catalogue, part two: what users see, from the tap or from the request log (label `source`)."""

from kvpressure.family import Signal

GAP_EDGES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histograms of gaps, in seconds; the pause threshold is added where it is none of them."""

TAP_SHARE = 0.5
"""
The tap is believed before the log where it sees at least this share of the requests that the log does.

It times what it sees better; but a client or two that try it must not hide what all the others get.
"""

_UPSTREAM = "vLLM's histogram counts gaps, not requests, and knows nothing of what lies between engine and client"
_LASTS = "counts while the pause lasts; vLLM's histogram learns of a gap when it has ended"

GAPS = Signal(
    "inter_token_gap_seconds",
    "histogram",
    "seconds",
    "Gaps between two chunks of one answer. The time to the first chunk is none.",
    _UPSTREAM,
    labels=("source",),
    needs=("streams",),
    scope="stream",
)
GAP_MAX = Signal(
    "inter_token_gap_max_seconds",
    "gauge",
    "seconds",
    "Longest gap between two chunks of one answer that ended in the window, exactly.",
    "a histogram knows only the edge above it",
    labels=("window", "source"),
    needs=("streams",),
    scope="stream",
)
REQUEST_MAX_GAPS = Signal(
    "request_max_gap_seconds",
    "histogram",
    "seconds",
    "Longest gap of each request that has ended, one observation per request; 0 where it got a single chunk.",
    _UPSTREAM,
    labels=("source",),
    needs=("streams",),
    scope="stream",
)
REQUESTS_STREAMED = Signal(
    "requests_streamed_total",
    "counter",
    "requests",
    "Requests that got a first chunk since the exporter started. Tap and log see the same requests: never add them.",
    _UPSTREAM,
    labels=("source",),
    needs=("streams",),
    scope="stream",
)
REQUESTS_PAUSED = Signal(
    "requests_paused_total",
    "counter",
    "requests",
    "Requests that had a gap over the pause threshold, each counted once, when its gap passes the threshold.",
    _LASTS,
    labels=("source",),
    needs=("streams",),
    scope="stream",
)
PAUSED_RATIO = Signal(
    "paused_requests_ratio",
    "gauge",
    "share of requests, 0 to 1",
    "Share of the requests that streamed in the window, finished or not, that were paused in it for longer than the "
    "pause threshold.",
    _LASTS,
    labels=("window", "source"),
    needs=("streams",),
    scope="stream",
    headline=True,
)
REQUESTS_PAUSING = Signal(
    "requests_pausing",
    "gauge",
    "requests",
    "Requests that are paused at this moment.",
    _LASTS,
    labels=("source",),
    needs=("streams",),
    scope="stream",
)
REQUESTS_STREAMING = Signal(
    "requests_streaming",
    "gauge",
    "requests",
    "Requests that have got a first chunk and no end yet.",
    "vLLM's running requests lack those that were preempted",
    labels=("source",),
    needs=("streams",),
    scope="stream",
)
STREAMS_ABANDONED = Signal(
    "streams_abandoned_total",
    "counter",
    "requests",
    "Requests without a chunk and without an end for so long (--stream.idle-timeout) that they were forgotten.",
    "the exporter's own",
    labels=("source",),
    needs=("streams",),
    scope="stream",
)
