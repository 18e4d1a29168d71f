"""A workload that somebody describes, for advice without a server to look at: ``kvpressure advise --workload FILE``."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvpressure import yamlfile
from kvpressure.advise import described, drawn
from kvpressure.advise import trace as traces
from kvpressure.advise.keys import known
from kvpressure.advise.seen import AdviseError, Figure, Server
from kvpressure.lab.leap import Job
from kvpressure.lab.model import StepTime
from kvpressure.settings import ConfigError, setting

_LENGTHS = ("prompt", "answer")
_SHORTEST = 60.0
"""Seconds that a trace is looked at, at the least: what befalls requests that come at once comes afterwards."""


@dataclass(frozen=True, slots=True)
class Poisson:
    """
    Requests that come by chance.

    Args:
        rate: requests per second.
        burst: requests that come at once when time begins.
        prompt: lengths of prompts.
        answer: lengths of answers.
    """

    rate: float
    burst: int
    prompt: drawn.Drawn
    answer: drawn.Drawn


Traffic = Poisson | tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """
    The traffic of one server, and the server.

    Args:
        source: the file.
        server: how it is set up.
        step: how long its steps take; None where the file does not say.
        seconds: how long requests come.
        traffic: what comes: by chance, or as a trace.
        max_tokens: that clients ask for; 0 where the file does not say. A trace may say it of each request.
        token_bytes: what one token takes in the KV cache, where the model is told.
        notes: why the capacity is an approximation, in whole sentences.
    """

    source: str
    server: Server
    step: StepTime | None
    seconds: float
    traffic: Traffic
    max_tokens: int
    token_bytes: Figure
    notes: tuple[str, ...]

    @property
    def run_in(self) -> float:
        """All of it counts, from its first request on an empty server."""
        return 0.0

    def jobs(self, seed: int) -> list[Job]:
        """
        The requests of one run, in order of arrival; the same seed gives the same ones.

        A trace is itself with seed 0. With others its arrivals stay, and prompt and answer (together) are drawn from
        it anew: how sure a result is cannot be told from one run.
        """
        chance = random.Random(seed)  # noqa: S311 - a model wants reproducible chance, not secrets
        if isinstance(self.traffic, Poisson):
            return self._poisson(self.traffic, chance)
        drawn_from = self.traffic if seed == 0 else chance.choices(self.traffic, k=len(self.traffic))
        return [
            Job(own.arrival, other.prompt, other.answer, other.limit or self.max_tokens)
            for own, other in zip(self.traffic, drawn_from, strict=True)
        ]

    def _poisson(self, traffic: Poisson, chance: random.Random) -> list[Job]:
        times = [0.0] * traffic.burst
        time = 0.0
        while traffic.rate and (time := time + chance.expovariate(traffic.rate)) < self.seconds:
            times.append(time)
        return [self._fitted(at, traffic.prompt.draw(chance), traffic.answer.draw(chance)) for at in times]

    def _fitted(self, at: float, prompt: int, answer: int) -> Job:
        """A request with no longer answer than vLLM gives. What prompt it does not take is told by whoever advises."""
        most = int(self.server.max_model_len.value or 0)
        if not most or prompt >= most:
            return Job(at, prompt, answer, self.max_tokens)
        return Job(at, prompt, min(answer, most - prompt), min(self.max_tokens, most - prompt))


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys of the file, but for lengths and server."""

    seconds: float | None = setting(None, "How long requests come.", "duration", low=1, high=7 * 86_400)
    rate: float | None = setting(None, "Requests per second.", "number", low=0, high=10_000)
    trace: str | None = setting(None, "A file of requests.", "file")
    burst: int = setting(0, "Requests that come at once when time begins.", "count", low=0, high=traces.MOST_REQUESTS)
    max_tokens: int = setting(0, "That clients ask for.", "count", low=1, high=traces.MOST_TOKENS)


def read(path: str) -> Workload:
    """
    The workload in a YAML file; docs/examples/workload.yml explains each key.

    Raises:
        AdviseError: the file, or one that it names, cannot be read, or a key is missing, unknown or makes no sense.
    """
    try:
        content = yamlfile.read(path)
    except ConfigError as fault:
        raise AdviseError(str(fault)) from fault
    keys = known(_Keys, content, path, beside=(*_LENGTHS, "server"))
    if "server" not in content:
        raise AdviseError(f"{path}: server is missing; it tells the capacity of the KV cache")
    if (keys.rate is None) == (keys.trace is None):
        raise AdviseError(f"{path}: give either rate, in requests per second, or trace, a file of requests")
    server = described.read(content["server"], path)
    seconds, traffic = _by_chance(content, keys, path) if keys.trace is None else _traced(content, keys, path)
    return Workload(
        path, server.server, server.step, seconds, traffic, keys.max_tokens, server.token_bytes, server.notes
    )


def _by_chance(content: Mapping[Any, Any], keys: _Keys, path: str) -> tuple[float, Traffic]:
    rate = keys.rate or 0.0
    if keys.seconds is None:
        raise AdviseError(f'{path}: seconds is missing; give how long requests come, as "10m"')
    for name in _LENGTHS:
        if name not in content:
            raise AdviseError(f"{path}: {name} is missing; give its lengths in tokens, as mean and spread")
    if not rate and not keys.burst:
        raise AdviseError(f"{path}: rate and burst are 0, so no request comes; give one of them")
    if rate * keys.seconds + keys.burst > traces.MOST_REQUESTS:
        raise AdviseError(
            f"{path}: rate times seconds, and burst, are more than {traces.MOST_REQUESTS:,} requests; give less"
        )
    lengths = [drawn.read(content[name], f"{path}: {name}") for name in _LENGTHS]
    return keys.seconds, Poisson(rate, keys.burst, *lengths)


def _traced(content: Mapping[Any, Any], keys: _Keys, path: str) -> tuple[float, Traffic]:
    stray = [key for key in (*_LENGTHS, "burst") if key in content]
    if stray:
        raise AdviseError(f"{path}: {stray[0]} says nothing beside trace, which tells each request; leave it out")
    jobs = traces.read(str(Path(path).parent / (keys.trace or "")))
    if keys.seconds is None:
        return max(_SHORTEST, jobs[-1].arrival), jobs
    return keys.seconds, tuple(job for job in jobs if job.arrival < keys.seconds)
