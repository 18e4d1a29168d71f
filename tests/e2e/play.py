"""One run: users who play a workload against a server, what they saw, and what the sidecar said meanwhile."""

import asyncio
import contextlib
import itertools
import math
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp

from kvpressure.lab.simulate import PAUSE_SECONDS
from kvpressure.lab.truth import Record
from kvpressure.lab.users import Plan, Users
from kvpressure.lab.workload import Length, Phase, Workload

from .stand import Sidecar, Vllm, keep_time

_SETTLE = 2.0  # seconds before and after, so that counters are read at rest


@dataclass(slots=True)
class Point:
    """
    What the sidecar said at one moment.

    Args:
        t: seconds since the users came.
        preemptions: since its start.
        usage: of the KV cache, 0 to 1.
        running: requests.
        waiting: requests.
        regime: its word.
        verdict: its word.
    """

    t: float
    preemptions: int | None
    usage: float | None
    running: float | None
    waiting: float | None
    regime: str
    verdict: str


@dataclass(slots=True)
class Run:
    """
    What happened in a run. Times in seconds; what could not be known is None.

    Args:
        preemptions: by how much vLLM's own counter moved.
        requests: that were sent.
        finished: that came to their end.
        paused: that had a gap over a second, by the users' clocks.
        streamed: that got a token.
        longest: the longest gap.
        p99: 99th percentile of all gaps, nearest rank.
        ttft: time to first token, median and p99.
        latency: of whole requests, median and p99.
        seconds: from the first request to the last token.
        tokens: that users got.
        asked: prompt tokens that users sent, as vLLM counts them where it does not recompute.
        counted: prompt tokens by which vLLM's own counter moved.
        reported: lines in which vLLM printed its own statistics.
        preemptions_reported: those of them that tell of preemptions.
        points: what the sidecar said, every half second.
        sidecar: its last state.
    """

    preemptions: int
    requests: int
    finished: int
    paused: int
    streamed: int
    longest: float | None
    p99: float | None
    ttft: tuple[float | None, float | None]
    latency: tuple[float | None, float | None]
    seconds: float
    tokens: int
    asked: int
    counted: int
    reported: int = 0
    preemptions_reported: int = 0
    points: list[Point] = field(default_factory=list)
    sidecar: dict[str, Any] = field(default_factory=dict)

    @property
    def per_thousand(self) -> float:
        """Preemptions per thousand requests."""
        return 1000 * self.preemptions / max(1, self.finished)

    @property
    def paused_share(self) -> float:
        """Share of the streaming requests that paused, 0 to 1."""
        return self.paused / max(1, self.streamed)

    @property
    def recounted(self) -> int:
        """Prompt tokens that vLLM counted beyond those that users sent."""
        return self.counted - self.asked

    @property
    def peak_waiting(self) -> float:
        """Longest queue."""
        return max((point.waiting or 0.0 for point in self.points), default=0.0)

    def spells(self, what: str = "regime") -> list[tuple[str, float]]:
        """The words that the sidecar said one after another, and for how many seconds each."""
        words = [(getattr(point, what), point.t) for point in self.points]
        found: list[tuple[str, float]] = []
        for word, group in itertools.groupby(words, key=lambda pair: pair[0]):
            times = [t for _, t in group]
            found.append((word, round(times[-1] - times[0], 1)))
        return found

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Run":
        """The run of such a row."""
        return cls(**{**row, "points": [Point(**point) for point in row["points"]]})


def play(  # noqa: PLR0913  # each is a choice of the experiment
    server: Vllm,
    sidecar: Sidecar | None,
    workload: Workload,
    requests: int,
    *,
    seed: int = 0,
    duration: float | None = None,
    chat: bool = False,
    after: float = 0.0,
) -> Run:
    """
    Let users play a workload to its end, and tell what happened.

    Args:
        server: whom they ask, where there is no tap.
        sidecar: whose tap they ask, and whose state is kept.
        workload: what they do.
        requests: how many they send, if they are not gone before.
        seed: decides when they come and what they ask.
        duration: seconds after which they leave.
        chat: ask for chat completions, else for completions of token ids.
        after: seconds for which the sidecar is watched when they are gone.
    """
    keep_time()
    # A connection for each request that waits.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    url = sidecar.tap if sidecar and sidecar.tap else server.url
    plan = Plan(url, workload, seed, chat=chat, requests=requests, duration=duration)
    return asyncio.run(_play(plan, server, sidecar, after))


def warm(server: Vllm) -> None:
    """Send one small request: the first pays for what vLLM does once."""
    phase = Phase(60.0, 1.0, Length(8), Length(4))
    asyncio.run(Users(Plan(server.url, Workload((phase,)), chat=False, requests=1), lambda _: None).run())


async def _play(plan: Plan, server: Vllm, sidecar: Sidecar | None, after: float) -> Run:
    records: list[Record] = []
    points: list[Point] = []
    await asyncio.sleep(_SETTLE)
    before = await asyncio.to_thread(server.metrics)
    began = time.time()
    watching = asyncio.create_task(_watch(sidecar, began, points)) if sidecar else None
    await Users(plan, records.append).run()
    ended = time.time()
    await asyncio.sleep(_SETTLE + after)
    if watching:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    totals = await asyncio.to_thread(server.metrics)
    state = await asyncio.to_thread(sidecar.state) if sidecar else {}

    def moved(name: str) -> int:
        return round(totals.get(name, 0.0) - before.get(name, 0.0))

    return summed(
        records,
        preemptions=moved("vllm:num_preemptions_total"),
        counted=moved("vllm:prompt_tokens_total"),
        seconds=ended - began,
        points=points,
        state=state,
    )


async def _watch(sidecar: Sidecar, began: float, points: list[Point]) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(f"{sidecar.url}/api/v1/state") as answer:
                    engines = (await answer.json())["engines"]
                if engines:
                    seen = engines[0]
                    points.append(
                        Point(
                            round(time.time() - began, 2),
                            seen["preemptions"],
                            seen["kv_usage"],
                            seen["running"],
                            seen["waiting"],
                            seen["regime"],
                            seen["verdict"],
                        )
                    )
            await asyncio.sleep(0.5)


def summed(  # noqa: PLR0913  # what a run is made of
    records: Sequence[Record],
    *,
    preemptions: int,
    counted: int,
    seconds: float,
    points: list[Point],
    state: dict[str, Any],
) -> Run:
    """A run of what its users saw."""
    gaps = [record.gaps() for record in records]
    streamed = [record for record in records if record.token_ts]
    whole = [record for record in records if record.done and record.token_ts]
    first = [record.token_ts[0] - record.start for record in streamed]
    latency = [record.token_ts[-1] - record.start for record in whole]
    return Run(
        preemptions=preemptions,
        requests=len(records),
        finished=len(whole),
        paused=sum(max(each, default=0.0) > PAUSE_SECONDS for each in gaps),
        streamed=len(streamed),
        longest=max(itertools.chain.from_iterable(gaps), default=None),
        p99=percentile(itertools.chain.from_iterable(gaps), 0.99),
        ttft=(percentile(first, 0.5), percentile(first, 0.99)),
        latency=(percentile(latency, 0.5), percentile(latency, 0.99)),
        seconds=round(seconds, 2),
        tokens=sum(len(record.token_ts) for record in records),
        asked=sum(record.prompt for record in records),
        counted=counted,
        points=points,
        sidecar=state,
    )


def percentile(values: Iterable[float], share: float) -> float | None:
    """By nearest rank; None where there are none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
