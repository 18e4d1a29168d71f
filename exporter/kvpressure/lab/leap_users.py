"""Who comes to the fast simulator and who leaves it: what ``load.py`` is to the scheduler, for a list of jobs."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from kvpressure.lab.leap_figures import Tally
from kvpressure.lab.leap_model import Job
from kvpressure.lab.model import Config


@dataclass(slots=True, eq=False)
class Sequence:
    """
    One job inside the scheduler.

    Args:
        number: of the job, in order of arrival.
        arrival: model seconds.
        tokens: prompt and answer so far; kept only while it does not decode.
        length: what they are when its answer is complete.
        reserve: blocks that prompt and limit need.
        computed: tokens whose KV entries are in blocks; kept only while it does not decode.
        offset: while it decodes: what it has computed, less the tick.
        end: the tick at which its answer is complete; 0 while it does not decode.
        entered: the tick at which it began to decode.
        last: when its newest token came; kept only once it has lost its blocks.
        started: whether its user has seen a token.
        streamed: whether it is counted as such.
        paused: whether it is counted as such.
    """

    number: int
    arrival: float
    tokens: int
    length: int
    reserve: int
    computed: int = 0
    offset: int = 0
    end: int = 0
    entered: int = 0
    last: float = 0.0
    started: bool = False
    streamed: bool = False
    paused: bool = False


class Users:
    """
    The users of one run.

    Args:
        config: the server's settings.
        jobs: in order of arrival.
        patience: seconds after which a request without a first token leaves.
        tally: takes who comes and who leaves.

    Raises:
        ValueError: a job is out of order or has no tokens; ``come`` raises it too, for a later job.
    """

    def __init__(self, config: Config, jobs: Iterable[Job], patience: float, tally: Tally) -> None:
        self._config = config
        self._patience = patience
        self._tally = tally
        self._jobs = _in_order(jobs)
        self._next = next(self._jobs, None)
        self._count = 0
        # In order, since arrivals are and patience is the same for all.
        self._deadlines: deque[tuple[float, Sequence]] = deque()

    @property
    def next_time(self) -> float:
        """When the next request comes, in model seconds; infinite where none does."""
        return inf if self._next is None else self._next.arrival

    @property
    def due(self) -> float:
        """Before this, nobody comes and nobody leaves."""
        return min(self.next_time, self._deadlines[0][0]) if self._deadlines else self.next_time

    def come(self, clock: float) -> list[Sequence]:
        """Who has arrived by now and can be served."""
        came: list[Sequence] = []
        while self._next is not None and self._next.arrival <= clock:
            job = self._next
            self._next = next(self._jobs, None)
            self._count += 1
            most = job.prompt + job.max_tokens
            refused = most > self._config.max_request_tokens
            self._tally.arrive(job.arrival, job.prompt, refused=refused)
            if refused:
                continue
            sequence = Sequence(
                number=self._count,
                arrival=job.arrival,
                tokens=job.prompt,
                length=job.prompt + min(job.answer, job.max_tokens),
                reserve=-(-most // self._config.block_size),
            )
            came.append(sequence)
            if self._patience < inf:
                self._deadlines.append((job.arrival + self._patience, sequence))
        return came

    def leave(self, clock: float) -> list[Sequence]:
        """Who has waited too long for a first token."""
        gone: list[Sequence] = []
        deadlines = self._deadlines
        while deadlines and (deadlines[0][1].started or deadlines[0][0] <= clock):
            _, sequence = deadlines.popleft()
            if not sequence.started:
                gone.append(sequence)
        if clock >= self._tally.since:
            self._tally.left += len(gone)
        return gone


def _in_order(jobs: Iterable[Job]) -> Iterator[Job]:
    before = 0.0
    for number, job in enumerate(jobs, start=1):
        if not before <= job.arrival < inf or min(job.prompt, job.answer) < 1 or job.limit < 0:
            raise ValueError(
                f"job {number} cannot be simulated: it needs at least 1 token of prompt and of answer, a limit of at "
                "least 0, and an arrival at or after 0 s that is not before the job before it"
            )
        before = job.arrival
        yield job
