"""
Many runs of the model, one for each setting and seed, on all cores.

Whether a storm ends under a setting is a matter of chance near its edge: ten runs say by how much figures vary, and
forty whether nine of ten are good.
"""

import math
import multiprocessing
import multiprocessing.connection
import os
import pickle
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self

from kvpressure.advise.advice import Band, Outcome
from kvpressure.advise.seen import AdviseError
from kvpressure.lab.leap import Admission, Job, leap
from kvpressure.lab.model import Config

SURE = 0.9
"""A target must hold in more than this share of the runs: with just as many, others like them would miss it as often
as not."""
_DECIDING = 4
_NICE = 10
_TENTH, _HALF, _NINE_TENTHS = 0.1, 0.5, 0.9


class Traffic(Protocol):
    """Where jobs come from: one list for each seed, the same one each time."""

    @property
    def run_in(self) -> float:
        """Seconds at the begin of each that are simulated and not counted."""
        ...

    def jobs(self, seed: int) -> Sequence[Job]:
        """A run's requests, in order of arrival."""
        ...


@dataclass(frozen=True, slots=True)
class Setting:
    """
    What is changed. The defaults change nothing.

    Args:
        blocks: of the KV cache; None as it is.
        growth: the same, relative: 0.25 is a quarter more.
        seqs: most requests that run at once; None as it is.
        cap: most answer tokens of a request; None as it is.
        share: of the traffic that comes here, 0 to 1.
        headroom: share of the blocks that must stay free after an admission.
        guaranteed: whether prompt and `max_tokens` are reserved at admission.
    """

    blocks: int | None = None
    growth: float = 0.0
    seqs: int | None = None
    cap: int | None = None
    share: float = 1.0
    headroom: float = 0.0
    guaranteed: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """
    One run's figures, counted after the run-in.

    Args:
        per_thousand: preemptions per thousand requests served.
        paused: share of the streams that paused.
        ttft_p50: seconds; None where nobody got a token.
        ttft_p95: seconds.
        throughput: answer tokens per second.
        running: mean.
        usage: of the cache, mean.
        pinned: share of time.
        top_running: most at once.
        queued: of the requests that came, the share that the queue grew by; 0 or less where it did not grow evenly.
    """

    per_thousand: float
    paused: float
    ttft_p50: float | None
    ttft_p95: float | None
    throughput: float
    running: float
    usage: float
    pinned: float
    top_running: int
    queued: float


class Sweep:
    """
    Runs of one server's traffic under other settings, each only once.

    Args:
        config: the server as it is.
        traffic: what users ask.
        seconds: that each run counts.
        seeds: runs of each setting whose figures are told; where something is decided, four times as many.
        done: is called after each run.
        cores: processes at once; None for all that this process may use.
    """

    def __init__(  # noqa: PLR0913  # what a run is made of
        self,
        config: Config,
        traffic: Traffic,
        seconds: float,
        seeds: int,
        *,
        done: Callable[[], None] = lambda: None,
        cores: int | None = None,
    ) -> None:
        self.config = config
        self.seconds = seconds
        self.seeds = seeds
        self._done = done
        self._known: dict[tuple[Setting, int], Run] = {}
        self._batch = 2 * (cores or len(os.sched_getaffinity(0)))
        self._others = set(multiprocessing.active_children())
        # Fresh processes: a fork would take along whatever traces, threads and sockets its parent has.
        self._pool = ProcessPoolExecutor(
            cores or len(os.sched_getaffinity(0)),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            # Packed once, and here: a long trace takes seconds, in which Ctrl-C must be heard.
            initargs=(pickle.dumps(_World(config, traffic, seconds)),),
        )

    def __enter__(self) -> Self:
        """Start."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes; what they still had to do is dropped, and after a fault what they are doing, too."""
        if kind is not None:
            for process in set(multiprocessing.active_children()) - self._others:
                process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def runs(self, setting: Setting) -> tuple[Run, ...]:
        """The runs whose figures are told, by seed."""
        return self._of(setting, range(self.seeds))

    def outcome(self, setting: Setting) -> Outcome:
        """The same as bands."""
        return outcome(self.runs(setting))

    def holds(self, setting: Setting, good: Callable[[Run], bool]) -> bool:
        """Whether enough runs of a setting are good; no more of them are made than it takes to say so."""
        total = _DECIDING * self.seeds
        # A tenth of forty is four, which floating point makes 3.99...
        allowed = math.ceil(round((1.0 - SURE) * total, 6)) - 1
        bad = 0
        for first in range(0, total, self._batch):
            runs = self._of(setting, range(first, min(total, first + self._batch)))
            bad += sum(not good(run) for run in runs)
            if bad > allowed:
                return False
        return True

    def _of(self, setting: Setting, seeds: range) -> tuple[Run, ...]:
        new = [(setting, seed) for seed in seeds if (setting, seed) not in self._known]
        try:
            for task, run in zip(new, self._begun(new), strict=True):
                self._known[task] = run
                self._done()
        except BrokenProcessPool as fault:
            raise AdviseError(
                "a simulation was ended from outside, as where memory is short; free some, or give fewer --seeds"
            ) from fault
        return tuple(self._known[setting, seed] for seed in seeds)

    def _begun(self, tasks: Sequence[tuple[Setting, int]]) -> Iterator[Run]:
        """Hand runs to the processes, which are started for it where they are not there yet."""
        # Ctrl-C is for the one who started all of this: a process is born deaf to it, and never tells of it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._pool.map(_run, tasks)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def outcome(runs: Sequence[Run]) -> Outcome:
    """Several runs, as bands."""
    return Outcome(
        per_thousand=band([run.per_thousand for run in runs]),
        paused=band([run.paused for run in runs]),
        ttft_p50=band([run.ttft_p50 for run in runs if run.ttft_p50 is not None]),
        ttft_p95=band([run.ttft_p95 for run in runs if run.ttft_p95 is not None]),
        throughput=band([run.throughput for run in runs]),
    )


def band(values: Sequence[float]) -> Band:
    """10th, 50th and 90th percentile, by interpolation; infinite where there is no value."""
    if not values:
        return Band(float("inf"), float("inf"), float("inf"))
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    return Band(at(_TENTH), at(_HALF), at(_NINE_TENTHS))


@dataclass(slots=True)
class _World:
    """What every run of a process needs; sent to it once."""

    config: Config
    traffic: Traffic
    seconds: float


_worlds: list[_World] = []


def _end_with_parent() -> None:
    """Whoever is killed cannot tell his processes to end."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _begin(world: bytes) -> None:
    # Whatever else runs on the machine comes first.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(_NICE)
    _worlds[:] = [pickle.loads(world)]  # noqa: S301  # of our own parent


def _run(task: tuple[Setting, int]) -> Run:
    setting, seed = task
    world = _worlds[0]
    run_in = world.traffic.run_in
    return simulated(world.config, world.traffic.jobs(seed), setting, (run_in, run_in + world.seconds), seed)


def simulated(config: Config, jobs: Sequence[Job], setting: Setting, counted: tuple[float, float], seed: int) -> Run:
    """
    One run.

    Args:
        config: the server as it is.
        jobs: what users ask.
        setting: what is changed.
        counted: from when to when, in seconds since the first of them could come.
        seed: decides who goes to another replica.
    """
    changed = replace(
        config,
        num_gpu_blocks=setting.blocks or round((1.0 + setting.growth) * config.num_gpu_blocks),
        max_num_seqs=setting.seqs or config.max_num_seqs,
    )
    mine = staying(jobs, setting.share, seed) if setting.share < 1.0 else jobs
    # vLLM takes no request that is longer than its context, and its context is never longer than its cache.
    longest = config.max_request_tokens
    sent = [_fitting(job, longest, setting.cap) for job in mine]
    admission = Admission(headroom=round(setting.headroom * changed.num_gpu_blocks), guaranteed=setting.guaranteed)
    result = leap(changed, sent, admission=admission, since=counted[0], until=counted[1])
    # A queue that grows evenly is, on average, as far from its end as from nothing. One that a burst left is longer on
    # average than at its end, and one of a burst at the end hardly was there.
    grown = 2 * min(result.mean_waiting, result.waiting - result.mean_waiting)
    return Run(
        per_thousand=result.per_thousand,
        paused=result.paused_share,
        ttft_p50=result.ttft(0.5),
        ttft_p95=result.ttft(0.95),
        throughput=result.throughput,
        running=result.mean_running,
        usage=result.mean_usage,
        pinned=result.pinned,
        top_running=result.top_running,
        queued=grown / max(1, result.arrived),
    )


def staying(jobs: Sequence[Job], share: float, seed: int) -> list[Job]:
    """Those that do not go to another replica."""
    # Chance of its own: with the numbers that made the traffic, who goes would depend on when he comes and what he
    # asks.
    chance = random.Random(f"replica {seed}")  # noqa: S311 - a model wants reproducible chance, not secrets
    return [job for job in jobs if chance.random() < share]


def _fitting(job: Job, longest: int, cap: int | None) -> Job:
    """The job with no more tokens than the server takes, and than it may ask."""
    prompt = min(job.prompt, longest - 1)
    most = min(longest - prompt, cap or longest)
    if prompt == job.prompt and job.answer <= most and (job.limit or job.answer) <= most:
        return job
    return Job(job.arrival, prompt, min(job.answer, most), min(job.limit or job.answer, most))
