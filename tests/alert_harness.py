"""Which alerts a recording sets off, and when: through the exporter's pipeline, then through promtool."""

import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kvpressure.config import Config
from kvpressure.derive.target import Target
from kvpressure.expose import families
from kvpressure.recording import Row
from kvpressure.vllm.stream import StreamEvent

STEP = 15
"""Seconds between two scrapes, and between two evaluations."""

_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})?\s+(\S+)$")
_FIRING = 'ALERTS{alertstate="firing"}'
_RESULT = re.compile(r'\{alertname="([^"]+)", severity="([^"]+)"\} ([0-9.E+]+)')


@dataclass(frozen=True)
class Fired:
    """
    When an alert fired, over all of its series, in minutes.

    Args:
        first: when it began.
        last: when it was seen firing last.
        whole: whether it fired all the time between.
    """

    first: float
    last: float
    whole: bool


def scrapes(rows: Iterable[Row], events: Iterable[StreamEvent] = ()) -> Iterator[tuple[int, str]]:
    """
    What Prometheus would scrape: the number of the step, and the exporter's exposition with vLLM's own behind it.

    Args:
        rows: a recording that begins at 0 and is sampled every second.
        events: what a tap saw meanwhile, in order.
    """
    waiting = iter(events)
    event = next(waiting, None)
    target = Target(Config(), interval=1.0, sources=("tap",) if event else ())
    for row in rows:
        due = []
        while event is not None and event.t <= row.t:
            due.append(event)
            event = next(waiting, None)
        for streams in target.streams.values():
            streams.feed(due)
            streams.advance(row.t)
        if row.body is None:
            target.failed(row.t, "recorded")
        else:
            target.observe(row.t, row.body, row.took)
        if round(row.t) % STEP == 0:
            yield round(row.t) // STEP, families.exposition(target.snapshot(row.t)).decode() + (row.body or "")


def fired(scraped: Iterable[tuple[int, str]], rules: Iterable[Path], folder: Path) -> dict[tuple[str, str], Fired]:
    """Severity and name of every alert that fires, by the rules, with when it does."""
    scraped, rules = list(scraped), list(rules)
    end = max(step for step, _ in scraped)
    read = set(re.findall(r"[a-z0-9_:]+", "".join(path.read_text(encoding="utf-8") for path in rules)))
    span = f"[{end * STEP + STEP}s:{STEP}s]"
    expressions = [
        f"min by (alertname, severity) (min_over_time(timestamp({_FIRING}){span}))",
        f"max by (alertname, severity) (max_over_time(timestamp({_FIRING}){span}))",
        f"count_over_time((sum by (alertname, severity) ({_FIRING})){span})",
    ]
    test = {
        "rule_files": [str(path.resolve()) for path in rules],
        "evaluation_interval": f"{STEP}s",
        "tests": [
            {
                "interval": f"{STEP}s",
                "input_series": [
                    {"series": name, "values": " ".join(values)} for name, values in _series(scraped, end, read).items()
                ],
                "promql_expr_test": [
                    {"expr": expression, "eval_time": f"{end * STEP}s", "exp_samples": []} for expression in expressions
                ],
            }
        ],
    }
    path = folder / "test.json"
    path.write_text(json.dumps(test), encoding="utf-8")
    said = subprocess.run(["promtool", "test", "rules", str(path)], check=False, capture_output=True, text=True)
    text = said.stdout + said.stderr
    assert said.returncode == 0 or "got:" in text, text[:2000]
    # promtool tells only of results that are not as expected: an alert that never fires leaves nothing.
    found: list[dict[tuple[str, str], float]] = [
        {(severity, name): float(value) for name, severity, value in _RESULT.findall(part)}
        for part in text.split("expr: ")[1:]
    ]
    if not found:
        return {}
    first, last, count = found
    return {
        key: Fired(first[key] / 60, last[key] / 60, round((last[key] - first[key]) / STEP) + 1 == count[key])
        for key in first
    }


def _series(scraped: list[tuple[int, str]], end: int, read: set[str]) -> dict[str, list[str]]:
    """The series that are read, in promtool's notation; stale where a scrape lacks one, as Prometheus marks them."""
    found: dict[str, list[str]] = {}
    for step, text in scraped:
        for line in text.splitlines():
            sample = _SAMPLE.match(line)
            if sample and sample[1] in read:
                inner = (sample[2] or "{}")[1:-1]
                labels = f'{{{inner}{"," if inner else ""}instance="i",job="kvpressure"}}'
                found.setdefault(sample[1] + labels, ["_"] * (end + 1))[step] = sample[3]
    for values in found.values():
        for step in range(1, end + 1):
            if values[step] == "_" and values[step - 1] not in ("_", "stale"):
                values[step] = "stale"
    return found
