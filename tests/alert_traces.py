"""Hours of a vLLM's metrics: made up from rates, or a real recording end to end."""

import gzip
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvpressure.recording import Row
from kvpressure.vllm.stream import StreamEvent

Rate = float | Callable[[float], float]
"""Always the same, or a function of the seconds since the beginning."""

MINUTE = 60
GAP_EDGES = ("0.1", "1.0", "2.5", "5.0", "10.0", "+Inf")
LENGTH_EDGES = ("200.0", "500.0", "1000.0", "2000.0", "+Inf")


def at(rate: Rate, t: float) -> float:
    """A rate at a moment."""
    return rate(t) if callable(rate) else rate


def within(begin: float, end: float, value: float, outside: float = 0.0) -> Rate:
    """A value between two minutes."""
    return lambda t: value if begin * MINUTE <= t < end * MINUTE else outside


def after(minute: float, value: float, before: float = 0.0) -> Rate:
    """A value from a minute on."""
    return within(minute, 1e9, value, before)


def wave(period: float, low: float, high: float) -> Rate:
    """Low and high in turn, each for a period in seconds."""
    return lambda t: high if int(t // period) % 2 == 0 else low


@dataclass
class Engine:
    """
    One engine; rates are per second.

    Args:
        gaps: gaps over a second that no preemption caused.
        totals: what was counted so far.
        buckets: the same of the histograms.
    """

    preemptions: Rate = 0.0
    finished: Rate = 5.0
    tokens: Rate = 1000.0
    running: Rate = 20
    waiting: Rate = 0
    kv: Rate = 0.5
    gaps: Rate = 0.0
    prompt: float = 300.0
    output: Rate = 250.0
    engine: str = "0"
    model: str = "m"
    totals: dict[str, float] = field(default_factory=dict)
    buckets: dict[str, list[float]] = field(default_factory=dict)

    def text(self, t: float, blocks: int) -> str:
        """Count the second that ends at `t`, and say what vLLM would."""
        label = f'engine="{self.engine}",model_name="{self.model}"'
        preempted, finished, tokens = (at(rate, t) for rate in (self.preemptions, self.finished, self.tokens))
        success = f'request_success_total{{{label},finished_reason="stop"}}'
        lines = [
            f"vllm:num_requests_running{{{label}}} {int(at(self.running, t))}",
            f"vllm:num_requests_waiting{{{label}}} {int(at(self.waiting, t))}",
            f"vllm:kv_cache_usage_perc{{{label}}} {at(self.kv, t)}",
            f'vllm:cache_config_info{{engine="{self.engine}",block_size="16",num_gpu_blocks="{blocks}"}} 1.0',
            f"vllm:num_preemptions_total{{{label}}} {self._add('preemptions', preempted)}",
            f"vllm:generation_tokens_total{{{label}}} {self._add('tokens', tokens)}",
            f"vllm:{success} {self._add('finished', finished)}",
        ]
        gaps = ((0.03, tokens), (4.0, preempted), (3.0, at(self.gaps, t)))
        lines += self._histogram("inter_token_latency_seconds", label, GAP_EDGES, gaps)
        lines += self._histogram("request_prompt_tokens", label, LENGTH_EDGES, ((self.prompt, finished),))
        lines += self._histogram("request_generation_tokens", label, LENGTH_EDGES, ((at(self.output, t), finished),))
        return "\n".join(lines) + "\n"

    def restart(self) -> None:
        """Count from zero."""
        self.totals, self.buckets = {}, {}

    def _add(self, name: str, value: float) -> int:
        self.totals[name] = self.totals.get(name, 0.0) + value
        # A rate like 0.05 a second must give its whole numbers in time.
        return int(self.totals[name] + 1e-9)

    def _histogram(
        self, name: str, label: str, edges: Sequence[str], observed: Sequence[tuple[float, float]]
    ) -> list[str]:
        counts = self.buckets.setdefault(name, [0.0] * len(edges))
        for value, weight in observed:
            self.totals[name] = self.totals.get(name, 0.0) + value * weight
            for number, edge in enumerate(edges):
                if value <= float(edge):
                    counts[number] += weight
        lines = [
            f'vllm:{name}_bucket{{{label},le="{edge}"}} {int(count + 1e-9)}'
            for edge, count in zip(edges, counts, strict=True)
        ]
        return [
            *lines,
            f"vllm:{name}_count{{{label}}} {int(counts[-1] + 1e-9)}",
            f"vllm:{name}_sum{{{label}}} {self.totals[name]}",
        ]


def made_up(
    *engines: Engine,
    minutes: float = 60,
    restart: float | None = None,
    silent: tuple[float, float] = (0, 0),
    blocks: int = 1700,
) -> Iterator[Row]:
    """
    A row a second.

    Args:
        engines: what runs.
        minutes: how long.
        restart: the minute at which all counters start again, where they do.
        silent: minutes without an answer.
        blocks: of the cache, 16 tokens each.
    """
    for t in range(int(minutes * MINUTE) + 1):
        if restart is not None and t == int(restart * MINUTE):
            for engine in engines:
                engine.restart()
        body = "".join(engine.text(t, blocks) for engine in engines)
        yield Row(float(t), None if silent[0] * MINUTE <= t < silent[1] * MINUTE else body, 0.01)


_COUNTED = re.compile(r"^(\S+(?:_total|_count|_sum|_bucket)(?:\{.*\})?) (\S+)$")


def repeated(rows: Sequence[Row], minutes: float) -> Iterator[Row]:
    """A recording again and again, a row a second from 0 on, its counters going on where they stood."""
    rows = [row for row in rows if row.body is not None]
    start, length = rows[0].t, rows[-1].t - rows[0].t
    bodies: list[list[Any]] = []
    for second in range(int(length) + 1):
        nearest = min(rows, key=lambda row: abs(row.t - start - second))
        bodies.append([_COUNTED.match(line) or line for line in nearest.body.splitlines() if not line.startswith("#")])
    first, last = ({m[1]: float(m[2]) for m in body if isinstance(m, re.Match)} for body in (bodies[0], bodies[-1]))
    gained = {name: value - first.get(name, 0.0) for name, value in last.items()}
    for t in range(int(minutes * MINUTE) + 1):
        cycle, second = divmod(t, len(bodies))
        lines = [
            f"{m[1]} {float(m[2]) + cycle * gained.get(m[1], 0.0)}" if isinstance(m, re.Match) else m
            for m in bodies[second]
        ]
        yield Row(float(t), "\n".join(lines) + "\n", 0.01)


def once(rows: Sequence[Row], minutes: float) -> Iterator[Row]:
    """A recording once, and after it an idle server: its last row for the rest of the time."""
    length = int(rows[-1].t - rows[0].t)
    for row in repeated(rows, length / MINUTE):
        last = row
        yield row
    for t in range(length + 1, int(minutes * MINUTE) + 1):
        yield Row(float(t), last.body, 0.01)


def watched(streams: Path, rows: Sequence[Row], minutes: float, *, again: bool) -> Iterator[StreamEvent]:
    """What a tap saw in a recording that is played once, or again and again as by `repeated`."""
    with gzip.open(streams, "rt", encoding="utf-8") as file:
        requests = [json.loads(line) for line in file]
    start, length = rows[0].t, int(rows[-1].t - rows[0].t) + 1
    events = []
    for request in requests:
        times = [t - start for t in request["ts"]]
        events += [("token", t, request["i"]) for t in times]
        if times:
            events.append(("end", times[-1], request["i"]))
    events.sort(key=lambda event: event[1])
    for cycle in range(int(minutes * MINUTE // length) + 1 if again else 1):
        for kind, t, request in events:
            yield StreamEvent(kind, t + cycle * length, (cycle, request))
