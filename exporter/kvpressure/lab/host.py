"""The process around the engine: model time follows real time, and tokens reach whoever waits for them."""

import asyncio
import contextlib
import random
import zlib
from dataclasses import dataclass

from kvpressure.lab.engine import Engine, Iteration
from kvpressure.lab.load import Load
from kvpressure.lab.logs import PeriodicStats, VllmLog
from kvpressure.lab.metrics import ServerMetrics
from kvpressure.lab.model import FinishReason, Request
from kvpressure.lab.scenarios import Scenario

TokenQueue = asyncio.Queue[FinishReason | None]
"""One entry per token; the last one says why the answer ends."""

_IDLE_SECONDS = 0.5
"""How often an idle engine looks up, in real seconds, to print its last statistics line."""

_LAG_SECONDS = 1.0
"""If model time falls this far behind real time (a suspended laptop, a speed beyond the CPU), the lag is forgiven."""


@dataclass(frozen=True, slots=True)
class Options:
    """
    What the lab serves.

    Args:
        scenario: the server and its users.
        model: the served model name.
        seed: decides all that is random.
        speed: model seconds per real second.
        load: whether the scenario's users are there; without them only HTTP clients ask.
    """

    scenario: Scenario
    model: str = "lab-8b"
    seed: int = 0
    speed: float = 1.0
    load: bool = True


class Host:
    """
    One engine in real time, with its metrics, its log and its built-in users.

    Args:
        options: what it runs.
        log: where its log lines go.
    """

    def __init__(self, options: Options, log: VllmLog) -> None:
        scenario = options.scenario
        self.engine = Engine(scenario.server, scenario.stalls, options.seed)
        self.metrics = ServerMetrics(scenario.server, options.model)
        self.log = log
        self._speed = options.speed
        self._load = Load(scenario.workload, options.seed, "chatcmpl-lab-") if options.load else None
        self._stats = PeriodicStats(caching=scenario.server.prefix_caching)
        self._queues: dict[str, TokenQueue] = {}
        self._wake = asyncio.Event()
        # vLLM takes one more step after an abort, so that its gauges do not stay where they were.
        self._settle = False
        # The real time at which the model time ``_until`` is reached; between steps that is the engine's clock.
        self._anchor = 0.0
        self._until = 0.0
        self._idle = False
        self._answer_lengths = scenario.workload.phases[-1].answer
        self._chance = random.Random(options.seed)  # noqa: S311 - reproducible chance, not secrets

    def submit(self, request: Request) -> TokenQueue:
        """Queue an HTTP client's request; its tokens come through the queue until ``close``."""
        self.engine.submit(request, self._now())
        queue: TokenQueue = asyncio.Queue()
        self._queues[request.id] = queue
        self._wake.set()
        return queue

    def close(self, request_id: str) -> None:
        """The client got everything, or has left: then all that its request holds is freed at once."""
        self._queues.pop(request_id, None)
        if self.engine.abort(request_id):
            self.log.aborted([request_id])
            self._settle = True
            self._wake.set()

    def draw_answer_length(self) -> int:
        """Tokens of an answer that ends by itself: as long as the scenario's."""
        return self._answer_lengths.draw(self._chance)

    async def run(self) -> None:
        """Run the engine until cancelled."""
        self._anchor = asyncio.get_running_loop().time()
        while True:
            self._let_users_act()
            if self.engine.scheduler.idle and not self._settle:
                await self._wait_for_work()
                continue
            self._settle = False
            result, duration = self.engine.begin()
            await self._pass(duration)
            self._deliver(self.engine.finish(result, duration))

    def _let_users_act(self) -> None:
        """What the built-in users do now, and the periodic log line."""
        if self._load:
            change = self._load.advance(self.engine)
            for request in change.submitted:
                self.log.received(request.id, _internal_id(request.id), request.max_tokens, ignore_eos=True)
            self.log.aborted([_internal_id(request_id) for request_id in change.aborted])
            self._settle = self._settle or bool(change.aborted)
        line = self._stats.line(self.engine.clock)
        if line:
            self.log.stats(line)
        self.log.flush()

    async def _wait_for_work(self) -> None:
        """Sleep until a request comes, and let model time pass meanwhile."""
        seconds = _IDLE_SECONDS
        if self._load:
            seconds = min(seconds, max(0.0, self._load.next_time - self.engine.clock) / self._speed)
        self._idle, self._until = True, self.engine.clock
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)
        self.engine.clock = self._now()
        self._anchor = asyncio.get_running_loop().time()
        self._idle = False

    async def _pass(self, duration: float) -> None:
        """Let ``duration`` model seconds pass in real time."""
        self._until = self.engine.clock + duration
        self._anchor += duration / self._speed
        now = asyncio.get_running_loop().time()
        if now - self._anchor > _LAG_SECONDS:
            self._anchor = now
        await asyncio.sleep(max(0.0, self._anchor - now))

    def _now(self) -> float:
        """Model time of this moment: some way through the step in progress, or through idle time."""
        ahead = (asyncio.get_running_loop().time() - self._anchor) * self._speed
        if self._idle:
            return self._until + max(0.0, ahead)
        return min(self._until, max(self.engine.clock, self._until + ahead))

    def _deliver(self, iteration: Iteration) -> None:
        """Everybody learns what the step did."""
        self.metrics.record(iteration)
        self._stats.record(iteration)
        for token in iteration.tokens:
            request_id = token.sequence.request.id
            queue = self._queues.get(request_id)
            if queue is not None:
                queue.put_nowait(token.finished)
            else:
                self.log.delta(request_id, token.finished)


def _internal_id(request_id: str) -> str:
    """A built-in user's request as engine lines name it: with a suffix, the same in every run."""
    return f"{request_id}-{zlib.crc32(request_id.encode()):08x}"
