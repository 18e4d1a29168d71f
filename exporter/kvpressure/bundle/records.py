"""
Recording rules, as data: sums over replicas, models and namespaces, and the lengths of answers then and now.

Both sides of a ratio are summed up before they are divided; a mean of ratios would give a replica that serves nobody as
much say as one that serves everybody. A record of a level carries the labels that make this level, and no others.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kvpressure import signals, signals_streams
from kvpressure.bundle.config import BundleConfig
from kvpressure.bundle.promql import Picker, duration, indent, number
from kvpressure.family import Signal

WINDOWS = (300.0, 3600.0, 86_400.0)
"""Ranges of the ratios, in seconds: now, the hour, the day."""


@dataclass(frozen=True, slots=True)
class Record:
    """
    One recording rule.

    Args:
        name: ``level:metric:operations``.
        expr: PromQL.
    """

    name: str
    expr: str


def records(config: BundleConfig) -> tuple[Record, ...]:
    """Every record, in the order in which they must be evaluated."""
    select = config.select
    levels = {"model": select.model_labels, "namespace": select.namespace_labels, "cluster": select.cluster_labels}
    found: list[Record] = []
    for level, labels in levels.items():
        found.extend(_sums(config, level, labels))
        for window in WINDOWS:
            found.extend(_ratios(config, level, labels, window))
    found.extend(_output_lengths(config))
    return tuple(found)


def _sums(config: BundleConfig, level: str, labels: tuple[str, ...]) -> Iterator[Record]:
    pick = Picker(config.select.exporter)
    for signal in (
        signals.REQUESTS_RUNNING,
        signals.REQUESTS_WAITING,
        signals.KV_CAPACITY_TOKENS,
    ):
        yield Record(f"{level}:{signal.metric}:sum", _sum(labels, pick(signal)))
    yield Record(
        f"{level}:{_base(signals.REQUESTS_FINISHED)}:rate5m",
        _sum(labels, f"rate({pick(signals.REQUESTS_FINISHED, over=300.0)})"),
    )
    yield Record(
        f"{level}:{_base(signals.GENERATION_TOKENS)}:rate5m",
        _sum(labels, f"rate({pick(signals.GENERATION_TOKENS, over=300.0)})"),
    )


def _ratios(config: BundleConfig, level: str, labels: tuple[str, ...], window: float) -> Iterator[Record]:
    pick, text = Picker(config.select.exporter), duration(window)

    def gained(signal: Signal) -> str:
        return _sum(labels, f"increase({pick(signal, over=window)})")

    # As the exporter does it: what still runs is served too, and a livelock finishes nothing.
    running = _sum(labels, pick(signals.REQUESTS_RUNNING))
    served = f"clamp_min(\n  {gained(signals.REQUESTS_FINISHED)}\n  +\n  {running},\n  1\n)"
    yield Record(
        f"{level}:{signals.PREEMPTIONS_PER_THOUSAND.metric}:increase{text}",
        f"1000 * {gained(signals.PREEMPTIONS)}\n/\n{served}",
    )
    observed = gained(signals.KV_OBSERVED_SECONDS)
    yield Record(
        f"{level}:{signals.KV_PINNED_RATIO.metric}:increase{text}",
        f"{gained(signals.KV_PINNED_SECONDS)}\n/\n{observed}",
    )
    yield Record(
        f"{level}:{signals.KV_BLOCKED_RATIO.metric}:increase{text}",
        f"{gained(signals.KV_BLOCKED_SECONDS)}\n/\n{observed}",
    )
    yield Record(
        f"{level}:{_base(signals.RECOMPUTED_TOKENS)}_per_generation_tokens:increase{text}",
        f"{gained(signals.RECOMPUTED_TOKENS)}\n/\n{gained(signals.GENERATION_TOKENS)}",
    )
    by_source = (*labels, "source")
    paused, streamed = (
        _sum(by_source, f"increase({pick(signal, over=window)})")
        for signal in (signals_streams.REQUESTS_PAUSED, signals_streams.REQUESTS_STREAMED)
    )
    yield Record(f"{level}_source:{signals_streams.PAUSED_RATIO.metric}:increase{text}", f"{paused}\n/\n{streamed}")


# --- the lengths of answers -------------------------------------------------------------------------------------------

_DAY = 86_400.0


def output_count(config: BundleConfig) -> str:
    """Name of the record: answers in the present window."""
    return f"model:{signals.OUTPUT_LENGTHS.metric}_count:increase{duration(config.output_length_shift.window)}"


def output_mean(config: BundleConfig) -> str:
    """Name of the record: their mean length."""
    return f"model:{signals.OUTPUT_LENGTHS.metric}:mean{duration(config.output_length_shift.window)}"


OUTPUT_MEAN_BEFORE = f"model:{signals.OUTPUT_LENGTHS.metric}:mean_before"
"""Name of the record: the mean length yesterday around this time, else in the hours before."""


def _output_lengths(config: BundleConfig) -> Iterator[Record]:
    own = config.output_length_shift
    yield Record(output_count(config), _gained_lengths(config, "_count", own.window))
    yield Record(output_mean(config), _mean(config, own.window))
    yesterday = own.day_part, _DAY - own.day_part / 2
    # Not up to the present side: by the time that the alert fires, its reason is as old as this.
    earlier = own.before, own.window + own.hold
    parts = []
    for over, offset in (yesterday, earlier):
        count = _gained_lengths(config, "_count", over, offset)
        parts.append(f"{_mean(config, over, offset)}\nand\n{count} >= {number(own.requests)}")
    yield Record(OUTPUT_MEAN_BEFORE, "\nor\n".join(f"(\n{indent(part)}\n)" for part in parts))


def _mean(config: BundleConfig, over: float, offset: float | None = None) -> str:
    sums, counts = (_gained_lengths(config, part, over, offset) for part in ("_sum", "_count"))
    return f"{sums}\n/\n{counts}"


def _gained_lengths(config: BundleConfig, part: str, over: float, offset: float | None = None) -> str:
    pick = Picker(config.select.exporter)
    series = pick(signals.OUTPUT_LENGTHS, part=part, over=over, offset=offset)
    return _sum(config.select.model_labels, f"increase({series})")


def _sum(labels: tuple[str, ...], expression: str) -> str:
    return f"sum by ({', '.join(labels)}) ({expression})"


def _base(signal: Signal) -> str:
    """A counter's name without its suffix, as records of rates carry it."""
    return signal.metric.removesuffix("_total")
