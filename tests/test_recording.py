"""Recordings: what is read, what is skipped, and what is said about it."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.recording import RecordingError, Row, find, interval, rows

GOOD = {"t": 1000.0, "took": 0.01, "body": "vllm:num_requests_running 1\n"}
ROW = Row(1000.0, GOOD["body"], 0.01)


def written(folder, *lines, name="metrics.jsonl", zipped=False):
    """A file of lines: bytes as they are, all else as JSON."""
    data = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
    path = folder / name
    path.write_bytes(gzip.compress(data) if zipped else data)
    return path


def read(path):
    """The rows of a file and what was complained of, without the file's name."""
    said = []
    found = list(rows(path, said.append))
    return found, [sentence.removeprefix(f"{path}: ") for sentence in said]


@pytest.mark.parametrize("zipped", [False, True])
def test_rows(tmp_path, zipped):
    """Rows are read in order, gzip or not, whatever the name says; empty lines are none."""
    path = written(tmp_path, GOOD, b"\n", GOOD | {"t": 1001, "body": "x\n"}, zipped=zipped)

    assert read(path) == ([ROW, Row(1001.0, "x\n", 0.01)], [])


def test_failed_sample(tmp_path):
    """A row with an error is a failed sample, even where it has a body too."""
    path = written(tmp_path, {"t": 1.0, "error": "timeout"}, GOOD | {"t": 2.0, "error": "cut"})

    assert read(path)[0] == [Row(1.0, None, 0.0), Row(2.0, None, 0.01)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{\n", "it is not JSON"),
        (b"\xff\xfe{}\n", "it is not JSON"),
        (b"[" * 100_000 + b"\n", "it is not JSON"),
        (b"[1]\n", "it is not a JSON object"),
        ({"body": "x"}, '"t" is not a number of seconds'),
        (GOOD | {"t": "1000"}, '"t" is not a number of seconds'),
        (GOOD | {"t": True}, '"t" is not a number of seconds'),
        (b'{"t": NaN, "body": ""}\n', '"t" is not a number of seconds'),
        (b'{"t": 1e999, "body": ""}\n', '"t" is not a number of seconds'),
        (b'{"t": 1' + b"0" * 400 + b', "body": ""}\n', '"t" is not a number of seconds'),
        (GOOD | {"took": None}, '"took" is not a number of seconds'),
        (GOOD | {"took": -1.0}, '"took" is not a number of seconds'),
        (GOOD | {"took": 1.7e308}, '"took" is not a number of seconds'),
        (GOOD | {"body": 5}, '"body" is not text'),
        ({"t": 1000.0}, 'it has neither "body" nor "error"'),
        (GOOD | {"t": 1000.0 + 8 * 86400}, "its time is more than a week from the row before"),
        (GOOD | {"t": 1000.0 - 8 * 86400}, "its time is more than a week from the row before"),
    ],
    ids=range(17),
)
def test_bad_row(tmp_path, line, why):
    """A row that cannot be used is skipped with one sentence; the rows around it are read."""
    path = written(tmp_path, GOOD, line, GOOD)

    assert read(path) == ([ROW, ROW], [f"line 2 is skipped: {why}"])


def test_cut_off(tmp_path):
    """A gzip file that is cut off gives what stands before the cut."""
    data = written(tmp_path, *[GOOD | {"body": f"{n}-{n * 7919}" * 50} for n in range(2000)], zipped=True).read_bytes()
    path = tmp_path / "cut.gz"
    path.write_bytes(data[: len(data) // 2])
    found, said = read(path)

    assert 0 < len(found) < 2000
    assert said[-1] == "the file is cut off; what stands before the cut was read"


@pytest.mark.parametrize("where", [0.3, 0.6, 0.9])
def test_spoilt(tmp_path, where):
    """A gzip file with bytes that were changed gives what stands before them, and one sentence."""
    data = bytearray(
        written(tmp_path, *[GOOD | {"body": f"{n * 7919}" * 20} for n in range(3000)], zipped=True).read_bytes()
    )
    at = int(len(data) * where)
    data[at : at + 64] = b"\xff" * 64
    path = tmp_path / "spoilt.gz"
    path.write_bytes(data)
    found, said = read(path)

    assert len(found) < 3000
    assert said


def test_no_file(tmp_path):
    """A recording that is not there, or a folder without one, is refused with one sentence."""
    with pytest.raises(RecordingError) as none:
        find(str(tmp_path / "none"))
    with pytest.raises(RecordingError) as empty:
        find(str(tmp_path))

    assert str(none.value) == f"{tmp_path}/none: there is no such file or folder"
    assert str(empty.value) == f"{tmp_path}: the folder has no metrics.jsonl.gz or metrics.jsonl"


def test_find(tmp_path):
    """A file is itself; in a folder the compressed recording goes first."""
    plain = written(tmp_path, GOOD)

    assert find(str(plain)) == find(str(tmp_path)) == plain
    assert find(str(tmp_path)) != (zipped := written(tmp_path, GOOD, name="metrics.jsonl.gz", zipped=True))
    assert find(str(tmp_path)) == zipped


@pytest.mark.parametrize(
    ("times", "expected"),
    [([0, 5, 10, 15], 5.0), ([0, 0.5, 1.0], 1.0), ([0, 5, 5, 4, 9], 5.0), ([7], 1.0), ([], 1.0)],
)
def test_interval(tmp_path, times, expected):
    """The interval is the recording's own where it is slower than the configured one; steps back are none."""
    assert interval(written(tmp_path, *[GOOD | {"t": t} for t in times]), 1.0) == expected


@given(lines=st.lists(st.binary(max_size=60) | st.sampled_from([json.dumps(GOOD).encode()]), max_size=8))
def test_any_file(tmp_path_factory, lines):
    """Whatever stands between good rows, each of them is read and nothing is raised."""
    good = json.dumps(GOOD).encode()
    path = tmp_path_factory.mktemp("any") / "metrics.jsonl"
    path.write_bytes(b"\n".join([good, *lines]))

    assert [row for row in read(path)[0] if row == ROW] == [ROW] * (1 + lines.count(good))


def test_gzip_by_its_first_bytes_alone(tmp_path):
    """A file that only starts as gzip does has no rows, and one sentence says so."""
    found, said = read(written(tmp_path, b"\x1f\x8b", GOOD))

    assert found == []
    assert [sentence.partition(":")[0] for sentence in said] == ["cannot be read any further"]
