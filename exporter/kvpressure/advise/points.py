"""Points of a Prometheus, as slots: own differences of raw counters, aware of restarts, and nothing extrapolated."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvpressure.advise.promapi import Series
from kvpressure.advise.seen import Counted

_LE = "le"
Values = dict[float, float]
"""By the moment at which they were asked for."""


@dataclass(frozen=True, slots=True)
class Span:
    """
    The time between two samples that Prometheus has.

    Args:
        before: the moment at which the first of them was the latest.
        after: the same of the second.
        end: when the second was taken.
        seconds: between the two.
    """

    before: float
    after: float
    end: float
    seconds: float


def spans(stamps: Iterable[Series], patience: float) -> tuple[list[Span], float]:
    """
    The time that was watched, and the seconds between samples that were not.

    Args:
        stamps: when the latest sample was taken, at each moment that was asked for.
        patience: seconds between two samples beyond which nobody knows what happened between.
    """
    latest: Values = {}
    for series in stamps:
        for t, stamp in series.points:
            latest[t] = max(stamp, latest.get(t, -math.inf))
    found: list[Span] = []
    unwatched = 0.0
    last: tuple[float, float] | None = None
    for t, stamp in sorted(latest.items()):
        if last is not None and stamp <= last[1]:
            continue  # the same sample as before: nothing new is known
        if last is not None:
            seconds = stamp - last[1]
            if seconds <= patience:
                found.append(Span(last[0], t, stamp, seconds))
            else:
                unwatched += seconds
        last = t, stamp
    return found, unwatched


def gauge(series: Sequence[Series], spans: Sequence[Span]) -> list[float | None]:
    """A gauge at the end of each span; the largest where there are copies of it."""
    tables = [_finite(one) for one in series]
    found = ([table[span.after] for table in tables if span.after in table] for span in spans)
    return [max(values, default=None) for values in found]


def state(series: Sequence[Series], label: str, spans: Sequence[Span]) -> list[str]:
    """The value of a label of the series that is there at the end of each span; empty where none is."""
    words = {t: one.labels.get(label, "") for one in series for t, _ in one.points}
    return ["" if words.get(span.after) == "unknown" else words.get(span.after, "") for span in spans]


def counter(series: Sequence[Series], spans: Sequence[Span]) -> list[float | None]:
    """
    What a counter gained in each span, summed over its series.

    A series that fell started again, and its new value is what it gained; one that appears while others of its family
    were there counts from 0. None where nothing of the family was there at either end.
    """
    tables = [_finite(one) for one in series]
    return [_gained(tables, span) for span in spans]


def _gained(tables: Sequence[Values], span: Span) -> float | None:
    if not any(span.before in table for table in tables):
        return None
    gains = [
        now if now < (then := table.get(span.before, 0.0)) else now - then
        for table in tables
        if (now := table.get(span.after)) is not None
    ]
    return sum(gains) if gains else None


def histogram(buckets: Sequence[Series], sums: Sequence[Series], spans: Sequence[Span]) -> list[Counted | None]:
    """
    What a classic histogram gained in each span.

    It is reset as a whole: where any bucket fell, or the edges are other ones. None where it is not whole at both ends,
    as after a scrape that was kept in part.
    """
    by_edge: dict[float, Values] = {}
    for one in buckets:
        edge = _edge(one.labels.get(_LE, ""))
        if edge is not None:
            # Two spellings of one edge, as "1" and "1.0", are one after the other.
            by_edge.setdefault(edge, {}).update(_finite(one))
    total = [_finite(one) for one in sums]
    return [_counted(by_edge, total, span) for span in spans]


def _counted(by_edge: dict[float, Values], sums: Sequence[Values], span: Span) -> Counted | None:
    then, now = (
        {edge: table[t] for edge, table in sorted(by_edge.items()) if t in table} for t in (span.before, span.after)
    )
    sum_then, sum_now = (next((table[t] for table in sums if t in table), None) for t in (span.before, span.after))
    if not then or math.inf not in now or sum_now is None:
        return None
    fell = any(now[edge] < then[edge] for edge in now.keys() & then.keys())
    nested = then.keys() <= now.keys() or now.keys() <= then.keys()
    if not fell and nested and (then.keys() != now.keys() or sum_then is None):
        return None
    if fell or not nested:
        then, sum_then = {}, 0.0
    gained = [now[edge] - then.get(edge, 0.0) for edge in now]
    counts = tuple(max(0.0, b - a) for a, b in itertools.pairwise([0.0, *gained]))
    return Counted(tuple(now), counts, max(0.0, sum_now - (sum_then or 0.0)))


def intervals(series: Iterable[Series]) -> Iterator[float]:
    """Seconds between samples that follow each other."""
    for one in series:
        for (before, _), (after, _) in itertools.pairwise(one.points):
            yield after - before


def _finite(one: Series) -> Values:
    return {t: value for t, value in one.points if math.isfinite(value)}


def _edge(text: str) -> float | None:
    try:
        edge = float(text)
    except ValueError:
        return None
    return None if math.isnan(edge) else edge
