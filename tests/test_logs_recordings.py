"""The logs of a real vLLM, read by the reader and by something much simpler."""

import gzip
import re
from collections import Counter
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from logs_help import NOON, events

from kvpressure.vllm.logs import LogReader

RECORDINGS = Path(__file__).parents[2] / "shared" / "recordings"
pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="there are no recordings beside the checkout")


def read(name):
    with gzip.open(RECORDINGS / name) as file:
        return file.read()


def longest(stamps):
    """Each request's longest gap, in seconds."""
    return {request: max(b - a for a, b in pairwise(sorted(ts))) for request, ts in stamps.items()}


@pytest.fixture(scope="module")
def simple():
    """Each request's delta stamps, by a plain regular expression and datetime."""
    found = {}
    for line in read("chat_cri/server.log.gz").decode().splitlines():
        delta = re.match(r"(\S+)000Z stdout F .* Generated response (\S+) \(streaming delta\)", line)
        if delta:
            stamp = datetime.fromisoformat(delta[1] + "+00:00").timestamp()
            found.setdefault(delta[2].encode(), []).append(stamp)
    return found


def test_gaps_of_a_container_log(simple):
    """In chat_cri, all 160 requests have chunks, and each one's longest gap is what its stamps say; 71 exceed 1 s."""
    stamps = {}
    for event in events(read("chat_cri/server.log.gz")):
        if event.kind in ("token", "last"):
            stamps.setdefault(event.request, []).append(event.t)

    assert len(stamps) == 160
    assert longest(stamps) == pytest.approx(longest(simple), abs=0.001)
    assert sum(gap > 1.0 for gap in longest(stamps).values()) == 71


def test_events_of_a_container_log():
    """Each of its requests starts and ends once; the last delta of one was empty, and not logged."""
    counts = Counter(event.kind for event in events(read("chat_cri/server.log.gz")))

    assert counts == {"start": 160, "token": 23226, "last": 159, "end": 160}


def test_a_text_log():
    """chat_deltas has whole seconds only: followed, its lines count when they come; in replay they cannot be timed."""
    log = read("chat_deltas/server.log.gz")
    reader = LogReader()
    counts = Counter(event.kind for event in events(log, NOON, NOON - 0.25))

    assert counts["start"] == counts["end"] == 120
    assert counts["token"] + counts["last"] == 4372
    assert events(log, reader=reader) == []
    assert reader.problems["no_time"] == sum(counts.values())


def test_no_text_begins_a_line():
    """vLLM prints text with its newlines escaped: every line about a response begins with vLLM's own prefix."""
    for line in read("chat_deltas/server.log.gz").split(b"\n"):
        if b"Generated response" in line:
            assert re.match(rb"\(APIServer pid=\d+\) INFO 11-30 \d\d:\d\d:\d\d \[\S+\] Generated response ", line)
            assert line.endswith((b"None", b"length", b"streaming_complete"))


@pytest.mark.parametrize(
    ("version", "requests"),
    [("0.18.1-logs", True), ("0.28.0-logs", True), ("0.32.0-jsonlog", True), ("0.32.0-api2", False)],
)
def test_versions(version, requests):
    """Logs of all versions are recognised, and give events where requests were logged."""
    reader = LogReader()
    found = events((RECORDINGS / "versions" / version / "server-sample.log").read_bytes(), NOON, NOON - 0.25, reader)

    assert reader.findings.recognised
    assert bool(found) == requests
