"""
``python -m tests.e2e.fit LOG``: how long a vLLM's steps take, as the lab models them, from its log.

vLLM prints each step with ``--enable-logging-iteration-details`` (0.14 and later)::

    Iteration(7): 1 context requests, 64 context tokens, 12 generation requests, 12 generation tokens,
    iteration elapsed time: 9.31 ms

The time in it is that of the model alone. Where lines begin with when they were printed (``t=1796046120.525123``), a
step is what lies between two of them: scheduling and all else too, as long as it is not so long that vLLM was idle.

Fitted is ``base + decode * generation requests + prefill * context tokens``, the lab's ``StepTime``, by least squares.
"""

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvpressure.lab.model import StepTime

FLAG = "--enable-logging-iteration-details"
"""What makes vLLM print its steps."""

STAMP = "t=%(created).6f"
"""How a logging configuration makes lines begin with when they were printed."""

_STEP = re.compile(
    r"(?:t=(?P<at>[0-9.]+) .*?)?Iteration\(\d+\): \d+ context requests, (?P<context>\d+) context tokens, "
    r"(?P<decoding>\d+) generation requests, \d+ generation tokens, iteration elapsed time: (?P<ms>[0-9.]+) ms"
)
_FEWEST = 100  # steps; with less a stall or two decide
_IDLE = 0.1  # seconds without a step; then vLLM had nothing to do


class Step(NamedTuple):
    """One step: prompt tokens that it computed, requests that it decoded for, seconds."""

    context: int
    decoding: int
    seconds: float


def steps(lines: Iterable[str]) -> list[Step]:
    """The steps that a log tells of."""
    found: list[Step] = []
    before: float | None = None
    for line in lines:
        step = _STEP.search(line)
        if step is None:
            continue
        seconds = float(step["ms"]) / 1000
        if step["at"]:
            now = float(step["at"])
            took = None if before is None else now - before
            before = now
            if took is None or took > seconds + _IDLE:
                continue
            seconds = took
        found.append(Step(int(step["context"]), int(step["decoding"]), seconds))
    return found


def fit(of: list[Step]) -> tuple[StepTime, float]:
    """
    The step time that fits best, and the median of how far steps are from it, as a share of them.

    Steps that take over five times the median are left out: the host was busy elsewhere.

    Raises:
        ValueError: there are too few.
    """
    if len(of) < _FEWEST:
        raise ValueError(f"{len(of)} steps are too few to fit; let vLLM serve for longer")
    median = float(np.median([step.seconds for step in of]))
    kept = [step for step in of if step.seconds <= 5 * median]
    columns = np.array([[1.0, step.decoding, step.context] for step in kept])
    taken = np.array([step.seconds for step in kept])
    found, *_ = np.linalg.lstsq(columns, taken, rcond=None)
    base, decode, prefill = (max(0.0, float(value)) for value in found)
    off = float(np.median(np.abs(columns @ found - taken) / taken))
    return StepTime(base=base, decode=decode, prefill=prefill), off


def main() -> int:
    """Print the fit of a log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help=f"what a vLLM with {FLAG} printed")
    args = parser.parse_args()
    with args.log.open(encoding="utf-8", errors="replace") as lines:
        found = steps(lines)
    try:
        time, off = fit(found)
    except ValueError as fault:
        print(f"{args.log}: {fault}", file=sys.stderr)
        return 1
    print(f"StepTime(base={time.base:.3g}, decode={time.decode:.3g}, prefill={time.prefill:.3g})")
    print(f"{len(found)} steps; half of them are within {off:.0%} of it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
