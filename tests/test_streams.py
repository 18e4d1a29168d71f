"""Streams: pauses while they last, gaps per answer, windows, ends of every kind, and bounds."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpressure.config import StreamConfig
from kvpressure.derive.streams import Streams
from kvpressure.signals import WINDOWS
from kvpressure.vllm.stream import StreamEvent

CONFIG = StreamConfig()


def made(config=CONFIG, name=lambda model: model or "m"):
    return Streams("tap", config, name)


def tokens(request, *times, **more):
    return [StreamEvent("token", t, request, **more) for t in times]


def only(streams, t, **more):
    (found,) = streams.snapshot(t, **more)
    return found


def window(streams, t, label="1m"):
    return next(window for window in only(streams, t).windows if window.window == label)


def test_a_pause_counts_while_it_lasts():
    """A request is paused once its silence passes the threshold, before any further chunk, and once."""
    streams = made()
    streams.feed(tokens("a", 100.0, 100.5))

    streams.advance(101.5)
    assert only(streams, 101.5).paused == 0
    streams.advance(101.51)
    assert (only(streams, 101.51).paused, only(streams, 101.51).paused_now) == (1, 1)
    streams.advance(105.0)
    streams.feed(tokens("a", 106.0))
    streams.advance(108.0)
    assert (only(streams, 108.0).paused, only(streams, 108.0).paused_now) == (1, 1)
    assert only(streams, 108.0).streamed == 1


def test_exactly_the_threshold_is_no_pause():
    """A gap of one second is none that is longer than one second."""
    streams = made()
    streams.feed(tokens("a", 100.0, 101.0, 102.0))

    assert only(streams, 102.0).paused == 0


def test_silence_is_silence_only_as_far_as_it_is_known():
    """Without word that all events were fed, nobody is taken for paused: a log may be read late."""
    streams = made()
    streams.feed(tokens("a", 100.0))
    streams.feed(tokens("b", 150.0))

    assert only(streams, 160.0).paused == 0


def test_time_to_the_first_chunk_is_no_gap():
    """A request that waits an hour for its first chunk has no gap and no pause."""
    streams = made()
    streams.feed([StreamEvent("start", 0.0, "a")])
    streams.advance(3600.0)
    streams.feed([*tokens("a", 3600.0), StreamEvent("end", 3600.1, "a")])

    found = only(streams, 3601.0)
    assert (found.paused, found.streamed, found.gaps.counts[-1]) == (0, 1, 0)
    assert (found.longest_gaps.counts[-1], found.longest_gaps.sum) == (1, 0.0)


def test_after_the_last_chunk_nothing_is_awaited():
    """Between an answer's finish reason and the end of its response no time is a gap."""
    streams = made()
    streams.feed([*tokens("a", 100.0, 100.1), StreamEvent("last", 100.2, "a")])
    streams.advance(150.0)
    streams.feed([StreamEvent("end", 150.0, "a")])

    found = only(streams, 150.0)
    assert (found.paused, found.gaps.counts[-1], found.open) == (0, 2, 0)
    assert found.longest_gaps.sum == pytest.approx(0.1)


def test_choices_are_answers_of_their_own():
    """With two choices, gaps lie within each, and one that stands still pauses the request, though the other flows."""
    streams = made()
    for n in range(11):
        streams.feed(tokens("a", 100.0 + n / 5, choice=0))
        if n == 0:
            streams.feed(tokens("a", 100.0, choice=1))
    streams.advance(102.0)
    assert (only(streams, 102.0).paused, only(streams, 102.0).paused_now) == (1, 1)
    assert window(streams, 102.0).gap_max_seconds == pytest.approx(0.2)

    streams.feed(tokens("a", 103.0, choice=1))
    found = only(streams, 103.0)
    assert (found.paused, found.paused_now, found.streamed) == (1, 0, 1)
    assert window(streams, 103.0).gap_max_seconds == pytest.approx(3.0)


def test_a_choice_that_is_complete_does_not_pause():
    """The first of two choices ends early: its silence is no pause, and the other's gaps go on."""
    streams = made()
    streams.feed([StreamEvent("last", 100.0, "a", 0), *tokens("a", 100.0, 100.9, 101.8, choice=1)])
    streams.advance(102.0)

    assert only(streams, 102.0).paused == 0


@pytest.mark.parametrize("kind", ["end", "abort"])
def test_a_response_that_breaks_off_in_a_pause(kind):
    """Who leaves a stream that stands still was paused until then, and that is the request's longest gap."""
    streams = made()
    streams.feed([*tokens("a", 100.0, 100.1), StreamEvent(kind, 107.1, "a")])

    found = only(streams, 107.1)
    assert (found.paused, found.paused_now, found.open) == (1, 0, 0)
    assert found.longest_gaps.sum == pytest.approx(7.0)
    assert window(streams, 107.1).gap_max_seconds == pytest.approx(7.0)


def test_the_moment_before_an_end_is_no_gap():
    """What lies between the last chunk and an end soon after is no gap of the answer."""
    streams = made()
    streams.feed([*tokens("a", 100.0, 100.1), StreamEvent("end", 100.9, "a")])

    assert only(streams, 101.0).gaps.counts[-1] == 1


def test_a_client_that_does_not_read():
    """While a client does not read, nothing is known of the server: neither a gap nor a pause comes of it."""
    streams = made()
    streams.feed([*tokens("a", 100.0, 100.1), StreamEvent("blind", 100.1, "a")])
    streams.advance(130.0)
    streams.feed(tokens("a", 130.0, 130.1))

    found = only(streams, 130.1)
    assert (found.paused, found.gaps.counts[-1], found.gaps.sum) == (0, 2, pytest.approx(0.2))


def test_lost_events():
    """Where events were lost no gap reaches across, for any stream, and a pause that was under way ends."""
    streams = made()
    streams.feed(tokens("a", 100.0) + tokens("b", 101.9))
    streams.advance(102.0)
    assert only(streams, 102.0).paused_now == 1

    streams.lose(110.0)
    streams.advance(120.0)
    streams.feed(tokens("a", 120.0, 120.2) + tokens("b", 120.0))
    found = only(streams, 120.2)
    assert (found.paused, found.paused_now, found.gaps.counts[-1]) == (1, 0, 1)


def test_a_clock_that_steps_back():
    """A chunk that is stamped before the one before it is a gap of nothing, and the next gap is not longer for it."""
    streams = made()
    streams.feed(tokens("a", 100.0, 99.9, 100.05))

    found = only(streams, 101.0)
    assert found.gaps.sum == pytest.approx(0.05)
    assert found.gaps.counts[-1] == 2


def test_nobody_pauses_where_nobody_streams():
    """A clock that steps back after a pause leaves no window with more requests paused than streamed."""
    streams = made()
    streams.feed(tokens("a", 100.0, 130.0, 95.0))

    for t in range(130, 200):
        at = window(streams, float(t))

        assert at.paused <= at.streamed


def test_the_ratio_counts_everybody_once_per_window():
    """Paused over streamed, in each window by itself: who streamed or paused only before it is not in it."""
    streams = made()
    streams.feed([*tokens("old", 100.0, 103.0), StreamEvent("end", 103.0, "old")])
    streams.feed([*tokens("a", 300.0, 300.5, 303.0), *tokens("b", 300.0, 300.5), *tokens("c", 302.6, 303.0)])
    streams.advance(303.0)

    at = only(streams, 303.0)
    assert [(w.streamed, w.paused) for w in at.windows] == [(3, 2), (4, 3), (4, 3)]
    assert at.windows[0].paused_ratio == pytest.approx(2 / 3)
    streams.feed(tokens("b", 303.1))
    later = only(streams, 370.0)
    assert [(w.streamed, w.paused) for w in later.windows] == [(0, 0), (4, 3), (4, 3)]
    assert later.windows[0].paused_ratio is None


def test_who_is_paused_now_is_in_every_window():
    """In a livelock nobody gets a chunk: the share of paused requests is all, not unknown."""
    streams = made()
    streams.feed(tokens("a", 100.0) + tokens("b", 100.0))
    streams.advance(300.0)

    assert [w.paused_ratio for w in only(streams, 300.0).windows] == [1.0, 1.0, 1.0]
    streams.feed(tokens("a", 300.5))
    assert window(streams, 300.5).paused_ratio == 1.0
    streams.feed([StreamEvent("end", 301.0, request) for request in "ab"])
    assert [window(streams, t).streamed for t in (359.0, 360.0, 361.0)] == [2, 1, 0]


def test_silence_for_good():
    """A stream without an end is forgotten after the timeout and counted; a late chunk is a new stream."""
    streams = made(StreamConfig(idle_timeout=30.0))
    streams.feed(tokens("a", 100.0, 100.1))
    streams.advance(130.0)
    assert only(streams, 130.0).open == 1
    streams.advance(130.2)

    found = only(streams, 130.2)
    assert (found.open, found.abandoned, found.paused, found.paused_now) == (0, 1, 1, 0)
    assert found.gaps.counts[-1] == 1
    assert found.longest_gaps.sum == pytest.approx(30.1)
    streams.feed([StreamEvent("end", 131.0, "a"), *tokens("a", 131.0)])
    assert only(streams, 131.0).streamed == 2


def test_an_end_that_was_not_seen():
    """A stream whose answers were all complete is not abandoned when its end does not come."""
    streams = made(StreamConfig(idle_timeout=30.0))
    streams.feed([*tokens("a", 100.0), StreamEvent("last", 100.1, "a")])
    streams.advance(200.0)

    found = only(streams, 200.0)
    assert (found.open, found.abandoned, found.paused, found.longest_gaps.counts[-1]) == (0, 0, 0, 1)


def test_more_streams_than_are_followed():
    """Beyond the limit chunks are counted and no state is kept; a place that is free is taken."""
    streams = made(StreamConfig(max_tracked=2))
    streams.feed(tokens("a", 1.0) + tokens("b", 1.0) + tokens("c", 1.0, 1.1))
    assert (only(streams, 1.1).streamed, streams.untracked) == (2, 2)

    streams.feed([StreamEvent("end", 1.2, "a"), *tokens("c", 1.3)])
    assert (only(streams, 1.3).streamed, streams.untracked) == (3, 2)


def test_many_choices_cost_no_more_than_many_responses():
    """One response with thousands of choices, all of which pause and end, takes no longer than as many responses."""
    streams = made()
    choices = range(20_000)
    streams.feed([StreamEvent("token", 1.0, "a", n) for n in choices])
    streams.advance(3.0)
    assert (only(streams, 3.0).paused, only(streams, 3.0).paused_now) == (1, 1)
    streams.feed([StreamEvent("token", 3.0, "a", n) for n in choices[:-1]])
    assert only(streams, 3.0).paused_now == 1
    streams.feed([StreamEvent("last", 3.0, "a", n) for n in choices])
    streams.feed([StreamEvent("end", 3.0, "a")])

    found = only(streams, 3.0)
    assert (found.paused, found.paused_now, found.open, found.gaps.counts[-1]) == (1, 0, 0, 2 * len(choices) - 1)


def test_choices_count_towards_the_limit():
    """A response with more choices than are followed does not get around the limit."""
    streams = made(StreamConfig(max_tracked=3))
    streams.feed([StreamEvent("token", 1.0, "a", n) for n in range(5)])
    streams.feed(tokens("b", 1.0))
    assert (only(streams, 1.0).streamed, streams.untracked) == (1, 3)

    streams.feed([StreamEvent("end", 1.1, "a"), *tokens("b", 1.2)])
    assert (only(streams, 1.2).streamed, streams.untracked) == (2, 3)


def test_a_stream_that_never_ends_is_bounded():
    """The seconds of one stream that goes on for hours are forgotten as no window reaches them any more."""
    streams = made()
    for t in range(20_000):
        streams.feed(tokens("a", float(t)))
        streams.snapshot(float(t))

    assert len(streams._models["m"].activity._streamed) <= 2 * 900 + 1


def test_events_of_unknown_requests():
    """An end, an abort or a blind spot of a request that nobody knows is nothing."""
    streams = made()
    streams.feed([StreamEvent(kind, 1.0, "x") for kind in ("start", "end", "abort", "blind")])

    assert streams.snapshot(1.0) == ()


def test_models_are_kept_apart():
    """Each model counts by itself, under the name that it is given."""
    streams = made(name=lambda model: model if model == "a" else "other")
    streams.feed(tokens(1, 1.0, 1.5, model="a") + tokens(2, 1.0, 4.0, model="b") + tokens(3, 1.0, model="c"))

    assert [(found.model_name, found.streamed, found.paused) for found in streams.snapshot(4.0)] == [
        ("a", 1, 0),
        ("other", 2, 1),
    ]


def test_a_model_counts_from_zero():
    """A model that is known before its first stream has counters at 0, no ratio and no gap."""
    streams = made()
    streams.ensure("m")

    found = only(streams, 1.0)
    assert (found.streamed, found.paused, found.open) == (0, 0, 0)
    assert {(w.paused_ratio, w.gap_p99_seconds, w.gap_max_seconds) for w in found.windows} == {(None, None, None)}


def test_edges_have_the_threshold():
    """The histograms have an edge at the pause threshold, wherever it is."""
    streams = made(StreamConfig(pause_threshold=0.7))
    streams.feed(tokens("a", 1.0, 1.71, 2.4))

    found = only(streams, 2.4).gaps
    assert dict(zip(found.edges, found.counts, strict=True))[0.7] == 1
    assert math.isinf(found.edges[-1])


# --- against a plain reading of all events ---------------------------------------------------------------------------

steps = st.sampled_from([0.0, 0.001, 0.02, 0.3, 0.999, 1.001, 2.5, 40.0, 70.0])
kinds = st.sampled_from(["token"] * 12 + ["last", "end", "abort", "blind"])
histories = st.lists(st.tuples(steps, kinds, st.integers(0, 3), st.integers(0, 1)), max_size=80)


def plain(events, now):  # noqa: C901  # one branch per kind of event
    """Gaps as (second of their end, length) and pauses as (request, from, to or None), read off the whole history."""
    gaps, pauses, chunks = [], [], []
    last, generation = {}, dict.fromkeys(range(4), 0)
    for kind, t, request, choice, _ in events:
        mine = (request, generation[request])
        if kind in ("token", "last"):
            before = last.get((mine, choice))
            if before is not None:
                gaps.append((int(t), t - before))
                if t - before > 1.0:
                    pauses.append((mine, before + 1.0, t))
            last[mine, choice] = t if kind == "token" else None
            chunks.append((mine, t))
        elif kind == "blind" and (mine, choice) in last:
            before = last[mine, choice]
            if before is not None and t - before > 1.0:
                pauses.append((mine, before + 1.0, t))
            last[mine, choice] = None
        elif kind in ("end", "abort"):
            for key in [key for key in last if key[0] == mine]:
                before = last.pop(key)
                if before is not None and t - before > 1.0:
                    pauses.append((mine, before + 1.0, t))
                    gaps.append((int(t), t - before))
            generation[request] += 1
    for (mine, _), before in last.items():
        if before is not None and now - before > 1.0:
            pauses.append((mine, before + 1.0, None))
    return gaps, pauses, chunks


@settings(max_examples=300, deadline=None)
@given(histories, steps, st.booleans())
def test_against_a_plain_reading(history, rest, often):
    """Whatever happens and however often it is looked at, counts, windows and gaps are those of a plain reading."""
    streams = made(StreamConfig(idle_timeout=1e6))
    t, events = 1000.0, []
    for step, kind, request, choice in history:
        t += step
        if often:
            streams.advance(t - 0.0005)
        events.append(StreamEvent(kind, t, request, choice))
        streams.feed(events[-1:])
    t += rest
    streams.advance(t)

    gaps, pauses, chunks = plain(events, t)
    if not chunks:
        assert streams.snapshot(t) == ()
        return
    found = only(streams, t)
    assert found.streamed == len({mine for mine, _ in chunks})
    assert found.paused == len({mine for mine, _, _ in pauses})
    assert found.paused_now == len({mine for mine, _, end in pauses if end is None})
    assert found.gaps.counts[-1] == len(gaps)
    for (_, seconds), look in zip(WINDOWS, found.windows, strict=True):
        since = int(t) - int(seconds)
        paused = {mine for mine, _, end in pauses if end is None or int(end) > since}
        streamed = {mine for mine, at in chunks if int(at) > since} | paused
        assert (look.streamed, look.paused) == (len(streamed), len(paused))
        inside = [gap for second, gap in gaps if second > since]
        assert look.gap_max_seconds == (pytest.approx(max(inside)) if inside else None)


def test_a_restart_breaks_off_what_began_before():
    """Who got nothing since nobody answered is abandoned, without a pause; who got a chunk since goes on."""
    streams = made()
    streams.feed([*tokens("a", 100.0), *tokens("b", 100.0)])
    streams.lose(100.5)
    streams.feed(tokens("b", 101.0))

    streams.restart(100.6)
    streams.advance(101.5)

    found = only(streams, 101.5)
    assert (1, 1, 0, 2) == (found.open, found.abandoned, found.paused, found.streamed)
