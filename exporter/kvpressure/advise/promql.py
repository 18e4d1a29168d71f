"""PromQL text for advice. What stands in a label is data: it is escaped, whatever it holds."""

from collections.abc import Mapping

_UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def selector(metric: str, labels: Mapping[str, str]) -> str:
    """
    The series of a metric whose labels have these values.

    Args:
        metric: its name, as Prometheus has it; a colon in it is none of ours.
        labels: values by name; an empty value matches series without the label.
    """
    inner = ",".join(f"{name}={quoted(value)}" for name, value in sorted(labels.items()))
    return f"{metric}{{{inner}}}" if inner else metric


def quoted(value: str) -> str:
    """A text as a string of PromQL, which reads it back as it is."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def duration(seconds: float) -> str:
    """A duration of whole seconds, as Prometheus writes it: 90 -> "1m30s"."""
    left, text = round(seconds), ""
    for unit, length in _UNITS:
        count, left = divmod(left, length)
        text += f"{count}{unit}" if count else ""
    return text or "0s"
