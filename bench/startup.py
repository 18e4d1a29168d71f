"""
Start-up: until `serve` has answered its first scrape, against importing aiohttp and prometheus_client alone.

CPU time decides, wall time stands beside it; the two take turns. The upstream refuses connections, so that nothing but
the process's own work is in it. Where the time goes is told by ``-X importtime``, whose figures are larger than the
real ones: only their shares count.
"""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict

from bench.launch import free_port, interpreter
from bench.measure import Spread, ratio
from bench.proc import cpu_seconds
from bench.results import Row
from bench.watching import fetch

GOAL = 2.0
"""Times the CPU time of the imports alone, at most."""
BARE = "import aiohttp, prometheus_client"

_ROUNDS = 7
_WITHIN = 30.0  # seconds
_ASK_EVERY = 0.002
_OURS = "import kvpressure.cli, kvpressure.serve"
_IMPORTED = re.compile(r"^import time:\s+(\d+) \|\s+\d+ \|\s*(\S+)$", re.MULTILINE)
_TOLD = 4


def run() -> list[Row]:
    """The time, and what the imports are made of."""
    _first_answer(), _imports()  # the files are in the cache after that
    ours, peer = zip(*((_first_answer(), _imports()) for _ in range(_ROUNDS)), strict=True)
    cpu = [[each[0] for each in some] for some in (ours, peer)]
    wall = [Spread.of([each[1] for each in some]) for some in (ours, peer)]
    mine, its, times = Spread.of(cpu[0]), Spread.of(cpu[1]), ratio(cpu[0], cpu[1])
    return [
        Row(
            f"start until serve has answered a scrape, against python -c '{BARE}'",
            mine.text(1000, " ms", 0),
            its.text(1000, " ms", 0),
            times.text(1, "x the time"),
            f"at most {GOAL:g}x",
            times.median <= GOAL,
            {"ours_cpu_seconds": asdict(mine), "peer_cpu_seconds": asdict(its), "times_the_time": asdict(times)}
            | {f"{name}_wall_seconds": asdict(spread) for name, spread in zip(("ours", "peer"), wall, strict=True)},
        ),
        _shares(),
    ]


def shares(said: str, known: str) -> Counter[str]:
    """
    Microseconds that an interpreter spent in the modules of each package, by what two runs of ``-X importtime`` said.

    Args:
        said: of the run that is looked at.
        known: of the one whose modules do not count.
    """
    before = {module for _, module in _IMPORTED.findall(known)}
    spent: Counter[str] = Counter()
    for microseconds, module in _IMPORTED.findall(said):
        if module not in before:
            spent[module.partition(".")[0]] += int(microseconds)
    return spent


def _shares() -> Row:
    known, said = _importtime(BARE), _importtime(_OURS)
    spent = shares(said, known)
    whole = sum(spent.values())
    most = ", ".join(f"{package} {count / whole:.0%}" for package, count in spent.most_common(_TOLD))
    modules = [len(_IMPORTED.findall(text)) for text in (said, known)]
    return Row(
        "imports of serve beyond those: share of their time by package",
        f"{most}; {modules[0]} modules",
        f"{modules[1]} modules",
        figures={"microseconds": dict(spent), "modules": modules[0], "peer_modules": modules[1]},
    )


def _importtime(code: str) -> str:
    command = [sys.executable, "-X", "importtime", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr


def _imports() -> tuple[float, float]:
    """CPU and wall seconds of a process that imports the peers and ends."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", BARE])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise RuntimeError("the peers cannot be imported")
    return used.ru_utime + used.ru_stime, time.perf_counter() - began


def _first_answer() -> tuple[float, float]:
    """CPU and wall seconds from the start of `serve` to its first answer."""
    listen, upstream = (f"127.0.0.1:{free_port()}" for _ in range(2))
    began = time.perf_counter()
    command = ["-m", "kvpressure", "serve", "--vllm.url", f"http://{upstream}/metrics"]
    with interpreter(*command, "--web.listen-address", listen, "--log.level", "error") as process:
        while time.perf_counter() - began < _WITHIN:
            with contextlib.suppress(OSError):
                fetch(listen)
                return cpu_seconds(process.pid), time.perf_counter() - began
            time.sleep(_ASK_EVERY)
    raise RuntimeError("kvpressure serve did not answer in time")
