"""How much fits into a cache, and when it is blocked."""

from array import array
from math import inf

import pytest

from kvpressure.derive.capacity import Lengths, blocked, headroom, lengths, resident_tokens, seats
from kvpressure.derive.windows import Buckets
from kvpressure.vllm.reading import Cache, EngineReading, Histogram

CACHE = Cache(tokens=1616.0, blocks=101.0, block_size=16.0)
WHOLE = Histogram((100.0, 200.0, inf), (10.0, 20.0, 20.0), 2500.0)


def reading(**given):
    return EngineReading("V1", **{"cache": CACHE, "waiting": 1.0, "kv_usage": 0.5, "running": 4.0} | given)


@pytest.mark.parametrize(
    ("given", "prompt", "expected"),
    [
        ({}, 800.0, False),
        ({}, 801.0, True),
        ({"waiting": 0.0}, 801.0, False),
        ({"waiting": 0.0, "cache": None}, None, False),
        ({"waiting": None}, 801.0, None),
        ({"cache": None}, 801.0, None),
        ({"kv_usage": None}, 801.0, None),
        ({}, None, None),
        ({"waiting_capacity": 0.0}, 801.0, False),
        ({"waiting": 0.0, "waiting_capacity": 2.0}, 801.0, True),
    ],
)
def test_blocked(given, prompt, expected):
    """Blocked is a queue for capacity with fewer free tokens than a prompt; unknown where a part of it is."""
    assert blocked(reading(**given), prompt) is expected


def test_null_block_is_not_free():
    """The null block, which is never handed out, is not among the free tokens."""
    assert reading(kv_usage=0.0).free_tokens == 1600.0
    assert reading(kv_usage=0.0, cache=Cache(tokens=1616.0)).free_tokens == 1616.0


def test_resident_tokens():
    """Resident tokens are those in use per running request; without one, or without usage, unknown."""
    assert resident_tokens(reading()) == 200.0
    assert resident_tokens(reading(running=0.0)) is None
    assert resident_tokens(reading(kv_usage=None)) is None
    assert resident_tokens(reading(running=None)) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((1616.0, 100.0, 101.5), 1616 / 201.5),
        ((None, 1.0, 1.0), None),
        ((1.0, None, 1.0), None),
        ((1.0, 1.0, None), None),
        ((1.0, 0.0, 0.0), None),
    ],
)
def test_seats(given, expected):
    """Requests that fit are capacity over footprint; unknown without either."""
    assert seats(*given) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((20.5, 12.0, 3.0), 5.5),
        ((20.0, 15.0, 5.0), 0.0),
        ((20.0, 16.0, 5.0), -1.0),
        ((None, 0.0, 0.0), None),
        ((20.0, None, 0.0), None),
        ((20.0, 0.0, None), None),
    ],
)
def test_headroom(given, expected):
    """Headroom is seats minus running and waiting, negative where they are too many; unknown without one of them."""
    assert headroom(*given) == expected


def buckets(*counts, total, epoch=0):
    return Buckets(epoch, array("d", counts), counts[-1], total)


def test_lengths_of_the_window():
    """Lengths are those gained in the window, where anything finished in it."""
    now, then = buckets(6.0, 8.0, 8.0, total=900.0), buckets(4.0, 4.0, 4.0, total=300.0)

    assert lengths(now, then, WHOLE) == Lengths(150.0, 190.0)


def test_lengths_since_the_start():
    """Where nothing finished in the window, lengths are those since vLLM's start."""
    same = buckets(4.0, 4.0, 4.0, total=300.0)

    assert lengths(same, same, WHOLE) == Lengths(125.0, 190.0)


def test_lengths_unknown():
    """Without a histogram, or before anything finished at all, lengths are unknown."""
    none = Buckets()

    assert lengths(none, none, None) is None
    assert lengths(none, none, Histogram((1.0, inf), (0.0, 0.0), 0.0)) is None


def test_histogram_mean():
    """A histogram's mean is its sum over its count, unknown without an observation."""
    assert (WHOLE.count, WHOLE.mean) == (20.0, 125.0)
    assert Histogram((inf,), (0.0,), 0.0).mean is None
