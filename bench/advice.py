"""
The model behind `kvpressure advise`: ten minutes of ten requests a second, against the lab's own scheduler.

Both make the same decisions (tests/test_leap.py); one looks at every sequence in every step, the other only where
something happens. Memory is that of the whole command, the processes that simulate among it.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.measure import Spread, in_turn, ratio
from bench.proc import run_python
from bench.results import Row
from kvpressure.lab.engine import Engine
from kvpressure.lab.leap import Job, leap
from kvpressure.lab.load import Load
from kvpressure.lab.model import Config, StepTime
from kvpressure.lab.workload import Length, Phase, Workload, arrivals

GOAL = 2.0
"""CPU seconds for ten minutes of ten requests a second, at most."""
MEMORY = 200
"""MiB of the whole command, at most."""

_SECONDS = 600.0
_ROUNDS = 3
_LOAD = Workload((Phase(_SECONDS, 10.0, Length(300, 0.5), Length(150, 0.5)),))
_STEP = StepTime(0.018, 0.0002, 0.00014)
_CACHES = {"calm": 8000, "a storm": 1700}
_EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "workload.yml"


def run() -> list[Row]:
    """The time, calm and in a storm, and the memory."""
    return [*(_time(name, blocks) for name, blocks in _CACHES.items()), _memory()]


def _time(name: str, blocks: int) -> Row:
    config = Config(num_gpu_blocks=blocks, prefix_caching=False, step_time=_STEP)
    jobs = _jobs()
    spent = in_turn(
        {"ours": lambda: leap(config, jobs, until=_SECONDS), "peer": lambda: _stepped(config)}, rounds=_ROUNDS
    )
    ours, peer, times = Spread.of(spent["ours"]), Spread.of(spent["peer"]), ratio(spent["peer"], spent["ours"])
    return Row(
        f"ten minutes of 10 requests/s, {name}, against the lab's scheduler step by step",
        ours.text(1000, " ms", 0),
        peer.text(1, " s", 1),
        times.text(1, "x as fast", 0),
        f"under {GOAL:g} s",
        ours.high < GOAL,
        {"ours_seconds": asdict(ours), "peer_seconds": asdict(peer), "times_as_fast": asdict(times)},
    )


def _jobs() -> Sequence[Job]:
    jobs = []
    for each in arrivals(_LOAD, 0):
        if each.time > _SECONDS:
            break
        jobs.append(Job(each.time, each.prompt_tokens, each.answer_tokens))
    return jobs


def _stepped(config: Config) -> None:
    """The same by the lab, as `simulate` does it, without its notes."""
    engine, load = Engine(config), Load(_LOAD, 0)
    while engine.clock < _SECONDS:
        load.advance(engine)
        if engine.scheduler.idle:
            engine.clock = load.next_time
            continue
        engine.finish(*engine.begin())


def _memory() -> Row:
    """The largest of the command's processes, times as many as there are: an upper bound of what they hold at once."""
    command = [sys.executable, "-m", "kvpressure", "advise", "--workload", str(_EXAMPLE), "--json", "-"]
    # A process of its own asks: the largest child of this one may be another benchmark's. It has two cores at most, so
    # that there are as many processes on every machine.
    asked = run_python(
        "-c",
        "import os, resource, subprocess, sys\n"
        "os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)",
        *command,
    )
    largest = int(asked) / 1024
    # The command itself, and one for each core.
    whole = 3 * largest
    return Row(
        "memory of `kvpressure advise` with the example workload, three processes",
        f"{whole:.0f} MiB",
        goal=f"under {MEMORY} MiB",
        met=whole < MEMORY,
        figures={"mib": whole},
    )
