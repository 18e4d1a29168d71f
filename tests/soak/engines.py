"""Engines that do as told: what they count, what a reader of their exposition can know of it, and how it looks."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

PROMPT, OUTPUT = 100, 50
"""Tokens of every prompt and every answer."""
GAP = 0.03
"""Seconds between two tokens, in vLLM's histogram."""
BLOCKS = 4000

COUNTERS = ("preemptions", "finished", "tokens")
_LENGTH_EDGES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
_GAP_EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
# Families whose counters come twice a second in a healthy server, and a preemption now and then.
_FINISHED_PER_TICK = 3
_TOKENS_PER_TICK = 25


@dataclass
class Seen:
    """What one counter gained in the eyes of its reader, as PromQL's ``increase`` counts."""

    last: float | None = None
    total: float = 0.0

    def add(self, value: float) -> None:
        """The reader got this value."""
        if self.last is not None:
            self.total += value - self.last if value >= self.last else value
        self.last = value


@dataclass
class Engine:
    """
    One engine of a healthy server.

    Args:
        model: its model.
        number: its rank.
        preempts: ticks from one preemption to the next; 0 for none at all.
    """

    model: str
    number: int
    preempts: int
    counters: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0.0))
    happened: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0.0))
    """Since the engine was first there, over all of its restarts."""
    seen: dict[str, Seen] = field(default_factory=lambda: {name: Seen() for name in COUNTERS})
    running: int = 10
    waiting: int = 0
    usage: float = 0.5
    resets: int = 0
    _ticks: int = 0
    _before: dict[str, float] | None = None
    """What had happened before its reader first saw it."""

    @property
    def key(self) -> str:
        """Its name in the truth."""
        return f"{self.model}/{self.number}"

    def tick(self, chance: random.Random) -> None:
        """A tenth of a second goes by."""
        self._ticks += 1
        self._count("finished", _FINISHED_PER_TICK)
        self._count("tokens", _TOKENS_PER_TICK)
        if self.preempts and self._ticks % self.preempts == 0:
            self._count("preemptions", 1)
        self.running = min(16, max(6, self.running + chance.choice((-1, 0, 1))))
        self.waiting = chance.choice((0, 0, 0, 1))
        self.usage = min(0.7, max(0.4, self.usage + chance.uniform(-0.02, 0.02)))

    def restart(self, values: dict[str, float] | None = None) -> None:
        """The counters begin again at 0, and may have got to `values` before anybody looks."""
        self.counters = dict.fromkeys(COUNTERS, 0.0)
        self.resets += 1
        for name, value in (values or {}).items():
            self._count(name, value)

    def rows(self) -> dict[str, float]:
        """Its totals and gauges, by their names in the truth."""
        return {
            **{
                f"happened/{self.key}/{name}": value - (self._before or {}).get(name, value)
                for name, value in self.happened.items()
            },
            **{f"exposed/{self.key}/{name}": seen.total for name, seen in self.seen.items()},
            f"happened/{self.key}/resets": self.resets,
            f"gauge/{self.key}/running": self.running,
            f"gauge/{self.key}/waiting": self.waiting,
            f"gauge/{self.key}/usage": self.usage,
        }

    def shown(self) -> tuple[dict[str, float], dict[str, float]]:
        """Its counters, and all that has happened, at the moment of an exposition."""
        return dict(self.counters), dict(self.happened)

    def read(self, values: dict[str, float], happened: dict[str, float]) -> None:
        """An exposition of that moment was read to its end."""
        if self._before is None:
            self._before = happened
        for name, value in values.items():
            self.seen[name].add(value)

    def _count(self, name: str, gained: float) -> None:
        self.counters[name] += gained
        self.happened[name] += gained


def exposition(engines: list[Engine]) -> str:
    """The engines as vLLM exposes them."""
    return "".join(f"{line}\n" for line in _lines(engines))


def _lines(engines: list[Engine]) -> Iterator[str]:
    yield from (
        "# TYPE python_gc_objects_collected_total counter",
        'python_gc_objects_collected_total{generation="0"} 5.0',
    )
    for name, kind in _PLAIN.items():
        yield f"# TYPE vllm:{name.removesuffix('_total')} {kind}"
        for engine in engines:
            yield f"vllm:{name}{{{_labels(engine)}}} {_plain(engine, name)}"
    yield "# TYPE vllm:request_success_total counter"
    for engine in engines:
        for reason, value in (("stop", 0.0), ("length", engine.counters["finished"]), ("abort", 0.0)):
            yield f'vllm:request_success_total{{{_labels(engine)},finished_reason="{reason}"}} {value}'
    for name, edges, size, counter in _HISTOGRAMS:
        yield f"# TYPE vllm:{name} histogram"
        for engine in engines:
            yield from _histogram(engine, name, edges, size, engine.counters[counter])
    yield "# TYPE vllm:cache_config_info gauge"
    for engine in engines:
        yield (
            f'vllm:cache_config_info{{block_size="16",cache_dtype="auto",enable_prefix_caching="True",'
            f'engine="{engine.number}",num_gpu_blocks="{BLOCKS * len(engines)}"}} 1.0'
        )


_PLAIN = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "num_preemptions_total": "counter",
    "generation_tokens_total": "counter",
}
_HISTOGRAMS = (
    ("inter_token_latency_seconds", _GAP_EDGES, GAP, "tokens"),
    ("request_prompt_tokens", _LENGTH_EDGES, PROMPT, "finished"),
    ("request_generation_tokens", _LENGTH_EDGES, OUTPUT, "finished"),
)


def _labels(engine: Engine) -> str:
    return f'engine="{engine.number}",model_name="{engine.model}"'


def _plain(engine: Engine, name: str) -> float:
    return {
        "num_requests_running": engine.running,
        "num_requests_waiting": engine.waiting,
        "kv_cache_usage_perc": engine.usage,
        "num_preemptions_total": engine.counters["preemptions"],
        "generation_tokens_total": engine.counters["tokens"],
    }[name]


def _histogram(engine: Engine, name: str, edges: tuple[float, ...], size: float, count: float) -> Iterator[str]:
    """All that was ever observed was of one size."""
    for edge in edges:
        yield f'vllm:{name}_bucket{{{_labels(engine)},le="{float(edge)}"}} {count if size <= edge else 0.0}'
    yield f'vllm:{name}_bucket{{{_labels(engine)},le="+Inf"}} {count}'
    yield f"vllm:{name}_count{{{_labels(engine)}}} {count}"
    yield f"vllm:{name}_sum{{{_labels(engine)}}} {count * size}"
