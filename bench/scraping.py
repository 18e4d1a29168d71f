"""The sidecar's own `/metrics`: snapshot, families and text, against prometheus_client's instruments."""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric, Sample
from prometheus_client.registry import Collector

from bench.exposition import Fleet
from bench.measure import Spread, in_turn, ratio
from bench.results import Row
from kvpressure.config import Config
from kvpressure.derive.target import Target
from kvpressure.expose.families import SnapshotCollector, families, render

GOAL = 1.5
"""Times the peer's CPU time, at most."""

_ROUNDS = 15
_READINGS = 320
"""One a second: what the longest look back over single readings takes, the verdict's five minutes, is full."""
_START = 1_800_000_000.0


class Ready(Collector):
    """
    Families that are already there.

    Args:
        ready: the families.
    """

    def __init__(self, ready: list[Metric]) -> None:
        self._ready = ready

    def collect(self) -> Iterable[Metric]:
        """Give them."""
        return self._ready


def run() -> list[Row]:
    """One engine and sixteen, each against both peers."""
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    return [row for engines in (1, 16) for row in _rows(engines)]


def _rows(engines: int) -> list[Row]:
    target = _observed(engines)
    now = _START + _READINGS
    ours = _registry(SnapshotCollector(lambda: target.snapshot(now)))
    ready = list(families(target.snapshot(now)))
    peers = {"own instruments": instruments(ready), "families already built": _registry(Ready(ready))}
    text = render(ours, "")[0].decode()
    for name, peer in peers.items():
        if sorted(generate_latest(peer).decode().splitlines()) != sorted(text.splitlines()):
            raise RuntimeError(f"prometheus_client's {name} do not render the same text")
    subjects: dict[str, Callable[[], object]] = {"ours": lambda: render(ours, "")}
    subjects |= {name: lambda peer=peer: generate_latest(peer) for name, peer in peers.items()}  # type: ignore[misc]
    figures = in_turn(subjects, _ROUNDS)
    return [_row(engines, len(text), figures, name, goal=name == "own instruments") for name in peers]


def _row(engines: int, size: int, figures: dict[str, list[float]], name: str, *, goal: bool) -> Row:
    ours, peer, times = Spread.of(figures["ours"]), Spread.of(figures[name]), ratio(figures["ours"], figures[name])
    return Row(
        f"/metrics, {engines} engine{'s' * (engines > 1)}, {size / 1000:.0f} KB, against prometheus_client's {name}",
        ours.text(1000, " ms"),
        peer.text(1000, " ms"),
        times.text(1, "x the time"),
        f"at most {GOAL:g}x" if goal else "-",
        times.median <= GOAL if goal else None,
        {"ours_cpu_seconds": asdict(ours), "peer_cpu_seconds": asdict(peer), "times_the_time": asdict(times)},
    )


def _observed(engines: int) -> Target:
    """A target that has been reading for a while."""
    fleet, target = Fleet(engines), Target(Config())
    for step in range(1, _READINGS + 1):
        target.observe(_START + step, fleet.text(step), 0.005)
    return target


def _registry(collector: Collector) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry


def instruments(ready: list[Metric]) -> CollectorRegistry:
    """A registry whose instruments hold what the families say."""
    registry = CollectorRegistry(auto_describe=False)
    for family in ready:
        labels = sorted(set(family.samples[0].labels) - {"le"})
        if family.type == "histogram":
            edges = sorted({float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels})
            histogram = Histogram(family.name, family.documentation, labels, buckets=edges, registry=registry)
            _fill_histogram(histogram, family.samples)
            continue
        instrument: Counter | Gauge = (Counter if family.type == "counter" else Gauge)(
            family.name, family.documentation, labels, registry=registry
        )
        for sample in family.samples:
            child = instrument.labels(**sample.labels) if labels else instrument
            child.inc(sample.value)
    return registry


def _fill_histogram(histogram: Histogram, samples: list[Sample]) -> None:
    """As many observations as were counted; their sum is put in its place, which no observation could give."""
    below = 0.0
    for sample in samples:
        child = histogram.labels(**{name: value for name, value in sample.labels.items() if name != "le"})
        if sample.name.endswith("_bucket"):
            edge = float(sample.labels["le"])
            for _ in range(int(sample.value - below)):
                child.observe(edge)
            below = 0.0 if edge == math.inf else sample.value
        elif sample.name.endswith("_sum"):
            child._sum.set(sample.value)  # noqa: SLF001
