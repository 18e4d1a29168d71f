"""The bench of alert rules that lies beside the checkout: run it, and tell what came out as a table."""

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from kvpressure import tables

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "tests" / "fixtures" / "alert_bench" / "bench.py"
RULES = [ROOT / "alerts" / "kvpressure.rules.yml", ROOT / "alerts" / "kvpressure.alerts.yml"]
RAW_RULES = [ROOT / "alerts" / "raw" / "kvpressure.raw.alerts.yml"]
REPLAY = f"{sys.executable} -m kvpressure replay --step 15"
NOTHING = "true"
"""In the place of the replay: what it prints is nothing, so only vLLM's own series are there."""

_AT_A_TIME = 2


@dataclass
class Result:
    """
    One trace.

    Args:
        verdict: what it asks for, in the bench's words.
        ours: first page and whether that is right, by the bench's judgement.
        raw: the same of the raw group.
        peers: whether each of the peers is right, by its name.
    """

    verdict: str
    ours: tuple[str, bool]
    raw: tuple[str, bool]
    peers: dict[str, bool] = field(default_factory=dict)


def run() -> dict[str, Result]:
    """Every trace with its result."""
    listed = subprocess.run(
        [sys.executable, str(BENCH.with_name("traces.py"))], check=True, capture_output=True, text=True
    ).stdout
    names = [line.split()[0] for line in listed.splitlines()]
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        return dict(zip(names, pool.map(_one, names), strict=True))


def _one(name: str) -> Result:
    said = _bench("--peers", "--only", name, "--replay", REPLAY, "--rules", *map(str, RULES))
    raw = _bench("--only", name, "--replay", NOTHING, "--rules", *map(str, RAW_RULES))
    verdict = re.search(rf"^{name}: (.*?) \(", said, re.MULTILINE)
    assert verdict, said
    peers = {
        peer: judged == "right" for peer, judged in re.findall(r"^  peer  (\S+) .* (right|WRONG)$", said, re.MULTILINE)
    }
    return Result(verdict[1], _page(said), _page(raw), peers)


def _bench(*words: str) -> str:
    """What the bench prints; where it fails for another reason than a wrong page, the test does."""
    said = subprocess.run([sys.executable, str(BENCH), *words], check=False, capture_output=True, text=True)
    assert said.returncode in (0, 1), said.stderr
    assert "first page" in said.stdout, said.stdout + said.stderr
    return said.stdout


def _page(said: str) -> tuple[str, bool]:
    page = re.search(r"^  ours  first page +(silent|minute [0-9.]+) +(right|WRONG)$", said, re.MULTILINE)
    assert page, said
    return page[1], page[2] == "right"


def table(results: Mapping[str, Result]) -> str:
    """The results as Markdown, with how many are right in the last row."""
    best = max(
        next(iter(results.values())).peers, key=lambda peer: _right(result.peers[peer] for result in results.values())
    )
    rows = [
        (
            f"`{name}`",
            result.verdict,
            _cell(*result.ours),
            _cell(*result.raw),
            "right" if result.peers[best] else "wrong",
            f"{_right(result.peers.values())} of {len(result.peers)}",
        )
        for name, result in results.items()
    ]
    of = len(results)
    total = (
        "**right**",
        "",
        f"**{_right(result.ours[1] for result in results.values())} of {of}**",
        f"**{_right(result.raw[1] for result in results.values())} of {of}**",
        f"**{_right(result.peers[best] for result in results.values())} of {of}**",
        "",
    )
    header = ("trace", "verdict", "first page", "without the sidecar", f"best peer: `{best}`", "peers that are right")
    return tables.markdown(header, [*rows, total])


def _cell(page: str, right: bool) -> str:  # noqa: FBT001  # as the bench gives the two
    return page if right else f"{page}, wrong"


def _right(judged: Iterable[bool]) -> int:
    return sum(judged)
