"""`kvpressure demo`, run as a user runs it, and its line."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from commands import ENVIRONMENT, free_port, kvpressure

from kvpressure import demo

ENGINE = {
    "verdict": "kv_memory",
    "regime": "churn",
    "running": 20.0,
    "waiting": 14.0,
    "windows": [
        {
            "window": "1m",
            "preemptions_per_thousand": 231.4,
            "pinned_ratio": 0.44,
            "gap_p99_seconds": 0.0583,
            "long_gaps_per_thousand": 38.46,
        }
    ],
}


def test_the_line_is_readable():
    """The line has verdict, regime, the headline signals of the last minute, and the queue."""
    expected = "kv_memory churn preempt/1k 231 pinned 44% gap p99 0.06s gaps>1s/1k 38.5 run 20 wait 14"

    assert expected == " ".join(demo.line_of(ENGINE).split())


def test_what_is_not_known_is_a_dash():
    """Before there is a window the line has dashes, not zeros."""
    line = demo.line_of({**ENGINE, "windows": [], "running": None, "waiting": None})

    assert 6 == line.count("-")
    assert "0" not in line


def test_it_runs_until_interrupted():
    """It prints both addresses and a line, and one SIGINT ends it with status 0 and leaves no process behind."""
    ports = "--lab.port", str(free_port()), "--port", str(free_port())
    command = [sys.executable, "-m", "kvpressure", "demo", "--every", "1s", *ports]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as running:
        lines = [running.stdout.readline() for _ in range(5)]
        children = _children(running.pid)
        began = time.monotonic()
        running.send_signal(signal.SIGINT)
        rest, errors = running.communicate(timeout=10)

    assert (0, "", "\nstopped\n") == (running.returncode, errors, rest[-9:])
    assert f"http://127.0.0.1:{ports[1]}/metrics" in lines[0]
    assert f"http://127.0.0.1:{ports[3]}/metrics" in lines[1]
    assert re.match(r"\d\d:\d\d:\d\d  (unknown|healthy|kv_memory) ", lines[4])
    assert 2 == len(children)
    assert [] == [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert time.monotonic() - began < 3.0


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
