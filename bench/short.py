"""
``python -m bench.short``: the short form for CI, instructions of the hot paths as callgrind counts them.

A count does not depend on the machine's mood, but it does on the interpreter's build. So each path is told as a ratio
to reference work that was counted in the same process, and held against a bound for the same minor version of Python
(bounds.json, with some slack). A version without bounds is told and not judged. ``--write`` writes those of this one.
``--prove`` makes every path do a quarter more and fails unless every single one is caught.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.launch import find_tool
from bench.paths import REFERENCE

BOUNDS = Path(__file__).parent / "bounds.json"
SLACK = 0.2
"""How much more than written down a path may take."""
REGRESSION = 1.25
"""What `--prove` makes of each path."""

_TOTAL = re.compile(r"^totals: (\d+)$", re.MULTILINE)
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Count, and judge.

    Returns:
        0; 1 where a path takes too much, or with --prove where one that does is not caught.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.short", description="Instructions of the hot paths.")
    # Bounds that a quarter more of everything has written would hide just that.
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="write the ratios down as the bounds of this Python")
    what.add_argument("--prove", action="store_true", help="do a quarter more of everything; it must be caught")
    options = parser.parse_args(arguments)
    found = ratios(count(REGRESSION if options.prove else 1.0))
    bounds: dict[str, dict[str, float]] = json.loads(BOUNDS.read_text(encoding="utf-8"))
    if options.write:
        bounds[_VERSION] = {name: round(ratio, 4) for name, ratio in found.items()}
        BOUNDS.write_text(json.dumps(dict(sorted(bounds.items())), indent=2) + "\n", encoding="utf-8")
    if _VERSION not in bounds:
        print(f"there are no bounds for Python {_VERSION}: {', '.join(sorted(bounds))} have some; --write writes them")
        for name, ratio in found.items():
            print(f"{name}: {ratio:.3f} of the reference")
        return int(options.prove)  # nothing was proven
    slow = too_slow(found, bounds[_VERSION])
    for name, ratio in found.items():
        bound = bounds[_VERSION].get(name)
        more = f"{ratio / bound - 1:+.1%}" if bound else "no bound"
        print(f"{name}: {ratio:.3f} of the reference, {more}{', TOO MUCH' if name in slow else ''}")
    if options.prove:
        missed = sorted(set(found) - set(slow))
        print(f"not caught: {', '.join(missed)}" if missed else "a regression of a quarter is caught on every path")
        return int(bool(missed))
    if slow:
        print(f"more than {SLACK:.0%} above bench/bounds.json. Where that is meant: python -m bench.short --write")
    return int(bool(slow))


def too_slow(found: Mapping[str, float], bounds: Mapping[str, float]) -> list[str]:
    """The paths that take more than their bound and the slack allow; one without a bound is none of them."""
    return [name for name, ratio in found.items() if name in bounds and ratio > bounds[name] * (1 + SLACK)]


def ratios(counts: Mapping[str, int]) -> dict[str, float]:
    """Instructions of each path, in units of the reference."""
    return {name: number / counts[REFERENCE] for name, number in counts.items() if name != REFERENCE}


def count(share: float = 1.0) -> dict[str, int]:
    """
    Instructions of each path, when it does `share` of its work; the reference always does the same.

    Raises:
        RuntimeError: there is no valgrind, or it did not see the marks.
    """
    with tempfile.TemporaryDirectory() as folder:
        valgrind = [str(find_tool("valgrind")), "--tool=callgrind", "--dump-before=getppid"]
        command = [*valgrind, f"--callgrind-out-file={folder}/out", sys.executable, "-m", "bench.paths", f"{share:g}"]
        # The order of sets is part of the work.
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        said = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        if said.returncode:
            raise RuntimeError(f"the paths cannot be counted: {said.stderr[-2000:]}")
        parts: list[str] = json.loads(said.stdout)
        dumps = [Path(f"{folder}/out.{number}") for number in range(1, len(parts) + 1)]
        if not all(dump.exists() for dump in dumps):
            raise RuntimeError("callgrind did not see the marks between the paths: this Python hides calls of getppid")
        totals = [_TOTAL.search(dump.read_text(encoding="utf-8")) for dump in dumps]
    counted = {part: int(total[1]) for part, total in zip(parts, totals, strict=True) if total}
    return {part: number for part, number in counted.items() if not part.startswith("before ")}


if __name__ == "__main__":
    sys.exit(main())
