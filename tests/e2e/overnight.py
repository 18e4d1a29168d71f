"""
``python -m tests.e2e.overnight HOME``: answers grow overnight; what is told first, the longer answers or the storm?

On one real vLLM users come at the same rate while their answers become 2.4 times as long, step by step, some minutes
each. Each step's recording is then played again and again for an hour, its counters going on where they stood, through
the exporter and the alert rules.
"""

import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import alert_harness
import alert_traces
import requests

from kvpressure import tables
from kvpressure.lab.workload import Length, Phase, Workload
from kvpressure.recording import Row

from . import play, shared
from .stand import ROOT, SCRATCH, Server, Vllm, vllm

RESULTS = ROOT / "docs" / "experiments" / "overnight.json"
SHIFT, STORM = "KVPressureOutputLengthShift", "KVPressurePreemptionStorm"

_ANSWERS = (250, 340, 420, 500, 600)
"""Mean answer tokens, one after the other: 2.4 times in the end."""
_SERVER = Server(blocks=180, log=False)
_RATE, _PROMPT, _SPREAD = 8.0, 96, 0.4
_SECONDS = 60.0
_HOUR = 60.0  # minutes of each step on the stretched clock
_COUNTED = re.compile(r"^(\S+(?:_total|_count|_sum|_bucket)(?:\{.*\})?) (\S+)$", re.MULTILINE)


def main() -> int:
    """Record, stretch, judge, print and keep; 1 where the storm is told before the longer answers."""
    args = shared.parser(__doc__).parse_args()
    steps = list(recorded(args.home))
    rows = [
        (
            f"{answer}",
            f"{run.preemptions}",
            f"{run.per_thousand:.0f}",
            f"{run.paused_share:.0%}",
            f"{run.ttft[0]:.2f} s",
            f"{run.latency[1]:.1f} s",
        )
        for answer, run, _ in steps
    ]
    print(tables.text(HEADER, rows))
    told = alerts([recording for *_, recording in steps])
    print(tables.text(ALERTS_HEADER, told))
    shared.keep(RESULTS, {"rows": rows, "alerts": told})
    first = {name: float(begin) for name, begin, _ in told}
    if STORM not in first or first.get(SHIFT, 1e9) > first[STORM]:
        print(f"NOT AS EXPECTED: {SHIFT} is told at {first.get(SHIFT)}, {STORM} at {first.get(STORM)}")
        return 1
    return 0


ALERTS_HEADER = ("alert", "from hour", "to hour")
HEADER = ("answer tokens", "preemptions", "per 1000", "paused", "TTFT p50", "latency p99")


def recorded(home: Path) -> Iterator[tuple[int, play.Run, list[Row]]]:
    """Each step: mean answer, what happened, and vLLM's metrics every second."""
    with vllm(home, _SERVER, SCRATCH / "overnight") as server:
        play.warm(server)
        for answer in _ANSWERS:
            load = Workload(
                (Phase(_SECONDS, _RATE, Length(_PROMPT, _SPREAD), Length(answer, _SPREAD)),), patience=3600.0
            )
            with Recorder(server) as recorder:
                run = play.play(server, None, load, round(_RATE * _SECONDS))
            yield answer, run, recorder.rows


class Recorder:
    """
    Keeps a server's metrics, every second, while the block lasts.

    Raises:
        requests.RequestException: at the end of the block: an answer was missing, so the rows are not whole.
    """

    def __init__(self, server: Vllm) -> None:
        self.rows: list[Row] = []
        self._server = server
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._recording = self._pool.submit(self._record)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._pool.shutdown()
        self._recording.result()

    def _record(self) -> None:
        while not self._over.wait(1.0):
            began = time.time()
            answer = requests.get(f"{self._server.url}/metrics", timeout=30)
            answer.raise_for_status()
            lines = answer.text.splitlines()
            kept = "\n".join(line for line in lines if line.startswith("vllm:") and "_created" not in line)
            self.rows.append(Row(began, kept + "\n", time.time() - began))


def stretched(recordings: Sequence[Sequence[Row]]) -> Iterator[Row]:
    """Every recording again and again for an hour, one after the other, counters going on from one to the next."""
    now, stood = 0.0, dict[str, float]()
    for recording in recordings:
        offsets: dict[str, float] | None = None
        for row in alert_traces.repeated(recording, _HOUR):
            body = row.body or ""
            if offsets is None:
                begins = _counters(body)
                offsets = {name: stood[name] - value for name, value in begins.items() if name in stood}
            body = _moved(body, offsets)
            yield Row(now + row.t, body, row.took)
        stood = _counters(body)
        now += _HOUR * 60 + 1


def _counters(body: str) -> dict[str, float]:
    return {name: float(value) for name, value in _COUNTED.findall(body)}


def _moved(body: str, by: Mapping[str, float]) -> str:
    return _COUNTED.sub(lambda m: f"{m[1]} {float(m[2]) + by.get(m[1], 0.0)}", body)


def alerts(recordings: Sequence[Sequence[Row]]) -> list[tuple[str, str, str]]:
    """Every alert that fires: its name, and from when to when, in hours."""
    rules = [ROOT / "alerts" / f"kvpressure.{name}.yml" for name in ("rules", "alerts")]
    with tempfile.TemporaryDirectory() as folder:
        fired: Mapping[tuple[str, str], Any] = alert_harness.fired(
            alert_harness.scrapes(stretched(recordings)), rules, Path(folder)
        )
    found = [(name, f"{at.first / 60:.2f}", f"{at.last / 60:.2f}") for (_, name), at in fired.items()]
    return sorted(found, key=lambda each: float(each[1]))


if __name__ == "__main__":
    sys.exit(main())
