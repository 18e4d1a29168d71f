"""A real vLLM's log beside what its clients measured: the log tells who paused, and for how long."""

import gzip
import json
import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from kvpressure import recording, replay
from kvpressure.config import Config, StreamConfig
from kvpressure.derive.streams import Streams
from kvpressure.vllm.logs import LogReader

FIXTURES = Path(__file__).parent / "fixtures"
FOLDER = FIXTURES / "recordings" / "chat_cri"


@pytest.fixture(scope="module")
def longest():
    """Each request's longest gap by the log, in seconds, by its id."""
    reader = LogReader()
    requests = {}
    for block in recording.blocks(FOLDER / "server.log.gz", pytest.fail):
        for batch in reader.read(block):
            for event in batch.events:
                requests.setdefault(event.request, []).append(event)
    found = {}
    for request, events in requests.items():
        streams = Streams("log", StreamConfig(), lambda _: "m")
        streams.feed(events)
        if streams.snapshot(0.0):
            found[request] = streams.snapshot(0.0, whole=True)[0].windows[-1].gap_max_seconds
    return found


@pytest.fixture(scope="module")
def seen():
    """Each request's longest gap by its client's clock, in seconds."""
    with gzip.open(FOLDER / "streams.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    return {row["id"].encode(): max(b - a for a, b in pairwise(row["ts"])) for row in rows}


def test_replay(recorded):
    """The replay of the recording with its log: 160 requests streamed and 71 of them paused."""
    log = recording.blocks(FOLDER / "server.log.gz", pytest.fail)
    summary = replay.summarise(recorded("chat_cri"), Config(), 1.0, log)

    (streams,) = summary.last.streams
    assert (streams.streamed, streams.paused, streams.abandoned, streams.open) == (160, 71, 0, 0)
    assert (streams.model_name, streams.source) == ("tiny", "log")
    assert streams.longest_gaps.counts[-1] == 160
    by_edge = dict(zip(streams.longest_gaps.edges, streams.longest_gaps.counts, strict=True))
    assert 160 - by_edge[1.0] == 71
    assert streams.windows[-1].paused_ratio == 71 / 160


def test_steps_see_pauses_while_they_last(recorded):
    """Replayed step by step, requests are seen paused at a moment, and the counter never falls."""
    log = recording.blocks(FOLDER / "server.log.gz", pytest.fail)
    found = [s.streams[0] for s in replay.steps(recorded("chat_cri"), Config(), 1.0, 1.0, log) if s.streams]

    assert max(streams.paused_now for streams in found) > 5
    paused = [streams.paused for streams in found]
    assert paused == sorted(paused)
    assert paused[-1] == 71


def test_gaps_are_those_of_the_timestamps(longest):
    """Every request's longest gap is what a plain reading of the log's timestamps gives, to a millisecond."""
    times = {}
    with gzip.open(FOLDER / "server.log.gz", "rt", errors="replace") as file:
        for line in file:
            if "(streaming delta)" in line:
                words = line.split()
                request = words[words.index("response") + 1].encode()
                hours, minutes, seconds = words[0][11:-1].split(":")
                times.setdefault(request, []).append(int(hours) * 3600 + int(minutes) * 60 + float(seconds))
    plain = {request: max(b - a for a, b in pairwise(stamps)) for request, stamps in times.items()}

    assert len(plain) == 160
    assert plain == pytest.approx(longest, abs=0.001)
    assert sum(gap > 1.0 for gap in longest.values()) == 71


def test_gaps_are_near_those_of_the_clients(longest, seen):
    """Against the clients' clocks the median difference is under 20 ms, and 90 % of requests are within 250 ms."""
    differences = sorted(abs(longest[request] - gap) for request, gap in seen.items())

    assert len(differences) == 160
    assert statistics.median(differences) < 0.020
    assert sum(difference < 0.250 for difference in differences) >= 0.9 * 160
    assert sum(gap > 1.0 for gap in seen.values()) == 70


def test_lines_without_a_time_measure_nothing():
    """Lines that are stamped to the second cannot be timed afterwards, and a replay says so instead of guessing."""
    log = FIXTURES / "logs" / "text-0.28.0.log"

    assert replay.untimed(recording.blocks(log, pytest.fail))
    assert not replay.untimed(recording.blocks(FOLDER / "server.log.gz", pytest.fail))
