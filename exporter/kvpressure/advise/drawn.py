"""Lengths as a workload describes them, in one of four ways, and what is drawn of them."""

import math
import random
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol

from kvpressure.advise.keys import known, mapping
from kvpressure.advise.seen import AdviseError
from kvpressure.advise.trace import MOST_TOKENS
from kvpressure.lab.workload import Length
from kvpressure.settings import setting

_P95 = 1.6448536269514722
"""Standard deviations up to the 95th percentile of a normal distribution."""
_LONGEST_LIST = 100_000


class Drawn(Protocol):
    """Lengths that can be drawn, in tokens, at least 1."""

    def draw(self, chance: random.Random) -> int:
        """One length."""
        ...


@dataclass(frozen=True, slots=True)
class Lognormal:
    """
    Lengths with a long tail, as those of people are.

    Args:
        p50: the median, in tokens.
        p95: the 95th percentile, in tokens.
    """

    p50: float
    p95: float

    def draw(self, chance: random.Random) -> int:
        """One length."""
        deviation = math.log(self.p95 / self.p50) / _P95
        return min(MOST_TOKENS, max(1, round(self.p50 * math.exp(chance.gauss(0.0, deviation)))))


@dataclass(frozen=True, slots=True)
class Listed:
    """Lengths of which each is as likely: one that stands there twice, twice as likely."""

    values: tuple[int, ...]

    def draw(self, chance: random.Random) -> int:
        """One length."""
        return chance.choice(self.values)


@dataclass(frozen=True, slots=True)
class Histogram:
    """
    Lengths by bucket, evenly within each.

    Args:
        edges: of the buckets, ascending: one more than there are buckets.
        shares: of the requests up to each bucket's end, cumulative, the last one 1.
    """

    edges: tuple[int, ...]
    shares: tuple[float, ...]

    def draw(self, chance: random.Random) -> int:
        """One length: over a bucket's lower edge, up to its upper one."""
        number = min(bisect_right(self.shares, chance.random()), len(self.shares) - 1)
        return chance.randint(self.edges[number] + 1, self.edges[number + 1])


@dataclass(frozen=True, slots=True)
class _Even:
    mean: int = setting(0, "Tokens.", "count", low=1, high=MOST_TOKENS)
    spread: float = setting(0.0, "Share of the mean by which lengths differ from it at most.", "number", low=0, high=1)


@dataclass(frozen=True, slots=True)
class _Tailed:
    p50: float = setting(0.0, "Tokens.", "number", low=1, high=MOST_TOKENS)
    p95: float = setting(0.0, "Tokens.", "number", low=1, high=MOST_TOKENS)


def read(content: object, where: str) -> Drawn:
    """
    Lengths as they stand in a file.

    ``mean`` and, unless all are equal, ``spread``: even between mean * (1 - spread) and mean * (1 + spread), as in the
    lab. ``p50`` and ``p95``: lognormal. ``values``: a list to draw from. ``edges`` and ``counts``: a histogram, each
    count of those up to its edge, the first bucket from 0.

    Raises:
        AdviseError: it is none of these; the sentence starts with `where`.
    """
    given = mapping(content, where)
    ways = [way for key, way in _WAYS.items() if key in given]
    if len(ways) != 1:
        raise AdviseError(f"{where} must have one of mean (with spread), p50 with p95, values, or edges with counts")
    return ways[0](given, where)


def _even(given: Mapping[Any, Any], where: str) -> Drawn:
    found = known(_Even, given, where)
    return Length(found.mean, found.spread)


def _tailed(given: Mapping[Any, Any], where: str) -> Drawn:
    found = known(_Tailed, given, where)
    if not found.p95:
        raise AdviseError(f"{where}: p95 is missing; give it beside p50")
    if found.p95 < found.p50:
        raise AdviseError(f"{where}: p95 is less than p50; give them the other way round")
    return Lognormal(found.p50, found.p95)


def _listed(given: Mapping[Any, Any], where: str) -> Drawn:
    _only(given, ("values",), where)
    return Listed(_whole(given["values"], f"{where}: values", 1))


def _histogram(given: Mapping[Any, Any], where: str) -> Drawn:
    _only(given, ("edges", "counts"), where)
    if "counts" not in given:
        raise AdviseError(f"{where}: counts is missing; give one for each of the edges")
    edges = (0, *_whole(given["edges"], f"{where}: edges", 1))
    counts = _whole(given["counts"], f"{where}: counts", 0)
    if any(after <= before for before, after in pairwise(edges)):
        raise AdviseError(f"{where}: edges must ascend, from a first one over 0")
    if len(counts) != len(edges) - 1:
        raise AdviseError(f"{where}: there are {len(counts)} counts for {len(edges) - 1} edges; give one for each")
    total = sum(counts)
    if not total:
        raise AdviseError(f"{where}: counts are all 0; give at least one that is not")
    return Histogram(edges, tuple(part / total for part in accumulate(counts)))


_WAYS = {"mean": _even, "p50": _tailed, "values": _listed, "edges": _histogram}


def _only(given: Mapping[Any, Any], keys: tuple[str, ...], where: str) -> None:
    """Refuse any other key."""

    @dataclass(frozen=True, slots=True)
    class Nothing:
        pass

    known(Nothing, given, where, beside=keys)


def _whole(given: object, where: str, low: int) -> tuple[int, ...]:
    if not isinstance(given, list) or not 1 <= len(given) <= _LONGEST_LIST:
        raise AdviseError(f"{where} must be a list of 1 to {_LONGEST_LIST:,} whole numbers")
    for value in given:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MOST_TOKENS:
            raise AdviseError(f"{where} must be whole numbers from {low} to {MOST_TOKENS:,}")
    return tuple(given)
