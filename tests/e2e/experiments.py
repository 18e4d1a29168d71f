"""
``python -m tests.e2e.experiments HOME [--only GROUP ...]``: run the experiments on a real vLLM, and print a table.

Writes what was seen to docs/experiments/results.json.gz; `report` makes docs/experiments.md of it. Exit status 1 where
an expectation does not hold.
"""

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

from kvpressure import tables

from . import plan, play, shared
from .stand import ROOT, SCRATCH, sidecar, vllm

_STATISTICS = re.compile(r"^.*Running: [0-9]+ reqs.*$", re.MULTILINE)
RESULTS = ROOT / "docs" / "experiments" / "results.json.gz"


def main() -> int:
    """Run what was asked for."""
    groups = plan.groups()
    names = [group.name for group in groups]
    runs_of_all = [setting.name for group in groups for setting in group.settings]
    parser = shared.parser(__doc__)
    parser.add_argument(
        "--only", nargs="+", default=names, choices=names, metavar="GROUP", help=f"some of {', '.join(names)}"
    )
    parser.add_argument(
        "--runs",
        nargs="+",
        default=runs_of_all,
        choices=runs_of_all,
        metavar="RUN",
        help="of a group; the others are as kept",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to keep what was seen")
    args = parser.parse_args()
    wrong = []
    for group in groups:
        if group.name not in args.only:
            continue
        print(f"\n{group.title}\n")
        asked = [setting for setting in group.settings if setting.name in args.runs]
        kept = keep(args.out, group.name, {setting.name: run(args.home, setting).row() for setting in asked})
        runs = {setting.name: play.Run.of(kept[setting.name]) for setting in group.settings}
        print(tables.text(HEADER, [cells(name, each) for name, each in runs.items()]))
        for sentence in plan.unmet(group, runs):
            print(f"NOT AS EXPECTED: {sentence}")
            wrong.append(sentence)
    return 1 if wrong else 0


def run(home: Path, setting: plan.Setting) -> play.Run:
    """One run, on a server of its own, with a sidecar that sees metrics and token stream."""
    with vllm(home, setting.server, SCRATCH) as server:
        with sidecar(server, tap=True) as beside:
            play.warm(server)
            seen = play.play(
                server, beside, setting.workload, setting.requests, duration=setting.duration, after=setting.watch
            )
        printed = _STATISTICS.findall(server.stdout.read_text(encoding="utf-8", errors="replace"))
    seen.reported = len(printed)
    seen.preemptions_reported = sum("reempt" in line for line in printed)
    return seen


HEADER = (
    "run",
    "preemptions",
    "per 1000",
    "finished",
    "paused",
    "longest gap",
    "TTFT p50",
    "p99",
    "latency p99",
    "tokens/s",
    "regimes",
)


def cells(name: str, seen: play.Run) -> tuple[str, ...]:
    """A row of the table."""
    return (
        name,
        str(seen.preemptions),
        f"{seen.per_thousand:.0f}",
        f"{seen.finished}/{seen.requests}",
        f"{seen.paused_share:.0%}",
        seconds(seen.longest),
        seconds(seen.ttft[0]),
        seconds(seen.ttft[1]),
        seconds(seen.latency[1]),
        f"{seen.tokens / seen.seconds:.0f}",
        " ".join(f"{word} {spell:.0f}s" for word, spell in seen.spells() if word != "unknown"),
    )


def seconds(value: float | None) -> str:
    """As people read it."""
    return "-" if value is None else f"{value:.2f} s"


def keep(path: Path, name: str, what: dict[str, Any]) -> dict[str, Any]:
    """Keep the results of some runs of a group, those of others stay; all that is known of the group."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}
    group: dict[str, Any] = known.setdefault(name, {})
    group.update(what)
    # Without the time in it, so that the same results are the same file.
    path.write_bytes(gzip.compress(json.dumps(known, sort_keys=True).encode(), mtime=0))
    return group


if __name__ == "__main__":
    sys.exit(main())
