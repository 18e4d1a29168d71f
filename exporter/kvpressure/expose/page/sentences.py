"""
The verdict on an engine as a sentence: what it rests on, in numbers, and since when.

"KV-blocked 83 % of the last 5 min, 192 preemptions per thousand requests, 14 requests waiting, 1 in 4 paused over a
second; regime churn for 6 min."
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvpressure.config import Config
from kvpressure.derive.snapshot import EngineSnapshot, StreamSnapshot, StreamWindow, WhyUnknown, WindowSnapshot
from kvpressure.derive.verdict import Evidence, Verdict
from kvpressure.expose.page import words
from kvpressure.expose.page.history import Since
from kvpressure.signals import WINDOWS

TITLES: Mapping[Verdict, str] = {
    "kv_memory": "KV cache too small",
    "stall_elsewhere": "Stalls, but not the cache",
    "concurrency_cap": "Concurrency cap too low",
    "unknown": "Unknown",
    "healthy": "Healthy",
}
"""Each verdict in a few words, the worst first."""

_TELLING = 0.01  # a smaller share of blocked time is not worth a word

_NEARLY = 0.95  # of the verdict's window


@dataclass(frozen=True, slots=True)
class Case:
    """
    An engine and what its verdict is explained with.

    Args:
        engine: the engine.
        streams: those of its model, the source that sees most first.
        config: the settings.
        regime: its regime, and since when; None where that is not known.
        verdict: the same of its verdict.
        answers: whether vLLM answered the last sample.
        age: seconds since vLLM's last good answer; None before the first one.
    """

    engine: EngineSnapshot
    streams: Sequence[StreamSnapshot]
    config: Config
    regime: Since | None = None
    verdict: Since | None = None
    answers: bool = True
    age: float | None = None

    @property
    def window(self) -> WindowSnapshot | None:
        """The window of the verdict, where it is one of those that are exposed."""
        return next((w for w in self.engine.windows if w.window == self._label), None)

    @property
    def stream_window(self) -> StreamWindow | None:
        """The same of the streams, by the source that sees most and saw any."""
        found = (w for streams in self.streams for w in streams.windows if w.window == self._label)
        return next((w for w in found if w.paused_ratio is not None), None)

    @property
    def _label(self) -> str:
        return next((label for label, seconds in WINDOWS if seconds == self.config.verdict.window), "")


def sentence(case: Case) -> str:
    """Why the verdict is what it is."""
    evidence = case.engine.evidence
    if evidence is None:
        return _UNKNOWN[case.engine.why_unknown](case)
    facts = _FACTS[case.engine.verdict](case, evidence)
    return f"{words.capital(', '.join(facts))}{_regime(case)}."


def lasting(since: Since | None) -> str:
    """How long something has lasted: ``for 6 min``, or ``for at least 6 min`` where its beginning was not seen."""
    if since is None:
        return ""
    return f"for {'' if since.whole else 'at least '}{words.span(since.seconds)}"


def _kv_memory(case: Case, evidence: Evidence) -> Iterator[str]:
    ratio = evidence.blocked_ratio
    if ratio is not None and ratio >= _TELLING:
        yield f"KV-blocked {words.percent(ratio)} of {_last(case)}"
        yield from _preemptions(case, evidence)
    else:
        yield from (f"{fact} in {_last(case)}" for fact in _preemptions(case, evidence))
    yield from _waiting(case)
    yield from _paused(case)


def _stall_elsewhere(case: Case, evidence: Evidence) -> Iterator[str]:
    if evidence.stalled_seconds > 0.0:
        yield f"answers stood still for {words.seconds(evidence.stalled_seconds)} of {_last(case)}"
    paused = list(_paused(case))
    yield from paused
    gaps = evidence.long_gaps_per_thousand
    if not paused and gaps:
        threshold = words.over(case.config.stream.pause_threshold)
        yield f"{words.count(gaps)} gaps {threshold} per thousand requests"
    yield "nothing preempted"
    if evidence.blocked_ratio is not None:
        yield f"KV-blocked {words.percent(evidence.blocked_ratio)} of the time"


def _concurrency_cap(case: Case, evidence: Evidence) -> Iterator[str]:
    queue = evidence.queue
    yield f"a queue for {words.span(queue.seconds)} of {_last(case)} while running stood at {queue.running_max:g}"
    yield from _waiting(case)
    yield "nothing preempted"
    if evidence.seats is not None:
        yield f"and the cache seats about {words.count(round(evidence.seats))}"


def _healthy(case: Case, evidence: Evidence) -> Iterator[str]:
    if evidence.preempted:
        yield from (f"{fact} in {_last(case)}" for fact in _preemptions(case, evidence))
        yield from _paused(case)
    elif case.engine.preemptions is None:
        yield "no sign of preemption, which this vLLM does not count"
    else:
        yield f"no preemption in {_last(case)}"
    usage = case.engine.kv_usage
    if usage is not None:
        yield f"cache {words.percent(usage)} full"
    yield from _waiting(case) if case.engine.waiting else ["nothing waiting"]


_FACTS: Mapping[Verdict, Callable[[Case, Evidence], Iterator[str]]] = {
    "kv_memory": _kv_memory,
    "stall_elsewhere": _stall_elsewhere,
    "concurrency_cap": _concurrency_cap,
    "healthy": _healthy,
}


def _stale(case: Case) -> str:
    if case.age is None:
        return "vLLM has not answered yet."
    return f"Not known: vLLM's last good answer about this engine is {words.span(case.age)} old or more."


_UNKNOWN: Mapping[WhyUnknown, Callable[[Case], str]] = {
    "": lambda _: "Not known.",
    "stale": _stale,
    "first": lambda _: "Not known yet: a verdict needs two samples.",
    "asleep": lambda _: "vLLM is asleep: there is nothing to judge.",
    "alternating": lambda _: (
        "Not known: counters start again every few samples, as if several servers answered in turn behind one address."
    ),
    "missing": lambda _: "Not known: vLLM does not say what a verdict needs; see the signals below.",
}


def _last(case: Case) -> str:
    # Soon after the start less than the window has been seen; a few seconds short of it is not worth a word.
    observed, window = case.engine.kv_observed_seconds, case.config.verdict.window
    seen = window if observed is None or observed >= _NEARLY * window else observed
    return f"the last {words.span(seen)}"


def _preemptions(case: Case, evidence: Evidence) -> Iterator[str]:
    """The rate where it is known; what was only inferred as a number of its own."""
    rate = case.window.preemptions_per_thousand if case.window else None
    if rate:
        yield f"{words.number_of(rate, 'preemption', 'preemptions')} per thousand requests"
    elif evidence.preempted:
        yield words.number_of(evidence.preempted, "preemption", "preemptions")


def _waiting(case: Case) -> Iterator[str]:
    if case.engine.waiting:
        yield f"{words.number_of(case.engine.waiting, 'request', 'requests')} waiting"


def _paused(case: Case) -> Iterator[str]:
    window = case.stream_window
    if window is not None and window.paused_ratio:
        yield f"{words.one_in(window.paused_ratio)} paused {words.over(case.config.stream.pause_threshold)}"


def _regime(case: Case) -> str:
    """The regime where it adds something."""
    if case.engine.regime == "unknown" or (case.engine.regime == "calm" and case.engine.verdict != "kv_memory"):
        return ""
    since = case.regime if case.regime and case.regime.state == case.engine.regime else None
    return f"; regime {case.engine.regime} {lasting(since)}".rstrip()
