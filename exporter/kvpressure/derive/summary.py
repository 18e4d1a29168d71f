"""How a snapshot is made of an engine's state: counters, gauges, windows and the verdict's evidence at one moment."""

from dataclasses import dataclass

from kvpressure.derive import capacity
from kvpressure.derive.quantile import count_above, histogram_quantile
from kvpressure.derive.regime import Regime
from kvpressure.derive.snapshot import EngineSnapshot, WhyUnknown, WindowSnapshot
from kvpressure.derive.state import LONGEST_WINDOW, EngineState
from kvpressure.derive.verdict import Evidence, verdict
from kvpressure.derive.windows import Totals
from kvpressure.signals import WINDOWS
from kvpressure.vllm.reading import EngineReading, Histogram

_P99 = 0.99
_TWO_READINGS = 2


@dataclass(frozen=True, slots=True)
class _Moment:
    """What a snapshot is taken of."""

    state: EngineState
    reading: EngineReading
    t: float
    starts: dict[float, Totals]
    """The totals at the start of each window, by its seconds."""
    prompt: capacity.Lengths | None
    output: capacity.Lengths | None

    def start(self, seconds: float) -> Totals:
        found = self.starts.get(seconds)
        return self.state.history.at(self.t - seconds) if found is None else found

    def seats(self, prompt_tokens: float | None, output_tokens: float | None) -> float | None:
        return capacity.seats(self.reading.capacity_tokens, prompt_tokens, output_tokens)


def summarise(
    state: EngineState, t: float, *, fresh: bool, paused: float | None = None, whole: bool = False
) -> EngineSnapshot:
    """
    Everything that is known of an engine at `t`.

    Where the last reading is not `fresh`, only what was counted and its last era are known. Windows, regime and
    verdict need two readings. `paused` is the share of its users that were paused in the verdict's window, where that
    is known. With `whole` there is one window more, over everything since the first reading.
    """
    reading = state.reading
    if reading is None:
        raise ValueError("there is nothing to say of an engine before its first reading")
    starts = {seconds: state.history.at(t - seconds) for _, seconds in WINDOWS}
    then = starts[LONGEST_WINDOW]
    lengths = state.prompt_lengths(reading, then), state.output_lengths(reading, then)
    moment = _Moment(state, reading, t, starts, *lengths)
    settled = fresh and state.readings >= _TWO_READINGS
    windows = _windows(moment, whole=whole) if settled else ()
    regime = _regime(moment) if settled else "unknown"
    why_unknown = _why_unknown(state, reading, fresh=fresh)
    evidence = None if why_unknown else _evidence(moment, regime, windows, paused)
    gauges = _gauges(moment) if fresh else {}
    model_name, engine = state.key
    return EngineSnapshot(
        model_name=model_name,
        engine=engine,
        era=reading.era,
        regime=regime,
        verdict=verdict(evidence, state.config.verdict) if evidence else "unknown",
        why_unknown=why_unknown,
        evidence=evidence,
        windows=windows,
        **_counted(moment),  # type: ignore[arg-type]  # the keys are the snapshot's own fields
        **gauges,  # type: ignore[arg-type]
    )


def between(reading: EngineReading, then: Totals, now: Totals, pause: float, label: str) -> WindowSnapshot:
    """
    What lies between two totals.

    Args:
        reading: the last reading, whose running requests count as served.
        then: the totals at the window's start.
        now: the totals at its end.
        pause: the pause threshold in seconds.
        label: the value of the label `window`.
    """
    served = None
    if reading.running is not None and reading.finished is not None:
        served = now.finished - then.finished + reading.running
    p99 = long_gaps = preempted = None
    if reading.preemptions is not None:
        preempted = now.preemptions - then.preemptions
    if reading.gaps is not None:
        edges, counts = reading.gaps.edges, now.gaps.since(then.gaps)
        # Not of the same length: a reading whose edges are not believed yet.
        if len(counts) == len(edges):
            p99 = histogram_quantile(_P99, edges, counts)
            long_gaps = count_above(pause, edges, counts)
    return WindowSnapshot(
        window=label,
        preemptions_per_thousand=_per_thousand(preempted, served),
        pinned_ratio=_ratio(now.pinned - then.pinned, now.observed - then.observed),
        blocked_ratio=_ratio(now.blocked - then.blocked, now.blockable - then.blockable),
        gap_p99_seconds=p99,
        long_gaps_per_thousand=_per_thousand(long_gaps, served),
    )


def _windows(moment: _Moment, *, whole: bool) -> tuple[WindowSnapshot, ...]:
    history, pause = moment.state.history, moment.state.config.stream.pause_threshold
    starts = [(label, moment.start(seconds)) for label, seconds in WINDOWS]
    if whole:
        starts.append(("whole", Totals()))
    return tuple(between(moment.reading, then, history.last, pause, label) for label, then in starts)


def _per_thousand(count: float | None, served: float | None) -> float | None:
    """Per thousand requests served; absent where nothing was served and nothing counted."""
    if count is None or served is None or (served == 0.0 and count == 0.0):
        return None
    return 1000.0 * count / max(1.0, served)


def _ratio(part: float, whole: float) -> float | None:
    # Each is a difference of two long sums, so a rounding error can leave the range.
    return min(1.0, max(0.0, part / whole)) if whole > 0.0 else None


def _regime(moment: _Moment) -> Regime:
    if moment.reading.asleep or moment.reading.preemptions is None or moment.state.alternates:
        return "unknown"
    return moment.state.regime.at(moment.t)


def _why_unknown(state: EngineState, reading: EngineReading, *, fresh: bool) -> WhyUnknown:
    if not fresh:
        return "stale"
    if state.readings < _TWO_READINGS:
        return "first"
    if reading.asleep:
        return "asleep"
    if state.alternates:
        return "alternating"
    return "missing" if None in (reading.kv_usage, reading.running, reading.waiting) else ""


def preempted(state: EngineState, t: float) -> float:
    """Preemptions in the verdict's window, counted or inferred, whichever are more."""
    now, then = state.history.last, state.history.at(t - state.config.verdict.window)
    return max(now.preemptions - then.preemptions, now.inferred - then.inferred)


def _evidence(moment: _Moment, regime: Regime, windows: tuple[WindowSnapshot, ...], paused: float | None) -> Evidence:
    state, prompt, output = moment.state, moment.prompt, moment.output
    now, then = state.history.last, moment.start(state.config.verdict.window)
    # The verdict's window is one of those that are exposed anyway, unless it was set to another.
    same = (w for (_, seconds), w in zip(WINDOWS, windows, strict=False) if seconds == state.config.verdict.window)
    recent = next(same, None) or between(moment.reading, then, now, state.config.stream.pause_threshold, "")
    return Evidence(
        regime=regime,
        preempted=preempted(state, moment.t),
        blocked_ratio=recent.blocked_ratio,
        stalled_seconds=now.stalled - then.stalled,
        long_gaps_per_thousand=recent.long_gaps_per_thousand,
        paused_per_thousand=None if paused is None else 1000.0 * paused,
        queue=state.queue.facts(moment.t),
        seats=moment.seats(prompt.mean if prompt else None, output.mean if output else None),
    )


def _gauges(moment: _Moment) -> dict[str, object]:
    """What the last reading says of the present."""
    reading, prompt, output = moment.reading, moment.prompt, moment.output
    fits: dict[str, float | None] = {}
    if prompt and output:
        fits = {"mean": moment.seats(prompt.mean, output.mean), "p95": moment.seats(prompt.p95, output.p95)}
    left = {name: capacity.headroom(seats, reading.running, reading.waiting) for name, seats in fits.items()}
    return {
        "kv_usage": reading.kv_usage,
        "cpu_kv_usage": reading.cpu_kv_usage,
        "kv_capacity_tokens": reading.capacity_tokens,
        "kv_capacity_requests": {name: value for name, value in fits.items() if value is not None},
        "kv_headroom_requests": {name: value for name, value in left.items() if value is not None},
        "kv_resident_tokens": capacity.resident_tokens(reading),
        "running": reading.running,
        "waiting": reading.waiting,
        "swapped": reading.swapped,
    }


def _counted(moment: _Moment) -> dict[str, object]:
    """What was witnessed; it stays true when vLLM is down."""
    state, totals = moment.state, moment.state.history.last
    counters = {name: increase.total for name, increase in state.counters.items()}
    preemptions = counters.get("preemptions")
    cache = state.reading.cache if state.reading else None
    return {
        "block_size": cache.block_size if cache else None,
        "cache_dtype": cache.dtype if cache else "",
        "prefix_caching": cache.prefix_caching if cache else "",
        "preemptions": preemptions,
        "preemptions_inferred": totals.inferred if state.can_infer else None,
        "recomputed_tokens_estimate": state.recomputed if None not in (preemptions, state.resident) else None,
        "finished": {reason: increase.total for reason, increase in state.finished.items()} or None,
        "generation_tokens": counters.get("generation_tokens"),
        "prompt_lengths": _lengths(state, "prompt_lengths"),
        "output_lengths": _lengths(state, "output_lengths"),
        "kv_observed_seconds": totals.observed if state.usage_known else None,
        "kv_pinned_seconds": totals.pinned if state.usage_known else None,
        "kv_blocked_seconds": totals.blocked if state.blocked_known else None,
        "offload_bytes": _directions(counters, "offload_loaded_bytes", "offload_stored_bytes"),
        "offload_seconds": _directions(counters, "offload_load_seconds", "offload_store_seconds"),
        "offload_hit_tokens": counters.get("external_hits") if state.connector_seen else None,
        "resets": float(state.resets),
    }


def _lengths(state: EngineState, name: str) -> Histogram | None:
    gained = state.histograms.get(name)
    return gained.histogram if gained else None


def _directions(counters: dict[str, float], load: str, store: str) -> dict[str, float]:
    found = {"load": counters.get(load), "store": counters.get(store)}
    return {direction: value for direction, value in found.items() if value is not None}
