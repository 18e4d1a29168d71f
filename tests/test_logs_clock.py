# small helpers, named for what they do
"""Times of log lines on our clock: whose stamps are believed, and when they are not."""

import pytest
from logs_help import NOON, events

from kvpressure.vllm.logclock import AGREE, AHEAD, QUARTER, parse_stamp
from kvpressure.vllm.logs import BLUR, LogReader


def at(*times, request="a"):
    """Lines of a gateway at these moments: their stamps have a zone."""
    return b"".join(b'{"request_id": "%s", "event": "token", "time": %.6f}\n' % (request.encode(), t) for t in times)


def local(*seconds):
    """JSON lines of vLLM, that many seconds after 07:16 of some local time."""
    line = (
        b'{"asctime": "2026-11-30 07:16:%06.3f", "message": "Generated response a (streaming delta): output: \'\'"}\n'
    )
    return b"".join(line % second for second in seconds).replace(b".", b",")


def text(count=1):
    """Text lines, whose stamps are not used."""
    return (
        b"INFO 11-30 07:16:32 [x.py:1] Generated response a (streaming delta): output: '', finish_reason: None\n"
        * count
    )


def moments(data, arrival=None, since=None, reader=None):
    return [event.t for event in events(data, arrival, since, reader)]


def losses(batches):
    return [batch.lost for batch in batches]


@pytest.mark.parametrize("ago", [-0.9, 0.0, 0.2, 4.9])
def test_stamps_with_a_zone(ago):
    """Stamps that fit the time of reading are used as they are."""
    assert moments(at(NOON - ago), NOON, NOON - 0.25) == [NOON - ago]


@pytest.mark.parametrize("off", [-3600.0, -6.0, 1.5, 86400.0])
def test_a_clock_that_disagrees(off):
    """Stamps of a clock that is off, whatever their zone says, are taken to ours; what lies between them stays."""
    found = moments(at(NOON + off, NOON + off + 0.125), NOON, NOON - 0.25)

    assert found == pytest.approx([NOON, NOON + 0.125], abs=1e-5)


@pytest.mark.parametrize("zone", [-8 * 3600, 0, 3600, 5 * 3600 + 2700, 14 * 3600])
def test_stamps_without_a_zone(zone):
    """A local time is moved by the quarters of an hour that bring it to the time of reading, and by no more."""
    arrival = NOON - zone
    found = moments(local(31.75, 32.0), arrival, arrival - 0.5)

    assert found == pytest.approx([arrival - 0.25, arrival], abs=1e-6)


def test_replay_without_a_zone():
    """In replay a local time is moved to a moment of the recording, or taken for UTC where none is known."""
    assert moments(local(32.5)) == [NOON + 0.5]
    for reference in (NOON + 7200 - 300, NOON + 7200 + 300):
        assert moments(local(32.5), reader=LogReader(reference)) == [NOON + 7200 + 0.5]
    assert moments(at(NOON), reader=LogReader(NOON + 7200)) == [NOON]
    assert QUARTER == 15 * 60


def test_old_lines():
    """Lines of a file that is read from its beginning are older than the reading, and no sign of a clock."""
    reader = LogReader()

    assert moments(at(NOON - 900, NOON - 899), NOON, None, reader) == [NOON - 900, NOON - 899]
    assert reader.problems == {}


def test_the_reader_was_late():
    """Lines are as old as the time since the last look allows: a reader that was held up sees no clock set."""
    reader = LogReader()
    events(at(NOON), NOON, NOON - 0.25, reader)
    batches = reader.read(at(NOON + 1, NOON + 39), NOON + 40, NOON)

    assert losses(batches) == [None]
    assert [event.t for event in batches[0].events] == [NOON + 1, NOON + 39]


@pytest.mark.parametrize("step", [-3600.0, -6.0, 2.0, 3600.0])
def test_a_clock_is_set(step):
    """Where the log's clock is set while it is followed, that is told at its place, and times go on by our clock."""
    reader = LogReader()
    events(at(NOON), NOON, NOON - 0.25, reader)
    batches = reader.read(at(NOON + 0.1, NOON + 0.2 + step, NOON + 0.225 + step), NOON + 0.25, NOON)

    assert losses(batches) == [None, pytest.approx(NOON + 0.25)]
    assert [event.t for batch in batches for event in batch.events] == pytest.approx(
        [NOON + 0.1, NOON + 0.25, NOON + 0.275], abs=1e-5
    )
    assert reader.problems == {"clock_set": 1}
    assert moments(at(NOON + 0.4 + step), NOON + 0.5, NOON + 0.25, reader) == pytest.approx([NOON + 0.45], abs=1e-5)


def test_a_clock_is_set_among_many_deltas():
    """The same holds where deltas are read at a glance: those before the step keep their times."""
    reader = LogReader()
    events(at(NOON), NOON, NOON - 0.25, reader)
    line = (
        "2026-11-30T07:{:02d}:32.{:03d}Z stdout F INFO 11-30 07:16:32 [x.py:1] "
        "Generated response a (streaming delta): output: '', finish_reason: None\n"
    )
    data = "".join(line.format(16 if number < 100 else 26, number) for number in range(200)).encode()
    events(data[: len(data) // 2], NOON + 0.2, NOON, reader)
    batches = reader.read(data[len(data) // 2 :] + data[: len(data) // 2], NOON + 0.4, NOON + 0.2)

    # The stamps jump ten minutes ahead, and then back to where they agree with our clock.
    assert losses(batches) == [NOON + 0.4, NOON]
    assert len(batches[0].events) == len(batches[1].events) == 100


def test_two_clocks_in_one_log():
    """Lines of clocks that disagree do not lose time again and again: soon the time of their reading is taken."""
    reader = LogReader()
    batches = reader.read(at(*[NOON, NOON - 3600] * 500), NOON, NOON - 0.25)

    assert len(batches) < 12
    assert sum(len(batch.events) for batch in batches) == 1000
    assert all(abs(event.t - NOON) < 0.001 for batch in batches for event in batch.events)


def test_stamps_step_back_a_little():
    """Stamps of several threads need not rise."""
    assert moments(at(NOON, NOON - 0.004, NOON + 0.001), NOON, NOON - 0.25) == [NOON, NOON - 0.004, NOON + 0.001]


def test_lateness():
    """Lines whose stamps are older than the look before say how late lines come; it is forgotten after a while."""
    reader = LogReader()
    events(at(NOON - 3, NOON - 2.9), NOON, NOON - 0.25, reader)
    assert reader.clock.late(NOON) == pytest.approx(2.75)
    assert reader.clock.late(NOON + 600) == 0.0

    for second in range(1, 180):
        events(at(NOON + second), NOON + second, NOON + second - 0.25, reader)
    assert reader.clock.late(NOON + 180) == 0.0


def test_lines_without_a_time():
    """The time of reading is as good as the looks are frequent; across longer ones no gap can be told."""
    reader = LogReader()
    assert losses(reader.read(text(3), NOON, NOON - BLUR)) == [None]
    assert losses(reader.read(text(3), NOON + 9, NOON + 8)) == [NOON + 9]
    assert losses(reader.read(text(), NOON + 9.25, None)) == [NOON + 9.25]
    assert losses(reader.read(text(), NOON + 9.5, NOON + 9.25)) == [None]


def test_a_log_goes_on_in_another_file():
    """A successor knows the clock, and begins with the other half of a line that its predecessor began in parts."""
    reader = LogReader()
    off = 7200.0
    events(at(NOON + off), NOON, NOON - 0.25, reader)
    whole = b"INFO 11-30 07:16:32 [x.py:1] Generated response a (streaming delta): output: '', finish_reason: stop"
    events(b"2026-11-30T09:16:32.1Z stdout P " + whole[:60] + b"\nhalf a line", NOON + 0.25, NOON, reader)
    found = events(
        b"2026-11-30T09:16:32.3Z stdout F " + whole[60:] + b"\n", NOON + 0.5, NOON + 0.25, reader.successor()
    )

    assert [(event.kind, event.t) for event in found] == [("last", pytest.approx(NOON + 0.3, abs=1e-5))]


@pytest.mark.parametrize(
    "stamp", [b"", b"2026-11-30", b"2026-11-30T07:16", b"2026-11-30T07:16:32.", b"2026-02-41T07:16:32Z"]
)
def test_no_stamps(stamp):
    """What is no complete time is none."""
    assert parse_stamp(stamp) is None


def test_constants_agree():
    """A line read right after it was written fits on either side."""
    assert AHEAD < AGREE
