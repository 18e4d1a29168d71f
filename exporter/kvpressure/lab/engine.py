"""
The scheduler on a model clock: when each request was queued, started and got each of its tokens.

vLLM stamps in its engine core and so does this: a token carries the time at which its step ended, an admission the time
at which its step began.
"""

import random
from dataclasses import dataclass

from kvpressure.lab.model import Config, FinishReason, Request, Sequence, StepResult
from kvpressure.lab.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Stalls:
    """
    A host that freezes now and then: the engine process gets no CPU, or the device hangs.

    Args:
        every: mean seconds between the end of one stall and the start of the next; between half and one and a half.
        shortest: least seconds of a stall.
        longest: most seconds of a stall.
    """

    every: float
    shortest: float
    longest: float


@dataclass(slots=True)
class Times:
    """
    The times of one request, in model seconds; ``None`` is not yet.

    Args:
        arrival: when the front end got it.
        queued: when the scheduler got it.
        scheduled: when it first ran; a preemption does not change this, as in vLLM.
        first_token: when its first token came.
        last_token: when its newest token came.
    """

    arrival: float
    queued: float
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """
    One token of one request.

    Args:
        sequence: whose.
        times: its request's times, this token included.
        gap: seconds since the token before; ``None`` for the first.
        finished: why the answer ends here, if it does.
    """

    sequence: Sequence
    times: Times
    gap: float | None
    finished: FinishReason | None


@dataclass(frozen=True, slots=True)
class Iteration:
    """
    One finished step.

    Args:
        now: model time at its end.
        result: what the scheduler did.
        tokens: what users get, in running order. Requests that were aborted during the step are missing.
        preemptions: by how much vLLM's counter moves; those of requests that were aborted in time are lost.
    """

    now: float
    result: StepResult
    tokens: tuple[Token, ...]
    preemptions: int


class Engine:
    """
    One engine: ``begin`` a step, let its ``duration`` pass, ``finish`` it.

    Args:
        config: the server's settings.
        stalls: how its host freezes, if it does.
        seed: decides when it freezes.
    """

    def __init__(self, config: Config, stalls: Stalls | None = None, seed: int = 0) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        self.clock = 0.0
        self._times: dict[str, Times] = {}
        self._stalls = stalls
        self._random = random.Random(seed)  # noqa: S311 - a model wants reproducible chance, not secrets
        self._next_stall = self._draw_stall_time()

    def submit(self, request: Request, arrival: float | None = None) -> None:
        """
        Queue a request that arrived at ``arrival`` (model seconds, not after the end of the step that is going on).

        Raises:
            RequestTooLongError: it can never be served.
        """
        self.scheduler.add(request)
        at = self.clock if arrival is None else arrival
        self._times[request.id] = Times(arrival=at, queued=max(at, self.clock))

    def abort(self, request_id: str) -> bool:
        """The user has gone: free everything at once. False if the request was already over."""
        self._times.pop(request_id, None)
        return self.scheduler.abort(request_id)

    def waits_for_first_token(self, request_id: str) -> bool:
        """Whether the request is alive and its user has seen nothing yet."""
        times = self._times.get(request_id)
        return times is not None and times.first_token is None

    def begin(self) -> tuple[StepResult, float]:
        """Take one step; return what it did and how long it takes, in model seconds, stall included."""
        result = self.scheduler.step()
        for sequence in result.admitted:
            times = self._times[sequence.request.id]
            if times.scheduled is None:
                times.scheduled = self.clock
        return result, result.duration + self._stall()

    def finish(self, result: StepResult, duration: float) -> Iteration:
        """The step is over: advance the clock and hand out its tokens."""
        self.clock += duration
        preemptions = sum(count for sequence, count in result.reports if sequence.request.id in self._times)
        tokens: list[Token] = []
        for output in result.outputs:
            request_id = output.sequence.request.id
            times = self._times.get(request_id)
            if times is None:
                continue
            gap = None if times.last_token is None else self.clock - times.last_token
            times.last_token = self.clock
            if times.first_token is None:
                times.first_token = self.clock
            if output.finished:
                del self._times[request_id]
            tokens.append(Token(output.sequence, times, gap, output.finished))
        return Iteration(self.clock, result, tuple(tokens), preemptions)

    def _stall(self) -> float:
        """Seconds for which the host freezes in this step."""
        if self._stalls is None or self.clock < self._next_stall:
            return 0.0
        seconds = self._random.uniform(self._stalls.shortest, self._stalls.longest)
        self._next_stall = self.clock + seconds + self._draw_stall_time()
        return seconds

    def _draw_stall_time(self) -> float:
        if self._stalls is None:
            return 0.0
        return self._stalls.every * self._random.uniform(0.5, 1.5)
