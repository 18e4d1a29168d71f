"""The reader of logs, for any log: its events depend on the bytes alone, and nothing of a line stays but its id."""

import tracemalloc

import pytest
from fuzz import logs as fuzz
from hypothesis import given
from hypothesis import strategies as st
from logs_help import FIXTURES, NOON, events, fixture, line_by_line

from kvpressure.vllm.logs import LogReader

FORMATS = [path.read_bytes() for path in sorted(FIXTURES.iterdir())]
LINES = sorted({line for text in FORMATS for line in text.split(b"\n")})
PIECES = st.sampled_from(
    [b'"', b"\\", b"\\u0041", b"\x1b[0m", b"\r", b"\xff", b", finish_reason: None", b" P ", b"{", b" ", b""]
)


@st.composite
def _lines(draw):
    """Lines of all formats, some of them with something changed in their midst."""
    line = draw(st.sampled_from(LINES))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(line)))
        line = line[:at] + draw(PIECES) + line[at + draw(st.integers(0, 3)) :]
    return line * draw(st.integers(1, 2))


LOGS = st.lists(_lines(), max_size=30).map(b"\n".join)


@given(log=LOGS, cuts=st.lists(st.integers(0, 6000), max_size=12))
def test_any_cut_gives_the_same_events(log, cuts):
    """A log gives the same events and the same problems, read at once or in pieces."""
    whole, pieces = LogReader(), LogReader()
    expected = events(log + b"\n", reader=whole)
    found = []
    start = 0
    for end in [*sorted(min(cut, len(log)) for cut in cuts), len(log)]:
        found += events(log[start:end], reader=pieces)
        start = end
    found += events(b"\n", reader=pieces)

    assert found == expected
    assert pieces.problems == whole.problems
    assert pieces.findings == whole.findings


@given(first=st.sampled_from(FORMATS), log=LOGS, live=st.booleans())
def test_fast_is_slow(first, log, live):
    """Deltas that are read at a glance are what they would be if each line were looked at."""
    how = {"arrival": NOON, "since": NOON - 0.25} if live else {}
    quick, careful = LogReader(), line_by_line()
    for reader in (quick, careful):
        events(first, reader=reader, **how)

    assert events(log + b"\n", reader=quick, **how) == events(log + b"\n", reader=careful, **how)
    assert quick.problems == careful.problems
    assert quick.lines == careful.lines


@given(data=st.binary(max_size=400))
def test_any_bytes(data):
    """Bytes of any kind, behind a log of any format, break nothing."""
    fuzz.reader(data)


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.iterdir()))
def test_deltas_are_read_at_a_glance(name):
    """The shape of deltas is learned in each format but JSON within JSON: this is where speed comes from."""
    # The run of 0.11.0 has last chunks only.
    shapeless = ("docker-json.log", "gateway.jsonl", "run-0.11.0.log")
    reader = LogReader()
    events(fixture(name), NOON, NOON - 0.25, reader)

    assert (reader._shape is not None) == (name not in shapeless)


def test_memory_is_bounded():
    """A line that never ends, and parts that never join, take no more memory than the longest line that is read."""
    reader = LogReader()
    piece = b"x" * 65536
    part = b"2026-11-30T07:16:32.5Z stdout P " + piece + b"\n"
    events(part, reader=reader)
    tracemalloc.start()
    for _ in range(200):
        events(part, reader=reader)
    for _ in range(200):
        events(piece, reader=reader)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 6 * 1024 * 1024


def test_what_is_learned_is_bounded():
    """A log whose lines begin in ever new ways does not fill the memory with their beginnings."""
    line = (
        "INFO 11-30 07:{:02d}:{:02d} [x.py:1] Generated response a (streaming delta): output: '', finish_reason: None\n"
    )
    reader = LogReader()
    for second in range(900):
        events(line.format(*divmod(second, 60)).encode(), NOON, NOON - 0.25, reader)

    assert reader.findings.deltas == 900
    assert len(reader._shape._heads) <= 256


def test_nothing_but_ids_stays():
    """Neither an event, nor the reader after it, holds what users wrote."""
    canary = b"CANARY"
    for name in ("cri.log", "docker.log", "json-0.32.0.log", "text-0.18.1.log", "old-prefixes.log"):
        log = fixture(name).replace(b"output: '", b"output: '" + canary).replace(b"prompt: '", b"prompt: '" + canary)
        assert canary in log
        reader = LogReader()
        found = events(log, NOON, NOON - 0.25, reader)
        assert found
        assert canary.decode() not in repr([found, reader.findings, reader.problems])
        held = [vars(reader), vars(reader._buffer), vars(reader._frames), vars(reader.clock)]
        assert canary not in repr(held).encode()
        if reader._shape is not None:
            assert canary not in repr(vars(reader._shape)).encode()
