"""One 50 KB exposition of one engine: kvpressure's reader against prometheus_client's parser."""

from dataclasses import asdict
from itertools import cycle

from prometheus_client.parser import text_string_to_metric_families

from bench.exposition import Fleet
from bench.measure import Spread, in_turn, ratio
from bench.results import Row
from kvpressure.vllm.metrics import ExpositionReader

GOAL = 10.0
"""Times as fast as the peer, for a reader that has seen the series before, as a sampler's has."""

_ROUNDS = 15
_TEXTS = 20


def run() -> list[Row]:
    """Warm with values that change between reads, and cold with a new reader each time."""
    fleet = Fleet(1)
    texts = [fleet.text(step) for step in range(_TEXTS)]
    # Each subject has its own turn through the texts: reading one twice would be no sampler's work.
    for_warm, for_cold, for_peer = cycle(texts), cycle(texts), cycle(texts)
    reader = ExpositionReader()
    _check_same(reader, texts[-1])
    figures = in_turn(
        {
            "warm": lambda: reader.read(next(for_warm)),
            "cold": lambda: ExpositionReader().read(next(for_cold)),
            "peer": lambda: list(text_string_to_metric_families(next(for_peer))),
        },
        _ROUNDS,
    )
    size = f"{len(texts[0]) / 1000:.0f} KB"
    return [
        _row(f"read {size}, {state}, against prometheus_client.parser", figures, state) for state in ("warm", "cold")
    ]


def _row(what: str, figures: dict[str, list[float]], state: str) -> Row:
    ours, peer, times = Spread.of(figures[state]), Spread.of(figures["peer"]), ratio(figures["peer"], figures[state])
    goal = state == "warm"
    return Row(
        what,
        ours.text(1000, " ms"),
        peer.text(1000, " ms"),
        times.text(1, "x as fast", 1),
        f"at least {GOAL:g}x" if goal else "-",
        times.median >= GOAL if goal else None,
        {"ours_cpu_seconds": asdict(ours), "peer_cpu_seconds": asdict(peer), "times_as_fast": asdict(times)},
    )


def _check_same(reader: ExpositionReader, text: str) -> None:
    """Both must read the same values: a fast reader that is wrong wins nothing."""
    (reading,) = reader.read(text).readings.values()
    peer = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
    }
    expected = {
        "vllm:num_requests_running": reading.running,
        "vllm:kv_cache_usage_perc": reading.kv_usage,
        "vllm:num_preemptions_total": reading.preemptions,
        "vllm:inter_token_latency_seconds_count": reading.gaps and reading.gaps.count,
    }
    wrong = [name for name, value in expected.items() if value is None or peer[name] != value]
    if wrong:
        raise RuntimeError(f"the two parsers disagree about {', '.join(wrong)}")
