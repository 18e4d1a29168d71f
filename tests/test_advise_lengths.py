"""Lengths drawn from a histogram are like those that filled it."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.advise.lengths import lengths, quantile, ranked, together
from kvpressure.advise.seen import AdviseError, Counted
from kvpressure.lab.leap import Outcome

EDGES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, float("inf"))
"""vLLM's own, for a context of 2,000 tokens."""


def counted(values):
    """What a histogram keeps of these lengths."""
    bounds = (0.0, *EDGES)
    counts = tuple(float(sum(low < value <= high for value in values)) for low, high in pairwise(bounds))
    return Counted(EDGES, counts, float(sum(values)))


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=60))
def test_the_mean_is_kept(values):
    """Whatever was observed, the mean of what is drawn is the mean of what was, to a token and half a cell."""
    found = lengths(counted(values))
    chance = random.Random(1)
    drawn = [found.draw(chance) for _ in range(4000)]
    mean = sum(values) / len(values)
    spread = 4 * (sum((value - mean) ** 2 for value in drawn) / len(drawn) / len(drawn)) ** 0.5
    assert abs(sum(drawn) / len(drawn) - mean) <= 1.0 + 0.06 * mean + spread


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=60))
def test_the_buckets_are_kept(values):
    """A quantile lies in the bucket in which as many of the observed ones lie."""
    found = lengths(counted(values))
    ordered = sorted(values)
    for share in (0.05, 0.5, 0.95):
        # The middle of an observation's own share: never at the border of two.
        place = min(len(ordered) - 1, int(share * len(ordered)))
        low, high = next((low, high) for low, high in pairwise((0.0, *EDGES)) if low < ordered[place] <= high)
        assert low < found.at((place + 0.5) / len(ordered)) <= high


@pytest.mark.parametrize(("mean", "spread"), [(400, 0.5), (250, 0.5), (850, 0.3), (600, 0.3), (120, 0.5)])
def test_even_lengths_come_back_though_buckets_are_wide(mean, spread):
    """The spread is at most 1.75 times the true one, though vLLM's buckets are wider than all of it."""
    chance = random.Random(2)
    true = [round(chance.uniform(mean * (1 - spread), mean * (1 + spread))) for _ in range(3000)]
    found = lengths(counted(true))
    drawn = [found.draw(chance) for _ in range(3000)]

    def deviation(values):
        middle = sum(values) / len(values)
        return (sum((value - middle) ** 2 for value in values) / len(values)) ** 0.5

    assert abs(sum(drawn) / sum(true) - 1) < 0.03
    assert deviation(true) <= deviation(drawn) < 1.75 * deviation(true)


def test_nothing_is_longer_than_the_server_takes():
    """Observations beyond the last edge are at most as long as the server's context."""
    found = lengths(Counted((100.0, float("inf")), (5.0, 5.0), 5 * 60 + 5 * 900.0), most=1000.0)
    assert found.most == 1000
    assert max(found.draw(random.Random(seed)) for seed in range(200)) <= 1000


def test_no_observation_is_no_distribution():
    """Without a finished request there is a sentence, and no length."""
    with pytest.raises(AdviseError, match="no request ended"):
        lengths(Counted(EDGES, (0.0,) * len(EDGES), 0.0))


def test_slots_are_put_together_where_their_edges_agree():
    """A vLLM that was started with another context has other buckets: the newest ones count."""
    old, new = Counted((10.0, float("inf")), (3.0, 0.0), 12.0), Counted(EDGES, (0.0, 1.0, *(0.0,) * 10), 2.0)
    assert together([old, new, new]) == Counted(EDGES, (0.0, 2.0, *(0.0,) * 10), 4.0)
    assert together([Counted(EDGES, (0.0,) * 12, 0.0)]) is None


@pytest.mark.parametrize(("most", "longest"), [(300, 300), (480, 480), (500, 500), (150, 500), (None, 500)])
def test_a_bucket_ends_where_requests_do(most, longest):
    """A request cannot be longer than the server takes, whatever the bucket's edge; what was observed was possible."""
    seen = Counted(EDGES, (*(0.0,) * 7, 30.0, 30.0, 0.0, 0.0, 0.0), 60 * 210.0)
    found = lengths(seen, most)
    assert found.most == longest
    chance = random.Random(3)
    drawn = [found.draw(chance) for _ in range(2000)]
    assert max(drawn) <= longest
    assert sum(drawn) / len(drawn) == pytest.approx(210, rel=0.03)


def test_quantiles_have_one_rule_each():
    """In buckets by interpolation, among plain values by nearest rank, as the model's own runs are told."""
    assert quantile(Counted((10.0, 20.0, float("inf")), (5.0, 5.0, 0.0), 100.0), 0.75) == 15.0
    assert quantile(Counted((10.0, float("inf")), (0.0, 0.0), 0.0), 0.5) is None
    values = list(range(100, 0, -1))
    ran = Outcome(
        1.0, 0, 0, 0, 0, 0, 0, 0, (), 0, 0, tuple(float(v) for v in values), 0, 0, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0.0
    )
    for share in (0.01, 0.5, 0.95, 0.99, 1.0):
        assert ranked(values, share) == ran.ttft(share)
