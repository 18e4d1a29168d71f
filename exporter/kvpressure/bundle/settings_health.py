"""The settings of the alerts on what the others depend on (health.py)."""

from dataclasses import dataclass

from kvpressure.settings import setting


@dataclass(frozen=True, slots=True)
class VllmDownConfig:
    """KVPressureVLLMDown: vLLM does not answer the exporter. Pages."""

    hold: float = setting(
        180.0,
        "Must hold for this long. A healthy restart of a small model takes up to two minutes; raise it where yours "
        "takes longer, or every restart pages.",
        "duration",
    )
    served: float = setting(
        3600.0,
        "It counts at once where vLLM has answered within this time: users had it and lost it. Lower it where servers "
        "are put away for longer on purpose.",
        "duration",
        low=60,
    )
    start: float = setting(
        900.0,
        "Else it counts after this long: a new pod that loads its model is not down. Raise it for models that load "
        "longer.",
        "duration",
        low=60,
    )


@dataclass(frozen=True, slots=True)
class ExporterDownConfig:
    """KVPressureExporterDown: Prometheus gets no answer from the exporter, or has lost the last one. A ticket."""

    hold: float = setting(300.0, "Must hold for this long. Raise it where pods take longer to be replaced.", "duration")
    gone: float = setting(
        3600.0,
        "A job whose exporters have all vanished is told for this long. After that it counts as taken down. 0s leaves "
        "it out: set it where servers are scaled to none.",
        "duration",
    )


@dataclass(frozen=True, slots=True)
class SignalMissingConfig:
    """KVPressureSignalMissing: a headline signal is no longer there, after an upgrade say. A ticket."""

    within: float = setting(
        86_400.0,
        "It was there within this time. After that it counts as given up; raise it where nobody looks for a day.",
        "duration",
        low=3600,
    )
    hold: float = setting(
        600.0, "Must hold for this long: some series come with the first requests after a start.", "duration"
    )


@dataclass(frozen=True, slots=True)
class LogStalledConfig:
    """KVPressureLogStalled: the request log is configured, and no longer read as it is written. A ticket."""

    window: float = setting(
        600.0,
        "No line in this time while vLLM generates tokens. While it works vLLM writes its statistics every 10 s; raise "
        "it where your log is flushed more rarely.",
        "duration",
        low=60,
    )
    lag: float = setting(
        30.0,
        "Seconds from the writing of a line to its reading, all through the window. Later than this, pauses are told "
        "when they are over; raise it where a log shipper lies in between.",
        "number",
        low=1,
    )
    hold: float = setting(300.0, "Must hold for this long. A rotation of the log is over in seconds.", "duration")
