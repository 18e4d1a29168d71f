"""The built-in users: an open-loop load that submits a workload's requests and gives up when nothing comes."""

import heapq
from dataclasses import dataclass

from kvpressure.lab.engine import Engine
from kvpressure.lab.model import Request
from kvpressure.lab.scheduler import RequestTooLongError
from kvpressure.lab.workload import Arrival, Workload, arrivals


@dataclass(frozen=True, slots=True)
class Change:
    """
    What the users did at one moment.

    Args:
        submitted: new requests.
        aborted: ids of requests whose users left.
    """

    submitted: tuple[Request, ...]
    aborted: tuple[str, ...]


class Load:
    """
    The users of one workload.

    Args:
        workload: what they ask.
        seed: decides when and how long.
        prefix: what their request ids begin with.
    """

    def __init__(self, workload: Workload, seed: int, prefix: str = "lab-") -> None:
        self._patience = workload.patience
        self._prefix = prefix
        self._stream = arrivals(workload, seed)
        self._next = next(self._stream)
        self._count = 0
        self._deadlines: list[tuple[float, str]] = []

    @property
    def next_time(self) -> float:
        """When the next request comes, in model seconds."""
        return self._next.time

    def advance(self, engine: Engine) -> Change:
        """Do all that is due at the engine's clock."""
        submitted: list[Request] = []
        while self._next.time <= engine.clock:
            request = self._submit(engine, self._next)
            if request is not None:
                submitted.append(request)
            self._next = next(self._stream)
        aborted: list[str] = []
        while self._deadlines and self._deadlines[0][0] <= engine.clock:
            _, request_id = heapq.heappop(self._deadlines)
            if engine.waits_for_first_token(request_id) and engine.abort(request_id):
                aborted.append(request_id)
        return Change(tuple(submitted), tuple(aborted))

    def _submit(self, engine: Engine, arrival: Arrival) -> Request | None:
        self._count += 1
        request = Request(
            id=f"{self._prefix}{self._count}",
            prompt_tokens=arrival.prompt_tokens,
            max_tokens=arrival.answer_tokens,
            block_keys=arrival.block_keys(engine.config.block_size),
        )
        try:
            engine.submit(request, arrival.time)
        except RequestTooLongError:
            # A smaller cache than the scenario's was asked for: vLLM would refuse this one with an error.
            return None
        heapq.heappush(self._deadlines, (arrival.time + self._patience, request.id))
        return request
