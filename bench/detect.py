"""
Time to detect: from the first preemption of a trace to the first page, ours against the rules that people use today.

The traces and the peers' rules are those of tests/fixtures/alert_bench. A trace is scraped every 5, 15, 30 and 60 s of
its own time, rules are evaluated every 15 s by promtool; nothing here looks at the clock, so two runs say the same.
What the sidecar says is `kvpressure replay` of the same trace.
"""

import gzip
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

from bench.launch import find_tool
from bench.proc import run_python
from bench.results import Row

INTERVALS = (5, 15, 30, 60)
"""Seconds between two scrapes."""
USUAL = 15
"""The one at which peers are judged, and the README tells how long it takes: what Prometheus does by its example."""
EVALUATED = 15
"""Seconds between two evaluations of the rules."""

_ROOT = Path(__file__).parents[1]
_FIXTURE = _ROOT / "tests" / "fixtures" / "alert_bench"
_OURS = [_ROOT / "alerts" / f"kvpressure.{name}.yml" for name in ("rules", "alerts")]
_PEERS = [_FIXTURE / "peer_rules.yaml"]
_START = 1_800_000_000
_MINUTES = 60
_FIRED = 'min by (alertname) (min_over_time(timestamp(ALERTS{alertstate="firing",severity="critical"})[60m:15s]))'
_COUNTED = re.compile(r"^vllm:num_preemptions_total\{.*\} (\S+)$", re.MULTILINE)
_AT_A_TIME = 2

Rows = list[tuple[int, str | None]]
"""Expositions with their second; None where there was no answer."""
Series = dict[str, list[str]]
"""Samples by the name and labels of their series: one for each scrape, or an underscore."""


@dataclass(frozen=True, slots=True)
class Found:
    """
    What one trace came to at one interval.

    Args:
        trace: its name.
        interval: seconds between two scrapes.
        by: the second by which somebody must be paged; None where nobody may be.
        first: the second of the first preemption; None where there is none.
        ours: the second of our first page; None where there is none.
        peers: the same for each of the peers' alerts.
    """

    trace: str
    interval: int
    by: float | None
    first: int | None
    ours: float | None
    peers: dict[str, float | None]


def run() -> list[Row]:
    """One row for each trace and interval."""
    bench, traces = _module("bench"), _module("traces")
    peers = re.findall(r"alert: (\w+)", _PEERS[0].read_text(encoding="utf-8"))
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        found = pool.map(lambda name: list(_trace(bench, traces, name, peers)), traces.TRACES)
        return [row(each) for of_trace in found for each in of_trace]


def first_preemption(rows: Rows) -> int | None:
    """The second at which the counter of a trace first leaves where it began; None where it never does."""
    begun: float | None = None
    for t, body in rows:
        counted = sum(float(value) for value in _COUNTED.findall(body or ""))
        if begun is None:
            begun = counted
        if counted > begun:
            return t
    return None


def row(found: Found) -> Row:
    """How long it took, and how many of the peers paged at all; a page on a trace that asks for none is false."""
    paged = {name: when for name, when in found.peers.items() if when is not None}
    fastest = min(paged, key=lambda name: paged[name], default="")
    peer = f"{len(paged)} of {len(found.peers)} page"
    if fastest:
        peer += f", first {fastest}: {_after(found.first, paged[fastest])}"
    return Row(
        f"detect {found.trace}, scraped every {found.interval} s",
        _after(found.first, found.ours),
        peer,
        goal="silent" if found.by is None else f"by minute {found.by / 60:g} of the trace",
        met=found.ours is None if found.by is None else found.ours is not None and found.ours <= found.by,
        figures=asdict(found),
    )


def _after(first: int | None, page: float | None) -> str:
    if page is None:
        return "silent"
    return f"{page - first:.0f} s" if first is not None else f"at {page:.0f} s, without any preemption"


def _trace(bench: ModuleType, traces: ModuleType, name: str, peers: Sequence[str]) -> Iterator[Found]:
    trace = traces.TRACES[name]
    rows: Rows = list(traces.expositions(trace))
    with tempfile.TemporaryDirectory() as folder:
        said = _replay(rows, Path(folder))
        for interval in INTERVALS:
            raw, ours = (_scraped(bench, each, interval) for each in (rows, said))
            paged, others = _fired(raw | ours, interval, _OURS), _fired(raw, interval, _PEERS)
            yield Found(
                name,
                interval,
                trace.by * 60 if trace.pages else None,
                first_preemption(rows),
                min(paged.values(), default=None),
                {peer: others.get(peer) for peer in peers},
            )


def _replay(rows: Rows, folder: Path) -> Rows:
    """What the sidecar would have said at every fifth second."""
    path = folder / "trace.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as file:
        for t, body in rows:
            told = {"error": "no answer"} if body is None else {"took": 0.01, "body": body}
            file.write(json.dumps({"t": _START + t, **told}) + "\n")
    said = run_python("-m", "kvpressure", "replay", "--step", f"{min(INTERVALS)}s", str(path))
    answers = (json.loads(line) for line in said.splitlines())
    return [(round(answer["t"] - _START), answer["body"]) for answer in answers]


def _scraped(bench: ModuleType, rows: Rows, interval: int) -> Series:
    slots = _MINUTES * 60 // interval + 1
    series: Series = {}
    for t, body in rows:
        if t % interval == 0 and t // interval < slots:
            bench.add(series, body, t // interval, slots)
    return series


def _fired(series: Series, interval: int, rules: Sequence[Path]) -> dict[str, float]:
    """The second at which each critical alert first fired, of those that did."""
    test = {
        "rule_files": [str(path) for path in rules],
        "evaluation_interval": f"{EVALUATED}s",
        "tests": [
            {
                "interval": f"{interval}s",
                "input_series": [{"series": name, "values": " ".join(values)} for name, values in series.items()],
                "promql_expr_test": [{"expr": _FIRED, "eval_time": f"{_MINUTES}m", "exp_samples": []}],
            }
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "test.json"
        path.write_text(json.dumps(test), encoding="utf-8")
        command = [str(find_tool("promtool")), "test", "rules", str(path)]
        said = subprocess.run(command, check=False, capture_output=True, text=True)
    text = said.stdout + said.stderr
    if said.returncode and "got:" not in text:
        raise RuntimeError(f"promtool cannot test the rules: {text[:2000]}")
    return {name: float(when) for name, when in re.findall(r'\{alertname="([^"]+)"\} ([0-9.E+]+)', text)}


def _module(name: str) -> ModuleType:
    """A module of the fixture, which is no package."""
    # Not by its own name: one of them is called bench, as this package is.
    known_as = f"alert_bench_{name}"
    spec = importlib.util.spec_from_file_location(known_as, _FIXTURE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{_FIXTURE}/{name}.py cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look themselves up there.
    sys.modules[known_as] = module
    spec.loader.exec_module(module)
    return module
