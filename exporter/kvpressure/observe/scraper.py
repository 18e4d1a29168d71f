"""The sampler: reads vLLM on a steady beat and hands every outcome to a sink."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Protocol

from kvpressure.config import VllmConfig
from kvpressure.log import RateLimitedLog
from kvpressure.observe.fetch import ANSWERED, Fetcher, FetchError
from kvpressure.vllm.reading import Taken

_log = logging.getLogger(__name__)

_INTERVAL_AFTER_FAULT = 1.0  # seconds; only where a fault in kvpressure itself leaves no interval to go by


class Sink(Protocol):
    """What takes the samples of one vLLM."""

    @property
    def interval(self) -> float:
        """Seconds from the start of one sample to the start of the next, as now scheduled."""
        ...

    def observe(self, t: float, text: str, took: float) -> Taken:
        """
        Take a body, and tell what became of it; never raises.

        Args:
            t: when the request was sent, in seconds since 1970 that never jump.
            text: the body.
            took: seconds from request to last byte.
        """
        ...

    def failed(self, t: float, reason: str, took: float | None = None) -> None:
        """
        Take note that there is no sample; never raises.

        Args:
            t: when the request was sent, in seconds since 1970 that never jump.
            reason: one of ``fetch.REASONS``.
            took: seconds that vLLM spent on an answer that could not be used, where it gave one.
        """
        ...


class Scraper:
    """
    Samples one vLLM.

    Args:
        config: how to reach it.
        sink: takes every outcome, and says when the next sample is due.
        clock: seconds, monotonic.

    Raises:
        ConfigError: a file that exists cannot be used, or settings do not fit together.
    """

    def __init__(self, config: VllmConfig, sink: Sink, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink = sink
        self._clock = clock
        self._fetcher = Fetcher(config)
        # Fixed for good: a wall clock that is set while we run must not reach the arithmetic.
        self._offset = time.time() - clock()
        self._failures = RateLimitedLog(_log, clock=clock)
        self._failed_since: float | None = None
        self._failed_samples = 0
        self._failure_told = False
        self._sampled = False
        self.tried = asyncio.Event()
        """Set once a first sample was tried, whatever came of it."""

    def now(self) -> float:
        """This moment on the clock of the samples: seconds since 1970 that never jump."""
        return self._clock() + self._offset

    async def run(self) -> None:
        """Sample until cancelled. No exception ends it, and no sample starts before the one before has ended."""
        due = self._clock()
        try:
            while True:
                try:
                    await self.sample_once()
                    due = next_start(due, self._clock(), self._sink.interval)
                except Exception as fault:  # noqa: BLE001  # a monitor that dies of its own fault is worse than a gap
                    self._failures.fault("a fault in kvpressure lost a sample; please report it", fault)
                    due = self._clock() + _INTERVAL_AFTER_FAULT
                self.tried.set()
                await asyncio.sleep(due - self._clock())
        finally:
            await self.close()

    async def sample_once(self) -> None:
        """Take one sample and hand its outcome to the sink."""
        start = self._clock()
        t = start + self._offset
        try:
            text = await self._fetcher.text()
        except FetchError as fault:
            self._note_failure(start, fault.reason, fault.detail)
            took = self._clock() - start if fault.reason in ANSWERED else None
            self._sink.failed(t, fault.reason, took)
            return
        taken = self._sink.observe(t, text, self._clock() - start)
        if taken.refused is not None:
            self._note_failure(start, taken.refused.reason, str(taken.refused))
            return
        self._note_success()
        self._note_parts(taken)

    async def close(self) -> None:
        """Close the connection to vLLM."""
        await self._fetcher.close()

    def _note_failure(self, start: float, reason: str, detail: str) -> None:
        if self._failed_since is None:
            self._failed_since = start
        self._failed_samples += 1
        self._failure_told |= self._failures.warning(
            reason, "cannot sample vLLM", reason=reason, detail=detail, url=self._fetcher.address
        )

    def _note_success(self) -> None:
        """Tell the recovery where the failure was told, so that flapping fills no log either."""
        if not self._sampled:
            self._sampled = True
            _log.info("sampling vLLM", extra={"fields": {"url": self._fetcher.address}})
        if self._failed_since is None:
            return
        if self._failure_told:
            _log.info(
                "sampling works again after %d failed samples, %.0f s",
                self._failed_samples,
                self._clock() - self._failed_since,
            )
        self._failed_since, self._failed_samples, self._failure_told = None, 0, False

    def _note_parts(self, taken: Taken) -> None:
        """Tell what a good body lacked."""
        for reason, count in taken.problems.items():
            if reason == "alternating_counters":
                self._failures.warning(
                    reason,
                    "counters start again with nearly every sample: is the address that of several vLLMs?",
                    url=self._fetcher.address,
                )
            else:
                self._failures.warning(reason, "part of a sample was skipped", reason=reason, count=count)
        if not taken.engines:
            self._failures.warning(
                "no_vllm_series",
                "vLLM answers without any vllm: series",
                detail="was it started with --disable-log-stats? kvpressure check tells more",
                url=self._fetcher.address,
            )


def next_start(due: float, now: float, interval: float) -> float:
    """
    When the next sample starts, all in seconds of one clock: on the beat of `due`, and later than `now`.

    Beats missed in between are left out, so that nothing drifts and a stall is not followed by a burst.
    """
    missed = max(0, math.floor((now - due) / interval))
    return due + (missed + 1) * interval
