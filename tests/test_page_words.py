"""Numbers in words, and the verdict as a sentence."""

import dataclasses

import pytest

from kvpressure.config import Config, StreamConfig
from kvpressure.derive.gaps import Histogram
from kvpressure.derive.queue import QueueFacts
from kvpressure.derive.snapshot import EngineSnapshot, StreamSnapshot, StreamWindow, WindowSnapshot
from kvpressure.derive.verdict import Evidence
from kvpressure.expose.page import words
from kvpressure.expose.page.history import Since
from kvpressure.expose.page.sentences import Case, lasting, sentence
from kvpressure.expose.page.steps import next_steps


def plain(text):
    """A text with usual spaces."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (words.count(None), words.UNKNOWN),
        (words.count(0.0), "0"),
        (words.count(0.01), "< 0.1"),
        (words.count(0.44), "0.4"),
        (words.count(7.0), "7"),
        (words.count(8.66), "8.7"),
        (words.count(12345.4), "12,345"),
        (words.percent(None), words.UNKNOWN),
        (words.percent(0.0), "0 %"),
        (words.percent(0.002), "< 1 %"),
        (words.percent(0.834), "83 %"),
        (words.percent(0.999), "> 99 %"),
        (words.percent(1.0), "100 %"),
        (words.seconds(None), words.UNKNOWN),
        (words.seconds(0.0534), "53 ms"),
        (words.seconds(0.9999), "1.00 s"),
        (words.seconds(8.777), "8.78 s"),
        (words.seconds(9.999), "10 s"),
        (words.seconds(75.2), "75 s"),
        (words.span(-0.5), "0 s"),
        (words.span(59.9), "59 s"),
        (words.span(60), "1 min"),
        (words.span(3599), "59 min"),
        (words.span(7500), "2 h 5 min"),
        (words.span(7200), "2 h"),
        (words.span(273_600), "3 d 4 h"),
        (words.one_in(0.0), "none"),
        (words.one_in(0.001), "1 in 1,000"),
        (words.one_in(0.25), "1 in 4"),
        (words.one_in(0.53), "53 %"),
        (words.over(1.0), "over a second"),
        (words.over(2.5), "over 2.5 s"),
        (words.number_of(1.0, "request", "requests"), "1 request"),
        (words.number_of(14.0, "request", "requests"), "14 requests"),
        (words.capital("no file is there"), "No file is there"),
        (words.capital("vLLM's metrics"), "vLLM's metrics"),
        (words.capital("num_gpu_blocks is None"), "num_gpu_blocks is None"),
    ],
)
def test_numbers(given, expected):
    """A number reads as people say it: nothing that is there is rounded to nothing."""
    assert expected == plain(given)


EVIDENCE = Evidence("calm", 0.0, 0.0, 0.0, 0.0, QueueFacts(), seats=None)
WINDOW = WindowSnapshot("5m", 0.0, 0.0, 0.0, 0.05, 0.0)
ENGINE = EngineSnapshot(
    "m", "0", "V1", "calm", "healthy", evidence=EVIDENCE, windows=(WINDOW,), preemptions=0.0, kv_usage=0.43, waiting=0.0
)


def streams(ratio, source="tap"):
    """Streams of the model of which so many paused."""
    window = StreamWindow("5m", 100, 0, ratio, 0.05, 3.0)
    return StreamSnapshot("m", source, 1, 0, 0, 1, 0, Histogram((), (), 0.0), Histogram((), (), 0.0), windows=(window,))


def case(**given):
    """A case that differs from a calm one in what is given, of the engine or of what is known beside it."""
    beside = {
        "regime": given.pop("regime_since", None),
        "age": given.pop("age", None),
        "answers": given.pop("answers", True),
    }
    seen, config = given.pop("seen", ()), given.pop("config", Config())
    evidence, window = given.pop("evidence", {}), given.pop("window", {})
    engine = {
        "evidence": None if evidence is None else dataclasses.replace(EVIDENCE, **evidence),
        "windows": (dataclasses.replace(WINDOW, **window),),
    } | given
    return Case(dataclasses.replace(ENGINE, **engine), seen, config, **beside)


STORM = {
    "verdict": "kv_memory",
    "regime": "churn",
    "evidence": {"blocked_ratio": 0.83, "preempted": 31.0},
    "window": {"preemptions_per_thousand": 192.3},
    "waiting": 14.0,
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "No preemption in the last 5 min, cache 43 % full, nothing waiting."),
        ({"kv_observed_seconds": 40.0}, "No preemption in the last 40 s, cache 43 % full, nothing waiting."),
        ({"kv_observed_seconds": 299.0}, "No preemption in the last 5 min, cache 43 % full, nothing waiting."),
        (
            {"preemptions": None, "regime": "unknown", "kv_usage": None, "waiting": 1.0},
            "No sign of preemption, which this vLLM does not count, 1 request waiting.",
        ),
        (
            STORM | {"seen": (streams(0.25),)},
            (
                "KV-blocked 83 % of the last 5 min, 192 preemptions per thousand requests, 14 requests waiting, "
                "1 in 4 paused over a second; regime churn."
            ),
        ),
        (
            STORM
            | {
                "seen": (streams(None), streams(0.6, "log")),
                "config": Config(stream=StreamConfig(pause_threshold=2.5)),
            },
            (
                "KV-blocked 83 % of the last 5 min, 192 preemptions per thousand requests, 14 requests waiting, "
                "60 % paused over 2.5 s; regime churn."
            ),
        ),
        (
            STORM | {"evidence": {"blocked_ratio": None, "preempted": 31.0}, "waiting": None},
            "192 preemptions per thousand requests in the last 5 min; regime churn.",
        ),
        (
            STORM | {"regime": "calm", "window": {"preemptions_per_thousand": 0.0}, "evidence": {"blocked_ratio": 0.3}},
            "KV-blocked 30 % of the last 5 min, 14 requests waiting; regime calm.",
        ),
        (
            {"regime": "onset", "evidence": {"preempted": 3.0}, "window": {"preemptions_per_thousand": None}},
            "3 preemptions in the last 5 min, cache 43 % full, nothing waiting; regime onset.",
        ),
        (
            {"verdict": "stall_elsewhere", "evidence": {"stalled_seconds": 12.0}, "seen": (streams(0.25),)},
            (
                "Answers stood still for 12 s of the last 5 min, 1 in 4 paused over a second, nothing preempted, "
                "KV-blocked 0 % of the time."
            ),
        ),
        (
            {
                "verdict": "stall_elsewhere",
                "evidence": {"long_gaps_per_thousand": 31.0, "blocked_ratio": None},
            },
            "31 gaps over a second per thousand requests, nothing preempted.",
        ),
        (
            {
                "verdict": "concurrency_cap",
                "evidence": {"queue": QueueFacts(245.0, 8.0, 240.0, 0.2), "seats": 60.7},
                "waiting": 14.0,
            },
            (
                "A queue for 4 min of the last 5 min while running stood at 8, 14 requests waiting, nothing preempted, "
                "and the cache seats about 61."
            ),
        ),
        (
            {"evidence": None, "verdict": "unknown", "why_unknown": "stale", "age": 40.0},
            "Not known: vLLM's last good answer about this engine is 40 s old or more.",
        ),
    ],
)
def test_sentence(given, expected):
    """The sentence names what the verdict rests on, and nothing that is not known."""
    assert expected == plain(sentence(case(**given)))


@pytest.mark.parametrize(
    ("why", "start"),
    [
        ("stale", "vLLM has not answered yet"),
        ("first", "Not known yet: a verdict needs two samples"),
        ("asleep", "vLLM is asleep"),
        ("alternating", "Not known: counters start again"),
        ("missing", "Not known: vLLM does not say what a verdict needs"),
        ("", "Not known"),
    ],
)
def test_sentence_without_a_verdict(why, start):
    """Where there is no verdict the sentence says why."""
    engine = EngineSnapshot("m", "0", "V1", "unknown", "unknown", why_unknown=why)

    assert sentence(Case(engine, (), Config())).startswith(start)


def test_regime_with_its_age():
    """The regime's age is told where it is the age of this regime; of one that began unseen, at least."""
    known = case(**STORM, regime_since=Since("churn", 370.0, whole=True))
    unseen = case(**STORM, regime_since=Since("churn", 370.0, whole=False))
    other = case(**STORM, regime_since=Since("onset", 370.0, whole=True))

    assert plain(sentence(known)).endswith("; regime churn for 6 min.")
    assert plain(sentence(unseen)).endswith("; regime churn for at least 6 min.")
    assert sentence(other).endswith("; regime churn.")
    assert lasting(None) == ""


@pytest.mark.parametrize(
    ("given", "runbook", "steps"),
    [
        ({}, "", 0),
        ({"regime": "onset"}, "KVPressurePreemptionChurn", 1),
        ({"seen": (streams(0.1),)}, "KVPressureRequestsPausing", 1),
        (STORM, "KVPressurePreemptionStorm", 4),
        (STORM | {"cache_dtype": "fp8_e4m3"}, "KVPressurePreemptionStorm", 3),
        (STORM | {"regime": "onset"}, "KVPressurePreemptionStorm", 5),
        (STORM | {"window": {"preemptions_per_thousand": 9.0}}, "KVPressurePreemptionChurn", 4),
        (STORM | {"regime": "calm", "windows": ()}, "KVPressureMemoryBound", 4),
        ({"verdict": "stall_elsewhere"}, "KVPressureStallElsewhere", 3),
        ({"verdict": "concurrency_cap", "evidence": {"seats": 60.7}}, "KVPressureMemoryBound", 1),
        ({"verdict": "unknown", "why_unknown": "alternating"}, "KVPressureSignalMissing", 1),
        ({"verdict": "unknown", "why_unknown": "missing"}, "KVPressureSignalMissing", 1),
        ({"verdict": "unknown", "why_unknown": "stale"}, "KVPressureVLLMDown", 1),
        ({"verdict": "unknown", "why_unknown": "stale", "answers": False}, "", 0),
        ({"verdict": "unknown", "why_unknown": "first"}, "", 0),
    ],
)
def test_next_steps(given, runbook, steps):
    """Each verdict leads to its runbook, and to nothing that is in use already or said elsewhere."""
    found = next_steps(case(**given))

    assert (runbook, steps) == (found.runbook, len(found.steps))


@pytest.mark.parametrize(
    ("given", "named"),
    [(STORM, True), ({"verdict": "concurrency_cap"}, True), ({"verdict": "stall_elsewhere"}, False), ({}, False)],
)
def test_where_to_learn_how_far(given, named):
    """Advice to change the memory or the cap names the command that says by how much; other advice does not."""
    assert any("kvpressure advise" in step for step in next_steps(case(**given)).steps) is named


def test_concurrency_cap_names_its_bound():
    """Who raises the cap is told where the cache ends."""
    assert (
        "the 61 that the cache seats" in next_steps(case(verdict="concurrency_cap", evidence={"seats": 60.7})).steps[0]
    )
