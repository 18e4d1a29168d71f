"""How a snapshot is taken of an engine's state: windows, evidence and gauges at one moment."""

from kvpressure.derive import capacity
from kvpressure.derive.quantile import count_above, histogram_quantile
from kvpressure.derive.regime import Regime
from kvpressure.derive.snapshot import EngineSnapshot, Lengths, WindowSnapshot
from kvpressure.derive.state import EngineState
from kvpressure.derive.verdict import Evidence, verdict
from kvpressure.derive.windows import Totals
from kvpressure.signals import WINDOWS
from kvpressure.vllm.reading import EngineReading

_P99 = 0.99
_TWO_READINGS = 2


def summarise(state: EngineState, t: float, *, fresh: bool) -> EngineSnapshot:
    """Everything that is known of an engine at `t`; only what was counted where it is not `fresh`."""
    reading = state.reading
    if reading is None:
        raise ValueError("there is nothing to say of an engine before its first reading")
    regime = _regime(state, reading, t, fresh=fresh)
    evidence = _evidence(state, reading, t, regime) if _can_judge(state, reading, fresh=fresh) else None
    gauges = _gauges(state, reading, t) if fresh else {}
    model_name, label = state.key
    return EngineSnapshot(
        model_name=model_name,
        engine=label,
        era=reading.era,
        regime=regime,
        verdict=verdict(evidence, state.config.verdict) if evidence else "unknown",
        evidence=evidence,
        windows=_windows(state, reading, t) if fresh and state.readings >= _TWO_READINGS else (),
        **_counted(state),  # type: ignore[arg-type]
        **gauges,  # type: ignore[arg-type]
    )


def window(state: EngineState, reading: EngineReading, label: str, now: Totals, then: Totals) -> WindowSnapshot:
    """What lies between two totals."""
    preempted = now.preemptions - then.preemptions
    served = None if reading.running is None or reading.finished is None else now.finished - then.finished
    if served is not None and reading.running is not None:
        served += reading.running
    gaps, quantile, long_gaps = reading.gaps, None, 0.0
    if gaps is not None:
        counts = now.gaps.since(then.gaps)
        if counts and len(counts) == len(gaps.edges):
            quantile = histogram_quantile(_P99, gaps.edges, counts)
            long_gaps = count_above(state.config.stream.pause_threshold, gaps.edges, counts)
    return WindowSnapshot(
        window=label,
        preemptions_per_thousand=_per_thousand(preempted, served) if reading.preemptions is not None else None,
        pinned_ratio=_ratio(now.pinned - then.pinned, now.observed - then.observed),
        blocked_ratio=_ratio(now.blocked - then.blocked, now.blockable - then.blockable),
        gap_p99_seconds=quantile,
        long_gaps_per_thousand=_per_thousand(long_gaps, served) if gaps is not None else None,
    )


def _windows(state: EngineState, reading: EngineReading, t: float) -> tuple[WindowSnapshot, ...]:
    now = state.history.last
    return tuple(window(state, reading, label, now, state.history.at(t - seconds)) for label, seconds in WINDOWS)


def _per_thousand(count: float, served: float | None) -> float | None:
    """Per thousand requests served; absent where nothing was served and nothing counted."""
    if served is None or (served == 0.0 and count == 0.0):
        return None
    return 1000.0 * count / max(1.0, served)


def _ratio(part: float, whole: float) -> float | None:
    # Sums of many intervals: the difference of two can leave the range by a rounding error.
    return min(1.0, max(0.0, part / whole)) if whole > 0.0 else None


def _regime(state: EngineState, reading: EngineReading, t: float, *, fresh: bool) -> Regime:
    if not fresh or state.readings < _TWO_READINGS or reading.asleep or reading.preemptions is None:
        return "unknown"
    return state.regime.at(t)


def _can_judge(state: EngineState, reading: EngineReading, *, fresh: bool) -> bool:
    seen = fresh and state.readings >= _TWO_READINGS and not reading.asleep
    return seen and reading.kv_usage is not None and reading.running is not None and reading.waiting is not None


def _evidence(state: EngineState, reading: EngineReading, t: float, regime: Regime) -> Evidence:
    now, then = state.history.last, state.history.at(t - state.config.verdict.window)
    recent = window(state, reading, "", now, then)
    prompt, output = state.prompt_lengths_at(t, reading), state.output_lengths_at(t, reading)
    return Evidence(
        regime=regime,
        preempted=max(now.preemptions - then.preemptions, now.inferred - then.inferred),
        blocked_ratio=recent.blocked_ratio,
        stalled_seconds=now.stalled - then.stalled,
        long_gaps=recent.long_gaps_per_thousand,
        queue=state.queue.facts(t),
        seats=capacity.seats(reading.capacity_tokens, prompt.mean if prompt else None, output.mean if output else None),
    )


def _gauges(state: EngineState, reading: EngineReading, t: float) -> dict[str, object]:
    """What the last reading says of the present."""
    prompt, output = state.prompt_lengths_at(t, reading), state.output_lengths_at(t, reading)
    fits = {}
    if prompt and output:
        for footprint, prompt_tokens, output_tokens in (
            ("mean", prompt.mean, output.mean),
            ("p95", prompt.p95, output.p95),
        ):
            seats = capacity.seats(reading.capacity_tokens, prompt_tokens, output_tokens)
            if seats is not None:
                fits[footprint] = seats
    return {
        "kv_usage": reading.kv_usage,
        "cpu_kv_usage": reading.cpu_kv_usage,
        "kv_capacity_tokens": reading.capacity_tokens,
        "kv_capacity_requests": fits,
        "kv_resident_tokens": capacity.resident_tokens(reading),
        "running": reading.running,
        "waiting": reading.waiting,
        "swapped": reading.swapped,
        "block_size": reading.cache.block_size if reading.cache else None,
        "cache_dtype": reading.cache.dtype if reading.cache else "",
        "prefix_caching": reading.cache.prefix_caching if reading.cache else "",
    }


def _counted(state: EngineState) -> dict[str, object]:
    """What was witnessed; it stays true when vLLM is down."""
    totals = state.history.last
    counters = {name: increase.total for name, increase in state.counters.items()}
    preemptions = counters.get("preemptions")
    asked = counters.get("external_queries") or (state.reading.external_queries if state.reading else None)
    return {
        "preemptions": preemptions,
        "preemptions_inferred": totals.inferred if state.can_infer else None,
        "recomputed_tokens_estimate": state.recomputed
        if preemptions is not None and state.resident is not None
        else None,
        "finished": {reason: increase.total for reason, increase in state.finished.items()} or None,
        "generation_tokens": counters.get("generation_tokens"),
        "prompt_lengths": _lengths(state, "prompt_lengths"),
        "output_lengths": _lengths(state, "output_lengths"),
        "kv_observed_seconds": totals.observed if state.usage_known else None,
        "kv_pinned_seconds": totals.pinned if state.usage_known else None,
        "kv_blocked_seconds": totals.blocked if state.blocked_known else None,
        "offload_bytes": _directions(counters, "offload_loaded_bytes", "offload_stored_bytes"),
        "offload_seconds": _directions(counters, "offload_load_seconds", "offload_store_seconds"),
        "offload_hit_tokens": counters.get("external_hits") if asked else None,
        "resets": float(state.resets),
    }


def _lengths(state: EngineState, name: str) -> Lengths | None:
    gained = state.histograms.get(name)
    return Lengths(gained.total.count, gained.total.sum) if gained else None


def _directions(counters: dict[str, float], load: str, store: str) -> dict[str, float]:
    found = {"load": counters.get(load), "store": counters.get(store)}
    return {direction: value for direction, value in found.items() if value is not None}
