"""
One vLLM server: samples in, a snapshot out. Live sampling and replay both run through here.

Time is whatever the caller says, in seconds since 1970, as long as it moves forward: where it steps back, it is
taken to have gone on by one interval, so that nothing is counted twice and nothing waits for the clock to catch up.
"""

import dataclasses
from collections import Counter
from collections.abc import Container, Iterable, Mapping

from kvpressure.config import Config
from kvpressure.derive.availability import reasons, unavailable
from kvpressure.derive.duty import Duty
from kvpressure.derive.snapshot import Snapshot, StreamSnapshot
from kvpressure.derive.state import LONGEST_WINDOW, UNOBSERVED_AFTER, EngineState
from kvpressure.derive.streams import Streams
from kvpressure.derive.summary import preempted, summarise
from kvpressure.signals import CATALOGUE
from kvpressure.signals_streams import TAP_SHARE
from kvpressure.vllm.metrics import ExpositionReader
from kvpressure.vllm.reading import EngineKey, EngineReading, ExpositionError, Taken
from kvpressure.vllm.stream import SOURCES, LogFacts, Source, TapFacts

FORGET_AFTER = LONGEST_WINDOW
"""Seconds after which an engine that is no longer exposed is forgotten, and its series with it."""

MAX_ENGINES = 512
"""Engines remembered at most, those that vanished among them; beyond it the longest vanished goes first."""


MAX_MODELS = 32
"""Names of models that responses bring, at most, where vLLM's metrics name none; beyond it they are `OTHER`."""

UNLOGGED_TOKENS = 2000
"""Tokens that vLLM generates without a stream in its log, after which the log is taken to tell of none."""

MAX_NAME = 200
"""Characters of such a name; what is longer is cut."""

REFUSED = "refused"
"""Why a sample fails where nobody listens at vLLM's address."""

OTHER = "other"
"""The `model_name` of streams whose model is not known."""


class Target:
    """
    Everything known of one vLLM server.

    Args:
        config: the settings.
        interval: seconds between samples, where they are given, as in a recording; else they keep the duty budget.
        sources: the observers of streams that there are.
    """

    def __init__(self, config: Config, *, interval: float | None = None, sources: Iterable[Source] = ()) -> None:
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
        self._refusals = 0
        """Samples since then for which nobody listened."""
        self._refused_at: float | None = None
        """When the latest of them was tried, on the clock of streams."""
        self._offset = 0.0
        self._read: list[EngineReading] | None = None
        """What the last good sample held; None before there was one."""
        self._model_names: frozenset[str] = frozenset()
        self._other_names: set[str] = set()
        given = frozenset(sources)
        self.streams = {source: Streams(source, config.stream, self._name) for source in SOURCES if source in given}
        """What takes the events of each observer of streams."""

    @property
    def states(self) -> Mapping[EngineKey, EngineState]:
        """What is summed up of each engine, for whoever needs more of it than a snapshot has."""
        return self._states

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
            # Its traceback holds the text, in a cycle with whoever called: many bodies would wait for the collector.
            return Taken(refused=fault.with_traceback(None))
        problems = Counter(exposition.problems)
        scheduled = self.interval
        self._duty.observe(took)
        resets = sum(state.resets for state in self._states.values())
        for key, reading in exposition.readings.items():
            state = self._states.get(key)
            if state is None:
                state = self._states[key] = EngineState(key, self._config)
            state.observe(t, reading, scheduled)
            if state.alternates:
                problems["alternating_counters"] += 1
        if self._refused_at is not None and sum(state.resets for state in self._states.values()) > resets:
            self._restarted(self._refused_at)
        self._errors.update(problems)
        self._forget(t, exposition.readings.keys())
        self._read = list(exposition.readings.values())
        self._model_names = frozenset(name for name, _ in exposition.readings if name) or self._model_names
        self._up, self._took, self._last_good = True, took, t
        self._refusals, self._refused_at = 0, None
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
        if reason == REFUSED and self._last_good is not None:
            self._refused(t)
        self._forward(t)
        self._samples += 1
        self._errors[reason] += 1
        self._up = False

    def snapshot(self, t: float, *, log: LogFacts | None = None, tap: TapFacts | None = None) -> Snapshot:
        """
        Everything that is known at `t`, which is not before the last sample.

        Args:
            t: the moment.
            log: what the log observer says of itself.
            tap: what the tap says of itself.
        """
        snapshot = self.snapshot_at(t + self._offset)
        missing = snapshot.unavailable
        if log is not None and "tap" not in self.streams and not (log.files and self._log_tells(snapshot)):
            missing = {**missing, **dict.fromkeys(_OF_STREAMS, _NO_STREAMS)}
        return dataclasses.replace(snapshot, unavailable=missing, log=log, tap=tap)

    def snapshot_at(self, t: float, *, whole: bool = False) -> Snapshot:
        """
        Everything that is known at `t`, a time that `time_of` gave, or one after it.

        Args:
            t: the moment.
            whole: add a window "whole", over everything since the first reading.
        """
        fresh = self._fresh(t)
        missing = unavailable(self._read) if self._read is not None else {}
        if len(self._model_names) == 1:
            for streams in self.streams.values():
                streams.ensure(*self._model_names)
        return Snapshot(
            t=t,
            up=self._up,
            engines=tuple(
                summarise(
                    state, t, fresh=fresh and state.present, paused=self._paused_ratio(state.key[0], t), whole=whole
                )
                for _, state in sorted(self._states.items())
            ),
            unavailable=missing if self.streams else missing | dict.fromkeys(_OF_STREAMS, _NO_STREAMS),
            reasons=reasons(self._read, missing) if self._read is not None else {},
            samples=self._samples,
            errors=dict(self._errors),
            took=self._took,
            cost=self._duty.cost if self._took is not None else None,
            interval=self.interval,
            last_good=self._last_good,
            streams=_believed_first(
                model for streams in self.streams.values() for model in streams.snapshot(self.given(t), whole=whole)
            ),
            untracked={source: streams.untracked for source, streams in self.streams.items()},
        )

    def time_of(self, t: float) -> float:
        """When a sample at `t` counts as taken: at `t`, or an interval after the last one where the clock went back."""
        t += self._offset
        return t if self._last_t is None or t > self._last_t else self._last_t + self.interval

    def given(self, t: float) -> float:
        """The moment by the caller's clock, which streams go by, that counts as `t` now."""
        return t - self._offset

    def _refused(self, t: float) -> None:
        """Nobody listens: vLLM has ended, and its users' streams with it, which its log does not tell."""
        self._refusals, self._refused_at = self._refusals + 1, t
        if self._refusals <= _REFUSALS and "log" in self.streams:
            self.streams["log"].lose(t)

    def _restarted(self, t: float) -> None:
        """vLLM counts anew, and was not there at `t`."""
        if "log" in self.streams:
            self.streams["log"].restart(t)

    def _paused_ratio(self, model_name: str, t: float) -> float | None:
        """
        The share of a model's users that were paused in the verdict's window, by the preferred observer.

        An observer does not know the engine. So where one of several preempts, what its users felt says nothing of
        the others: then this is None, and each engine is judged by its own histogram.
        """
        if any(key[0] == model_name and preempted(state, t) for key, state in self._states.items()):
            return None
        seconds = self._config.verdict.window
        counts = {
            source: streams.counts(model_name, self.given(t), seconds) for source, streams in self.streams.items()
        }
        streamed, paused = counts.get(preferred({source: seen for source, (seen, _) in counts.items()}), (0, 0))
        return paused / streamed if streamed else None

    def _log_tells(self, snapshot: Snapshot) -> bool:
        """Whether the log tells of streams: vLLM logs them only where it was started with the flags for it."""
        if any(streams.streamed for streams in snapshot.streams):
            return True
        return sum(engine.generation_tokens or 0.0 for engine in snapshot.engines) < UNLOGGED_TOKENS

    def _name(self, model: str) -> str:
        """The `model_name` of a stream whose response names `model`, if any: the target's only one, or a known one."""
        # JSON can hold half a surrogate pair, which no text format can.
        model = model[:MAX_NAME].encode("utf-8", "replace").decode()
        if len(self._model_names) == 1:
            return next(iter(self._model_names))
        if self._model_names or not model:
            return model if model in self._model_names else OTHER
        if len(self._other_names) < MAX_MODELS:
            self._other_names.add(model)
        return model if model in self._other_names else OTHER

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


# The first may come before the last lines of the log have been read; after that the log is believed again, for the
# metrics can be out of reach alone.
_REFUSALS = 2
_NO_STREAMS = ("streams",)
_OF_STREAMS = tuple(signal.name for signal in CATALOGUE if signal.scope == "stream")


def _believed_first(models: Iterable[StreamSnapshot]) -> tuple[StreamSnapshot, ...]:
    """The streams of each model, sorted by its name, the observer that is believed before the other."""
    by_name: dict[str, list[StreamSnapshot]] = {}
    for model in models:
        by_name.setdefault(model.model_name, []).append(model)
    found: list[StreamSnapshot] = []
    for _, views in sorted(by_name.items()):
        seen = {view.source: _streamed(view) for view in views}
        found += sorted(views, key=lambda view: view.source != preferred(seen))  # used at once
    return tuple(found)


def _streamed(view: StreamSnapshot) -> int:
    """Requests of the last five minutes."""
    return next(window.streamed for window in view.windows if window.window == "5m")


def preferred(streamed: Mapping[Source, int]) -> Source:
    """
    Which observer is believed: the tap, unless it sees fewer than ``TAP_SHARE`` of the requests that the log does.

    Args:
        streamed: requests that each of them saw.
    """
    tap, log = streamed.get("tap", 0), streamed.get("log", 0)
    return "log" if tap < TAP_SHARE * log else "tap"
