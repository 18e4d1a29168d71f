"""Hold what a sidecar says of streams against what their users saw."""

import math
from collections.abc import Iterable
from typing import Any

from kvpressure.lab.truth import Record, Totals

SHARE = 0.01
"""How far the paused share may be off: one point."""

P99_RATIO, P99_SECONDS = 0.1, 0.01
"""How far p99 may be off: the larger of the two."""


def compare(records: Iterable[Record], state: dict[str, Any], source: str = "tap", window: str = "1m") -> list[str]:
    """
    Where a sidecar's state and the users disagree, a sentence each.

    A share is that of the requests that got a token: those with a gap of strictly more than a second between two of
    them, or still open when they were cut off. The records must be all that the sidecar saw, within the window.

    Args:
        records: what the users saw, of one model.
        state: the JSON of ``/api/v1/state``.
        source: which observer of the sidecar.
        window: which of its windows.
    """
    totals = Totals()
    gaps: list[float] = []
    for record in records:
        totals.add(record)
        gaps += record.gaps()
    seen = [stream for stream in state.get("streams", []) if stream["source"] == source]
    if len(seen) != 1:
        return [f"the sidecar knows {len(seen)} models from its {source}, the users asked one"]
    found = next(each for each in seen[0]["windows"] if each["window"] == window)
    p99 = sorted(gaps)[math.ceil(0.99 * len(gaps)) - 1] if gaps else None
    tolerance = max(P99_SECONDS, P99_RATIO * p99) if p99 else 0.0
    return [
        *_differ("paused share", totals.paused_share, found["paused_ratio"], SHARE),
        *_differ("gap p99", p99, found["gap_p99_seconds"], tolerance),
    ]


def _differ(what: str, users: float | None, sidecar: float | None, tolerance: float) -> list[str]:
    known = users is not None and sidecar is not None
    agree = abs(users - sidecar) <= tolerance if known else users is sidecar
    return [] if agree else [f"{what}: the users saw {users}, the sidecar says {sidecar}"]
