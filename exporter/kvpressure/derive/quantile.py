"""Quantiles and shares of classic histograms, by PromQL's own arithmetic."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence


def histogram_quantile(q: float, edges: Sequence[float], counts: Sequence[float]) -> float | None:
    """
    The q-quantile (0 to 1) of cumulative bucket counts, as PromQL's ``histogram_quantile``.

    Linear interpolation within a bucket, whose lower end is 0 for the first one; what lies in the infinite bucket
    is clamped to the highest finite edge.
    Source: promql/quantile.go, ``bucketQuantile``. None where there are no observations or no finite edge.
    """
    if len(edges) < 2 or not counts[-1]:  # noqa: PLR2004  # one bucket says nothing
        return None
    rank = q * counts[-1]
    at = bisect_left(counts, rank)
    if at == len(counts) - 1:
        return edges[-2]
    if at == 0 and edges[0] <= 0.0:
        return edges[0]
    start, below = (0.0, 0.0) if at == 0 else (edges[at - 1], counts[at - 1])
    within = counts[at] - below
    # A bucket that is empty and still reached can only be the first one, with rank 0.
    return start + (edges[at] - start) * ((rank - below) / within) if within else start


def count_above(threshold: float, edges: Sequence[float], counts: Sequence[float]) -> float:
    """Observations over the highest edge that is not over `threshold`; all of them where there is no such edge."""
    at = bisect_right(edges, threshold)
    if math.isinf(threshold):
        return 0.0
    return counts[-1] - (counts[at - 1] if at else 0.0)
