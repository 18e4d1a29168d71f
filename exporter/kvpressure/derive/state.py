"""
One engine: readings in, running totals out (derive/summary.py makes a snapshot of them).

The state holds for time signals: what a reading shows (pinned, blocked) holds until the next one. An interval over
three scheduled ones is unobserved, in no numerator and no denominator; what counters gained across it counts at the
reading after it.
"""

from collections import deque

from kvpressure.config import Config
from kvpressure.derive import capacity
from kvpressure.derive.changes import StallWatch, preemptions_inferred
from kvpressure.derive.counters import HistogramIncrease, Increase
from kvpressure.derive.queue import QueueWatch
from kvpressure.derive.regime import RegimeWatch
from kvpressure.derive.windows import Buckets, History, Totals
from kvpressure.signals import WINDOWS
from kvpressure.vllm.reading import EngineKey, EngineReading, Histogram

UNOBSERVED_AFTER = 3.0
"""Scheduled intervals after which a gap between two readings is unobserved."""

ALTERNATING, ALTERNATING_WITHIN = 4, 20
"""Resets within so many readings that are no restarts."""

LONGEST_WINDOW = max(seconds for _, seconds in WINDOWS)

_COUNTERS = (
    "preemptions",
    "generation_tokens",
    "external_queries",
    "external_hits",
    "offload_loaded_bytes",
    "offload_stored_bytes",
    "offload_load_seconds",
    "offload_store_seconds",
)
_HISTOGRAMS = ("gaps", "prompt_lengths", "output_lengths")


class EngineState:
    """All that is known of one engine. Bounded: it keeps the readings' totals for the longest window."""

    def __init__(self, key: EngineKey, config: Config) -> None:
        self.key = key
        self.config = config
        self.reading: EngineReading | None = None
        """The last reading; None before the first one."""
        self.last_t = 0.0
        self.present = False
        """Whether the last good exposition had this engine."""
        self.readings = 0
        self.counters: dict[str, Increase] = {}
        self.finished: dict[str, Increase] = {}
        self.histograms: dict[str, HistogramIncrease] = {}
        self.history = History(LONGEST_WINDOW)
        self.regime = RegimeWatch(config.regime)
        self.queue = QueueWatch(config.verdict.window)
        self.typical_prompt: float | None = None
        """Mean prompt of the last 15 minutes, else since vLLM's start, in tokens."""
        self.usage_known = False
        self.blocked_known = False
        self.can_infer = False
        self.connector_seen = False
        self.resident: float | None = None
        self.recomputed = 0.0
        self.resets = 0
        self._reset_readings: deque[int] = deque(maxlen=ALTERNATING)
        self._stall = StallWatch(config.stream.pause_threshold)
        self._unreadable: set[str] = set()
        self._totals = Totals()
        self._blocked: bool | None = None

    def observe(self, t: float, reading: EngineReading, interval: float) -> None:
        """
        Take the next reading.

        Args:
            t: when it was taken, in seconds, after the one before.
            reading: what vLLM said.
            interval: seconds that were scheduled between the last reading and this one.
        """
        before = self.reading
        seen = self.present and t - self.last_t <= UNOBSERVED_AFTER * interval
        resets = self.resets
        preempted = self._count(reading, first=before is None)
        totals = self._totals
        if before is not None:
            totals = self._hold(totals, before, reading, t, seen=seen)
            # Over a restart, a sleep or a time that was not observed the queues say nothing of each other.
            if seen and self.resets == resets and not (before.asleep or reading.asleep):
                inferred = preemptions_inferred(before, reading, self.config.kv.nearly_full)
                totals = totals._replace(inferred=totals.inferred + inferred)
        self._estimate_recompute(reading, preempted)
        self.regime.observe(t, preempted)
        self._totals = totals._replace(
            preemptions=totals.preemptions + preempted,
            finished=sum(increase.total for increase in self.finished.values()),
            gaps=self._buckets("gaps"),
            prompts=self._buckets("prompt_lengths"),
            outputs=self._buckets("output_lengths"),
        )
        self.history.append(t, self._totals)
        prompt = self.prompt_lengths(reading, self.history.at(t - LONGEST_WINDOW))
        self.typical_prompt = prompt.mean if prompt else None
        self._blocked = None if reading.asleep else capacity.blocked(reading, self.typical_prompt)
        self.usage_known |= reading.kv_usage is not None
        self.blocked_known |= self._blocked is not None
        self.connector_seen |= bool(reading.external_queries)
        self.can_infer |= None not in (reading.running, reading.waiting, reading.finished, reading.kv_usage)
        self.reading, self.last_t, self.present = reading, t, True
        self.readings += 1
        if self.resets > resets:
            self._reset_readings.append(self.readings)

    @property
    def alternates(self) -> bool:
        """
        Whether the counters start again so often that several servers must be answering in turn.

        Increases between two servers mean nothing; those that were counted before it showed stay counted.
        """
        seen = self._reset_readings
        return len(seen) == ALTERNATING and self.readings - seen[0] < ALTERNATING_WITHIN

    def lost(self) -> None:
        """Note that the last good exposition did not have this engine: nothing of it holds any more."""
        self.present = False

    def prompt_lengths(self, reading: EngineReading, then: Totals) -> capacity.Lengths | None:
        """Prompt lengths since `then`."""
        return capacity.lengths(self.history.last.prompts, then.prompts, reading.prompt_lengths)

    def output_lengths(self, reading: EngineReading, then: Totals) -> capacity.Lengths | None:
        """Output lengths since `then`."""
        return capacity.lengths(self.history.last.outputs, then.outputs, reading.output_lengths)

    # --- counting -------------------------------------------------------------------------------------------------

    def _count(self, reading: EngineReading, *, first: bool) -> float:
        """Add what every counter gained; the preemptions among it. Sees resets."""
        resets_before = self._resets_of_parts()
        preempted = 0.0
        for name in _COUNTERS:
            value: float | None = getattr(reading, name)
            if value is None:
                continue
            increase = self.counters.get(name)
            if increase is None:
                increase = self.counters[name] = Increase(value if self._from_here(name, first=first) else 0.0)
            gained = increase.add(value)
            if name == "preemptions":
                preempted = gained
        self._count_parts(reading, first=first)
        # A field that could not be read at the start gives nothing to count from until it can be.
        if first:
            self._unreadable = set(reading.unreadable)
        self._unreadable = {name for name in self._unreadable if getattr(reading, name) is None}
        # All parts that start again at one reading are one reset.
        self.resets += self._resets_of_parts() > resets_before
        return preempted

    def _count_parts(self, reading: EngineReading, *, first: bool) -> None:
        """The same for the counters by reason and the histograms."""
        from_here = self._from_here("finished", first=first)
        for reason, value in (reading.finished or {}).items():
            increase = self.finished.get(reason)
            if increase is None:
                increase = self.finished[reason] = Increase(value if from_here else 0.0)
            increase.add(value)
        for name in _HISTOGRAMS:
            histogram: Histogram | None = getattr(reading, name)
            gained_by = self.histograms.get(name)
            if histogram is None:
                if gained_by is not None:
                    gained_by.missed()
                continue
            if gained_by is None:
                start = histogram if self._from_here(name, first=first) else None
                gained_by = self.histograms[name] = HistogramIncrease(start)
            gained_by.add(histogram)

    def _from_here(self, name: str, *, first: bool) -> bool:
        """Whether a series is counted from its present value; else it appeared later and is counted from 0."""
        return first or name in self._unreadable

    def _resets_of_parts(self) -> int:
        return (
            sum(increase.resets for increase in self.counters.values())
            + sum(increase.resets for increase in self.finished.values())
            + sum(increase.resets for increase in self.histograms.values())
        )

    def _buckets(self, name: str) -> Buckets:
        gained = self.histograms.get(name)
        return gained.total if gained else Buckets()

    def _estimate_recompute(self, reading: EngineReading, preempted: float) -> None:
        """Preemptions times resident tokens per request, at this reading or, where nothing runs, the last one."""
        resident = capacity.resident_tokens(reading)
        if resident is not None:
            self.resident = resident
        if preempted and self.resident is not None:
            self.recomputed += preempted * self.resident

    # --- time -----------------------------------------------------------------------------------------------------

    def _hold(self, totals: Totals, before: EngineReading, after: EngineReading, t: float, *, seen: bool) -> Totals:
        """Add the time since `before`, during which its state held."""
        seconds = t - self.last_t
        stalled = self._stall.observe(self.last_t, before, t, after, seen=seen)
        if not seen or before.asleep:
            return totals
        usage, queued = before.kv_usage, bool(before.queued)
        if before.running is not None and usage is not None:
            self.queue.observe(t, seconds, running=before.running, queued=queued, usage=usage)
        return totals._replace(
            observed=totals.observed + (seconds if usage is not None else 0.0),
            pinned=totals.pinned + (seconds if usage is not None and usage >= self.config.kv.pin_threshold else 0.0),
            blockable=totals.blockable + (seconds if self._blocked is not None else 0.0),
            blocked=totals.blocked + (seconds if self._blocked else 0.0),
            stalled=totals.stalled + stalled,
        )
