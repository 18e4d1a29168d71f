# small helpers, named for what they do
import asyncio
import gzip
import os
import shutil
import tempfile
import time
from pathlib import Path
from threading import Event, Thread

import pytest
from logs_help import FIXTURES, NOON
from logtail_help import Followed, Sink

from kvpressure.observe import logfiles, logtail
from kvpressure.observe.logfile import BLOCK
from kvpressure.observe.logfiles import LONG_QUIET, QUIET
from kvpressure.observe.logtail import REASONS, SEARCH, SETTLE, LogTail
from kvpressure.vllm.loglines import MAX_LINE
from kvpressure.vllm.logs import LogReader


@pytest.fixture
def log(tmp_path):
    """A tail of one file that exists, and was looked at once."""
    followed = Followed(tmp_path, "a.log")
    followed.write("a.log", "old")
    followed.poll()
    yield followed
    followed.tail.close()


@pytest.fixture
def logs(tmp_path):
    """A tail of a pattern of which nothing exists yet."""
    followed = Followed(tmp_path, "*.log*")
    followed.poll()
    yield followed
    followed.tail.close()


@pytest.fixture
def bound():
    """A folder, and a user whom permissions bind: root may read everything."""
    folder = Path(tempfile.mkdtemp())
    if os.geteuid() == 0:
        os.chown(folder, 65534, -1)
        os.seteuid(65534)
    yield folder
    os.seteuid(os.getuid())
    shutil.rmtree(folder)


# --- where reading begins -------------------------------------------------------------------------------------------


def test_begins_at_the_end(log):
    """Of a file that exists, only what is written from now on is read."""
    log.write("a.log", "r1", "r2")

    assert log.poll() == ["r1", "r2"]
    assert log.facts.files == 1
    assert log.facts.lines == 2


def test_begins_with_a_half_line(tmp_path):
    """A line that is half written at the start is read when it is complete."""
    log = Followed(tmp_path)
    log.write("a.log", "old")
    line = log.line("r1")
    log.append("a.log", line[:20])
    assert log.poll() == []
    log.append("a.log", line[20:])

    assert log.poll() == ["r1"]


def test_begins_within_a_long_line(tmp_path):
    """The end of a line of which the beginning is far away is skipped."""
    log = Followed(tmp_path)
    (tmp_path / "a.log").write_bytes(b"x" * 200_000)
    log.poll()
    log.write("a.log", "r1", "r2")

    assert log.poll() == ["r2"]


def test_later_files_are_read_whole(log, logs):
    """A file that comes later is read from its beginning, named or matched."""
    logs.write("b.log", "r1")
    assert logs.poll(seconds=SEARCH) == ["r1"]

    log.write("a.log", "r2")
    followed = Followed(log.folder, "later.log")
    assert followed.poll() == []
    followed.write("later.log", "r3")
    assert followed.poll() == ["r3"]


def test_half_lines_wait(log):
    """A line counts when it is complete, however many looks that takes."""
    line = log.line("r1")
    for byte in line[:-1]:
        log.append("a.log", bytes([byte]))
        assert log.poll() == []
    log.append("a.log", line[-1:])

    assert log.poll() == ["r1"]


# --- rotation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["a.log", "*.log", "*.log*"])
def test_rotation_by_renaming(tmp_path, names):
    """The renamed file is read to its end before the new one, and also what it gets later."""
    log = Followed(tmp_path, names)
    log.write("a.log", "old")
    log.poll()
    log.write("a.log", "r1")
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")
    log.write("a.log.1", "r2")
    log.write("a.log", "r3")
    assert log.poll() == ["r1", "r2", "r3"]

    log.write("a.log.1", "r4")
    assert log.poll() == ["r4"]
    assert log.sink.lost == []


def test_the_renamed_file_is_given_up(log):
    """Without a name that is followed, a file is given up when it is quiet: soon where the new one has something."""
    (log.folder / "a.log").rename(log.folder / "gone")
    log.poll(seconds=QUIET + 1)
    log.write("a.log")
    assert log.poll(3, QUIET) == []
    assert log.facts.files == 2

    log.write("a.log", "r1")
    assert log.poll() == ["r1"]
    log.poll(2, QUIET)
    assert log.facts.files == 1


def test_a_writer_that_keeps_its_file(log):
    """A writer that does not notice the rotation is read on, for as long as it writes, and a minute more."""
    (log.folder / "a.log").rename(log.folder / "gone")
    log.write("a.log")
    for number in range(20):
        log.write("gone", f"r{number}")
        assert log.poll(seconds=10) == [f"r{number}"]
    log.poll(2, LONG_QUIET)

    assert log.facts.files == 1


def test_rotation_by_copying(logs):
    """A file that was copied and cut is read on from its beginning, its copy is not read, and no gap reaches across."""
    logs.write("a.log", *(f"r{number}" for number in range(9)))
    assert len(logs.poll(seconds=SEARCH)) == 9
    logs.sink.lost.clear()
    shutil.copy(logs.folder / "a.log", logs.folder / "a.log.1")
    os.truncate(logs.folder / "a.log", 0)
    logs.write("a.log", "r10")

    assert logs.poll(2, seconds=SEARCH) == ["r10"]
    assert len(logs.sink.lost) == 1


@pytest.mark.parametrize("more", [0, 500])
def test_a_file_that_was_cut_and_filled(log, more):
    """A file of the same size or longer, but with another beginning, is another file: it is read from its beginning."""
    log.write("a.log", "r1")
    log.poll()
    size = (log.folder / "a.log").stat().st_size + more
    log.t += 1
    line = log.line("s1", "")
    (log.folder / "a.log").write_bytes(line + b" " * (size - len(line) - 1) + b"\n")

    assert log.poll() == ["s1"]
    assert len(log.sink.lost) == 1


def test_removal(log):
    """A removed file is read to its end, and the one that gets its name from its beginning."""
    log.write("a.log", "r1")
    descriptor = os.open(log.folder / "a.log", os.O_WRONLY | os.O_APPEND)
    (log.folder / "a.log").unlink()
    os.write(descriptor, log.line("r2"))
    assert log.poll() == ["r1", "r2"]

    log.write("a.log", "r3")
    os.write(descriptor, log.line("r4"))
    os.close(descriptor)
    assert log.poll() == ["r4", "r3"]
    log.poll(2, LONG_QUIET)
    assert log.facts.files == 1


def test_links(tmp_path):
    """A link that points to another file is a rotation; two names of a file are read once."""
    (tmp_path / "0.log").touch()
    (tmp_path / "pod.log").symlink_to("0.log")
    log = Followed(tmp_path, "pod.log", "0.log")
    log.poll()
    log.write("0.log", "r1")
    assert log.poll() == ["r1"]
    assert log.facts.files == 1

    log.write("1.log", "r2")
    (tmp_path / "new").symlink_to("1.log")
    (tmp_path / "new").rename(tmp_path / "pod.log")
    assert log.poll() == ["r2"]


def test_compressed_files(logs):
    """What a rotation compressed is not read again."""
    with gzip.open(logs.folder / "a.log.1.gz", "wb") as file:
        file.write(logs.line("r1"))
    logs.write("a.log", "r2")

    assert logs.poll(seconds=SEARCH) == ["r2"]
    assert logs.facts.files == 1


def test_a_file_goes_on_after_it_was_given_up(logs):
    """A file that was closed in between is not read twice."""
    logs.write("a.log", "r1")
    logs.poll(seconds=SEARCH)
    (logs.folder / "a.log").rename(logs.folder / "away")
    logs.poll(3, LONG_QUIET)
    assert logs.facts.files == 0
    logs.write("away", "r2")
    (logs.folder / "away").rename(logs.folder / "a.log")

    assert logs.poll(seconds=SEARCH) == ["r2"]


# --- files that are of no use ---------------------------------------------------------------------------------------


def test_what_cannot_be_read(tmp_path, logged):
    """A directory and a pipe are told of once, counted and tried again; a missing file is waited for."""
    (tmp_path / "a.log").mkdir()
    os.mkfifo(tmp_path / "b.log")
    log = Followed(tmp_path, "a.log", "b.log", "c.log")
    log.poll(2, 61)
    assert log.facts.errors == {"unreadable": 4}
    assert log.facts.files == 0
    lines = logged.getvalue().splitlines()
    assert sum("cannot be read" in line for line in lines) == 2
    assert sum("there is no such file yet" in line and "c.log" in line for line in lines) == 1
    assert log.sink.advanced == []

    (tmp_path / "a.log").rmdir()
    log.write("a.log", "r1")
    log.write("c.log", "r2")
    assert sorted(log.poll(seconds=SEARCH)) == ["r1", "r2"]


@pytest.mark.parametrize("name", ["b.log", "*.log"])
def test_without_permission(bound, logged, name):
    """A file that must not be read is told of, and read when it may be."""
    log = Followed(bound, name)
    log.write("b.log", "r1")
    (bound / "b.log").chmod(0)
    log.poll()
    assert "permission denied" in logged.getvalue()

    (bound / "b.log").chmod(0o600)
    log.poll(seconds=SEARCH)
    log.write("b.log", "r2")
    assert log.poll() == ["r2"]


def test_what_cannot_be_read_takes_no_place(bound, monkeypatch):
    """However many newer matches are no files, or must not be read: the file that can be read is followed."""
    monkeypatch.setattr(logfiles, "MAX_FILES", 3)
    log = Followed(bound)
    log.write("0.log", "old")
    os.utime(bound / "0.log", (NOON, NOON))
    for number in range(1, 5):
        (bound / f"folder-{number}.log").mkdir()
        log.write(f"closed-{number}.log", "r")
        (bound / f"closed-{number}.log").chmod(0)
    log.poll()
    log.write("0.log", "r1")
    os.utime(bound / "0.log", (NOON, NOON))

    assert log.poll(seconds=SEARCH) == ["r1"]
    assert log.facts.files == 1


@pytest.mark.parametrize("name", ["a.log", "link.log", "*.log"])
def test_pipes_are_left_alone(tmp_path, name):
    """A pipe is not even opened: whoever writes to it would take that for its reader, and lose it at once."""
    os.mkfifo(tmp_path / "a.log")
    (tmp_path / "link.log").symlink_to("a.log")
    writer = Thread(target=lambda: os.close(os.open(tmp_path / "a.log", os.O_WRONLY)), daemon=True)
    writer.start()
    writer.join(0.05)
    log = Followed(tmp_path, name)
    log.poll(3, SEARCH)
    writer.join(0.1)
    assert writer.is_alive()
    assert log.facts.files == 0

    os.close(os.open(tmp_path / "a.log", os.O_RDONLY | os.O_NONBLOCK))
    writer.join()


def test_a_name_that_becomes_a_pipe(log):
    """Where a file is replaced by something else, the file is read on, and what replaced it is left alone."""
    (log.folder / "a.log").rename(log.folder / "away")
    os.mkfifo(log.folder / "a.log")
    log.write("away", "r1")

    assert log.poll(2) == ["r1"]
    assert log.facts.errors == {"unreadable": 1}


def test_too_many_files(tmp_path, logged, monkeypatch):
    """Of more files than can be followed, those written to last are; one that is written to later takes its turn."""
    monkeypatch.setattr(logfiles, "MAX_FILES", 3)
    log = Followed(tmp_path)
    for number in range(5):
        log.write(f"{number}.log", "old")
        os.utime(tmp_path / f"{number}.log", (NOON + number, NOON + number))
    log.poll()
    assert log.facts.files == 3
    assert "more than 3 files match" in logged.getvalue()

    log.write("0.log", "late")
    os.utime(tmp_path / "0.log", (NOON + 9, NOON + 9))
    assert log.poll(seconds=SEARCH) == ["late"]
    log.poll(3, LONG_QUIET)
    assert log.facts.files == 3


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("some other program says something\n", "must be vLLM's log"),
        ('INFO:     127.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n', "--enable-log-requests"),
        (
            "INFO 11-30 07:16:32 [x.py:1] Generated response a (streaming complete): output: '', finish_reason: stop\n",
            "--enable-log-deltas",
        ),
    ],
)
def test_logs_of_no_use(log, logged, line, advice):
    """What is wrong with a log is told once, with the setting, the file and what to do, and reading goes on."""
    log.append("a.log", line.encode() * 200)
    log.poll(3, 61)
    told = [entry for entry in logged.getvalue().splitlines() if advice in entry]
    assert len(told) == 1
    assert "log.path" in told[0]
    assert "a.log" in told[0]

    log.write("a.log", "r1")
    assert log.poll()[-1:] == ["r1"]


def test_bad_lines_are_told_of(log, logged):
    """Lines that are skipped are counted by reason, and told of at most once a minute."""
    log.append("a.log", b'{"request_id": "a", "event": "token"}\n' * 3 + b"x" * (MAX_LINE + 1) + b"\n")
    log.poll(4)
    assert log.facts.errors == {"bad_record": 3, "line_too_long": 1}
    assert set(log.facts.errors) < set(REASONS)
    assert logged.getvalue().count("lines of a gateway were skipped") == 1
    assert logged.getvalue().count("more than 1 MiB") == 1


def test_anything_but_text(log):
    """Bytes that are no UTF-8 and lines of a megabyte do not hide the lines behind them."""
    log.append("a.log", b"\xff\xfe\x00\n" + b"x" * MAX_LINE + b"\n" + b"y" * 3 * MAX_LINE + b"\n")
    log.write("a.log", "r1")

    assert log.poll(2) == ["r1"]


# --- time -----------------------------------------------------------------------------------------------------------


def test_advances(log):
    """After each poll that read everything, the sink knows up to when it has everything."""
    log.write("a.log", "r1")
    log.poll()

    assert log.sink.advanced[-1] == pytest.approx(log.t - SETTLE)
    assert log.sink.calls[-2:] == ["feed", "advance"]


def test_does_not_advance_past_late_lines(log):
    """Where lines come later than their times say, silence is known only up to then."""
    log.poll()
    looked = log.t
    log.t -= 3
    log.write("a.log", "r1")
    log.t += 3
    log.poll()

    late = looked - log.sink.events[0].t
    assert late == pytest.approx(3.0, abs=0.001)
    assert log.sink.advanced[-1] == pytest.approx(log.t - late - SETTLE)
    assert log.sink.lost == []


def test_without_a_file_nothing_is_known(log):
    """While there is no file time does not go on for the sink, and when there is one again, no gap reaches across."""
    (log.folder / "a.log").unlink()
    log.poll(3, LONG_QUIET)
    assert log.facts.files == 0
    advanced = len(log.sink.advanced)
    log.poll(3)
    assert len(log.sink.advanced) == advanced

    log.write("a.log", "r1")
    log.poll()
    assert log.sink.calls[-3:] == ["lose", "feed", "advance"]


def test_a_full_disk_is_no_silence(log, logged, monkeypatch):
    """While the log does not grow on a full disk, nothing is known of anybody; a line that got there is read."""
    full = os.statvfs_result((4096, 4096, 100, 5, 0, 10, 10, 10, 0, 255))
    log.write("a.log", "r1")
    monkeypatch.setattr(os, "fstatvfs", lambda _: full)
    assert ["r1"] == log.poll()
    advanced, lost = len(log.sink.advanced), len(log.sink.lost)
    log.poll(2)
    # A write that fails leaves its time all the same.
    os.utime(log.folder / "a.log", (NOON, NOON))
    log.poll()

    assert (advanced, lost + 3) == (len(log.sink.advanced), len(log.sink.lost))
    assert 1 == logged.getvalue().count("the disk of this file is full")

    monkeypatch.undo()
    log.poll()
    assert advanced + 1 == len(log.sink.advanced)


@pytest.mark.parametrize("blocks", [0, 100])
def test_a_disk_that_is_not_full(log, monkeypatch, blocks):
    """With room left, or where a file system does not say how much there is, silence is silence."""
    status = os.statvfs_result((4096, 4096, blocks, 5, min(blocks, 5), 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda _: status)
    log.poll(3)

    assert log.sink.lost == []


def test_a_folder_that_is_closed_is_no_silence(bound, logged):
    """While we may not look where the log goes on, nothing is known; what was written there is read later, as late."""
    (bound / "logs").mkdir()
    log = Followed(bound, "logs/a.log")
    log.write("logs/a.log", "old")
    log.poll()
    log.write("logs/a.log", "r0")
    log.poll()
    (bound / "logs" / "a.log").rename(bound / "logs" / "a.log.1")
    log.write("logs/a.log", "r1")
    (bound / "logs").chmod(0)
    written = log.t
    advanced = len(log.sink.advanced)

    assert [] == log.poll(3, SEARCH)
    assert (advanced, 3) == (len(log.sink.advanced), len(log.sink.lost))
    assert 1 == logged.getvalue().count("permission denied")
    assert "there is no such file" not in logged.getvalue()

    (bound / "logs").chmod(0o700)
    assert ["r1"] == log.poll()
    assert advanced + 1 == len(log.sink.advanced)
    assert pytest.approx(written, abs=0.001) == log.sink.events[-1].t


def test_a_log_that_goes_on_in_a_file_that_is_closed_is_no_silence(bound):
    """The same where only the new file must not be read."""
    log = Followed(bound, "a.log")
    log.write("a.log", "old")
    log.poll()
    (bound / "a.log").rename(bound / "a.log.1")
    log.write("a.log", "r1")
    (bound / "a.log").chmod(0)
    advanced = len(log.sink.advanced)

    assert [] == log.poll(3)
    assert advanced == len(log.sink.advanced)

    (bound / "a.log").chmod(0o600)
    assert ["r1"] == log.poll(seconds=SEARCH)


def test_a_clock_that_is_set(log, logged):
    """Where the log's clock is set, time is lost at that place and nowhere else."""
    log.write("a.log", "r1")
    log.poll()
    log.t += 3600
    log.write("a.log", "r2")
    log.t -= 3600
    log.poll()

    assert log.sink.calls[-3:] == ["lose", "feed", "advance"]
    assert log.facts.errors == {"clock_set": 1}
    assert "clock of the log was set" in logged.getvalue()


def test_text_lines_have_the_time_of_their_reading(log):
    """Lines with whole seconds count at the moment of the look that found them."""
    delta = "INFO 11-30 07:16:32 [x.py:1] Generated response r1 (streaming delta): output: '', finish_reason: None\n"
    for _ in range(3):
        log.append("a.log", delta.encode())
        log.poll()

    assert [event.t for event in log.sink.events] == pytest.approx([log.t - 0.5, log.t - 0.25, log.t])
    assert log.sink.lost == []
    assert log.facts.lag is None


def test_lag(log):
    """The time from a line's writing to its reading is known where the line has a time."""
    log.write("a.log", "r1")
    log.poll(seconds=0.2)

    assert log.facts.lag == pytest.approx(0.2, abs=0.001)


# --- keeping up -----------------------------------------------------------------------------------------------------


def test_reads_in_small_steps(log):
    """Others have their turn after each block, however much there is to read."""
    log.write("a.log", *(f"r{number}" for number in range(5000)))
    size = (log.folder / "a.log").stat().st_size

    assert len(log.poll()) == 5000
    assert log.steps >= size / BLOCK


def test_reads_less_at_a_time_where_it_takes_long(tmp_path):
    """Where reading takes long, the steps become smaller, and greater again where it does not."""
    log = Followed(tmp_path, "a.log")
    log.write("a.log", "old")
    log.poll()

    def steps(seconds):
        log.tail._now = lambda: setattr(log, "t", log.t + seconds) or log.t
        log.write("a.log", *(["r"] * 5000))
        log.poll()
        return log.steps

    assert steps(0.0) < steps(0.02) / 2 < steps(0.02)
    assert steps(0.0) < 30


def test_takes_turns(logs, monkeypatch):
    """A file with much to read does not keep another waiting, and time goes on as far as it has been read."""
    monkeypatch.setattr(logtail, "_READ_MOST", BLOCK)
    logs.write("a.log", *(["a"] * 2000))
    logs.write("b.log", "b")
    found = logs.poll(seconds=SEARCH)
    assert "b" in found
    assert 0 < found.count("a") < 2000
    assert logs.sink.advanced[-1] == pytest.approx(logs.t - SEARCH, abs=0.001)
    while logs.poll(seconds=0):
        pass
    assert logs.sink.requests.count("a") == 2000


@pytest.mark.parametrize("open_end", [False, True])
def test_drops_what_is_too_much(log, logged, monkeypatch, open_end):
    """Where too much waits, it is skipped: every line of it is counted, time is lost, and what comes next is read."""
    monkeypatch.setattr(logtail, "MAX_BEHIND", 100_000)
    log.write("a.log", "r1", end="")
    log.poll()
    log.write("a.log", "", *(f"r{number}" for number in range(4000)))
    if open_end:
        log.write("a.log", "half", end="")
    assert log.poll() == []
    assert log.sink.calls[-2:] == ["lose", "advance"]
    log.write("a.log", "-", "next")
    assert log.poll() == (["next"] if open_end else ["-", "next"])
    assert log.facts.lines + log.facts.dropped == (log.folder / "a.log").read_bytes().count(b"\n") - 1
    assert "those that waited were skipped" in logged.getvalue()
    assert "a.log" in logged.getvalue()


def test_drops_what_takes_too_long(log, monkeypatch):
    """A file whose end has not been reached for half a minute is skipped to its end."""
    monkeypatch.setattr(logtail, "_READ_MOST", BLOCK)
    monkeypatch.setattr(logtail, "_DROP_MOST", BLOCK)
    log.write("a.log", *(["r"] * 20_000))
    log.poll(4, 8)
    assert log.facts.dropped == 0
    log.poll(40, 8)
    log.write("a.log", "next")

    assert log.poll()[-1] == "next"
    assert log.facts.dropped > 0
    assert log.facts.lines + log.facts.dropped == 20_001
    assert log.sink.lost


def test_a_file_that_shrinks_while_it_is_read(log):
    """A file that is cut after it was looked at has nothing more up to where it reached."""
    log.write("a.log", "r1")
    polling = log.tail.poll()
    next(polling)
    os.truncate(log.folder / "a.log", 0)
    assert list(polling) is not None
    log.write("a.log", "r2")

    assert log.poll() == ["r2"]


def test_a_search_in_a_thread(tmp_path, monkeypatch):
    """A search that hangs, as on a network volume, holds up neither others nor reading, and no second one is begun."""
    monkeypatch.setattr(logtail, "POLL", 0.01)
    monkeypatch.setattr(logtail, "SEARCH", 0.02)
    log = Followed(tmp_path, "a.log", "*.txt")
    log.tail._now = time.monotonic
    log.write("a.log", "old")
    search, goes_on, begun = logfiles.named, Event(), []

    def hanging(*args):
        begun.append(args)
        if len(begun) > 1:
            goes_on.wait(5)
        return search(*args)

    monkeypatch.setattr(logfiles, "named", hanging)

    async def write():
        await until(lambda: len(begun) == 2)
        log.write("a.log", "r1")
        log.write("b.txt", "r2")
        await until(lambda: log.sink.requests)
        assert not goes_on.is_set()
        assert len(begun) == 2
        goes_on.set()
        await until(lambda: len(log.sink.requests) > 1)

    asyncio.run(run_with(log, write))
    assert log.sink.requests == ["r1", "r2"]


def test_the_first_search_is_waited_for(tmp_path, monkeypatch):
    """While it is not known what exists at the start, nothing is read: it would be read from its beginning."""
    monkeypatch.setattr(logtail, "POLL", 0.01)
    log = Followed(tmp_path, "a.log")
    log.write("a.log", "old")
    search, goes_on, begun = logfiles.named, Event(), Event()

    def hanging(*args):
        begun.set()
        goes_on.wait(5)
        return search(*args)

    monkeypatch.setattr(logfiles, "named", hanging)

    async def write():
        await until(begun.is_set)
        await asyncio.sleep(0.1)
        assert log.sink.calls == []
        assert log.facts.files == 0
        goes_on.set()
        await until(lambda: log.facts.files)
        log.write("a.log", "r1")
        await until(lambda: log.sink.requests)

    asyncio.run(run_with(log, write))
    assert log.sink.requests == ["r1"]


def test_a_fault_of_a_search(tmp_path, logged, monkeypatch):
    """A fault in the thread is counted and told like any other, and the next search is begun."""
    monkeypatch.setattr(logtail, "POLL", 0.01)
    monkeypatch.setattr(logtail, "SEARCH", 0.02)
    log = Followed(tmp_path, "a.log")
    log.tail._now = time.monotonic
    log.write("a.log", "old")
    search, begun = logfiles.named, []

    def faulty(*args):
        begun.append(args)
        if len(begun) == 2:
            raise ValueError("CANARY")
        return search(*args)

    monkeypatch.setattr(logfiles, "named", faulty)

    async def write():
        await until(lambda: len(begun) > 2)

    asyncio.run(run_with(log, write))
    assert log.facts.errors == {"fault": 1}
    assert "error_type=ValueError" in logged.getvalue()
    assert "CANARY" not in logged.getvalue()


# --- faults and privacy ---------------------------------------------------------------------------------------------


async def until(condition):
    """Wait until something is so."""
    while not condition():  # noqa: ASYNC110  # files have no events
        await asyncio.sleep(0.01)


async def run_with(log, work):
    """Run a tail while something else is done."""
    task = asyncio.create_task(log.tail.run())
    await asyncio.wait_for(work(), 20)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_runs_until_it_is_cancelled(tmp_path, monkeypatch):
    """Run follows by itself, and leaves no file open."""
    monkeypatch.setattr(logtail, "POLL", 0.01)
    log = Followed(tmp_path, "a.log")
    log.write("a.log", "old")
    before = open_files()

    async def write():
        await until(lambda: log.sink.advanced)
        log.write("a.log", "r1")
        await until(lambda: log.sink.requests)

    asyncio.run(run_with(log, write))
    assert log.sink.requests == ["r1"]
    assert open_files() == before


def test_a_fault_does_not_end_it(tmp_path, logged, monkeypatch):
    """A fault of our own is counted and told by kind and place, without what caused it, and reading goes on."""
    monkeypatch.setattr(logtail, "POLL", 0.01)
    log = Followed(tmp_path, "a.log")
    log.write("a.log", "old")
    read = LogReader.read

    def faulty(self, data, *when):
        if b"CANARY" in data:
            raise ValueError(data)
        return read(self, data, *when)

    monkeypatch.setattr(LogReader, "read", faulty)

    async def write():
        await until(lambda: log.sink.advanced)
        log.write("a.log", "CANARY")
        await until(lambda: log.facts.errors)
        log.write("a.log", "skipped", "r1")
        await until(lambda: log.sink.requests)

    asyncio.run(run_with(log, write))
    assert log.sink.requests == ["r1"]
    assert log.facts.errors == {"fault": 1}
    assert log.sink.lost
    assert "error_type=ValueError" in logged.getvalue()
    assert "CANARY" not in logged.getvalue()


def test_nothing_of_the_log_is_told(tmp_path, logged):
    """Text, ids and broken lines of any format reach neither our log nor our facts, whatever is wrong with them."""
    log = Followed(tmp_path)
    log.poll()
    for path in FIXTURES.iterdir():
        text = path.read_bytes().replace(b"chatcmpl", b"CANARY").replace(b"output: '", b"output: 'CANARY")
        broken = text.replace(b'"time": 1', b'"time": "CANARY').replace(b"2026", b"CANARY")
        (tmp_path / f"{path.name}.log").write_bytes(text + broken + text[:-30] + b"\n" + text[::-1] + b"CANARY")
    for _ in range(5):
        log.poll(seconds=61)
    assert log.sink.events
    assert "CANARY" not in logged.getvalue()
    assert "CANARY" not in repr(log.facts)
    assert "warn" in logged.getvalue().lower()


def test_it_does_nothing_before_it_runs(tmp_path):
    """A tail that was made has opened nothing, and can be closed."""
    tail = LogTail((str(tmp_path / "a.log"),), Sink(), lambda: NOON)

    assert tail.facts().files == 0
    tail.close()
