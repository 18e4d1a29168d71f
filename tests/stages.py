"""What the page is shown with: snapshots of the lab's scenarios, played in model time, second by second."""

import dataclasses
import time
from functools import cache

from model_time import play

from kvpressure.config import Config
from kvpressure.derive.snapshot import Snapshot
from kvpressure.derive.target import Target
from kvpressure.lab.metrics import ServerMetrics
from kvpressure.lab.scenarios import SCENARIOS
from kvpressure.vllm.stream import SOURCES, LogFacts, StreamEvent, TapFacts

MISSING = ("cache_config", "inter_token", "preemptions", "prompt_tokens")
"""Series that an old vLLM does not have."""

MODEL = "lab-8b"
NOW = float(int(time.time()))
"""When every scenario ends, in seconds since 1970."""


@cache
def played(name, seconds, *, sources=("tap",), seed=0, without=()):
    """A snapshot for each second of a scenario; series whose names hold one of `without` are not exposed."""
    scenario = SCENARIOS[name]
    metrics, target = ServerMetrics(scenario.server, MODEL), Target(Config(), interval=1.0, sources=sources)
    start, seen = NOW - seconds, []

    def sample(t):
        text = metrics.render().decode()
        lines = [line for line in text.splitlines() if not any(word in line for word in without)]
        target.observe(start + t, "\n".join(lines) + "\n", 0.012)
        for streams in target.streams.values():
            streams.advance(start + t)
        tap = TapFacts(open=40, responses={"2xx": int(3 * t)}) if "tap" in sources else None
        log = LogFacts(files=1, lines=int(900 * t), lag=0.2) if "log" in sources else None
        seen.append(target.snapshot(start + t, log=log, tap=tap))

    def left(now, requests):
        feed(StreamEvent("abort", start + now, request, model=MODEL) for request in requests)

    def finished(iteration):
        metrics.record(iteration)
        feed(
            StreamEvent(
                "last" if token.finished else "token", start + iteration.now, token.sequence.request.id, model=MODEL
            )
            for token in iteration.tokens
        )

    def feed(events):
        events = list(events)
        for source in target.streams.values():
            source.feed(events)

    play(scenario, seconds, seed, sample, finished, left=left)
    return tuple(seen)


def failing(snapshots, seconds):
    """The same, and then as many seconds without an answer of vLLM's: only what was counted is left."""
    last = snapshots[-1]
    lost = tuple(
        dataclasses.replace(
            engine,
            regime="unknown",
            verdict="unknown",
            why_unknown="stale",
            evidence=None,
            windows=(),
            kv_usage=None,
            kv_capacity_tokens=None,
            kv_capacity_requests={},
            kv_headroom_requests={},
            running=None,
            waiting=None,
        )
        for engine in last.engines
    )
    return (
        *snapshots,
        *(
            dataclasses.replace(last, t=last.t + n, up=False, engines=lost, errors={"refused": n})
            for n in range(1, seconds + 1)
        ),
    )


def together(*runs):
    """Several engines of one model as one server."""
    engines = []
    for moment in zip(*runs, strict=True):
        found = (
            dataclasses.replace(each.engines[0], engine=str(number), model_name=MODEL)
            for number, each in enumerate(moment)
            if each.engines
        )
        engines.append(dataclasses.replace(moment[0], engines=tuple(found)))
    return tuple(engines)


def nothing():
    """No vLLM was ever there."""
    return tuple(
        Snapshot(NOW - 40.0 + n, up=False if n else None, interval=1.0, samples=n, errors={"refused": n} if n else {})
        for n in range(41)
    )


def stages():
    """Every state that the page must show well, by name: for the pictures, as it takes a minute to play."""
    names = ("calm", "storm", "slow_host", "queue_bound", "onset", "calm", "calm", "bookstore")
    return {
        "storm": played("storm", 600, sources=SOURCES),
        "onset": played("onset", 150),
        "calm": played("calm", 300),
        "queue_bound": played("queue_bound", 300, sources=("log",)),
        "slow_host": played("slow_host", 300),
        "no_vllm": nothing(),
        "gone": failing(played("calm", 300), 60),
        "missing": played("calm", 120, sources=(), without=MISSING),
        "sixteen": together(*(played(name, 300, seed=seed) for seed in (0, 1) for name in names)),
    }


def short_stages():
    """The same states, each played for as short as will do."""
    names = ("calm", "storm", "slow_host", "queue_bound")
    return {
        "storm": played("storm", 60, sources=SOURCES),
        "onset": played("onset", 60),
        "calm": played("calm", 60),
        "no_vllm": nothing(),
        "gone": failing(played("calm", 60), 10),
        "missing": played("calm", 30, sources=(), without=MISSING),
        "sixteen": together(*(played(name, 60) for name in names * 4)),
    }
