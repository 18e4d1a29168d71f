"""The queries behind each field of a slot: the sidecar's series first, vLLM's own where those are not there."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from kvpressure import signals, signals_streams
from kvpressure.advise.places import Place
from kvpressure.advise.promql import duration, selector
from kvpressure.family import ENGINE_LABEL, Signal
from kvpressure.vllm import names

Kind = Literal["counter", "gauge", "histogram", "state"]


@dataclass(frozen=True, slots=True)
class Asked:
    """
    One field of a slot, as one way to know it.

    Args:
        field: of a slot.
        kind: how its points become the field.
        query: whole; of a histogram that of the buckets.
        sums: the query of a histogram's sum.
        label: whose value is the field, of a state.
    """

    field: str
    kind: Kind
    query: str
    sums: str = ""
    label: str = ""


_COUNTERS = (
    ("finished", signals.REQUESTS_FINISHED, names.FINISHED),
    ("preemptions", signals.PREEMPTIONS, names.PREEMPTIONS),
    ("tokens", signals.GENERATION_TOKENS, names.GENERATION_TOKENS),
    ("observed", signals.KV_OBSERVED_SECONDS, None),
    ("pinned", signals.KV_PINNED_SECONDS, None),
    ("blocked", signals.KV_BLOCKED_SECONDS, None),
)
_GAUGES = (
    ("running", signals.REQUESTS_RUNNING, names.RUNNING),
    ("waiting", signals.REQUESTS_WAITING, names.WAITING),
    ("usage", signals.KV_USAGE, names.KV_USAGE),
)
_HISTOGRAMS = (
    ("prompts", signals.PROMPT_LENGTHS, names.PROMPT_LENGTHS),
    ("answers", signals.OUTPUT_LENGTHS, names.OUTPUT_LENGTHS),
)
_STATES = (("regime", signals.REGIME), ("verdict", signals.VERDICT))


def own(place: Place, step: float, scrape: float, source: str) -> Iterator[Asked]:
    """
    What the sidecar's series tell of an engine.

    Args:
        place: of the sidecar's.
        step: seconds between two points.
        scrape: seconds between two samples.
        source: the observer of streams that is believed; empty where there is none, or where it tells of other
            engines too.
    """
    labels = place.of_engine()

    def pick(signal: Signal, part: str = "") -> str:
        return selector(signal.metric + part, labels)

    for field, signal, _ in _COUNTERS:
        yield Asked(field, "counter", pick(signal))
    for field, signal, _ in _GAUGES:
        yield Asked(field, "gauge", _mean(pick(signal), step))
    yield Asked("peak", "gauge", _peak(pick(signals.REQUESTS_RUNNING), pick(signals.REQUESTS_WAITING), step, scrape))
    for field, signal, _ in _HISTOGRAMS:
        yield Asked(field, "histogram", pick(signal, "_bucket"), pick(signal, "_sum"))
    for field, signal in _STATES:
        yield Asked(field, "state", f"{pick(signal)} == 1", label=signal.labels[0])
    if source:
        labels = {name: value for name, value in place.labels.items() if name != ENGINE_LABEL} | {"source": source}
        yield Asked("streamed", "counter", pick(signals_streams.REQUESTS_STREAMED))
        yield Asked("paused", "counter", pick(signals_streams.REQUESTS_PAUSED))
        yield Asked("gaps", "histogram", pick(signals_streams.GAPS, "_bucket"), pick(signals_streams.GAPS, "_sum"))


def upstream(place: Place, step: float, scrape: float) -> Iterator[Asked]:
    """What vLLM's own series tell of an engine; see `own`."""

    def raw(text: str) -> str:
        return text

    def mean(text: str) -> str:
        return _mean(text, step)

    for field, _, family in _COUNTERS:
        if family is not None:
            yield Asked(field, "counter", _spelled(place, family, raw))
    for field, _, family in _GAUGES:
        yield Asked(field, "gauge", _spelled(place, family, mean))
    both = _peak(_spelled(place, names.RUNNING, raw), _spelled(place, names.WAITING, raw), step, scrape)
    yield Asked("peak", "gauge", both)
    for field, family in (
        *((field, family) for field, _, family in _HISTOGRAMS),
        ("gaps", names.GAPS),
        ("first_tokens", names.FIRST_TOKENS),
    ):
        buckets, sums = (_spelled(place, family, raw, part) for part in ("_bucket", "_sum"))
        yield Asked(field, "histogram", buckets, sums)


def cache(place: Place) -> str:
    """vLLM's own words on the caches of all engines that are scraped where this one is."""
    name = place.prefix + names.CACHE_CONFIG.aliases[0].name
    return selector(name, place.target)


def _spelled(place: Place, family: names.Family, function: Callable[[str], str], part: str = "") -> str:
    """A function of a family by each of its spellings, the newest that is there."""
    end = "_total" if family.kind == "counter" else part
    return " or ".join(
        function(selector(f"{place.prefix}{alias.name}{end}", {**place.of_engine(), **dict(alias.where)}))
        for alias in family.aliases
    )


def _mean(series: str, step: float) -> str:
    return f"avg_over_time({series}[{duration(step)}])"


def _peak(running: str, waiting: str, step: float, scrape: float) -> str:
    return f"max_over_time(({running} + {waiting})[{duration(step)}:{duration(scrape)}])"
