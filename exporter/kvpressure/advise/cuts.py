"""The running totals of a recording's engines, cut into slots of time."""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kvpressure import signals, signals_streams
from kvpressure.advise.seen import Counted, Slot
from kvpressure.derive.counters import HistogramIncrease
from kvpressure.derive.state import UNOBSERVED_AFTER, EngineState
from kvpressure.derive.target import Target
from kvpressure.derive.windows import Buckets, Totals
from kvpressure.recording import Row
from kvpressure.vllm import names
from kvpressure.vllm.histogram import HistogramReader
from kvpressure.vllm.reading import Cache, EngineKey, Histogram

_GAIN = "what it gained; where vLLM restarted, its new value is what it gained"
_MEAN = "mean of the samples"
_OURS = "what it gained, by the sidecar's own arithmetic over the recording"

SOURCES = {
    "finished": f"{names.FINISHED.series}, all reasons: {_GAIN}",
    "tokens": f"{names.GENERATION_TOKENS.series}: {_GAIN}",
    "preemptions": f"{names.PREEMPTIONS.series}: {_GAIN}",
    "running": f"{names.RUNNING.series}: {_MEAN}",
    "waiting": f"{names.WAITING.series}: {_MEAN}",
    "peak": f"{names.RUNNING.series} + {names.WAITING.series}: the largest sum in a sample",
    "usage": f"{names.KV_USAGE.series}: {_MEAN}",
    "observed": f"{signals.KV_OBSERVED_SECONDS.metric}: {_OURS}",
    "pinned": f"{signals.KV_PINNED_SECONDS.metric}: {_OURS}",
    "blocked": f"{signals.KV_BLOCKED_SECONDS.metric}: {_OURS}",
    "streamed": f'{signals_streams.REQUESTS_STREAMED.metric}{{source="log"}}: {_OURS} and the log beside it',
    "paused": f'{signals_streams.REQUESTS_PAUSED.metric}{{source="log"}}: {_OURS} and the log beside it',
    "prompts": f"{names.PROMPT_LENGTHS.series}: {_GAIN}",
    "answers": f"{names.OUTPUT_LENGTHS.series}: {_GAIN}",
    "gaps": f"{names.GAPS.series}: {_GAIN}",
    "first_tokens": f"{names.FIRST_TOKENS.series}: {_GAIN}",
    "regime": f"{signals.REGIME.metric} every 15 s, by the sidecar's own arithmetic over the recording",
    "verdict": f"{signals.VERDICT.metric} every 15 s, by the sidecar's own arithmetic over the recording",
}
"""The rule behind each field of a slot."""

Counts = tuple[tuple[float, ...], Buckets]
"""The edges of a histogram, and what it has gained."""


class _Mark(NamedTuple):
    """The running totals at one sample, where a slot can begin or end."""

    t: float
    totals: Totals
    tokens: float
    histograms: Mapping[str, Counts]
    streamed: int
    paused: int


class Track:
    """
    One engine of a recording.

    Args:
        state: what is summed up of it, just after a sample.
        slot: seconds of a slot.
        interval: seconds that were scheduled between samples.
    """

    def __init__(self, state: EngineState, slot: float, interval: float) -> None:
        self.slots: list[Slot] = []
        self.cache: Cache | None = None
        """As it was told last."""
        self._slot, self._interval = slot, interval
        self._origin = state.last_t
        self._state = state
        self._first_tokens: HistogramIncrease | None = None
        self._start: _Mark | None = None
        self._last: _Mark | None = None
        self._gauges: dict[str, list[float]] = {}
        self._unwatched = 0.0
        self._resets = 0
        self._alternates = False
        self._capacities: list[float] = []

    @property
    def preempted(self) -> float:
        """Preemptions in all slots."""
        return sum(slot.preemptions or 0.0 for slot in self.slots)

    @property
    def load(self) -> float:
        """Requests finished in all slots."""
        return sum(slot.finished or 0.0 for slot in self.slots)

    @property
    def last_t(self) -> float:
        """When the last sample was taken that is known here."""
        return self._last.t if self._last else -math.inf

    def look(self, state: EngineState, first_tokens: Histogram | None, streams: tuple[int, int]) -> bool:
        """
        Take a sample; whether a slot is complete with it.

        Args:
            state: has just eaten it.
            first_tokens: as vLLM gives it, where it does.
            streams: requests streamed and paused so far, as the log tells.
        """
        self._note(state)
        if state is not self._state:
            # It was away for so long that it was forgotten: everything is counted anew.
            self._interrupt(state.last_t)
            self._state, self._last, self._first_tokens = state, None, None
        if first_tokens is not None:
            if self._first_tokens is None:
                self._first_tokens = HistogramIncrease(None if self._last else first_tokens)
            self._first_tokens.add(first_tokens)
        tokens = state.counters.get("generation_tokens")
        mark = _Mark(state.last_t, state.history.last, tokens.total if tokens else 0.0, self._histograms(), *streams)
        last = self._last
        if last is not None and (
            mark.t - last.t > UNOBSERVED_AFTER * self._interval or _other_edges(last.histograms, mark.histograms)
        ):
            self._interrupt(mark.t)
        self._last = mark
        if self._start is None:
            self._start = mark
            return False
        self._sample()
        slots_before = math.floor((self._start.t - self._origin) / self._slot + 0.5)
        # A sample that comes a little early ends the slot all the same.
        return mark.t - self._origin >= (slots_before + 1) * self._slot - self._interval / 2

    def close(self, regime: str = "", verdict: str = "") -> None:
        """End the slot that is open, and begin the next one where it ends."""
        start, end = self._start, self._last
        if start is None or end is None or end.t <= start.t:
            return
        then, now = start.totals, end.totals
        counts = {name: _counted(start.histograms.get(name), found) for name, found in end.histograms.items()}
        watched, state = now.observed - then.observed, self._state
        self.slots.append(
            Slot(
                end=end.t,
                seconds=end.t - start.t,
                finished=now.finished - then.finished if state.finished else None,
                preemptions=now.preemptions - then.preemptions if "preemptions" in state.counters else None,
                tokens=end.tokens - start.tokens if "generation_tokens" in state.counters else None,
                running=self._mean("running"),
                waiting=self._mean("waiting"),
                peak=max(self._gauges.get("peak", ()), default=None),
                usage=self._mean("usage"),
                observed=watched if state.usage_known else None,
                pinned=now.pinned - then.pinned if state.usage_known else None,
                blocked=now.blocked - then.blocked if state.blocked_known else None,
                streamed=float(end.streamed - start.streamed) if end.streamed else None,
                paused=float(end.paused - start.paused) if end.streamed else None,
                prompts=counts.get("prompt_lengths"),
                answers=counts.get("output_lengths"),
                gaps=counts.get("gaps"),
                first_tokens=counts.get("first_tokens"),
                regime="" if regime == "unknown" else regime,
                verdict="" if verdict == "unknown" else verdict,
            )
        )
        self._start = end
        self._gauges = {}

    def notes(self) -> Iterator[str]:
        """What must be known of the samples themselves, in whole sentences."""
        if self._unwatched:
            yield (
                f"{self._unwatched:.0f} s were not watched: no sample was taken, or vLLM did not answer. What happened "
                "then is in no slot."
            )
        if self._alternates:
            yield (
                "vLLM's counters started again so often that several servers must have answered in turn: what they "
                "gained in between means little. Record one server at a time."
            )
        elif self._resets:
            yield f"vLLM's counters started again {self._resets} times, as after a restart; that was corrected."
        if len(self._capacities) > 1:
            told = ", then ".join(f"{tokens:,.0f}" for tokens in self._capacities[-3:])
            yield f"The KV capacity changed within the recording: {told} tokens. The last one is taken for all of it."

    def _note(self, state: EngineState) -> None:
        """Keep what notes are made of."""
        reading = state.reading
        if state is self._state:
            self._resets = max(self._resets, state.resets)
        self._alternates |= state.alternates
        if reading is None or reading.cache is None:
            return
        self.cache = reading.cache
        capacity = reading.capacity_tokens
        if capacity is not None and self._capacities[-1:] != [capacity]:
            self._capacities.append(capacity)

    def _histograms(self) -> dict[str, Counts]:
        found = dict(self._state.histograms)
        if self._first_tokens is not None:
            found[names.FIRST_TOKENS.field] = self._first_tokens
        return {name: (increase.edges, increase.total) for name, increase in found.items()}

    def _interrupt(self, t: float) -> None:
        """The time since the last sample is in no slot."""
        self.close()
        if self._last is not None:
            self._unwatched += t - self._last.t
        self._start = None

    def _sample(self) -> None:
        reading = self._state.reading
        if reading is None:
            return
        both = None if None in (reading.running, reading.waiting) else (reading.running or 0) + (reading.waiting or 0)
        for name, value in (
            ("running", reading.running),
            ("waiting", reading.waiting),
            ("usage", reading.kv_usage),
            ("peak", both),
        ):
            if value is not None:
                self._gauges.setdefault(name, []).append(value)

    def _mean(self, name: str) -> float | None:
        values = self._gauges.get(name)
        return sum(values) / len(values) if values else None


class Cutter:
    """
    All engines of a recording.

    Args:
        target: what is fed with it.
        slot: seconds of a slot.
    """

    def __init__(self, target: Target, slot: float) -> None:
        self.tracks: dict[EngineKey, Track] = {}
        self._target = target
        self._slot = slot
        self._first_tokens = HistogramReader(names.FIRST_TOKENS)

    def look(self, row: Row) -> None:
        """See what became of a row that the target has just been fed with."""
        fresh = {key: state for key, state in self._target.states.items() if state.last_t > self._last_t(key)}
        if not fresh or row.body is None:
            return
        first_tokens = self._first_tokens.read(row.body)
        complete = []
        for key, state in fresh.items():
            track = self.tracks.setdefault(key, Track(state, self._slot, self._target.interval))
            if track.look(state, first_tokens.get(key), self._streams(key[0])):
                complete.append(key)
        self._close(complete)

    def end(self) -> None:
        """There are no more rows."""
        newest = max((track.last_t for track in self.tracks.values()), default=0.0)
        self._close([key for key, track in self.tracks.items() if track.last_t == newest])
        for track in self.tracks.values():
            track.close()

    def _last_t(self, key: EngineKey) -> float:
        track = self.tracks.get(key)
        return track.last_t if track else -math.inf

    def _streams(self, model: str) -> tuple[int, int]:
        """
        Requests streamed and paused so far.

        An observer does not know the engine: of a model with several engines it tells of none.
        """
        streams = self._target.streams.get("log")
        alone = sum(key[0] == model for key in self._target.states) == 1
        return streams.totals(model) if streams is not None and alone else (0, 0)

    def _close(self, keys: list[EngineKey]) -> None:
        if not keys:
            return
        t = max(self.tracks[key].last_t for key in keys)
        words = {(e.model_name, e.engine): (e.regime, e.verdict) for e in self._target.snapshot_at(t).engines}
        for key in keys:
            self.tracks[key].close(*words.get(key, ("", "")))


def _other_edges(then: Mapping[str, Counts], now: Mapping[str, Counts]) -> bool:
    """Whether a histogram has other edges than before: its buckets cannot be subtracted."""
    return any(name in then and then[name][1].epoch != buckets.epoch for name, (_, buckets) in now.items())


def _counted(then: Counts | None, now: Counts) -> Counted | None:
    """What a histogram has gained; a restart within is corrected already."""
    edges, buckets = now
    before = then[1] if then else Buckets()
    rising = buckets.since(before)
    if len(rising) != len(edges) or not edges:
        return None
    counts = tuple(max(0.0, b - a) for a, b in itertools.pairwise([0.0, *rising]))
    return Counted(edges, counts, buckets.sum - before.sum)
