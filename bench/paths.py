"""
The hot paths, run a fixed number of times each in one process: ``python -m bench.paths [SHARE]``, for callgrind.

Between two of them the process calls ``getppid``, which it never does else: there callgrind writes down what it counted
since the last time. Preparation is a part of its own, so that it is in no path. With SHARE, every path does its work so
many times as often: 1.25 is a regression of a quarter. It prints the names of its parts in order, as JSON.
"""

import gc
import json
import os
import sys
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from bench.exposition import LONG_MODEL, Fleet
from bench.logs import delta
from kvpressure.config import Config, StreamConfig
from kvpressure.derive.streams import Streams
from kvpressure.derive.target import Target
from kvpressure.expose.families import SnapshotCollector, render
from kvpressure.vllm.logs import LogReader
from kvpressure.vllm.metrics import ExpositionReader
from kvpressure.vllm.sse import SseReader
from kvpressure.vllm.stream import StreamEvent

REFERENCE = "reference"
"""Work that is none of ours: the unit in which the others are told."""

_START = 1_800_000_000.0
_STREAMS = 50
_TEXTS = 48  # as many as the path with most calls needs, warmed up and a quarter more: counters must not go back
_CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1800000000,"model":"lab-8b","choices":'
    b'[{"index":0,"delta":{"content":" %d"},"logprobs":null,"finish_reason":null}]}\n\n'
)
Path = tuple[int, Callable[[int], object]]
"""How often it is called, and what is called with the number of the call."""


def paths() -> dict[str, Path]:
    """Every path by its name. Each has a multiple of four calls, so that a quarter more is a whole number."""
    fleet = Fleet(1, LONG_MODEL)
    texts = [fleet.text(step) for step in range(_TEXTS)]
    return {
        REFERENCE: (8, lambda _: _reference(texts[0])),
        "reading an exposition": (20, _reading(texts)),
        "a sample": (20, _sample(texts)),
        "rendering /metrics": (8, _rendering(texts)),
        "10,000 stream events": (20, _events()),
        "10,000 chunks through the tap's reader": (20, _chunks()),
        "10,000 lines of a log": (20, _lines()),
    }


def _reference(text: str) -> dict[str, float]:
    """What any reader of text does in Python: lines, slices, numbers, calls and a dictionary."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            _note(found, *line.rsplit(" ", 1))
    return found


def _note(found: dict[str, float], name: str, value: str) -> None:
    found[name] = found.get(name, 0.0) + float(value)


def _reading(texts: list[str]) -> Callable[[int], object]:
    reader = ExpositionReader()
    return lambda call: reader.read(texts[call % len(texts)])


def _sample(texts: list[str]) -> Callable[[int], object]:
    """Reading, and all that is derived of it."""
    target = Target(Config())
    return lambda call: target.observe(_START + call, texts[call], 0.005)


def _rendering(texts: list[str]) -> Callable[[int], object]:
    target = Target(Config())
    for number, text in enumerate(texts):
        target.observe(_START + number, text, 0.005)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(lambda: target.snapshot(_START + len(texts))))
    return lambda _: render(registry, "")


def _events() -> Callable[[int], object]:
    """Five hundred at a time: ten seconds of fifty streams with twenty chunks a second, in twenty calls."""
    streams = Streams("tap", StreamConfig(), lambda _: "m")

    def feed(call: int) -> None:
        t = _START + call / 2
        moments = [t + number / 20 for number in range(10)]
        streams.feed([StreamEvent("token", moment, number) for moment in moments for number in range(_STREAMS)])
        streams.advance(t)

    return feed


def _chunks() -> Callable[[int], object]:
    reader = SseReader()
    chunks = [_CHUNK % number for number in range(500)]

    def feed(_: int) -> None:
        for chunk in chunks:
            reader.feed(chunk)

    return feed


def _lines() -> Callable[[int], object]:
    reader = LogReader()

    def block(call: int) -> bytes:
        clock = _START + call / 2
        return "".join(
            delta(clock + number / 1000, f"chatcmpl-r{number % _STREAMS}", "None") for number in range(500)
        ).encode()

    blocks = [block(call) for call in range(_TEXTS)]
    return lambda call: reader.read(blocks[call])


def main(share: str = "1") -> None:
    """Warm each path up, then run it between two marks; the reference does its work once however large the share."""
    parts: list[str] = []
    for name, (calls, path) in paths().items():
        for call in range(calls):
            path(call)
        gc.collect()
        gc.freeze()
        more = 1.0 if name == REFERENCE else float(share)
        _mark()
        for call in range(calls, calls + int(calls * more)):
            path(call)
        _mark()
        parts += [f"before {name}", name]
    print(json.dumps(parts))


def _mark() -> None:
    os.getppid()


if __name__ == "__main__":
    main(*sys.argv[1:])
