"""A workload that is described in YAML: what it means, and what is refused."""

import json
import pickle
import statistics
from dataclasses import astuple
from pathlib import Path

import pytest

from kvpressure.advise import trace, workload
from kvpressure.advise.seen import AdviseError
from kvpressure.lab.leap import Job
from kvpressure.lab.model import StepTime

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "workload.yml"
SERVER = "server: {capacity_tokens: 16000}\n"
TRAFFIC = "seconds: 200\nrate: 5\nprompt: {mean: 100}\nanswer: {mean: 10}\n"
CONFIG = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "torch_dtype": "float16"}


@pytest.fixture
def read(tmp_path):
    """Writes a workload, and files beside it, and reads it."""

    def write(text, **files):
        for name, content in files.items():
            (tmp_path / name).write_text(content)
        file = tmp_path / "w.yml"
        file.write_text(text)
        return workload.read(str(file))

    return write


def refused(read, text, **files):
    """The sentence, without the folder."""
    with pytest.raises(AdviseError) as caught:
        read(text, **files)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence.replace(sentence[: sentence.index("w.yml")], "") if "w.yml" in sentence else sentence


def test_example():
    """The example is one, and each of its flags is understood."""
    found = workload.read(str(EXAMPLE))

    assert found.seconds == 600.0
    assert (found.server.capacity.value, found.server.block_size.value) == (27_232, 16)
    assert (found.server.max_num_seqs.value, found.server.max_model_len.value) == (256, 4096)
    assert astuple(found.step) == pytest.approx(astuple(StepTime(0.018, 0.0002, 0.00014)))
    assert {job.limit for job in found.jobs(1)} == {1024}


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("  blocks:", "  # blocks:").replace("# capacity_tokens:", "capacity_tokens:"),
        lambda text: "".join(
            line.replace("  # ", "  ", 1)
            if line.lstrip("# ").startswith(("gpu_", "util", "wei", "over", "model_c", "kv_d", "tensor"))
            else line
            for line in text.replace("  blocks:", "  # blocks:").splitlines(keepends=True)
        ),
        lambda text: "".join(
            line
            for line in text.replace("# trace:", "trace:").splitlines(keepends=True)
            if not line.startswith(("rate", "burst", "prompt", "answer", "seconds"))
        ),
    ],
)
def test_alternatives_in_the_example(read, change):
    """What the example has in comments is understood too, and comes to the same capacity."""
    files = {"config.json": json.dumps(CONFIG), "requests.csv": "arrival,prompt,answer\n0,1,1\n9,1,1\n"}
    found = read(change(EXAMPLE.read_text()), **files)

    assert found.server.capacity.value == 27_232
    assert found.jobs(0)


def test_poisson(read):
    """Requests come at the rate, in order and within the time; the same seed gives the same ones, another others."""
    found = read(SERVER + TRAFFIC + "burst: 7\n")
    jobs = found.jobs(3)

    assert [job.arrival for job in jobs[:7]] == [0.0] * 7
    assert sum(len(found.jobs(seed)) - 7 for seed in range(20)) == pytest.approx(20 * 1000, rel=0.03)
    assert jobs == sorted(jobs, key=lambda job: job.arrival)
    assert jobs[-1].arrival < 200
    assert {(job.prompt, job.answer, job.limit) for job in jobs} == {(100, 10, 0)}
    assert found.jobs(3) == jobs != found.jobs(4)
    assert pickle.loads(pickle.dumps(found)).jobs(3) == jobs  # noqa: S301  # what was just dumped


def test_burst_alone(read):
    """With a rate of 0 there is the burst alone."""
    assert len(read(SERVER + TRAFFIC.replace("rate: 5", "rate: 0") + "burst: 7\n").jobs(0)) == 7


def lengths(read, how, seed=1):
    found = read(SERVER + TRAFFIC.replace("prompt: {mean: 100}", f"prompt: {how}"))
    return sorted(job.prompt for job in found.jobs(seed))


def test_even_lengths(read):
    """Mean and spread are even between the two ends."""
    found = lengths(read, "{mean: 1000, spread: 0.5}")

    assert statistics.mean(found) == pytest.approx(1000, rel=0.05)
    assert (found[0], found[-1]) == (pytest.approx(500, rel=0.02), pytest.approx(1500, rel=0.02))
    assert 500 <= found[0]
    assert found[-1] <= 1500


def test_lognormal_lengths(read):
    """The median and the 95th percentile that are drawn are those that were given."""
    found = lengths(read, "{p50: 200, p95: 600}")

    assert found[len(found) // 2] == pytest.approx(200, rel=0.1)
    assert found[len(found) * 95 // 100] == pytest.approx(600, rel=0.15)
    assert set(lengths(read, "{p50: 200, p95: 200}")) == {200}


def test_listed_lengths(read):
    """Of a list each value is as likely."""
    found = lengths(read, "{values: [10, 10, 40]}")

    assert set(found) == {10, 40}
    assert found.count(10) == pytest.approx(2 * found.count(40), rel=0.2)


def test_lengths_of_a_histogram(read):
    """Of a histogram each bucket has its share, within its edges; an empty one has none."""
    found = lengths(read, "{edges: [100, 500, 2000], counts: [30, 0, 70]}")
    low, high = [n for n in found if n <= 100], [n for n in found if n > 500]

    assert len(low) + len(high) == len(found)
    assert len(low) / len(found) == pytest.approx(0.3, abs=0.05)
    assert (low[0] >= 1, high[-1] <= 2000) == (True, True)


def test_tails_fit_the_model(read):
    """Answers end where vLLM ends them; a prompt that it refuses is left as it is, for the report to tell of it."""
    found = read(
        "server: {capacity_tokens: 16000, max_model_len: 300}\nmax_tokens: 250\nseconds: 100\nrate: 5\n"
        "prompt: {p50: 200, p95: 600}\nanswer: {p50: 100, p95: 900}\n"
    )
    jobs = [job for job in found.jobs(0) if job.prompt < 300]

    assert len(jobs) < len(found.jobs(0))
    assert all(1 <= job.answer and job.prompt + job.answer <= 300 and job.prompt + job.limit <= 300 for job in jobs)


ROWS = "arrival,prompt,answer,max_tokens\n107.5,30,3,\n100,10,1,64\n\n102, 20, 2,32\n"
TRACED = SERVER + "trace: t\nmax_tokens: 99\n"
EXPECTED = [Job(0.0, 10, 1, 64), Job(2.0, 20, 2, 32), Job(7.5, 30, 3, 99)]


def test_trace(read):
    """A trace is sorted and begins at 0; a request without max_tokens has that of the file."""
    found = read(TRACED, t=ROWS)
    lines = (
        '{"arrival": 107.5, "prompt": 30, "answer": 3, "max_tokens": null}\n{"arrival": 100, "prompt": 10, "answer": 1,'
        ' "max_tokens": 64, "user": "x"}\n\n{"arrival": 102, "prompt": 20, "answer": 2, "max_tokens": 32}\n'
    )

    assert found.jobs(0) == EXPECTED
    # What befalls requests that come together comes afterwards.
    assert found.seconds == 60.0
    assert read(TRACED, t=lines).jobs(0) == EXPECTED
    assert read(TRACED + "seconds: 5\n", t=ROWS).jobs(0) == EXPECTED[:2]
    assert read(SERVER + "trace: t\n", t="answer,arrival,prompt\n1,5,2\n").jobs(0) == [Job(0.0, 2, 1, 0)]


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1e"])
def test_odd_ends_of_lines_in_a_column(read, odd):
    """What Python takes for the end of a line, and CSV does not, may stand in a column that is left unread."""
    rows = f"arrival,prompt,answer,text\r\n0,2,1,a{odd}b\r\n1,3,1,c\r\n"

    assert read(SERVER + "trace: t\n", t=rows).jobs(0) == [Job(0.0, 2, 1, 0), Job(1.0, 3, 1, 0)]


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85"])
def test_odd_ends_of_lines_in_json(read, odd):
    """The same for what JSON takes within a string; lines are numbered as an editor does."""
    lines = (
        f'{{"arrival": 0, "prompt": 2, "answer": 1, "text": "a{odd}b"}}\r\n{{"arrival": 1, "prompt": 3, "answer": 1}}\n'
    )

    assert read(SERVER + "trace: t\n", t=lines).jobs(0) == [Job(0.0, 2, 1, 0), Job(1.0, 3, 1, 0)]
    with pytest.raises(AdviseError, match="/t: line 3: prompt must"):
        read(SERVER + "trace: t\n", t=lines + '{"arrival": 2}\n')


def test_trace_drawn_anew(read):
    """With another seed arrivals stay, and lengths are drawn from the trace, prompt and answer together."""
    found = read(TRACED, t=ROWS)
    known = {(job.prompt, job.answer, job.limit) for job in EXPECTED}
    runs = [found.jobs(seed) for seed in range(1, 9)]

    assert {tuple(job.arrival for job in run) for run in runs} == {(0.0, 2.0, 7.5)}
    assert {(job.prompt, job.answer, job.limit) for run in runs for job in run} == known
    assert len({tuple(run) for run in runs}) > 1
    assert found.jobs(5) == runs[4]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "has no requests; give a trace as CSV"),
        ("arrival,prompt,answer\n", "has no requests; give a trace as CSV"),
        ("1,2,3\n", "line 1 must name each of the columns arrival, prompt, answer once, and does not arrival"),
        ("arrival,prompt,prompt,answer\n", "line 1 must name each of the columns arrival, prompt, answer once, and "),
        ("arrival,prompt,answer\n1,2\n", "line 2 has 2 columns of 3"),
        (
            "arrival,prompt,answer\n\n1,secret words,3\n",
            "line 3: prompt must be a whole number of tokens from 1 to 10,",
        ),
        ("arrival,prompt,answer\nnan,2,3\n", "line 2: arrival must be a number of seconds"),
        ("arrival,prompt,answer\n1,2,0\n", "line 2: answer must be a whole number of tokens from 1 to 10,000,000"),
        ("arrival,prompt,answer\n1,2.5,3\n", "line 2: prompt must be a whole number of tokens"),
        ("arrival,prompt,answer,max_tokens\n1,2,3,0\n", "line 2: max_tokens must be a whole number of tokens"),
        ('{"arrival": 1, "prompt": 2, "answer": 3}\nsecret\n', "line 2 is not JSON; give a trace as CSV"),
        ('{"arrival": 1, "prompt": 2, "answer": 3}\n[1]\n', "line 2 is not a JSON object; give a trace as CSV"),
        ('{"arrival": 1, "prompt": "secret", "answer": 3}\n', "line 1: prompt must be a whole number of tokens"),
        ('{"arrival": 1, "prompt": true, "answer": 3}\n', "line 1: prompt must be a whole number of tokens"),
        ('{"arrival": 1, "prompt": 2}\n', "line 1: answer must be a whole number of tokens"),
        ('{"arrival": 1, "prompt": 1' + "0" * 400 + ', "answer": 3}\n', "line 1: prompt must be a whole number"),
    ],
)
def test_no_trace(read, content, sentence):
    """A line that is no request is named, and what it says instead is not: it could be a prompt."""
    with pytest.raises(AdviseError) as caught:
        read(TRACED, t=content)
    assert str(caught.value).partition("/t: ")[2].startswith(sentence)
    assert "secret" not in str(caught.value)


def test_no_trace_file(read, tmp_path):
    """A trace that cannot be read is named."""
    with pytest.raises(AdviseError, match=r"/gone: cannot be read: No such file or directory; give a trace"):
        read(SERVER + "trace: gone\n")
    (tmp_path / "t").write_bytes(b"\x80")
    with pytest.raises(AdviseError, match=r"/t: is not UTF-8 text; give a trace"):
        read(TRACED)
    with (tmp_path / "t").open("wb") as file:
        file.truncate(64 * 1024**2 + 1)
    with pytest.raises(AdviseError, match=r"/t: cannot be read: is larger than 65536 KiB; give a trace"):
        read(TRACED)
    with pytest.raises(AdviseError, match=r"/t: line 2 is not CSV; give a trace"):
        read(TRACED, t="arrival,prompt,answer\n" + "1" * 200_000)


def test_too_many_requests(read, monkeypatch):
    """A trace has a most of requests; one more is refused before memory is filled."""
    monkeypatch.setattr(trace, "MOST_REQUESTS", 3)

    assert len(read(TRACED, t=ROWS).jobs(0)) == 3
    with pytest.raises(AdviseError, match="/t: has more than 3 requests; give a part of it"):
        read(TRACED, t=ROWS + "103,1,1,\n")


def test_capacity_in_three_ways(read):
    """Capacity is told in tokens, in blocks, or by the memory and the model; each has its source."""
    blocks = read("server: {blocks: 100, block_size: 32}\n" + TRAFFIC).server
    tokens = read("server: {capacity_tokens: 3200}\n" + TRAFFIC).server
    card = read(
        "server: {gpu_memory: 48GB, utilization: 0.6, weights: 13.5GB, overhead: 2, model_config: c, kv_dtype: fp8}\n"
        + TRAFFIC,
        c=json.dumps(CONFIG | {"sliding_window": 4096}),
    )

    assert (blocks.capacity.value, blocks.block_size.value) == (3200, 32)
    assert blocks.capacity.source.startswith("100 blocks x 32 tokens (")
    assert (tokens.capacity.value, tokens.block_size.value) == (3200, None)
    assert tokens.capacity.source.endswith("w.yml: server.capacity_tokens")
    assert (card.server.capacity.value, card.server.block_size.value) == (54_464, 16)
    assert (card.server.cache_dtype, card.token_bytes.value) == ("fp8", 256 * 1024)
    assert "48 GiB x 0.6 - 13.5 GiB - 2 GiB" in card.server.capacity.source
    assert "x 1 byte (" in card.server.capacity.source
    assert ["sliding window" in note for note in card.notes] == [True]


def test_what_is_not_told(read):
    """A flag that is left out is not known, and neither is the step time: nothing is put in its place."""
    found = read(SERVER + TRAFFIC)
    server = found.server

    assert (server.max_num_seqs.value, server.max_num_batched_tokens.value) == (None, None)
    assert (server.max_model_len.value, server.replicas.value, server.cache_dtype) == (None, None, "")
    assert server.max_num_seqs.source.endswith("w.yml: server has no max_num_seqs")
    assert (found.step, found.token_bytes.value, found.notes) == (None, None, ())


CARD = "gpu_memory: 48, utilization: 0.6, weights: 13, overhead: 2, model_config: c"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "w.yml: server is missing; it tells the capacity of the KV cache"),
        ("- 1", "w.yml: must be a mapping, not 'list'"),
        ("a: b: c", "w.yml: is not YAML in line 1: mapping values are not allowed here"),
        ("rate: 1\nrate: 2\n", "w.yml: is not YAML in line 2: the key 'rate' stands here a second time"),
        (SERVER + TRAFFIC + "speed: 1\n", "w.yml: unknown key 'speed'; known are seconds, rate, trace, burst, max_"),
        (SERVER + TRAFFIC + "burst:\n", "w.yml: burst has no value; give one or leave the key out"),
        (SERVER + TRAFFIC + "burst: 1.5\n", "w.yml: burst: '1.5' is not a whole number"),
        (SERVER + TRAFFIC + "max_tokens: 0\n", "w.yml: max_tokens: '0' is too small; the least is 1"),
        (SERVER, "w.yml: give either rate, in requests per second, or trace, a file of requests"),
        (SERVER + TRAFFIC + "trace: t\n", "w.yml: give either rate, in requests per second, or trace"),
        (SERVER + "trace: t\nburst: 1\n", "w.yml: burst says nothing beside trace, which tells each request"),
        (SERVER + "trace: t\nprompt: {mean: 1}\n", "w.yml: prompt says nothing beside trace"),
        (SERVER + "rate: 1\n", 'w.yml: seconds is missing; give how long requests come, as "10m"'),
        (SERVER + "rate: 1\nseconds: 1m\nprompt: {mean: 1}\n", "w.yml: answer is missing; give its lengths in tokens"),
        (SERVER + TRAFFIC.replace("5", "0"), "w.yml: rate and burst are 0, so no request comes; give one of them"),
        (SERVER + TRAFFIC.replace("5", "9999").replace("200", "1h"), "w.yml: rate times seconds, and burst, are more"),
        (SERVER + TRAFFIC.replace("rate: 5", "rate: -1"), "w.yml: rate: '-1' is too small; the least is 0"),
        (SERVER + TRAFFIC.replace("rate: 5", "rate: .nan"), "w.yml: rate: 'nan' is not a number"),
        (SERVER + TRAFFIC.replace("200", "soon"), "w.yml: seconds: 'soon' is not a duration like"),
        ("server: 5\n" + TRAFFIC, "w.yml: server must be a mapping of keys, not '5'"),
        ("server: {}\n" + TRAFFIC, "w.yml: server must tell the capacity in one way: capacity_tokens, blocks with"),
        ("server: {blocks: 9, capacity_tokens: 99}\n" + TRAFFIC, "w.yml: server must tell the capacity in one way"),
        ("server: {blocks: 9}\n" + TRAFFIC, "w.yml: server: block_size is missing; give it beside blocks"),
        ("server: {blocks: 9, block_size: 16, weights: 3}\n" + TRAFFIC, "w.yml: server: weights says nothing beside"),
        ("server: {block: 9}\n" + TRAFFIC, "w.yml: server: unknown key 'block'; known are capacity_tokens, blocks,"),
        ("server: {gpu_memory: 48GB}\n" + TRAFFIC, "w.yml: server: weights is missing; beside gpu_memory, give weig"),
        (f"server: {{{CARD.replace('48', '48TB')}}}\n" + TRAFFIC, "w.yml: server: gpu_memory must be a size like"),
        (f"server: {{{CARD.replace('48', '4')}}}\n" + TRAFFIC, "w.yml: server: nothing is left for the KV cache: 4 Gi"),
        (f"server: {{{CARD}, kv_dtype: int3}}\n" + TRAFFIC, "w.yml: server: --kv-dtype must be one of auto, float16,"),
        (
            "server: {capacity_tokens: 99, step_time: {base: 1ms}}\n" + TRAFFIC,
            "w.yml: server.step_time: decode is missing; give base, decode and prefill, or no step_time at all",
        ),
        (
            "server: {capacity_tokens: 99, step_time: {base: 0, decode: 0, prefill: 0}}\n" + TRAFFIC,
            "w.yml: server.step_time: base: '0' is too small; the least is 1e-06s",
        ),
        (
            SERVER + TRAFFIC.replace("rate: 5", "rate: 0x" + "f" * 5000),
            "w.yml: rate: 'a number of thousands of digits'",
        ),
        # Milliseconds, whose unit was forgotten.
        (
            "server: {capacity_tokens: 99, step_time: {base: 22, decode: 0.1, prefill: 0.1}}\n" + TRAFFIC,
            "w.yml: server.step_time: base: '22' is too large",
        ),
    ],
)
def test_refused(read, text, sentence):
    """Each fault is one sentence that names file and key, or the line."""
    assert refused(read, text, c=json.dumps(CONFIG), t=ROWS).startswith(sentence)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("5", " must be a mapping of keys, not '5'"),
        ("{}", " must have one of mean (with spread), p50 with p95, values, or edges with counts"),
        ("{mean: 5, p50: 5}", " must have one of mean (with spread), p50 with p95, values, or edges with counts"),
        ("{mean: 5, spred: 1}", ": unknown key 'spred'; known are mean, spread"),
        ("{mean: 0}", ": mean: '0' is too small; the least is 1"),
        ("{mean: 5, spread: 2}", ": spread: '2' is too large; the most is 1"),
        ("{p50: 5}", ": p95 is missing; give it beside p50"),
        ("{p50: 5, p95: 4}", ": p95 is less than p50; give them the other way round"),
        ("{values: []}", ": values must be a list of 1 to 100,000 whole numbers"),
        ("{values: [1, 0]}", ": values must be whole numbers from 1 to 10,000,000"),
        ("{values: [1, true]}", ": values must be whole numbers from 1 to 10,000,000"),
        ("{values: [1], spread: 1}", ": unknown key 'spread'; known are values"),
        ("{edges: [1]}", ": counts is missing; give one for each of the edges"),
        ("{edges: [1, 1], counts: [1, 1]}", ": edges must ascend, from a first one over 0"),
        ("{edges: [1, 2], counts: [1]}", ": there are 1 counts for 2 edges; give one for each"),
        ("{edges: [1, 2], counts: [0, 0]}", ": counts are all 0; give at least one that is not"),
        ("{edges: [1, 2], counts: [0, -1]}", ": counts must be whole numbers from 0 to 10,000,000"),
        ("{edges: [1, .inf], counts: [0, 1]}", ": edges must be whole numbers from 1 to 10,000,000"),
    ],
)
def test_lengths_refused(read, how, sentence):
    """The same for lengths."""
    text = SERVER + TRAFFIC.replace("prompt: {mean: 100}", f"prompt: {how}")
    assert refused(read, text) == f"w.yml: prompt{sentence}"


def test_no_workload(tmp_path):
    """A folder or a file that is not there is one sentence."""
    with pytest.raises(AdviseError, match="cannot be read: Is a directory"):
        workload.read(str(tmp_path))
    with pytest.raises(AdviseError, match="cannot be read: No such file or directory"):
        workload.read(str(tmp_path / "gone.yml"))
