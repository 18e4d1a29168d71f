# a test's name is the fact that it proves
"""The lab's process: flags, signals, and one sentence for what it cannot do."""

import argparse
import asyncio
import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import aiohttp
import commands
import pytest

from kvpressure.lab import cli, users
from kvpressure.lab.scenarios import CALM
from kvpressure.lab.truth import Record, Totals


def command(*flags):
    return [sys.executable, "-m", "kvpressure.lab", *flags]


def environment():
    package_root = str(Path(cli.__file__).parents[2])
    return os.environ | {"PYTHONPATH": package_root}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_within_a_second_even_with_an_open_stream(number, tmp_path):
    log = tmp_path / "vllm.log"
    flags = ["--web.listen-address", "127.0.0.1:0", "--log.file", str(log), "--scenario", "storm"]
    with subprocess.Popen(command(*flags), env=environment(), stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 10
        while not log.exists() or "startup complete" not in log.read_text():
            assert time.monotonic() < deadline, process.poll()
            time.sleep(0.02)
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())[1])

        async def open_a_stream_and_stop():
            body = {"prompt": "hello", "max_tokens": 5000, "ignore_eos": True, "stream": True}
            url = f"http://127.0.0.1:{port}/v1/completions"
            async with aiohttp.ClientSession() as session, session.post(url, json=body):
                process.send_signal(number)
                began = time.monotonic()
                await asyncio.to_thread(process.wait, 5)
                return time.monotonic() - began

        assert asyncio.run(open_a_stream_and_stop()) < 1
        assert process.returncode == 0
        assert process.stderr.read() == b""


def test_a_port_in_use_is_one_sentence_and_exit_code_2():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = command("--web.listen-address", f"127.0.0.1:{port}")
        done = subprocess.run(flags, env=environment(), capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode == 2
    assert done.stderr == f"kvpressure lab: cannot listen on 127.0.0.1:{port}: address already in use.\n"


def parse(*flags):
    parser = argparse.ArgumentParser(exit_on_error=False)
    cli.add_arguments(parser)
    return parser.parse_args(flags)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--web.listen-address", "8000"], "--web.listen-address '8000' is not HOST:PORT."),
        (["--web.listen-address", "localhost:99999"], "--web.listen-address 'localhost:99999' is not HOST:PORT."),
        (["--web.listen-address", f":{'9' * 5000}"], f"--web.listen-address ':{'9' * 5000}' is not HOST:PORT."),
        (["--max-model-len", "9585"], "--max-model-len 9585 does not fit the KV cache of 9584 usable tokens."),
        (["--log.file", "/nonexistent/x"], "cannot write --log.file /nonexistent/x: no such file or directory."),
        (["--requests", "5"], "--requests is for users: name the server that they ask with --users."),
        (["--no-chat"], "--chat is for users: name the server that they ask with --users."),
        (
            ["--users", "http://127.0.0.1:8000", "--truth.file", "/nonexistent/x"],
            "cannot write --truth.file /nonexistent/x: no such file or directory.",
        ),
    ],
)
def test_flags_that_cannot_be_served_are_one_sentence_and_exit_code_2(flags, sentence, capsys):
    assert cli.run(parse(*flags)) == 2
    assert capsys.readouterr().err == f"kvpressure lab: {sentence}\n"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--speed", "0"], "'0' is not a number above 0"),
        (["--speed", "fast"], "'fast' is not a number above 0"),
        (["--speed", "nan"], "'nan' is not a number above 0"),
        (["--step.decode", "-1"], "'-1' is not a number of 0 or more"),
        (["--num-gpu-blocks", "1"], "'1' is not a whole number of at least 2"),
        (["--scenario", "chaos"], "invalid choice: 'chaos'"),
        (["--duration", "soon"], "'soon' is not a duration over 0 like \"60s\""),
        (["--duration", "0s"], "'0s' is not a duration over 0 like \"60s\""),
        (["--requests", "0"], "'0' is not a whole number of at least 1"),
        (["--users", "127.0.0.1:8000"], "the value is not a URL like http://127.0.0.1:8000 (without a user name)"),
        (["--users", "http://me:secret@host"], "the value is not a URL like http://127.0.0.1:8000"),
        (["--users", "http://host/other"], "the value is not a URL like http://127.0.0.1:8000"),
    ],
)
def test_a_bad_value_is_refused_by_name(flags, sentence):
    with pytest.raises(argparse.ArgumentError, match=re.escape(sentence)) as caught:
        parse(*flags)
    assert str(caught.value).startswith(f"argument {flags[0]}: ")


def test_server_flags_replace_the_scenarios_settings_and_the_model_length_shrinks_to_the_cache():
    flags = ["--num-gpu-blocks", "101", "--block-size", "8", "--step.base", "0.5", "--no-prefix-caching"]
    config = cli._options(parse("--scenario", "calm", *flags)).scenario.server
    assert (config.num_gpu_blocks, config.block_size, config.max_model_len) == (101, 8, 800)
    assert config.step_time == replace(CALM.server.step_time, base=0.5)
    assert not config.prefix_caching
    assert config.max_num_seqs == CALM.server.max_num_seqs


def test_the_list_names_every_scenario(capsys):
    assert cli.run(parse("--list")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "calm",
        "onset",
        "storm",
        "long_answers",
        "queue_bound",
        "slow_host",
        "bookstore",
    ]


# --- users ------------------------------------------------------------------------------------------------------


@pytest.fixture
def served():
    """The URL of a lab that only HTTP clients ask, in a process of its own."""
    with commands.running("lab", "--no-load", "--scenario", "storm", ready="/health") as lab:
        yield lab.url


@pytest.fixture
def quick():
    """The same with a server that is ten times as fast."""
    with commands.running("lab", "--no-load", "--step.base", "0.002", "--step.decode", "0", ready="/health") as lab:
        yield lab.url


def records_of(path):
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return [Record.of(json.loads(line)) for line in text.splitlines()]


@pytest.mark.parametrize(("name", "chat"), [("truth.jsonl", "--chat"), ("truth.jsonl.gz", "--no-chat")])
def test_what_the_users_write_sums_up_to_what_they_say(served, tmp_path, name, chat):
    """The file has a line per request, and its records sum up to the summary that was printed, digit by digit."""
    path = tmp_path / name
    told = commands.kvpressure("lab", "--users", f"{served}/v1", chat, "--duration", "6s", "--truth.file", str(path))
    records = records_of(path)
    totals = Totals()
    for record in records:
        totals.add(record)

    assert (0, "") == (told.returncode, told.stderr)
    assert told.stdout == totals.text() + "\n"
    assert totals.requests > 30
    assert totals.failed == 0
    assert sorted(record.number for record in records) == list(range(totals.requests))


def test_a_number_of_requests_ends_when_the_last_has_ended(quick):
    """Without a duration nobody is cut off."""
    told = commands.kvpressure("lab", "--users", quick, "--requests", "3")

    assert told.returncode == 0
    assert told.stdout.startswith("3 requests: 0 failed, 0 left without a token, 0 open at the end\n3 got a token")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_users_with_their_summary(served, number, tmp_path):
    """What was open until then is in the file and in the summary, and the server is idle again."""
    path = tmp_path / "truth.jsonl"
    ask = command("--users", served, "--truth.file", str(path))
    with subprocess.Popen(ask, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        commands.wait_for(lambda: running(metrics(served)) > 10, 20)
        process.send_signal(number)
        out, err = process.communicate(timeout=10)

    assert (0, "") == (process.returncode, err)
    count = int(re.match(r"(\d+) requests: 0 failed, 0 left without a token, \d+ open at the end\n", out)[1])
    assert len(records_of(path)) == count
    commands.wait_for(lambda: running(metrics(served)) == 0, 5)


def metrics(url):
    return commands.get(url + "/metrics")[1]


def running(text):
    return float(re.search(r"^vllm:num_requests_running{[^}]*} (\S+)$", text, re.MULTILINE)[1])


def test_a_signal_ends_users_who_have_found_no_server_yet():
    """While nobody says what is served they have asked nothing, and say so."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ask = command("--users", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with subprocess.Popen(ask, env=environment(), stdout=subprocess.PIPE, text=True) as process:
            silent.settimeout(20)
            silent.accept()[0].close()
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=10)

    assert process.returncode == 0
    assert out.startswith("0 requests: ")


def test_no_server_at_all_is_one_sentence_and_exit_code_1(monkeypatch, capsys):
    """The sentence names the address that was asked."""
    url = f"http://127.0.0.1:{commands.free_port()}"
    monkeypatch.setattr(users, "MODEL_SECONDS", 0.2)

    assert cli.run(parse("--users", url)) == 1
    expected = f"kvpressure lab: {url}/v1/models does not name a model within 0.2 s: it cannot be reached.\n"
    assert capsys.readouterr().err == expected


def test_a_full_disk_does_not_end_the_users(quick):
    """They play on, tell their summary, and then that the file is not complete."""
    told = commands.kvpressure("lab", "--users", quick, "--requests", "3", "--truth.file", "/dev/full")

    assert (1, True) == (told.returncode, told.stdout.startswith("3 requests: 0 failed"))
    assert told.stderr == "kvpressure lab: --truth.file /dev/full is not complete: no space left on device.\n"


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), ("500ms", 0.5), ("1m30s", 90), ("2h", 7200), ("7", 7)])
def test_a_duration_is_written_as_prometheus_does(text, seconds):
    """Units can be joined; a bare number is seconds."""
    assert parse("--duration", text).duration == seconds


@pytest.mark.parametrize("url", ["http://h:8000", "http://h:8000/", "http://h:8000/v1", "http://h:8000/v1/"])
def test_the_address_may_end_as_openai_clients_are_given_it(url):
    """With and without `/v1` it is the same server."""
    assert parse("--users", url).users == "http://h:8000"
