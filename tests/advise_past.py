"""The past of engines as a Prometheus has it: what advice is given on."""

import dash_history
from alert_harness import scrapes
from lab_rows import START
from lab_rows import rows as sampled

from kvpressure.lab.scenarios import SCENARIOS
from kvpressure.recording import Row

BEGIN = 1_799_996_400.0
"""What is a second 0 of each past, in seconds since 1970: a whole hour."""
LENGTH = 1800
END = BEGIN + LENGTH


def past(rows, instance, *, own=True, upstream=True, events=()):
    """The lines of what Prometheus would have scraped of a vLLM and its sidecar, every 15 seconds."""
    rows = list(rows)
    bodies = {row.t: row.body or "" for row in rows}
    for step, text in scrapes(rows, events):
        theirs = bodies[float(step * 15)]
        ours = text.removesuffix(theirs)
        at = BEGIN + step * 15
        more = {"job": "llm"}
        if own:
            yield from dash_history.stamped(ours, more | {"instance": f"{instance}:10938"}, at)
        if upstream:
            kept = "\n".join(line for line in theirs.splitlines() if line.startswith("vllm:"))
            yield from dash_history.stamped(kept, more | {"instance": f"{instance}:8000"}, at)


def storm():
    """Half an hour of the lab's storm, from second 0 on."""
    rows = sampled(SCENARIOS["storm"], float(LENGTH))
    return [Row(float(round(row.t - START)), row.body, 0.01) for row in rows]
