"""
What a Prometheus knows of one engine: the sidecar's series, and vLLM's own where those are not there.

Counters are read as they are and subtracted here, so that a restart is one and nothing is extrapolated. When a sample
was taken is asked for as well: time without samples is in no slot.
"""

import math
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from kvpressure import signals, signals_streams
from kvpressure.advise import asked, places, points
from kvpressure.advise.access import Access
from kvpressure.advise.asked import Asked
from kvpressure.advise.engines import Key, choose, missing, named
from kvpressure.advise.places import Place
from kvpressure.advise.promapi import Prometheus
from kvpressure.advise.promql import duration, selector
from kvpressure.advise.report_words import moment
from kvpressure.advise.seen import AdviseError, Figure, Seen, Server, Slot
from kvpressure.advise.told import NOTHING, Told, server
from kvpressure.derive.target import preferred
from kvpressure.family import ENGINE_LABEL, MODEL_LABEL
from kvpressure.vllm import names
from kvpressure.vllm.metrics import cache_of
from kvpressure.vllm.reading import Cache
from kvpressure.vllm.stream import SOURCES

DAY = 86_400.0
_SHORTEST_STEP = 15.0
_MOST_SLOTS = 1440
_RECENT = 600.0
"""Seconds in which the interval between scrapes is looked for: it may have changed since the range's beginning."""
_PATIENCE = 3.0
"""Steps between two samples beyond which nobody knows what happened, as in the sidecar."""
_ANYONE = Access()


@dataclass(frozen=True, slots=True)
class _Range:
    """
    When, and how often.

    Args:
        start: seconds since 1970.
        end: the same.
        step: seconds between two points.
        scrape: seconds between two samples.
        last: when the last sample was the latest.
    """

    start: float
    end: float
    step: float
    scrape: float
    last: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


def seen_by(  # noqa: PLR0913  # each can be given, and none has to be
    url: str,
    *,
    range_seconds: float = DAY,
    end: float | None = None,
    model: str = "",
    engine: str = "",
    told: Told = NOTHING,
    access: Access = _ANYONE,
) -> Seen:
    """
    What a Prometheus knows of one engine.

    Args:
        url: where its API is, without ``/api/v1``.
        range_seconds: how far to look back.
        end: until when, in seconds since 1970; None for now.
        model: the name of the model; empty to take any.
        engine: its rank; empty to take any.
        told: what the flags say of the server.
        access: what Prometheus wants to see of whoever asks.

    Raises:
        AdviseError: it does not answer, or knows no such engine in the range.
    """
    until = time.time() if end is None else end
    with Prometheus(url, access) as api:
        source = f"Prometheus at {api.url}"
        own, upstream = places.find(api, until, range_seconds)
        known = own or upstream
        if not known:
            raise AdviseError(
                f"{api.url} has no series of kvpressure and none of vLLM in the {duration(range_seconds)} before "
                f"{moment(until)}; let it scrape the sidecar, or give another --range"
            )
        place, notes = _chosen(known, source, model, engine)
        when = _range(api, place, until - range_seconds, until)
        other = places.beside(place, upstream) if own else place
        slots, sources, unwatched = _slots(api, place, other, when, _believed(api, place, known, when))
        if not slots:
            raise AdviseError(
                f"{source} has a single sample of {named(_key(place))} in the {duration(range_seconds)} before "
                f"{moment(until)}; advice needs at least two"
            )
        setup, changed = _server(api, place, other, when, told)
        notes += _notes(slots, unwatched, when, sidecar=bool(own), other=other)
        return Seen(
            model=place.model,
            engine=place.engine,
            source=source,
            server=setup,
            slots=slots,
            sources=sources,
            notes=(*notes, *changed, *api.notes),
        )


def _key(place: Place) -> Key:
    return place.model, place.engine, place.where


def _chosen(known: Iterable[Place], source: str, model: str, engine: str) -> tuple[Place, list[str]]:
    by_key: dict[Key, Place] = {}
    for place in known:
        key = _key(place)
        if key in by_key:  # two jobs scrape one target: all labels tell them apart
            key = (*key[:2], ", ".join(f"{name}={value}" for name, value in sorted(place.target.items())))
        by_key[key] = place
    loads = {key: (place.preempted, place.finished) for key, place in by_key.items()}
    chosen, notes = choose(loads, source, model, engine)
    return by_key[chosen], notes


def _range(api: Prometheus, place: Place, start: float, end: float) -> _Range:
    """The step between points: no shorter than that between scrapes, and no more points than a report can use."""
    step = max(_SHORTEST_STEP, math.ceil((end - start) / _MOST_SLOTS))
    series = places.presence(place)
    stamps = [t for one in api.over(f"timestamp({series})", start, end, step) for _, t in one.points]
    last = max(stamps, default=end)
    between = list(points.intervals(api.at(f"{series}[{duration(_RECENT)}]", last)))
    scrape = max(1.0, statistics.median(between)) if between else _SHORTEST_STEP
    return _Range(start, end, max(step, float(math.ceil(scrape - 0.5))), float(math.ceil(scrape - 0.5)), last)


def _believed(api: Prometheus, place: Place, known: Iterable[Place], when: _Range) -> str:
    """
    The observer whose word on streams counts; empty where there is none.

    An observer does not know the engine: where its target has several of one model, it tells of none.
    """
    if place.prefix or sum((one.model, one.target) == (place.model, place.target) for one in known) != 1:
        return ""
    labels = {name: value for name, value in place.labels.items() if name != ENGINE_LABEL}
    series = selector(signals_streams.REQUESTS_STREAMED.metric, labels)
    gained = {
        one.labels.get("source", ""): one.points[-1][1]
        for one in api.at(f"increase({series}[{duration(when.seconds)}])", when.end)
    }
    streamed = {source: round(gained[source]) for source in SOURCES if gained.get(source)}
    return preferred(streamed) if streamed else ""


def _slots(
    api: Prometheus, place: Place, other: Place | None, when: _Range, source: str
) -> tuple[tuple[Slot, ...], dict[str, str], float]:
    """The slots, the query behind each field, and the seconds between samples that were not watched."""
    stamps = api.over(f"timestamp({places.presence(place)})", when.start, when.end, when.step)
    spans, unwatched = points.spans(stamps, _PATIENCE * when.step)
    columns: dict[str, list[Any]] = {}
    sources: dict[str, str] = {}
    ways = [] if place.prefix else list(asked.own(place, when.step, when.scrape, source))
    if other is not None:
        ways += asked.upstream(other, when.step, when.scrape)
    for way in ways:
        if way.field not in columns:
            column = _column(api, way, when, spans)
            if any(value not in (None, "") for value in column):
                columns[way.field], sources[way.field] = column, way.query
                if way.sums:
                    sources[f"{way.field}_sum"] = way.sums
    slots = tuple(
        Slot(end=span.end, seconds=span.seconds, **{field: column[number] for field, column in columns.items()})
        for number, span in enumerate(spans)
    )
    return slots, sources, unwatched


def _column(api: Prometheus, way: Asked, when: _Range, spans: list[points.Span]) -> list[Any]:
    """One field of every slot."""

    def ask(query: str) -> list[Any]:
        return api.over(query, when.start, when.end, when.step)

    series = ask(way.query)
    if not series:
        return []
    if way.kind == "counter":
        return points.counter(series, spans)
    if way.kind == "gauge":
        return points.gauge(series, spans)
    if way.kind == "state":
        return points.state(series, way.label, spans)
    return points.histogram(series, ask(way.sums), spans)


def _server(api: Prometheus, place: Place, other: Place | None, when: _Range, told: Told) -> tuple[Server, list[str]]:
    """How the engine is set up, and what must be said of it."""
    replicas = f"count(max without ({names.PID_LABEL}) ({_alike(place)}))"
    found = api.at(replicas, when.last)
    count = (
        Figure(found[0].points[-1][1], "engines", replicas)
        if found and 1.0 <= found[0].points[-1][1] < math.inf
        else Figure(None, "engines", f"{replicas} is empty, or no number of engines")
    )
    cache, where = _upstream_cache(api, other, when)
    if place.prefix:
        return server(told, cache, where, count), []
    info = selector(signals.UPSTREAM_INFO.metric, place.of_engine())
    words = next((one.labels for one in api.at(info, when.last)), {})
    size = cache_of({names.CACHE_BLOCK_SIZE_LABEL: words.get("block_size", "")}).block_size
    setup = server(told, cache, where, count)
    setup = replace(setup, cache_dtype=words.get("cache_dtype", "") or setup.cache_dtype)
    if size is not None:
        setup = replace(setup, block_size=Figure(size, "tokens", f"label block_size of {info}"))
    series = selector(signals.KV_CAPACITY_TOKENS.metric, place.of_engine())
    capacity = api.at(series, when.last)
    if not capacity or not 0.0 < capacity[0].points[-1][1] < math.inf:
        return setup, []
    setup = replace(setup, capacity=Figure(capacity[0].points[-1][1], "tokens", series))
    return setup, _changed(api, series, when)


def _changed(api: Prometheus, series: str, when: _Range) -> list[str]:
    over = f"({series}[{duration(when.seconds)}])"
    bounds = [one.points[-1][1] for name in ("min", "max") for one in api.at(f"{name}_over_time{over}", when.end)]
    if not bounds or min(bounds) == max(bounds):
        return []
    least, most = min(bounds), max(bounds)
    return [f"The KV capacity was between {least:,.0f} and {most:,.0f} tokens; the last one is taken for all of it."]


def _alike(place: Place) -> str:
    """The present engines of the same model, wherever they run."""
    metric = signals.REQUESTS_RUNNING.metric
    if place.prefix:
        metric = place.prefix + names.RUNNING.series.removeprefix(names.PREFIX)
    return selector(metric, {MODEL_LABEL: place.model})


def _upstream_cache(api: Prometheus, other: Place | None, when: _Range) -> tuple[Cache | None, str]:
    """What vLLM itself says of the engine's cache, with the query that tells it."""
    if other is None:
        return None, names.CACHE_CONFIG.series
    query = asked.cache(other)
    found = [one.labels for one in api.at(query, when.last)]
    wanted = other.labels.get(ENGINE_LABEL, "")
    labels = next((each for each in found if each.get(ENGINE_LABEL, "") in (wanted, "")), None)
    if labels is None:
        return None, query
    cache = cache_of(labels)
    engines = len({each.get(ENGINE_LABEL, "") for each in found})
    if cache.tokens is None and cache.blocks is not None and labels.get(ENGINE_LABEL):
        # Each engine of a process is told the sum of their blocks.
        cache = replace(cache, blocks=cache.blocks / engines)
    return cache, query


def _notes(slots: tuple[Slot, ...], unwatched: float, when: _Range, *, sidecar: bool, other: Place | None) -> list[str]:
    rule = (
        f"Counters were read every {when.step:g} s as they are and subtracted; where one fell, as after a restart, its "
        "new value is what it gained. Means and peaks are over the same time."
    )
    notes = [rule]
    watched = sum(slot.seconds for slot in slots)
    if watched < when.seconds - 2 * when.step - unwatched:
        notes.append(f"There are samples for {duration(watched)} of the {duration(when.seconds)} that were asked for.")
    if unwatched:
        notes.append(
            f"{duration(unwatched)} within that lie between samples that are further apart than {_PATIENCE:g} times "
            f"{when.step:g} s: what happened then is in no slot."
        )
    if not sidecar:
        notes.append(
            "There are no series of kvpressure: what vLLM itself says was taken. How long the cache was full or "
            "blocked the queue, who paused, regime and verdict cannot be known without the sidecar."
        )
    elif other is None:
        notes.append("vLLM's own series were not found beside the sidecar's: the time to the first token is not known.")
    return notes + missing(slots, "Prometheus")
