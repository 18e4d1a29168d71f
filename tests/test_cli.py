"""The command line, run as a user runs it."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ENVIRONMENT, kvpressure

import kvpressure as package


def test_help_lists_every_command():
    """`kvpressure --help` names each command with what it is for."""
    said = kvpressure("--help")

    assert (0, "") == (said.returncode, said.stderr)
    assert [line.split()[0] for line in said.stdout.splitlines() if line.startswith("  ")] == [
        "serve",
        "check",
        "replay",
        "signals",
        "bundle",
        "advise",
        "lab",
        "demo",
    ]


def test_version():
    """`kvpressure --version` tells the package's version."""
    assert f"kvpressure {package.__version__}\n" == kvpressure("--version").stdout


@pytest.mark.parametrize("command", ["serve", "check", "replay", "signals", "bundle", "advise", "lab", "demo"])
def test_help_of_each_command(command):
    """Every command explains its flags."""
    said = kvpressure(command, "--help")

    assert (0, "") == (said.returncode, said.stderr)
    assert f"usage: kvpressure {command}" in said.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--frob"], "kvpressure serve: there is no flag --frob; see kvpressure serve --help"),
        (
            ["frob"],
            (
                "kvpressure: there is no command 'frob'; there are serve, check, replay, signals, bundle, advise, lab, "
                "demo"
            ),
        ),
        (
            ["--vllm.url", "localhost:8000"],
            ("kvpressure serve: --vllm.url: 'localhost:8000' is not a URL like http://127.0.0.1:8000/metrics "
            "(http or https, no user name in it)"),
        ),
        (
            ["--vllm.url", "http://127.0.0.1:99999/metrics"],
            ("kvpressure serve: --vllm.url: 'http://127.0.0.1:99999/metrics' is not a URL like "
            "http://127.0.0.1:8000/metrics (http or https, no user name in it)"),
        ),
        (["--sample.interval", "soon"], ("kvpressure serve: --sample.interval: 'soon' is not a duration like "
         '"1s", "500ms" or "5m"')),
        (["--kv.pin-threshold", "95"], "kvpressure serve: --kv.pin-threshold: '95' is too large; the most is 1"),
        (
            ["--sample.interval", "9s", "--sample.max-interval", "5s"],
            ("kvpressure serve: sample.max-interval (5 s) is shorter than sample.interval (9 s); raise it or sample "
            "more often"),
        ),
        (["--web.listen-address", "8000"], ("kvpressure serve: --web.listen-address: '8000' is not an address like "
         '":10938" or "127.0.0.1:10938"')),
        (["--config.file", "nowhere.yml"], "kvpressure serve: nowhere.yml: cannot be read: No such file or directory"),
        (["replay", "nowhere"], "kvpressure replay: nowhere: there is no such file or folder"),
        (["replay", ".", "--step", "0"], "kvpressure replay: --step: '0' is not a duration over 0 like \"15s\""),
        (["check", "ftp://x"], ("kvpressure check: --vllm.url: 'ftp://x' is not a URL like "
         "http://127.0.0.1:8000/metrics (http or https, no user name in it)")),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_one_sentence(words, sentence):
    """What cannot be understood is named in one sentence on stderr, with exit status 2."""
    said = kvpressure(*words)

    assert (2, sentence + "\n", "") == (said.returncode, said.stderr, said.stdout)


@pytest.mark.parametrize("words", [["frob"], ["check", "--frob"], ["check", "ftp://x"]])
def test_without_a_place_for_sentences_the_status_is_left(words):
    """Started with its standard error closed, a wrong command line still has exit status 2, and says nothing."""
    command = shlex.join([sys.executable, "-m", "kvpressure", *words])
    said = subprocess.run(["sh", "-c", f"{command} 2>&-"], check=False, capture_output=True, env=ENVIRONMENT)

    assert (2, b"", b"") == (said.returncode, said.stdout, said.stderr)


def test_a_secret_in_a_wrong_url_is_not_repeated():
    """A URL with a password is refused without being printed."""
    said = kvpressure("--vllm.url", "http://user:canary@127.0.0.1:8000/metrics")

    assert 2 == said.returncode
    assert "canary" not in said.stderr
    assert "--vllm.url" in said.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--vllm.headers", "Authorization: Bearer canary"],
        ["--vllm.headers=Authorization:canary"],
        ["check", "--vllm.headers=Authorization: Bearer canary"],
        ["check", "http://127.0.0.1:9", "Authorization: Bearer canary"],
        ["-Hcanary"],
        ["replay", "/nowhere", "canary"],
    ],
)
def test_a_secret_behind_a_wrong_flag_is_not_repeated(words):
    """A flag that does not exist is refused without what was given to it, which may be a key."""
    said = kvpressure(*words)

    assert (2, "") == (said.returncode, said.stdout)
    assert "canary" not in said.stderr
    assert 1 == said.stderr.count("\n")


def test_config_check(tmp_path):
    """--config.check says that a good file is good, and starts nothing."""
    file = tmp_path / "kvpressure.yml"
    file.write_text("vllm:\n  url: http://10.0.0.1:8000/metrics\nkv:\n  pin-threshold: 0.9\n", encoding="utf-8")

    said = kvpressure("--config.file", str(file), "--config.check")

    assert (0, "the configuration is good\n", "") == (said.returncode, said.stdout, said.stderr)


def test_config_check_looks_into_the_files_it_names(tmp_path):
    """--config.check finds a CA file that is no certificate."""
    authority = tmp_path / "ca.pem"
    authority.write_text("not a certificate", encoding="utf-8")

    said = kvpressure("--vllm.url", "https://vllm", "--vllm.ca-file", str(authority), "--config.check")

    assert 2 == said.returncode
    assert "vllm.ca-file" in said.stderr
    assert 1 == said.stderr.count("\n")


def test_unknown_key_in_the_file(tmp_path):
    """An unknown key is named with its section and the keys there are."""
    file = tmp_path / "c.yml"
    file.write_text("log:\n  colour: red\n", encoding="utf-8")

    said = kvpressure("--config.file", str(file), "--config.check")

    assert f"kvpressure serve: {file}: unknown key log.colour; known under log are path, level, format\n" == said.stderr
    assert 2 == said.returncode


def test_signals_lists_the_catalogue():
    """`kvpressure signals` has a row for every signal."""
    from kvpressure.signals import CATALOGUE  # noqa: PLC0415

    said = kvpressure("signals")

    assert 0 == said.returncode
    listed = {line.split()[0] for line in said.stdout.splitlines() if line.startswith("kvpressure_")}
    assert {signal.metric for signal in CATALOGUE} == listed


def test_a_name_that_the_terminal_cannot_write(tmp_path, monkeypatch):
    """Letters of a model's name that the output's encoding lacks are question marks, and the rest is said."""
    monkeypatch.setitem(ENVIRONMENT, "PYTHONIOENCODING", "ascii")
    row = json.dumps({"t": 1000.0, "body": 'vllm:num_requests_running{model_name="\u30e2a"} 1\n'})
    (tmp_path / "metrics.jsonl").write_text(row, encoding="utf-8")

    said = kvpressure("replay", str(tmp_path))

    assert (0, "") == (said.returncode, said.stderr)
    assert "model ?a, engine 0" in said.stdout


def test_replay_steps(tmp_path):
    """With --step a line stands for t0, every step after it, and the end; an error sets kvpressure_up to 0."""
    body = 'vllm:num_requests_running{engine="0",model_name="m"} 1\n'
    rows = [{"t": 100.0 + s, "took": 0.01, "body": body} for s in range(8)] + [{"t": 108.0, "error": "no answer"}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "streams.jsonl.gz").write_bytes(b"never read: this is not gzip")

    said = kvpressure("replay", str(tmp_path), "--step", "3s")

    lines = [json.loads(line) for line in said.stdout.splitlines()]
    assert (0, "") == (said.returncode, said.stderr)
    assert [100.0, 103.0, 106.0, 108.0] == [line["t"] for line in lines]
    assert ["kvpressure_up 1.0"] * 3 + ["kvpressure_up 0.0"] == [
        next(row for row in line["body"].splitlines() if row.startswith("kvpressure_up ")) for line in lines
    ]
    assert ["1.0", "4.0", "7.0", "9.0"] == [
        next(row for row in line["body"].splitlines() if row.startswith("kvpressure_samples_total")).split()[1]
        for line in lines
    ]


def test_replay_says_which_line_is_broken(tmp_path):
    """A broken line is skipped and named; the rest is replayed; the exit status tells."""
    file = tmp_path / "metrics.jsonl"
    good = json.dumps({"t": 1.0, "took": 0.1, "body": 'vllm:num_requests_running{model_name="m"} 1\n'})
    file.write_text(f"{good}\nnot json\n{good.replace('1.0', '2.0')}\n", encoding="utf-8")

    said = kvpressure("replay", str(file))

    assert 1 == said.returncode
    assert f"kvpressure replay: {file}: line 2 is skipped: it is not JSON\n" in said.stderr
    assert "2 samples over 1 s" in said.stdout


@pytest.mark.parametrize("name", ["vllm.bearer-token-file", "vllm.ca-file", "vllm.key-file", "web.config.file"])
def test_config_check_wants_every_file(name):
    """--config.check names a file that is not there."""
    more = ["--vllm.cert-file", __file__] if name == "vllm.key-file" else []

    said = kvpressure(f"--{name}", "/no/such/file", *more, "--config.check")

    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith(f"kvpressure serve: {name}: /no/such/file: cannot be read: No such file")


def test_a_slower_interval_needs_no_second_flag():
    """Sampling every 20 seconds is one flag, not two."""
    said = kvpressure("--sample.interval", "20s", "--config.check")

    assert (said.returncode, said.stderr) == (0, "")


def test_a_full_disk_is_one_sentence():
    """Output that cannot be written is one sentence and exit status 1."""
    command = [sys.executable, "-m", "kvpressure", "signals"]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        said = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)

    assert said.returncode == 1
    assert said.stderr == "kvpressure signals: cannot write its output: No space left on device\n"


def test_flags_named_in_the_readme_exist():
    """Every flag that the README's prose and examples name is one of some command."""
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    helps = "".join(
        kvpressure(command, "--help").stdout
        for command in ("serve", "check", "replay", "lab", "demo", "signals", "bundle", "advise")
    )
    known = set(re.findall(r"--[a-z][a-z0-9.-]+", helps))
    of_vllm = {"--disable-log-stats", "--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization"}
    of_vllm |= {"--enable-log-requests", "--enable-log-outputs", "--enable-log-deltas", "--max-log-len"}
    of_vllm |= {"--logging-config.formatter"}
    of_others = {"--now", "--package", "--url"}

    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9.-]*[a-z]", readme)) - known - of_vllm - of_others == set()
