"""
Lengths as a distribution that can be drawn from, made of what a histogram knows.

A classic histogram tells how many observations lie in each bucket, and the sum of all of them. vLLM's buckets are wide
(200 to 500 tokens), so what lies between their edges matters. It is taken to be smooth on a logarithmic scale, on which
the buckets are about equally wide: smoothed, given its own share in each bucket again, and so on until both hold. Then
it is tilted within each bucket, by ``exp(tilt * tokens)`` with one tilt for all, until its mean is the one observed:
of all densities with these shares and this mean, that is the one with the least entropy relative to the smooth one.
"""

import math
import random
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from kvpressure.advise.seen import AdviseError, Counted
from kvpressure.derive.quantile import histogram_quantile

_CELLS = 8
"""Parts of a bucket."""
_ROUNDS = 200
"""Of smoothing: enough for a density to spread over three buckets."""
_HALVINGS = 60
"""Of the tilt's range: far below a token."""
_STEEPEST = 40.0
"""Where the tilt over the widest bucket is this steep, its mean is at its edge."""
_SMALLEST = 0.5
"""Tokens: where the logarithmic scale begins."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """
    Tokens per request.

    Args:
        cells: stretches of lengths that are equally likely within themselves, as (above, up to) in tokens.
        shares: of the requests in each, cumulative, the last one 1.
    """

    cells: tuple[tuple[float, float], ...]
    shares: tuple[float, ...]

    def at(self, share: float) -> int:
        """The quantile, in whole tokens, at least 1."""
        number = min(bisect_left(self.shares, share), len(self.shares) - 1)
        before = self.shares[number - 1] if number else 0.0
        low, high = self.cells[number]
        within = (share - before) / (self.shares[number] - before)
        return max(1, math.ceil(low + (high - low) * min(1.0, within)))

    def draw(self, chance: random.Random) -> int:
        """One length."""
        return self.at(chance.random())

    @property
    def most(self) -> int:
        """The longest that can be drawn."""
        return math.ceil(self.cells[-1][1])


def together(parts: Iterable[Counted]) -> Counted | None:
    """Several slots' observations as one; None where there is none. Slots with other edges than the last are left."""
    kept = [part for part in parts if part.count > 0]
    same = [part for part in kept if part.edges == kept[-1].edges]
    if not same:
        return None
    counts = tuple(map(sum, zip(*(part.counts for part in same), strict=True)))
    return Counted(same[-1].edges, counts, sum(part.sum for part in same))


def quantile(counted: Counted, share: float) -> float | None:
    """Of a histogram, by interpolation in its buckets; None where there is no observation or a single bucket."""
    return histogram_quantile(share, counted.edges, tuple(accumulate(counted.counts)))


def ranked(values: Sequence[int], share: float) -> int:
    """Of plain values, at least one: the least that this share of them does not exceed, as the model's own are."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def behind_mean(sources: Mapping[str, str], field: str) -> str:
    """Where the mean of a histogram comes from, by the field of a slot: a query that can be pasted."""
    buckets, sums = sources.get(field, "not recorded"), sources.get(f"{field}_sum", "")
    if not sums or not buckets.endswith("}"):
        return buckets
    matchers = buckets.removesuffix("}")
    return f'{sums} / ignoring(le) {matchers}{"" if matchers.endswith("{") else ","}le="+Inf"}}'


def lengths(counted: Counted, most: float | None = None) -> Lengths:
    """
    The distribution behind a histogram.

    Args:
        counted: what was observed, at least one.
        most: tokens that no request exceeds, where known: the buckets end there, unless longer ones were observed.
            Else the last bucket is as wide as all before it.

    Raises:
        AdviseError: nothing was observed.
    """
    if counted.count <= 0:
        raise AdviseError("no request ended in this time, so the lengths are not known: choose another range")
    top = counted.edges[-2] if len(counted.edges) > 1 else counted.sum / counted.count
    used = max(number for number, count in enumerate(counted.counts) if count > 0.0)
    longer = counted.edges[used - 1] if used else 0.0
    end = most if most and most > longer else 2.0 * top
    bounds = _bounds(counted.edges, end)
    masses = [count / counted.count for count in counted.counts]
    cells = [cell for low, high in bounds for cell in _parts(low, high)]
    smooth = _smooth(cells, masses)
    # Whole tokens are drawn by rounding up, which adds half a token.
    weights = _tilted(cells, smooth, masses, counted.sum / counted.count - 0.5)
    held = [(cell, weight) for cell, weight in zip(cells, weights, strict=True) if weight > 0.0]
    shares = list(accumulate(weight for _, weight in held))
    return Lengths(tuple(cell for cell, _ in held), (*(share / shares[-1] for share in shares[:-1]), 1.0))


def _bounds(edges: Sequence[float], end: float) -> list[tuple[float, float]]:
    """The buckets, from the first token to the last."""
    found, low = [], 0.0
    for edge in edges:
        high = max(min(edge, end), low + 1.0)
        found.append((low, high))
        low = high
    return found


def _parts(low: float, high: float) -> list[tuple[float, float]]:
    """A bucket's cells, equally wide on a logarithmic scale."""
    start = max(low, _SMALLEST)
    factor = (high / start) ** (1 / _CELLS)
    ends = [start * factor**number for number in range(1, _CELLS)]
    return list(pairwise((low, *ends, high)))


def _smooth(cells: Sequence[tuple[float, float]], masses: Sequence[float]) -> list[float]:
    """Weights of the cells: as smooth as the buckets' shares allow."""
    widths = [math.log(high / max(low, _SMALLEST)) for low, high in cells]
    weights = [mass / _CELLS for mass in masses for _ in range(_CELLS)]
    for _ in range(_ROUNDS):
        density = [0.0, *(weight / width for weight, width in zip(weights, widths, strict=True)), 0.0]
        weights = [
            width * (before + 2 * here + after) / 4
            for width, before, here, after in zip(widths, density, density[1:], density[2:], strict=False)
        ]
        weights = _scaled(weights, masses)
    return weights


def _scaled(weights: Sequence[float], masses: Sequence[float]) -> list[float]:
    """Every bucket with its own share again."""
    found: list[float] = []
    for bucket, mass in enumerate(masses):
        part = weights[bucket * _CELLS : (bucket + 1) * _CELLS]
        total = sum(part)
        found += [weight * mass / total if total > 0.0 else 0.0 for weight in part]
    return found


def _tilted(
    cells: Sequence[tuple[float, float]], weights: Sequence[float], masses: Sequence[float], mean: float
) -> list[float]:
    """The weights with the mean; as near to it as the cells allow, where it lies outside of them."""
    middles = [(low + high) / 2 for low, high in cells]
    buckets = [middles[first : first + _CELLS] for first in range(0, len(middles), _CELLS)]
    steepest = _STEEPEST / max(part[-1] - part[0] for part, mass in zip(buckets, masses, strict=True) if mass > 0.0)

    def at(tilt: float) -> list[float]:
        # Relative to the bucket's end that grows: exp never overflows.
        grown = [
            weight * math.exp(tilt * (middle - (part[-1] if tilt > 0 else part[0])))
            for number, part in enumerate(buckets)
            for middle, weight in zip(part, weights[number * _CELLS : (number + 1) * _CELLS], strict=True)
        ]
        return _scaled(grown, masses)

    low, high = -steepest, steepest
    for _ in range(_HALVINGS):
        tilt = (low + high) / 2
        if sum(middle * weight for middle, weight in zip(middles, at(tilt), strict=True)) < mean:
            low = tilt
        else:
            high = tilt
    return at((low + high) / 2)
