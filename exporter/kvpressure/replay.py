"""A recording through the same pipeline as live samples, as fast as the machine can."""

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kvpressure import signals, signals_streams, tables
from kvpressure.config import Config
from kvpressure.derive.snapshot import EngineSnapshot, Snapshot, StreamSnapshot, WindowSnapshot
from kvpressure.derive.target import Target
from kvpressure.family import Signal
from kvpressure.recording import Row
from kvpressure.vllm.logs import Batch, LogReader
from kvpressure.vllm.reading import EngineKey
from kvpressure.vllm.stream import StreamEvent

_LOOK_EVERY = 1.0
"""Seconds of the recording's time between two looks at regime and verdict, for the summary."""


@dataclass(slots=True)
class Summary:
    """
    A whole recording.

    Args:
        last: the snapshot at its end, with a window over all of it.
        seconds: its length.
        regimes: seconds in each regime, by engine.
        verdicts: seconds under each verdict, by engine.
    """

    last: Snapshot | None = None
    seconds: float = 0.0
    regimes: dict[EngineKey, Counter[str]] = field(default_factory=dict)
    verdicts: dict[EngineKey, Counter[str]] = field(default_factory=dict)


class Player:
    """
    Feeds a target with a recording.

    Args:
        config: the settings.
        interval: seconds between samples.
        log: the log that belongs to it, piece by piece; None where there is none.
    """

    def __init__(self, config: Config, interval: float, log: Iterable[bytes] | None) -> None:
        self.target = Target(config, interval=interval, sources=() if log is None else ("log",))
        self._log = log
        self._batches: Iterator[Batch] = iter(())
        self._next: deque[StreamEvent] = deque()

    def feed(self, row: Row) -> None:
        """Take a sample, and what the log had said before."""
        if self._log is not None:
            self._batches, self._log = _batches(self._log, row.t), None
        if row.body is None:
            self.target.failed(row.t, "recorded")
        else:
            self.target.observe(row.t, row.body, row.took)
        self.read_log(row.t)

    def read_log(self, t: float) -> None:
        """Take what the log had said by `t`, of the recording's clock."""
        streams = self.target.streams.get("log")
        if streams is None:
            return
        due: list[StreamEvent] = []
        while True:
            while self._next and self._next[0].t <= t:
                due.append(self._next.popleft())
            if self._next:
                break
            batch = next(self._batches, None)
            if batch is None:
                break
            self._next.extend(batch.events)
            if batch.lost is not None:
                streams.feed(due)
                streams.lose(batch.lost)
                due.clear()
        streams.feed(due)
        if not math.isinf(t):
            streams.advance(t)


def untimed(log: Iterable[bytes]) -> bool:
    """Whether a log tells of streams and not when: its lines are stamped to the second, or not at all."""
    reader = LogReader()
    for block in log:
        if any(batch.events for batch in reader.read(block)):
            return False
        if reader.problems["no_time"]:
            return True
    return False


def _batches(log: Iterable[bytes], reference: float) -> Iterator[Batch]:
    reader = LogReader(reference)
    for block in log:
        yield from reader.read(block)


def steps(
    rows: Iterable[Row], config: Config, interval: float, step: float, log: Iterable[bytes] | None = None
) -> Iterator[Snapshot]:
    """
    A snapshot every `step` seconds of the recording's time, from its first row on, and one at its end.

    Each is made of the rows and events up to its moment. Where the recording's clock steps back, its time goes on.
    """
    player = Player(config, interval, log)
    target = player.target
    start: float | None = None
    taken = 0
    end = 0.0
    for row in rows:
        end = target.time_of(row.t)
        if start is None:
            start = end
        while (t := start + taken * step) < end:
            player.read_log(target.given(t))
            yield target.snapshot_at(t)
            taken += 1
        player.feed(row)
    if start is not None:
        # The moment of the last row is a step of its own, unless it is the very next one.
        yield target.snapshot_at(end)


def summarise(rows: Iterable[Row], config: Config, interval: float, log: Iterable[bytes] | None = None) -> Summary:
    """A whole recording at once, its log with it, also where that goes on after the last row."""
    player = Player(config, interval, log)
    target = player.target
    summary = Summary()
    looked: float | None = None
    start = now = 0.0
    for row in rows:
        now = target.time_of(row.t)
        player.feed(row)
        if looked is None:
            start = looked = now
        elif now - looked >= _LOOK_EVERY:
            for engine in target.snapshot_at(now).engines:
                key = engine.model_name, engine.engine
                summary.regimes.setdefault(key, Counter())[engine.regime] += now - looked  # type: ignore[assignment]
                summary.verdicts.setdefault(key, Counter())[engine.verdict] += now - looked  # type: ignore[assignment]
            looked = now
    player.read_log(math.inf)
    if looked is not None:
        summary.last = target.snapshot_at(now, whole=True)
        summary.seconds = now - start
    return summary


def describe(summary: Summary) -> str:
    """The summary as text: a table per engine, and what went wrong with samples."""
    if summary.last is None:
        return "The recording has no rows."
    parts = [
        _describe_engine(engine, summary, (engine.model_name, engine.engine)) for engine in summary.last.engines
    ] or ["The recording has no vllm: series."]
    last = summary.last
    parts.extend(_describe_streams(streams) for streams in last.streams)
    errors = "".join(f", {count} {reason}" for reason, count in sorted(last.errors.items()))
    parts.append(f"{last.samples} samples over {tables.number(summary.seconds)} s{errors}")
    return "\n\n".join(parts)


def _describe_engine(engine: EngineSnapshot, summary: Summary, key: EngineKey) -> str:
    windows = engine.windows
    labels = [window.window for window in windows]
    rows = [
        [signal.metric, *[tables.number(_of(signal, window)) for window in windows]]
        for signal in (
            signals.PREEMPTIONS_PER_THOUSAND,
            signals.KV_PINNED_RATIO,
            signals.KV_BLOCKED_RATIO,
            signals.GAP_P99,
            signals.LONG_GAPS_PER_THOUSAND,
        )
    ]
    totals = [
        (signals.PREEMPTIONS, engine.preemptions),
        (signals.PREEMPTIONS_INFERRED, engine.preemptions_inferred),
        (signals.RECOMPUTED_TOKENS, engine.recomputed_tokens_estimate),
        (signals.REQUESTS_FINISHED, sum(engine.finished.values()) if engine.finished is not None else None),
        (signals.GENERATION_TOKENS, engine.generation_tokens),
        (signals.KV_OBSERVED_SECONDS, engine.kv_observed_seconds),
        (signals.KV_PINNED_SECONDS, engine.kv_pinned_seconds),
        (signals.KV_BLOCKED_SECONDS, engine.kv_blocked_seconds),
        (signals.KV_CAPACITY_TOKENS, engine.kv_capacity_tokens),
        (signals.KV_RESIDENT_TOKENS, engine.kv_resident_tokens),
        (signals.ENGINE_RESETS, engine.resets),
    ]
    title = f"model {engine.model_name or '(no name)'}, engine {engine.engine}, {engine.era}"
    parts = [title, tables.text(["signal at the end", *labels], rows)] if windows else [title]
    parts.append(tables.text(["total", "value"], [[s.metric, tables.number(v)] for s, v in totals]))
    parts.append(f"regime:  {_shares(summary.regimes.get(key))}\nverdict: {_shares(summary.verdicts.get(key))}")
    return "\n\n".join(parts)


def _describe_streams(streams: StreamSnapshot) -> str:
    windows: Sequence[tuple[Signal, Sequence[float | None]]] = (
        (signals_streams.PAUSED_RATIO, [window.paused_ratio for window in streams.windows]),
        (signals.GAP_P99, [window.gap_p99_seconds for window in streams.windows]),
        (signals_streams.GAP_MAX, [window.gap_max_seconds for window in streams.windows]),
    )
    totals = (
        (signals_streams.REQUESTS_STREAMED, streams.streamed),
        (signals_streams.REQUESTS_PAUSED, streams.paused),
        (signals_streams.STREAMS_ABANDONED, streams.abandoned),
    )
    header = ["signal at the end", *[window.window for window in streams.windows]]
    return "\n\n".join(
        (
            f"streams of {streams.model_name}, by the {streams.source}",
            tables.text(header, [[s.metric, *[tables.number(v) for v in values]] for s, values in windows]),
            tables.text(["total", "value"], [[s.metric, tables.number(float(v))] for s, v in totals]),
        )
    )


def _of(signal: Signal, window: WindowSnapshot) -> float | None:
    return {
        signals.PREEMPTIONS_PER_THOUSAND: window.preemptions_per_thousand,
        signals.KV_PINNED_RATIO: window.pinned_ratio,
        signals.KV_BLOCKED_RATIO: window.blocked_ratio,
        signals.GAP_P99: window.gap_p99_seconds,
        signals.LONG_GAPS_PER_THOUSAND: window.long_gaps_per_thousand,
    }[signal]


def _shares(seconds: Counter[str] | None) -> str:
    """Seconds in each state, the longest first."""
    return ", ".join(f"{state} {tables.number(time)} s" for state, time in (seconds or Counter()).most_common()) or "-"
