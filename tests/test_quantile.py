"""Quantiles as PromQL computes them, once by its source and once by promtool itself."""

import itertools
import math
import subprocess
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.derive.quantile import count_above, histogram_quantile
from kvpressure.vllm.metrics import ExpositionReader

EDGES = st.lists(st.floats(-10, 1000, allow_subnormal=False), min_size=1, max_size=20, unique=True).map(
    lambda edges: (*sorted(edges), inf)
)


@st.composite
def histograms(draw):
    edges = draw(EDGES)
    gains = draw(st.lists(st.integers(0, 10**6), min_size=len(edges), max_size=len(edges)))
    return edges, [float(sum(gains[: n + 1])) for n in range(len(gains))]


def bucket_quantile(q, edges, counts):
    """promql/quantile.go, bucketQuantile, line by line; NaN where it gives NaN."""
    observations = counts[-1]
    if len(edges) < 2 or observations == 0:
        return math.nan
    rank = q * observations
    b = 0
    while b < len(edges) - 1 and not counts[b] >= rank:
        b += 1
    if b == len(edges) - 1:
        return edges[-2]
    if b == 0 and edges[0] <= 0:
        return edges[0]
    start, end, count = 0.0, edges[b], counts[b]
    if b > 0:
        start = edges[b - 1]
        count -= counts[b - 1]
        rank -= counts[b - 1]
    return start + (end - start) * (rank / count) if count else math.nan


@given(histogram=histograms(), q=st.floats(0, 1))
def test_as_promql_source(histogram, q):
    """Every quantile is that of PromQL's bucketQuantile; where it gives NaN for want of observations, None."""
    edges, counts = histogram
    expected, actual = bucket_quantile(q, edges, counts), histogram_quantile(q, edges, counts)

    if counts[-1] == 0.0:
        assert actual is None
    elif math.isnan(expected):
        assert (q * counts[-1], actual) == (0.0, 0.0)
    else:
        assert actual == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(histogram=histograms(), qs=st.lists(st.floats(0, 1), min_size=2, max_size=5))
def test_monotone(histogram, qs):
    """A higher quantile is never lower than a lower one, but for rounding."""
    edges, counts = histogram
    found = [histogram_quantile(q, edges, counts) for q in sorted(qs)]

    assert None in found or all(a <= b + 1e-9 * max(1.0, abs(a)) for a, b in itertools.pairwise(found))


def test_within_a_bucket():
    """Within a bucket the quantile is interpolated, from 0 in the first one."""
    assert histogram_quantile(0.5, (1.0, 2.0, inf), (4.0, 4.0, 4.0)) == 0.5
    assert histogram_quantile(0.75, (1.0, 2.0, inf), (2.0, 4.0, 4.0)) == 1.5


def test_beyond_the_top_edge():
    """What lies in the infinite bucket is clamped to the highest finite edge."""
    assert histogram_quantile(0.99, (0.5, 80.0, inf), (0.0, 0.0, 3.0)) == 80.0


def test_first_edge_not_positive():
    """A quantile in a first bucket that ends at or under 0 is that edge."""
    assert histogram_quantile(0.5, (-1.0, 2.0, inf), (3.0, 3.0, 3.0)) == -1.0


@pytest.mark.parametrize(("edges", "counts"), [((inf,), (5.0,)), ((1.0, inf), (0.0, 0.0))])
def test_nothing_to_tell(edges, counts):
    """Without observations, or without a finite edge, there is no quantile."""
    assert histogram_quantile(0.99, edges, counts) is None


@pytest.mark.parametrize(
    ("threshold", "expected"), [(0.1, 10.0), (0.5, 6.0), (0.75, 6.0), (1.0, 3.0), (99.0, 3.0), (inf, 0.0)]
)
def test_count_above(threshold, expected):
    """Observations are counted over the highest edge that is not over the threshold; all, where there is none."""
    assert count_above(threshold, (0.5, 1.0, inf), (4.0, 7.0, 10.0)) == expected


def test_as_promtool(recorded, tmp_path):
    """On the recordings' buckets, promtool's histogram_quantile agrees to 1e-9."""
    lines, checks = [], []
    for name in ("arm_roomy", "arm_tight_2x3", "control_500_16", "compute_stall"):
        (found,) = ExpositionReader().read([row.body for row in recorded(name) if row.body][-1]).readings.values()
        for field in ("gaps", "prompt_lengths", "output_lengths"):
            histogram = getattr(found, field)
            series = f'b{{of="{name}_{field}",le="%s"}}'
            for edge, count in zip(histogram.edges, histogram.counts, strict=True):
                lines.append(f"      - {{series: '{series % ('+Inf' if edge == inf else edge)}', values: '{count:g}'}}")
            for q in (0.0001, 0.5, 0.95, 0.99, 1.0):
                value = histogram_quantile(q, histogram.edges, histogram.counts)
                of = f'{{of="{name}_{field}"}}'
                checks += [
                    f"      - expr: 'abs(histogram_quantile({q}, b{of}) - {value!r}) <= bool 1e-9'",
                    f"        exp_samples: [{{labels: '{of}', value: 1}}]",
                ]
    rules = "\n".join(["tests:", "  - interval: 1m", "    input_series:", *lines, "    promql_expr_test:", *checks])
    file = tmp_path / "quantiles.yml"
    file.write_text(rules + "\n", encoding="utf-8")
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout + done.stderr) == (0, f"Unit Testing:  {file}\n  SUCCESS\n\n")
    assert len(checks) == 2 * 60
