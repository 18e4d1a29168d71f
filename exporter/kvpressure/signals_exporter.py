"""The catalogue, part three: what the exporter says of itself and of its observers."""

from kvpressure.family import Signal

UP = Signal(
    "up",
    "gauge",
    "0 or 1",
    "Whether the last sample of vLLM's metrics succeeded.",
    "Prometheus' own `up` speaks of the exporter",
    scope="exporter",
)
SIGNAL_AVAILABLE = Signal(
    "signal_available",
    "gauge",
    "0 or 1",
    "Whether the signal can be derived from what vLLM exposed in the last good sample, on every engine.",
    "tells an absent series from one that can never come",
    labels=("signal",),
    scope="exporter",
)
SAMPLE_DURATION = Signal(
    "sample_duration_seconds",
    "gauge",
    "seconds",
    "Time that the last sample took, from request to last byte.",
    "the exporter's own",
    scope="exporter",
)
SAMPLE_COST = Signal(
    "sample_cost_seconds",
    "gauge",
    "seconds",
    "Mean of the fastest quarter of recent samples: what a sample costs vLLM's event loop, without waiting for it.",
    "the exporter's own",
    scope="exporter",
)
SAMPLE_INTERVAL = Signal(
    "sample_interval_seconds",
    "gauge",
    "seconds",
    "Time from one sample to the next as now scheduled: the configured interval, or more to keep the duty budget.",
    "the exporter's own",
    scope="exporter",
)
SAMPLES = Signal(
    "samples_total",
    "counter",
    "samples",
    "Samples of vLLM's metrics that were tried.",
    "the exporter's own",
    scope="exporter",
)
SAMPLE_ERRORS = Signal(
    "sample_errors_total",
    "counter",
    "errors",
    "Samples that failed, and parts of good samples that were skipped, by reason.",
    "the exporter's own",
    labels=("reason",),
    scope="exporter",
)
SAMPLE_TIMESTAMP = Signal(
    "last_sample_timestamp_seconds",
    "gauge",
    "seconds since 1970",
    "When the last good sample was taken.",
    "the exporter's own",
    scope="exporter",
)
BUILD_INFO = Signal(
    "build_info",
    "gauge",
    "1",
    "Version of kvpressure and of the Python that runs it; always 1.",
    "the exporter's own",
    labels=("version", "pythonversion"),
    scope="exporter",
)
WEB_REFUSED = Signal(
    "web_refused_total",
    "counter",
    "times",
    "Times that the web server closed a connection or refused a request, by reason: too many connections, answers that "
    "nobody reads (inflight), a slow client, a login.",
    "the exporter's own",
    labels=("reason",),
    scope="exporter",
)


# --- observers of streams ---------------------------------------------------------------------------------------------

CHUNKS_UNTRACKED = Signal(
    "stream_chunks_untracked_total",
    "counter",
    "chunks",
    "Chunks of streams that were not followed because as many as --stream.max-tracked were.",
    "the exporter's own",
    labels=("source",),
    scope="exporter",
)
LOG_FILES = Signal(
    "log_files",
    "gauge",
    "files",
    "Files of vLLM's log that are being followed.",
    "the exporter's own",
    scope="exporter",
)
LOG_LINES = Signal(
    "log_lines_total",
    "counter",
    "lines",
    "Lines of vLLM's log that were read.",
    "the exporter's own",
    scope="exporter",
)
LOG_DROPPED_LINES = Signal(
    "log_dropped_lines_total",
    "counter",
    "lines",
    "Lines of vLLM's log that were skipped unread because reading could not keep up.",
    "the exporter's own",
    scope="exporter",
)
LOG_LAG = Signal(
    "log_lag_seconds",
    "gauge",
    "seconds",
    "Time from the writing of a line to its reading, of the latest line whose time is known.",
    "the exporter's own",
    scope="exporter",
)
LOG_ERRORS = Signal(
    "log_errors_total",
    "counter",
    "errors",
    "Files and lines of vLLM's log that could not be read, by reason.",
    "the exporter's own",
    labels=("reason",),
    scope="exporter",
)
TAP_REQUESTS = Signal(
    "tap_requests",
    "gauge",
    "requests",
    "Requests that are passing through the tap now.",
    "the exporter's own",
    scope="exporter",
)
TAP_RESPONSES = Signal(
    "tap_responses_total",
    "counter",
    "responses",
    "Responses of vLLM that the tap passed on, by class of their status.",
    "the exporter's own",
    labels=("code",),
    scope="exporter",
)
TAP_REFUSED = Signal(
    "tap_refused_total",
    "counter",
    "requests",
    "Requests that the tap answered itself, by reason.",
    "the exporter's own",
    labels=("reason",),
    scope="exporter",
)
TAP_BROKEN = Signal(
    "tap_broken_responses_total",
    "counter",
    "responses",
    "Responses that ended before their end, by the side that broke off: client or upstream.",
    "the exporter's own",
    labels=("side",),
    scope="exporter",
)
TAP_UNOBSERVED = Signal(
    "tap_unobserved_streams_total",
    "counter",
    "streams",
    "Event streams that the tap passed on and could not time, by reason.",
    "the exporter's own",
    labels=("reason",),
    scope="exporter",
)
TAP_FAULTS = Signal(
    "tap_observation_faults_total",
    "counter",
    "faults",
    "Times that observing a stream failed while its bytes went on. Each is a defect of kvpressure: please report it.",
    "the exporter's own",
    scope="exporter",
)
TAP_BLOCKED_SECONDS = Signal(
    "tap_client_blocked_seconds_total",
    "counter",
    "seconds",
    "Time that streams waited for clients that did not read, summed over streams. Gaps are not measured meanwhile.",
    "the exporter's own",
    scope="exporter",
)
