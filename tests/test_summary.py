"""What a snapshot says: windows by brute force, and what is absent."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpressure.config import Config
from kvpressure.derive.state import EngineState
from kvpressure.derive.summary import summarise
from kvpressure.signals import WINDOWS
from kvpressure.vllm.reading import Cache, EngineReading, Histogram

READING = EngineReading(
    "V1",
    running=2.0,
    waiting=0.0,
    kv_usage=0.5,
    preemptions=0.0,
    finished={"stop": 0.0},
    gaps=Histogram((1.0, 2.5, inf), (0.0, 0.0, 0.0), 0.0),
    prompt_lengths=Histogram((1000.0, inf), (10.0, 10.0), 6000.0),
    output_lengths=Histogram((1000.0, inf), (10.0, 10.0), 2000.0),
    cache=Cache(tokens=16016.0, block_size=16.0, dtype="fp8", prefix_caching="True"),
)


def observed(*rows, every=1.0):
    """A state after rows of what differs from READING, and the moment of the last one."""
    state = EngineState(("m", "0"), Config())
    for number, row in enumerate(rows):
        state.observe(number * every, replace(READING, **row), every)
    return state, (len(rows) - 1) * every


def snapshot(*rows, fresh=True, whole=False, later=0.0, every=1.0):
    state, t = observed(*rows, every=every)
    return summarise(state, t + later, fresh=fresh, whole=whole)


def window(snapshot, label="1m"):
    return next(w for w in snapshot.windows if w.window == label)


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([0.2, 0.95, 1.0]), st.integers(0, 3)),
    min_size=2,
    max_size=80,
)


@settings(deadline=None, max_examples=60)
@given(steps=ROWS, every=st.sampled_from([1.0, 13.0, 47.0]))
def test_windows_by_brute_force(steps, every):
    """Each window is what all readings in it say: gains over served, and time by what each reading held."""
    preempted = finished = gaps = 0
    rows = []
    for p, f, usage, g in steps:
        preempted, finished, gaps = preempted + p, finished + f, gaps + g
        rows.append(
            {
                "preemptions": float(preempted),
                "finished": {"stop": float(finished)},
                "kv_usage": usage,
                "gaps": Histogram((1.0, 2.5, inf), (0.0, float(gaps), float(gaps)), 2.0 * gaps),
            }
        )
    found = snapshot(*rows, every=every)
    end = (len(rows) - 1) * every

    for label, seconds in WINDOWS:
        start = max([0, *[n for n in range(len(rows)) if n * every <= end - seconds]])
        inside, held = steps[start + 1 :], steps[start:-1]
        served = sum(f for _, f, _, _ in inside) + 2.0
        pinned = sum(usage >= 0.95 for _, _, usage, _ in held)

        assert window(found, label).preemptions_per_thousand == 1000 * sum(p for p, *_ in inside) / served
        assert window(found, label).long_gaps_per_thousand == 1000 * sum(g for *_, g in inside) / served
        assert window(found, label).pinned_ratio == pytest.approx(pinned / len(held), abs=1e-12)


def test_livelock():
    """Where everything preempts and nothing finishes, running requests are served: the number is high, not absent."""
    assert window(snapshot({}, {"preemptions": 30.0})).preemptions_per_thousand == 15_000.0


def test_nothing_served():
    """Where nothing was served and nothing preempted there is no rate; with a preemption it is at least per one."""
    idle = {"running": 0.0}

    assert window(snapshot(idle, idle)).preemptions_per_thousand is None
    assert window(snapshot(idle, idle | {"preemptions": 3.0})).preemptions_per_thousand == 3000.0


def test_rate_needs_all_of_it():
    """Without running, finished or preemptions there is no rate."""
    for missing in ("running", "finished", "preemptions"):
        assert window(snapshot({}, {missing: None})).preemptions_per_thousand is None


def test_gaps_of_the_window():
    """p99 and long gaps are of the gaps gained in the window, by its own edges."""
    before = Histogram((1.0, 2.5, inf), (0.0, 50.0, 50.0), 100.0)
    after = Histogram((1.0, 2.5, inf), (99.0, 149.0, 150.0), 200.0)
    found = window(snapshot({"gaps": before}, {"gaps": after}))

    assert found.gap_p99_seconds == 1.0
    assert found.long_gaps_per_thousand == 500.0
    assert window(snapshot({"gaps": before}, {"gaps": before})).gap_p99_seconds is None
    assert window(snapshot({}, {"gaps": None})).long_gaps_per_thousand is None


def test_edges_that_change():
    """After a restart with other edges the window speaks of the gaps since then."""
    other = Histogram((0.5, 30.0, inf), (3.0, 4.0, 4.0), 20.0)
    found = window(snapshot({}, {"gaps": other}))

    assert found.gap_p99_seconds == pytest.approx(0.5 + 29.5 * 0.96)
    assert found.long_gaps_per_thousand == 500.0


def test_pinned_without_time():
    """Without observed time there is no share of it."""
    assert window(snapshot({"kv_usage": None}, {})).pinned_ratio is None
    assert window(snapshot({"prompt_lengths": None, "waiting": 1.0}, {})).blocked_ratio is None


def test_whole():
    """The window of a whole recording reaches back to the first reading, past the longest one."""
    rows = [{"preemptions": float(n)} for n in range(2000)]
    found = snapshot(*rows, whole=True)

    assert window(found, "whole").preemptions_per_thousand == 1000 * 1999 / 2
    assert window(found, "15m").preemptions_per_thousand == 1000 * 900 / 2


def test_not_fresh():
    """Where the last reading is old, only what was counted, the era and the configuration are left."""
    found = snapshot({}, {"preemptions": 3.0, "kv_usage": 1.0}, fresh=False)

    assert (found.preemptions, found.era, found.finished) == (3.0, "V1", {"stop": 0.0})
    assert (found.regime, found.verdict, found.evidence, found.windows) == ("unknown", "unknown", None, ())
    assert (found.kv_usage, found.running, found.kv_capacity_tokens, found.block_size) == (None, None, None, 16.0)


def test_before_the_first_reading():
    """Of an engine that was never read nothing can be said."""
    with pytest.raises(ValueError, match="before its first reading"):
        summarise(EngineState(("m", "0"), Config()), 0.0, fresh=True)


def test_gauges():
    """Gauges are those of the last reading, with what follows from it."""
    found = snapshot({}, {"running": 4.0, "waiting": 3.0, "swapped": 1.0, "cpu_kv_usage": 0.25})

    assert (found.running, found.waiting, found.swapped, found.cpu_kv_usage) == (4.0, 3.0, 1.0, 0.25)
    assert (found.kv_usage, found.kv_capacity_tokens, found.kv_resident_tokens) == (0.5, 16016.0, 2000.0)
    assert (found.block_size, found.cache_dtype, found.prefix_caching) == (16.0, "fp8", "True")


def test_capacity_in_requests():
    """Requests that fit are capacity over mean and p95 lengths; without lengths neither is known."""
    assert snapshot({}).kv_capacity_requests == {"mean": 16016.0 / 800.0, "p95": 16016.0 / 1900.0}
    assert snapshot({"output_lengths": None}).kv_capacity_requests == {}
    assert snapshot({"cache": None}).kv_capacity_requests == {}


def test_headroom_in_requests():
    """Headroom is what fits at a footprint minus who runs and waits; without one of them it is not known."""
    found = snapshot({}, {"running": 4.0, "waiting": 15.0})

    assert found.kv_headroom_requests == {"mean": 16016.0 / 800.0 - 19.0, "p95": 16016.0 / 1900.0 - 19.0}
    assert snapshot({"running": None}, {"running": None}).kv_headroom_requests == {}
    assert snapshot({"waiting": None}, {"waiting": None}).kv_headroom_requests == {}
    assert snapshot({"cache": None}).kv_headroom_requests == {}
    assert snapshot({}, fresh=False).kv_headroom_requests == {}


def test_lengths():
    """Prompt and output lengths are those of requests finished since the first reading, in vLLM's own buckets."""
    longer = Histogram((1000.0, inf), (11.0, 12.0), 9000.0)
    found = snapshot({}, {"prompt_lengths": longer})

    assert (found.prompt_lengths, found.output_lengths) == (
        Histogram((1000.0, inf), (1.0, 2.0), 3000.0),
        Histogram((1000.0, inf), (0.0, 0.0), 0.0),
    )
    assert snapshot({"prompt_lengths": None}).prompt_lengths is None


def test_never_known():
    """What this vLLM never said is absent: totals of time and inferred preemptions among it."""
    nothing = {"kv_usage": None, "preemptions": None, "finished": None, "waiting": None}
    found = snapshot(nothing, nothing)

    assert (found.kv_observed_seconds, found.kv_pinned_seconds, found.kv_blocked_seconds) == (None, None, None)
    assert (found.preemptions, found.preemptions_inferred, found.finished) == (None, None, None)
    assert (found.recomputed_tokens_estimate, found.regime, found.verdict) == (None, "unknown", "unknown")


def test_an_estimate_does_not_come_and_go():
    """What was recomputed so far stays known where the cache is empty at the last reading."""
    rows = {}, {"preemptions": 3.0}, {"preemptions": 3.0, "kv_usage": 0.0}

    assert snapshot(*rows).recomputed_tokens_estimate == snapshot(*rows[:2]).recomputed_tokens_estimate == 12_000.0


def test_offload():
    """Offloading is there by direction where vLLM reports it, and hits only once a connector was asked."""
    idle = {"external_queries": 0.0, "external_hits": 0.0}
    used = {
        "external_queries": 50.0,
        "external_hits": 20.0,
        "offload_loaded_bytes": 4096.0,
        "offload_load_seconds": 0.5,
    }
    found = snapshot(idle, used)

    assert snapshot(idle, idle).offload_hit_tokens is None
    assert found.offload_hit_tokens == 20.0
    assert (found.offload_bytes, found.offload_seconds) == ({"load": 4096.0}, {"load": 0.5})


def test_no_verdict_without_evidence():
    """Without usage, running or waiting there is no verdict, while the regime needs only preemptions."""
    found = snapshot({}, {"waiting": None, "preemptions": 1.0})

    assert (found.regime, found.verdict, found.evidence) == ("onset", "unknown", None)


def test_verdict_kv_memory():
    """A queue that is KV-blocked for a tenth of five minutes is kv_memory, though nothing is preempted."""
    blocked = {"waiting": 5.0, "kv_usage": 0.99}

    assert snapshot(*[{}] * 27, *[blocked] * 4).verdict == "kv_memory"
    assert snapshot(*[{}] * 28, *[blocked] * 4).verdict == "healthy"


def test_verdict_concurrency_cap():
    """A batch that stands at its maximum for half a minute of queue, in a cache with room, is capped."""
    capped = {"running": 8.0, "waiting": 5.0, "kv_usage": 0.3}

    assert snapshot(*[capped] * 31).verdict == "concurrency_cap"
    assert snapshot(*[capped] * 30).verdict == "healthy"


def test_inferred_preemptions_are_evidence():
    """A preemption that is only inferred keeps a stall from being laid at another door."""
    full = {"running": 10.0, "kv_usage": 1.0}
    back = {"running": 7.0, "waiting": 3.0, "kv_usage": 1.0}
    long = Histogram((1.0, 2.5, inf), (0.0, 5.0, 5.0), 10.0)

    assert snapshot(full, back | {"gaps": long}).evidence.preempted == 3.0
    assert snapshot(full, back | {"gaps": long}).verdict == "healthy"
    assert snapshot(full, full | {"gaps": long}).verdict == "stall_elsewhere"
