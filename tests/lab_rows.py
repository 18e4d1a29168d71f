"""A scenario of the lab as a recording, in model time: what a sampler beside it would have kept, second by second."""

from collections.abc import Iterator

from model_time import play

from kvpressure.lab.metrics import ServerMetrics
from kvpressure.lab.scenarios import Scenario
from kvpressure.recording import Row

START = 1_800_000_000.0
"""When every scenario begins, in seconds since 1970."""


def rows(scenario: Scenario, seconds: float, seed: int = 0) -> Iterator[Row]:
    """A row a second."""
    metrics = ServerMetrics(scenario.server, "lab-8b")
    kept: list[Row] = []
    play(
        scenario,
        seconds,
        seed,
        lambda t: kept.append(Row(START + t, metrics.render().decode(), 0.012)),
        metrics.record,
    )
    yield from kept
