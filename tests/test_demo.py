"""`kvpressure demo`, run as a user runs it, and its line."""

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from commands import ENVIRONMENT, free_port, get, kvpressure, running

from kvpressure import demo

ENGINE = {
    "model_name": "m",
    "verdict": "kv_memory",
    "regime": "churn",
    "running": 20.0,
    "waiting": 14.0,
    "windows": [
        {"window": "1m", "preemptions_per_thousand": 231.4, "pinned_ratio": 0.44, "gap_p99_seconds": 0.0583},
        {"window": "5m", "preemptions_per_thousand": 1.0, "pinned_ratio": 0.01, "gap_p99_seconds": 0.01},
    ],
}
TAP = {
    "model_name": "m",
    "source": "tap",
    "paused_now": 3,
    "open": 34,
    "windows": [
        {"window": "1m", "paused_ratio": 0.283, "gap_p99_seconds": 0.0712},
        {"window": "5m", "paused_ratio": 0.1, "gap_p99_seconds": 0.01},
    ],
}


def test_the_line_is_readable():
    """The line has verdict, regime, the headline signals of the last minute, and the queue."""
    expected = "kv_memory churn preempt/1k 231 pinned 44% gap p99 0.07s paused 28% run 20 wait 14"

    assert expected == " ".join(demo.line_of(ENGINE, [TAP]).split())


def test_users_are_those_of_the_engines_model_as_the_tap_sees_them():
    """What the tap says of another model, or the log of this one, is not taken for it: the engine's p99 is left."""
    others = [{**TAP, "model_name": "other"}, {**TAP, "source": "log"}]
    expected = "kv_memory churn preempt/1k 231 pinned 44% gap p99 0.06s paused - run 20 wait 14"

    assert expected == " ".join(demo.line_of(ENGINE, others).split())
    assert "paused  28%" in demo.line_of(ENGINE, [*others, TAP])


def test_what_is_not_known_is_a_dash():
    """Before there is a window, and before anybody streamed, the line has dashes, not zeros."""
    silent = {**TAP, "windows": [{"window": "1m", "paused_ratio": None, "gap_p99_seconds": None}]}
    for streams in ([], [silent]):
        line = demo.line_of({**ENGINE, "windows": [], "running": None, "waiting": None}, streams)

        assert 6 == line.count("-")
        assert "0" not in line


def test_it_runs_until_interrupted():
    """
    It prints three addresses and, within a minute, lines with what the tap saw.

    The tap's address passes requests on. One SIGINT ends all with status 0 and leaves no process behind.
    """
    ports = "--lab.port", str(free_port()), "--port", str(free_port())
    command = [sys.executable, "-m", "kvpressure", "demo", "--every", "1s", *ports]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as running:
        lines = [running.stdout.readline() for _ in range(5)]
        line = ""
        for _ in range(60):
            line = running.stdout.readline()
            if re.search(r" paused +\d+% ", line) or not line:
                break
        tap = re.search(r"http://127\.0\.0\.1:\d+", lines[1])
        passed_on = get(f"{tap[0]}/v1/models")[0] if tap else None
        children = _children(running.pid)
        began = time.monotonic()
        running.send_signal(signal.SIGINT)
        rest, errors = running.communicate(timeout=30)

    assert (0, "", "\nstopped\n") == (running.returncode, errors, rest[-9:])
    assert f"http://127.0.0.1:{ports[1]}/metrics" in lines[0]
    assert f"send your own requests here: {tap[0]}/v1/chat/completions" in lines[1]
    assert f"http://127.0.0.1:{ports[3]}/metrics" in lines[2]
    assert re.match(r"\d\d:\d\d:\d\d  (unknown|healthy|kv_memory) .* paused +\d+% ", line)
    assert 200 == passed_on
    assert 3 == len(children)
    assert [] == [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert time.monotonic() - began < 10.0


def test_a_port_that_is_taken_is_replaced_and_no_two_are_the_same():
    """Each process gets the port that was asked where it is free, and otherwise one that nobody has."""
    free = free_port()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        addresses = demo._addresses(free, free, port)

    assert f"127.0.0.1:{free}" == addresses[0]
    assert f"127.0.0.1:{port}" not in addresses
    assert 3 == len(set(addresses))


def test_a_proxy_of_the_environment_is_passed_by(monkeypatch):
    """Where the environment names a proxy, the demo asks its own processes all the same: no proxy leads to them."""
    nobody = f"http://127.0.0.1:{free_port()}/metrics"
    with running("serve", "--vllm.url", nobody, ready="/-/ready") as sidecar:
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")

        assert demo._lines(sidecar.url).endswith("no engine seen yet")


def test_an_unknown_scenario_is_one_sentence():
    """A scenario that the lab does not know ends the demo with what the lab says of it."""
    said = kvpressure("demo", "--scenario", "frob")

    assert 1 == said.returncode
    assert "frob" in said.stderr.splitlines()[0]
    assert "Traceback" not in said.stderr


def _children(pid):
    """The processes that a process has started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = (entry / "stat").read_text(encoding="utf-8")
        except OSError:
            continue
        if int(status.rpartition(")")[2].split()[1]) == pid:
            found.append(int(entry.name))
    return found
