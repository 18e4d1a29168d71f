"""``kvpressure advise`` as it is typed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from commands import ENVIRONMENT, wait_for

from kvpressure import cli
from kvpressure.advise.seen import Figure
from kvpressure.advise.told import Told, added
from kvpressure.advise.workload import read

ROOT = Path(__file__).parents[1]
NOBODY = "http://127.0.0.1:9"
EXAMPLE = ROOT / "docs" / "examples" / "workload.yml"
LLAMA = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}


def test_a_described_workload_is_advised_on_in_three_forms(tmp_path, capsys):
    """The example of the documentation: text on the terminal, a page, and JSON that keeps to the schema."""
    page, data = tmp_path / "advice.html", tmp_path / "advice.json"
    words = ["advise", "--workload", str(EXAMPLE), "--seeds", "2", "--html", str(page), "--json", str(data)]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    found = json.loads(data.read_text(encoding="utf-8"))
    schema = json.loads((ROOT / "docs" / "advise.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(found, schema)
    assert "--max-num-seqs" in said
    assert "<svg" in page.read_text(encoding="utf-8")


def test_json_alone_is_for_programs(capsys):
    """``--json -`` prints JSON and nothing else."""
    assert cli.main(["advise", "--workload", str(EXAMPLE), "--seeds", "1", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["advice"]["changes"]


def test_a_capacity_by_arithmetic_replaces_the_server_s(tmp_path, capsys):
    """48 GB at 0.60 with 13.5 GB of weights and 2 GB beside: 13.3 GB for a model with 128 KiB per token."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA), encoding="utf-8")
    words = ["--gpu-memory", "48GB", "--utilization", "0.6", "--weights", "13.5GB", "--overhead", "2GB"]
    status = cli.main(
        ["advise", "--workload", str(EXAMPLE), "--seeds", "1", "--json", "-", "--model-config", str(config), *words]
    )
    assert status == 0
    have = {line["name"]: line["figure"] for line in json.loads(capsys.readouterr().out)["advice"]["have"]}
    assert have["KV capacity"]["value"] == pytest.approx(13.3 * 1024**3 / (128 * 1024), rel=0.01)
    assert "13.3 GiB" in have["KV capacity"]["source"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--recording", "/nowhere"], "there is no such file or folder"),
        (["--workload", "/nowhere"], "/nowhere"),
        (["--workload", str(EXAMPLE), "--gpu-memory", "48"], "--model-config"),
        (["--workload", str(EXAMPLE), "--target-ttft", "soon"], "'soon' is not a duration"),
        (["--workload", str(EXAMPLE), "--target-per-thousand", "0"], "--target-per-thousand must be over 0"),
        (["--workload", str(EXAMPLE), "--target-per-thousand", "inf"], "--target-per-thousand must be at most 1,000,0"),
        (["--workload", str(EXAMPLE), "--target-per-thousand", "nan"], "--target-per-thousand must be over 0"),
        (["--workload", str(EXAMPLE), "--kv-dtype", "fp8"], "--kv-dtype is of use only together with --model-config"),
        (
            ["--workload", str(EXAMPLE), "--tensor-parallel", "4"],
            "--tensor-parallel is of use only together with --mod",
        ),
        (["--workload", str(EXAMPLE), "--seeds", "1000"], "--seeds 1000 is more than 100"),
        # Nothing is asked, and nothing simulated, for files that cannot be written.
        (["--prometheus", NOBODY, "--html", "-"], "--html writes a page into a file: give its name in the place of -"),
        (["--prometheus", NOBODY, "--html", "a", "--json", "a"], "--html and --json both name a: give two files"),
        (
            ["--prometheus", NOBODY, "--html", "/no/where/a.html"],
            "/no/where/a.html cannot be written: there is no folder",
        ),
        (
            ["--prometheus", NOBODY, "--json", "/no/where/a.json"],
            "/no/where/a.json cannot be written: there is no folder",
        ),
        (["--prometheus", NOBODY, "--html", str(ROOT)], "cannot be written: it is a folder"),
        (["--prometheus", "http://127.0.0.1:9", "--range", "0"], "--range"),
        (["--workload", str(EXAMPLE), "--range", "1h"], "--range is of use only with --prometheus; leave it out"),
        (
            ["--workload", str(EXAMPLE), "--model", "m"],
            "--model is of use only with --prometheus or --recording; leave",
        ),
        (["--workload", str(EXAMPLE), "--engine", "0"], "--engine is of use only with --prometheus or --recording; le"),
        (["--recording", "/nowhere", "--range", "1h"], "--range is of use only with --prometheus; leave it out"),
        (
            ["--recording", "/nowhere", "--prometheus-header", "X-Key: SECRET"],
            "--prometheus-header is of use only with --prometheus; leave it out",
        ),
        (
            ["--workload", str(EXAMPLE), "--prometheus-insecure-skip-verify"],
            "--prometheus-insecure-skip-verify is of use only with --prometheus; leave it out",
        ),
        (["--workload", ""], "--workload is given without a value"),
        (["--recording", ""], "--recording is given without a value"),
        (["--prometheus", "", "--range", "1h"], "--prometheus is given without a value"),
        (["--workload", str(EXAMPLE), "--range", ""], "--range is given without a value"),
        (["--workload", str(EXAMPLE), "--model-config", ""], "--model-config is given without a value"),
        (["--workload", str(EXAMPLE), "--html", ""], "--html is given without a value"),
    ],
)
def test_bad_input_is_one_sentence(words, sentence, capsys):
    """It names the flag or the file, and nothing is simulated."""
    assert cli.main(["advise", *words]) == cli.USAGE
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


def test_gpus_without_their_memory_are_refused(tmp_path, capsys):
    """How many GPUs share the model says nothing where the memory of one is not told."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA), encoding="utf-8")
    words = ["advise", "--workload", str(EXAMPLE), "--model-config", str(config), "--tensor-parallel", "2"]
    assert cli.main(words) == cli.USAGE
    assert "--tensor-parallel is of use only together with --gpu-memory, --util" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--max-num-seqs", "abc"], "argument --max-num-seqs: 'abc' is not a whole number"),
        (["--seeds", "0"], "argument --seeds: '0' is less than 1"),
        (["--replicas", "9" * 400], "argument --replicas: '9999"),
        (["--kv-dtype", "bogus"], "argument --kv-dtype: invalid choice: 'bogus'"),
    ],
)
def test_a_flag_that_makes_no_sense(words, sentence, capsys):
    """It is one sentence that names the flag, and nothing of the program's insides."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["advise", "--workload", str(EXAMPLE), *words])
    err = capsys.readouterr().err
    assert ended.value.code == cli.USAGE
    assert sentence in err
    assert "_count" not in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("words", "offered"), [((), True), (("--kv-dtype", "fp8"), False)])
def test_a_cache_of_8_bits_is_not_offered_twice(words, offered, tmp_path, capsys):
    """--kv-dtype says what the cache is: where that is FP8 already, it cannot be had once more."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA), encoding="utf-8")
    given = ["--workload", str(EXAMPLE), "--seeds", "1", "--json", "-", "--model-config", str(config)]
    assert cli.main(["advise", *given, *words]) == 0
    keys = [change["key"] for change in json.loads(capsys.readouterr().out)["advice"]["changes"]]
    assert ("fp8" in keys) is offered


def test_a_file_that_fails_costs_nothing_else(tmp_path, capsys):
    """With no space for the page, the text is on the terminal and the JSON in its file; the status tells."""
    data = tmp_path / "advice.json"
    words = ["--workload", str(EXAMPLE), "--seeds", "1", "--html", "/dev/full", "--json", str(data)]
    assert cli.main(["advise", *words]) == cli.USAGE
    said = capsys.readouterr()
    assert "--max-num-seqs" in said.out
    assert json.loads(data.read_text(encoding="utf-8"))["advice"]["changes"]
    assert said.err == "kvpressure advise: /dev/full cannot be written: No space left on device\n"


def test_whoever_is_killed_takes_his_simulations_along(tmp_path):
    """No process is left that simulates for nobody."""
    slow = tmp_path / "slow.yml"
    slow.write_text(
        "seconds: 1h\nrate: 20\nprompt: {mean: 100}\nanswer: {mean: 400}\nserver: {capacity_tokens: 90000}\n"
    )
    command = [sys.executable, "-m", "kvpressure", "advise", "--workload", str(slow), "--seeds", "50"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, env=ENVIRONMENT, start_new_session=True) as process:
        wait_for(lambda: len(_of_session(process.pid)) > 2, 30)
        process.kill()
        process.communicate()
    wait_for(lambda: not _of_session(process.pid), 30)


def test_ctrl_c_waits_for_no_simulation(tmp_path):
    """
    It ends the simulations as they are born and while they run, and says so in one line.

    One run of this takes minutes: whoever waited for one would be late by far. Ctrl-C goes to all of a terminal's
    processes, so those that simulate get it, too.
    """
    slow = tmp_path / "slow.yml"
    slow.write_text(
        "seconds: 7d\nrate: 1.5\nprompt: {mean: 100}\nanswer: {mean: 4000}\n"
        "server: {blocks: 100000, block_size: 16, max_model_len: 5000}\n"
    )
    command = [sys.executable, "-m", "kvpressure", "advise", "--workload", str(slow), "--seeds", "100"]
    for later in (0.0, 0.05, 0.1, 3.0):
        with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=ENVIRONMENT, start_new_session=True) as one:
            wait_for(lambda number=one.pid: len(_of_session(number)) > 2, 60)
            time.sleep(later)
            os.killpg(one.pid, signal.SIGINT)
            try:
                out, err = one.communicate(timeout=20)
            finally:
                os.killpg(one.pid, signal.SIGKILL)
        assert (one.returncode, out, err) == (130, "", "kvpressure advise: interrupted\n")
        wait_for(lambda number=one.pid: not _of_session(number), 20)


def _of_session(number):
    said = subprocess.run(["ps", "-o", "pid=,stat=", "-s", str(number)], capture_output=True, text=True, check=False)
    return [line for line in said.stdout.splitlines() if "Z" not in line]


def test_ctrl_c_is_one_line():
    """While a Prometheus lets it wait, an interrupt ends the command with the shells' status and no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(20)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        command = [sys.executable, "-m", "kvpressure", "advise", "--prometheus", address]
        environment = {**ENVIRONMENT, "no_proxy": "127.0.0.1"}
        with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=environment) as process:
            try:
                asking, _ = listening.accept()
                with asking:
                    asking.recv(1)
                    process.send_signal(signal.SIGINT)
                    out, err = process.communicate(timeout=20)
            finally:
                process.kill()
    assert (process.returncode, out, err) == (130, "", "kvpressure advise: interrupted\n")


def test_flags_say_the_same_of_every_server():
    """What a workload says of a server gives way to the flags, in the same words as what vLLM says of itself."""
    described = read(str(EXAMPLE)).server
    found = added(described, Told(max_num_seqs=64, replicas=3))
    assert found.max_num_seqs == Figure(64.0, "requests", "--max-num-seqs 64, as given")
    assert found.replicas == Figure(3.0, described.replicas.unit, "--replicas 3, as given")
    assert (found.max_model_len, found.capacity) == (described.max_model_len, described.capacity)


def test_one_source_must_be_given(capsys):
    """Neither none nor two."""
    for words in ([], ["--prometheus", "http://x", "--recording", "y"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(["advise", *words])
        assert ended.value.code == cli.USAGE
        assert "--prometheus" in capsys.readouterr().err


def test_flags_in_the_documentation_exist(capsys):
    """Every flag that docs/advise.md names is one of the command, or of vLLM."""
    with pytest.raises(SystemExit):
        cli.main(["advise", "--help"])
    known = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", (ROOT / "docs" / "advise.md").read_text(encoding="utf-8")))
    of_vllm = {"--kv-cache-dtype"}
    assert named - known - of_vllm == set()
