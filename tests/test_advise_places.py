"""Which series are one engine's: in one pod, on one host, or the only ones; and points that become slots."""

import math

import pytest

from kvpressure.advise import points
from kvpressure.advise.asked import own, upstream
from kvpressure.advise.engines import choose, missing
from kvpressure.advise.places import Place, beside
from kvpressure.advise.points import Span
from kvpressure.advise.promapi import Series
from kvpressure.advise.seen import AdviseError, Counted, Slot

NAN = math.nan
TWO = (Span(0.0, 15.0, 15.0, 15.0), Span(15.0, 30.0, 30.0, 15.0))


def place(**labels):
    """An engine of model m with these labels."""
    return Place({"model_name": "m", "engine": "0", **labels})


def series(*values, **labels):
    """Values every 15 seconds from 0 on; None where there is none."""
    return Series(labels, tuple((15.0 * n, value) for n, value in enumerate(values) if value is not None))


@pytest.mark.parametrize(
    ("sidecar", "others", "found"),
    [
        # In one pod, whatever the ports are.
        (
            place(pod="p", namespace="n", instance="1:1"),
            [place(pod="q", namespace="n", instance="1:2"), place(pod="p", namespace="n", instance="9:2")],
            1,
        ),
        # On one host.
        (place(instance="a:10938"), [place(instance="b:8000"), place(instance="a:8000")], 1),
        (place(instance="[::1]:10938"), [place(instance="[::2]:8000"), place(instance="[::1]:8000")], 1),
        # Nothing tells, but there is only one.
        (place(instance="a:10938"), [place(instance="elsewhere:80")], 0),
        (place(instance="a:10938"), [place(instance="a:80", engine="1"), place(instance="elsewhere:80")], 1),
        # Two that could be it, and none.
        (place(instance="a:10938"), [place(instance="a:8000"), place(instance="a:8001")], None),
        (place(instance="a:10938"), [place(instance="b:8000"), place(instance="c:8000")], None),
        (place(instance="a:10938"), [place(instance="a:8000", model_name="other")], None),
    ],
)
def test_beside(sidecar, others, found):
    """vLLM's own series belong to a sidecar where that can be told, and to none where it cannot."""
    assert beside(sidecar, others) == (None if found is None else others[found])


def test_engine_without_a_rank():
    """An engine of a vLLM that tells no rank is selected as one without that label."""
    bare = Place({"model_name": "m", "instance": "a:8000"}, prefix="vllm:")
    (finished,) = (way for way in upstream(bare, 15.0, 15.0) if way.field == "finished")

    assert bare.engine == "0"
    assert finished.query == 'vllm:request_success_total{engine="",instance="a:8000",model_name="m"}'


def test_queries():
    """Older spellings stand behind newer ones; the queries are the documented ones."""
    one = {way.field: way for way in upstream(Place({"model_name": "m", "engine": "0"}, "vllm:"), 60.0, 15.0)}
    labels = '{engine="0",model_name="m"}'

    assert one["usage"].query == (
        f"avg_over_time(vllm:kv_cache_usage_perc{labels}[1m]) or avg_over_time(vllm:gpu_cache_usage_perc{labels}[1m])"
    )
    assert one["peak"].query == (
        f"max_over_time((vllm:num_requests_running{labels} + vllm:num_requests_waiting{labels})[1m:15s])"
    )
    assert one["first_tokens"].sums == f"vllm:time_to_first_token_seconds_sum{labels}"


def test_no_streams_where_nobody_tells():
    """Without an observer that is believed, none of the queries is about streams."""
    fields = {way.field for way in own(place(), 15.0, 15.0, "")}

    assert fields.isdisjoint({"streamed", "paused", "gaps"})
    assert {"regime", "verdict", "pinned", "blocked", "prompts"} <= fields


# --- points -----------------------------------------------------------------------------------------------------------


def test_spans():
    """A point that repeats a sample tells nothing new, and a long time between samples is in no span."""
    stamps = [series(1.0, 1.0, 31.0, 46.0, 46.0, None, 200.0, 215.0)]

    assert points.spans(stamps, 45.0) == (
        [Span(0.0, 30.0, 31.0, 30.0), Span(30.0, 45.0, 46.0, 15.0), Span(90.0, 105.0, 215.0, 15.0)],
        154.0,
    )


def test_stamps_of_copies():
    """Of copies of a series, as per API server process, the latest sample counts."""
    assert points.spans([series(1.0, 16.0), series(2.0, 17.0)], 45.0)[0] == [Span(0.0, 15.0, 17.0, 15.0)]


@pytest.mark.parametrize(
    ("given", "gained"),
    [
        ([series(5, 8, 8)], [3, 0]),
        ([series(5, 2, 4)], [2, 2]),  # a restart
        ([series(5, 8, 9), series(1, 1, 3)], [3, 3]),  # a sum over reasons
        ([series(5, 8, 9), series(None, 2, 3)], [5, 2]),  # one that appears counts from 0
        ([series(None, 8, 9)], [None, 1]),  # nothing was there before: from what on is not known
        ([series(5, None, 9)], [None, None]),
        ([series(5, NAN, 9)], [None, None]),
        ([series(5, 8, 9), series(7, None, 3)], [3, 4]),  # one that is gone, and back
        ([], [None, None]),
    ],
)
def test_counter(given, gained):
    """A counter's gain is a difference; its new value where it fell; None where nobody knows."""
    assert points.counter(given, TWO) == gained


def test_gauge():
    """Of copies the largest counts, and what is not there is None, never 0."""
    assert points.gauge([series(0, 3, None), series(0, 4, NAN)], TWO) == [4, None]


def test_state():
    """The state is the label of the series that is there; `unknown` is not known."""
    given = [series(None, 1.0, regime="calm"), series(1.0, None, 1.0, regime="unknown")]

    assert points.state(given, "regime", TWO) == ["calm", ""]


def buckets(*columns, edges=("0.5", "1", "+Inf")):
    """A histogram by its buckets, each a list of values."""
    return [series(*values, le=edge) for edge, values in zip(edges, columns, strict=True)]


def test_histogram():
    """Buckets are told one by one, each without those below it."""
    found = points.histogram(buckets([1, 2, 2], [1, 4, 4], [2, 6, 7]), [series(10, 40, 45)], TWO)

    assert found == [Counted((0.5, 1.0, math.inf), (1, 2, 1), 30), Counted((0.5, 1.0, math.inf), (0, 0, 1), 5)]


def test_histogram_that_fell():
    """Where any bucket fell the whole histogram started again, its sum too."""
    found = points.histogram(buckets([4, 1], [4, 9], [4, 9]), [series(10, 40)], TWO[:1])

    assert found == [Counted((0.5, 1.0, math.inf), (1, 8, 0), 40)]


def test_histogram_with_other_edges():
    """Other edges are a start of all of it."""
    given = [*buckets([4, None], [5, None], [6, None]), series(None, 2, le="2.0"), series(None, 3, le="+Inf")]

    assert points.histogram(given, [series(9, 7)], TWO[:1]) == [Counted((2.0, math.inf), (2, 1), 7)]


@pytest.mark.parametrize(
    ("given", "sums"),
    [
        (buckets([None, 1], [None, 1], [None, 1]), [series(1, 2)]),  # nothing to count from
        (buckets([1, 1], [1, 1], [1, 1], edges=("1", "2", "3")), [series(1, 2)]),  # no last bucket
        (buckets([1, 1], [1, 1], [1, 1]), []),
        (buckets([1, NAN], [1, NAN], [1, NAN]), [series(1, 2)]),
    ],
)
def test_histogram_that_is_not_whole(given, sums):
    """A histogram that lacks a part is None."""
    assert points.histogram(given, sums, TWO[:1]) == [None]


def test_edge_that_is_none():
    """A bucket whose edge is no number is passed over."""
    found = points.histogram([*buckets([1, 2], [1, 4], [2, 6]), series(1, 9, le="x")], [series(1, 2)], TWO[:1])

    assert found[0].edges == (0.5, 1.0, math.inf)


# --- choosing ---------------------------------------------------------------------------------------------------------


def test_choice_does_not_depend_on_the_order():
    """Engines that are alike in everything are chosen by their name."""
    loads = {("m", str(n), "x"): (3.0, 3.0) for n in range(5)}

    assert choose(loads, "it", "", "") == choose(dict(reversed(loads.items())), "it", "", "")


def test_many_engines():
    """Of many engines a dozen are named, and the others counted."""
    loads = {("m", f"{n:02}", ""): (0.0, float(n)) for n in range(40)}
    with pytest.raises(AdviseError) as raised:
        choose(loads, "it", "x", "")

    assert str(raised.value).endswith("engine 11 of model m and 28 more")


def test_missing():
    """What no slot knows is told in one sentence, and nothing is where all is known."""
    full = Slot(1.0, 1.0, **dict.fromkeys(set(Slot.__slots__) - {"end", "seconds"}, 0.0))

    assert missing([full], "it") == []
    assert missing([Slot(1.0, 1.0), Slot(2.0, 1.0, finished=0.0)], "it")[0].startswith(
        "Not known, because it did not tell: preemptions, tokens generated, "
    )


def test_bucket_that_is_missing_is_no_restart():
    """A scrape that was kept in part tells nothing, before it and after it; a restart still tells what was gained."""
    whole, total = buckets([10, 11, 12], [500, 501, 502], [1000, 1001, 1002]), series(5, 6, 7)
    cut = series(500, None, 502, le="1.0")
    assert points.histogram([whole[0], cut, whole[2]], [total], TWO) == [None, None]
    assert points.histogram(whole, [series(None, 6, 7)], TWO) == [None, Counted((0.5, 1.0, math.inf), (1, 0, 0), 1)]

    restarted = [series(10, 2, le="0.5"), series(500, None, le="1.0"), series(1000, 3, le="+Inf")]
    assert points.histogram(restarted, [series(5, 1)], TWO[:1]) == [Counted((0.5, math.inf), (2, 1), 1)]
