# a test's name is the fact that it proves
"""The lab's process: flags, signals, and one sentence for what it cannot do."""

import argparse
import asyncio
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
import pytest

from kvpressure.lab import cli
from kvpressure.lab.scenarios import CALM


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
        (["--max-model-len", "9585"], "--max-model-len 9585 does not fit the KV cache of 9584 usable tokens."),
        (["--log.file", "/nonexistent/x"], "cannot write --log.file /nonexistent/x: no such file or directory."),
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
