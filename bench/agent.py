"""
The whole sidecar against a whole Prometheus in agent mode: both scrape the same stand-in for vLLM once a second.

The peer parses every line and writes what it read to its log on disk; it has nowhere to send it, which spares it the
larger part of an agent's work. The sidecar is scraped now and then meanwhile. Its duty budget is lifted, so that it
asks as often as the peer where an exposition is so large that it would else ask less. A third one asks through the same
library as the sidecar and does nothing with the answer: what is below that cannot be saved.
"""

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from bench.launch import find_tool, free_port, interpreter, wait_ready
from bench.measure import Spread, ratio
from bench.proc import MIB, cpu_seconds, memory
from bench.results import Row
from bench.watching import Sidecar, check, fetch, scrape, sidecar
from kvpressure.signals_exporter import SAMPLES

ENGINES = (1, 8, 64)

_WARM_UP = 10.0  # the peer starts to scrape after five
_ROUNDS = 3
_SECONDS = 10.0
_COUNTED = re.compile(r"^prometheus_target_interval_length_seconds_count\{.*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Pair:
    """The two that scrape one stand-in."""

    engines: int
    ours: Sidecar
    peer_pid: int
    peer_listen: str


@dataclass(frozen=True, slots=True)
class Counted:
    """CPU seconds and scrapes of both so far."""

    cpu: tuple[float, float]
    scrapes: tuple[float, float]


def run() -> list[Row]:
    """
    One, eight and 64 engines, all at once: together they take a fraction of a core.

    Raises:
        RuntimeError: there is no Prometheus, or one of them did not scrape.
    """
    with contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(_pair(engines)) for engines in ENGINES]
        url = f"http://127.0.0.1:{pairs[0].ours.upstream}/metrics"
        asker = stack.enter_context(interpreter("-m", "bench.asker", url))
        time.sleep(_WARM_UP)
        seen = {pair.engines: [_counted(pair)] for pair in pairs}
        floor: list[float] = []
        for _ in range(_ROUNDS):
            began, cpu = time.monotonic(), cpu_seconds(asker.pid)
            time.sleep(_SECONDS)
            floor.append(1000 * (cpu_seconds(asker.pid) - cpu) / (time.monotonic() - began))
            for pair in pairs:
                fetch(pair.ours.listen)
                seen[pair.engines].append(_counted(pair))
        for pair in pairs:
            check(scrape(pair.ours.listen), pair.engines)
        if asker.poll() is not None:
            raise RuntimeError("whoever asks and reads nothing has ended: the stand-in did not answer")
        return [*(_row(pair, seen[pair.engines]) for pair in pairs), _floor(per_thousand(seen[ENGINES[0]], 0), floor)]


def per_thousand(seen: list[Counted], which: int) -> list[float]:
    """
    CPU seconds per thousand scrapes, round by round; `which` is 0 for ours and 1 for the peer.

    Raises:
        RuntimeError: there was a round without a scrape.
    """
    scrapes = [after.scrapes[which] - before.scrapes[which] for before, after in pairwise(seen)]
    if not all(scrapes):
        raise RuntimeError(f"{('the sidecar', 'Prometheus')[which]} did not scrape")
    spent = [after.cpu[which] - before.cpu[which] for before, after in pairwise(seen)]
    return [1000 * cpu / count for cpu, count in zip(spent, scrapes, strict=True)]


def _row(pair: Pair, seen: list[Counted]) -> Row:
    ours, peer = per_thousand(seen, 0), per_thousand(seen, 1)
    mine, its = Spread.of(ours), Spread.of(peer)
    resident = [memory(pid)["resident"] for pid in (pair.ours.pid, pair.peer_pid)]
    times = ratio(ours, peer)
    goal = pair.engines == 1
    return Row(
        f"CPU per thousand scrapes of {pair.engines} engine{'s' * (pair.engines > 1)}, against Prometheus as an agent",
        f"{mine.text(1, ' s')}, {resident[0] / MIB:.0f} MiB",
        f"{its.text(1, ' s')}, {resident[1] / MIB:.0f} MiB",
        times.text(1, "x the time"),
        "under 1x" if goal else "-",
        times.median < 1 if goal else None,
        {
            "engines": pair.engines,
            "ours_cpu_seconds": asdict(mine),
            "peer_cpu_seconds": asdict(its),
            "times_the_time": asdict(times),
            "ours_bytes": resident[0],
            "peer_bytes": resident[1],
        },
    )


def _floor(ours: list[float], asking: list[float]) -> Row:
    """What of it is aiohttp's, the kernel's and the event loop's: CPU seconds per thousand requests, round by round."""
    mine, its = Spread.of(ours), Spread.of(asking)
    return Row(
        "the same of 1 engine, against aiohttp's client that asks as often and throws the answer away",
        mine.text(1, " s"),
        its.text(1, " s"),
        ratio(ours, asking).text(1, "x the time"),
        figures={"floor_cpu_seconds": asdict(its)},
    )


def _counted(pair: Pair) -> Counted:
    cpu = cpu_seconds(pair.ours.pid), cpu_seconds(pair.peer_pid)
    with urllib.request.urlopen(f"http://{pair.peer_listen}/metrics", timeout=20) as answer:
        found = _COUNTED.search(answer.read().decode())
    return Counted(cpu, (scrape(pair.ours.listen)[SAMPLES.metric], float(found[1]) if found else 0.0))


@contextlib.contextmanager
def _pair(engines: int) -> Iterator[Pair]:
    with sidecar(engines, "--sample.duty-budget", "1") as ours, _agent(ours.upstream) as (pid, listen):
        yield Pair(engines, ours, pid, listen)


@contextlib.contextmanager
def _agent(upstream: int) -> Iterator[tuple[int, str]]:
    """A Prometheus that does nothing but scrape."""
    listen = f"127.0.0.1:{free_port()}"
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "vllm", "static_configs": [{"targets": [f"127.0.0.1:{upstream}"]}]}],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prometheus.yml"
        path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        command = [str(find_tool("prometheus")), "--enable-feature=agent", f"--config.file={path}", "--log.level=error"]
        command += [f"--storage.agent.path={folder}/data", f"--web.listen-address={listen}"]
        process = subprocess.Popen(command, stdout=sys.stderr)
        try:
            wait_ready(f"http://{listen}/-/ready")
            yield process.pid, listen
        finally:
            process.terminate()
            process.wait(15)
