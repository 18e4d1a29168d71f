"""
One vLLM server: samples in, a snapshot out. Live sampling and replay both run through here.

Time is whatever the caller says, in seconds since 1970, as long as it moves forward: where it steps back, it is
taken to have gone on by one interval, so that nothing is counted twice and nothing waits for the clock to catch up.
"""

from collections import Counter
from collections.abc import Container

from kvpressure.config import Config
from kvpressure.derive.duty import Duty
from kvpressure.derive.snapshot import Snapshot
from kvpressure.derive.state import LONGEST_WINDOW, UNOBSERVED_AFTER, EngineState
from kvpressure.derive.summary import summarise
from kvpressure.signals import CATALOGUE
from kvpressure.vllm.metrics import ExpositionReader
from kvpressure.vllm.reading import EngineKey, EngineReading, ExpositionError, Taken

FORGET_AFTER = LONGEST_WINDOW
"""Seconds after which an engine that is no longer exposed is forgotten, and its series with it."""

MAX_ENGINES = 512
"""Engines remembered at most, those that vanished among them; beyond it the longest vanished goes first."""


class Target:
    """
    Everything known of one vLLM server.

    Args:
        config: the settings.
        interval: seconds between samples, where they are given, as in a recording; else they keep the duty budget.
    """

    def __init__(self, config: Config, *, interval: float | None = None) -> None:
        self._config = config
        self._duty = Duty(config.sample)
        self._interval = interval
        self._reader = ExpositionReader()
        self._states: dict[EngineKey, EngineState] = {}
        self._errors: Counter[str] = Counter()
        self._samples = 0
        self._up: bool | None = None
        self._took: float | None = None
        self._last_t: float | None = None
        self._last_good: float | None = None
        self._offset = 0.0
        self._unavailable: dict[str, tuple[str, ...]] = {}

    @property
    def interval(self) -> float:
        """Seconds from one sample to the next, as now scheduled."""
        return self._duty.interval if self._interval is None else self._interval

    def observe(self, t: float, text: str, took: float) -> Taken:
        """
        Take a body that vLLM answered with.

        Args:
            t: when it was asked for.
            text: the exposition.
            took: seconds from the request to the last byte.
        """
        t = self._forward(t)
        self._samples += 1
        try:
            exposition = self._reader.read(text)
        except ExpositionError as fault:
            self._errors[fault.reason] += 1
            self._up = False
            self._duty.observe(took)
            return Taken(refused=fault)
        problems = Counter(exposition.problems)
        scheduled = self.interval
        self._duty.observe(took)
        for key, reading in exposition.readings.items():
            state = self._states.get(key)
            if state is None:
                state = self._states[key] = EngineState(key, self._config)
            state.observe(t, reading, scheduled)
            if state.alternates:
                problems["alternating_counters"] += 1
        self._errors.update(problems)
        self._forget(t, exposition.readings.keys())
        self._unavailable = unavailable(list(exposition.readings.values()))
        self._up, self._took, self._last_good = True, took, t
        return Taken(len(exposition.readings), problems)

    def failed(self, t: float, reason: str, took: float | None = None) -> None:
        """
        Take a sample that brought nothing.

        Args:
            t: when it was tried.
            reason: one of a few words, for the label `reason`.
            took: seconds that vLLM spent on an answer that could not be used, where it gave one.
        """
        if took is not None:
            self._duty.observe(took)
        self._forward(t)
        self._samples += 1
        self._errors[reason] += 1
        self._up = False

    def snapshot(self, t: float) -> Snapshot:
        """Everything that is known at `t`, which is not before the last sample."""
        return self.snapshot_at(t + self._offset)

    def snapshot_at(self, t: float, *, whole: bool = False) -> Snapshot:
        """
        Everything that is known at `t`, a time that `time_of` gave, or one after it.

        Args:
            t: the moment.
            whole: add a window "whole", over everything since the first reading.
        """
        fresh = self._fresh(t)
        return Snapshot(
            t=t,
            up=self._up,
            engines=tuple(
                summarise(state, t, fresh=fresh and state.present, whole=whole)
                for _, state in sorted(self._states.items())
            ),
            unavailable=self._unavailable,
            samples=self._samples,
            errors=dict(self._errors),
            took=self._took,
            cost=self._duty.cost if self._took is not None else None,
            interval=self.interval,
            last_good=self._last_good,
        )

    def time_of(self, t: float) -> float:
        """When a sample at `t` counts as taken: at `t`, or an interval after the last one where the clock went back."""
        t += self._offset
        return t if self._last_t is None or t > self._last_t else self._last_t + self.interval

    def _fresh(self, t: float) -> bool:
        """
        Whether the last good sample still speaks of the present.

        A failed sample makes it old after three intervals. Without one it is old when a sample that hangs would have
        failed: under load vLLM answers late, and that must not look like an outage.
        """
        if self._last_good is None:
            return False
        age = t - self._last_good
        patience = UNOBSERVED_AFTER * self.interval
        return age <= patience if not self._up else age <= patience + self._config.vllm.timeout

    def _forward(self, t: float) -> float:
        """The time of the next sample, always after the one before."""
        taken = self.time_of(t)
        if taken != t + self._offset:
            self._errors["clock_stepped_back"] += 1
            self._offset = taken - t
        self._last_t = taken
        return taken

    def _forget(self, t: float, present: Container[EngineKey]) -> None:
        """Let go of engines that are no longer exposed."""
        gone = [state for key, state in self._states.items() if key not in present]
        for state in gone:
            state.lost()
        gone.sort(key=lambda state: state.last_t)
        surplus = len(self._states) - MAX_ENGINES
        for number, state in enumerate(gone):
            if number < surplus or t - state.last_t > FORGET_AFTER:
                del self._states[state.key]


def unavailable(readings: list[EngineReading]) -> dict[str, tuple[str, ...]]:
    """
    The signals that cannot be derived from these readings, each with the fields that some engine does not give.

    Without any engine none can be derived.
    """
    missing: dict[str, tuple[str, ...]] = {}
    for signal in CATALOGUE:
        if signal.scope != "engine" or not signal.needs:
            continue
        lacking = tuple(
            need for need in signal.needs if not readings or any(_lacks(reading, need) for reading in readings)
        )
        if lacking:
            missing[signal.name] = lacking
    return missing


def _lacks(reading: EngineReading, need: str) -> bool:
    if need == "cache":
        # vLLM may expose its cache configuration before it knows the size.
        return reading.capacity_tokens is None
    return getattr(reading, need) is None
