"""Expositions of one vLLM server with any number of engines, whose counters move from step to step."""

import math
import re
from collections.abc import Callable
from pathlib import Path

from prometheus_client.utils import floatToGoString

RECORDED = Path(__file__).parent / "data" / "vllm-0.32.0.prom"
"""One complete exposition of a real vLLM 0.32.0, untouched."""

RECORDED_MODEL = "tiny"
LONG_MODEL = "example-org/Meta-Llama-3.1-405B-Instruct-FP8"
"""A model name as long as real ones, which every line repeats: 16 engines with it say about 800 KB."""

_ENGINE = 'engine="0"'
_TYPE = re.compile(r"# TYPE \S+ (\w+)")
_MOVING = ("counter", "histogram")
_Moving = tuple[str, Callable[[int], float], int]

_GAUGES: dict[str, Callable[[int], float]] = {
    "vllm:num_requests_running": lambda step: float(8 + step * 7 % 17),
    "vllm:num_requests_waiting": lambda step: float(step * 5 % 60),
    "vllm:kv_cache_usage_perc": lambda step: 0.8 + step * 3 % 20 / 100,
}
"""Gauges that go up and down as in a storm; a counter gains one percent of its recorded value with each step."""


class Fleet:
    """
    The recorded exposition with the series of its engine repeated for each of `engines`, which serve `model`.

    Everything that can move moves at every step, which is the worst case for a reader and for a history of readings.
    """

    def __init__(self, engines: int, model: str = RECORDED_MODEL) -> None:
        self._parts: list[str | _Moving] = []
        kind = ""
        for line in RECORDED.read_text(encoding="utf-8").splitlines():
            if line.startswith("#"):
                found = _TYPE.match(line)
                kind = found[1] if found else kind
                self._parts.append(line + "\n")
                continue
            series, _, value = line.rpartition(" ")
            series = series.replace(f'model_name="{RECORDED_MODEL}"', f'model_name="{model}"')
            move = _movement(series.partition("{")[0], kind, float(value))
            for engine in range(engines if _ENGINE in series else 1):
                own = series.replace(_ENGINE, f'engine="{engine}"')
                self._parts.append((own + " ", move, engine) if move else f"{own} {value}\n")

    def text(self, step: int) -> str:
        """The exposition after `step` steps."""
        return "".join(part if isinstance(part, str) else _line(part, step) for part in self._parts)


def _line(moving: _Moving, step: int) -> str:
    series, move, ahead = moving
    return f"{series}{floatToGoString(move(step + ahead))}\n"  # type: ignore[no-untyped-call]


def _movement(name: str, kind: str, base: float) -> Callable[[int], float] | None:
    """How a sample moves; None where it does not."""
    if name in _GAUGES:
        return _GAUGES[name]
    if kind not in _MOVING:
        return None
    # Whole counts stay whole, and buckets stay in order: a larger one never gains less.
    gain = base / 100 if name.endswith("_sum") or not base.is_integer() else float(math.ceil(base / 100))
    return lambda step: base + step * gain
