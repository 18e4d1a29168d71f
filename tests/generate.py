"""
Write the files that are generated and committed: ``make generate``. Tests fail where one of them is stale.

Generated: the golden exposition, and the parts of the README between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import dataclasses
from pathlib import Path

from kvpressure import config, recording, replay, tables
from kvpressure.derive.snapshot import Snapshot
from kvpressure.expose import catalogue, families

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
GOLDEN = ROOT / "tests" / "golden" / "arm_roomy.prom"
RECORDING = ROOT / "tests" / "fixtures" / "recordings" / "arm_roomy"


def golden() -> str:
    """The exposition at the end of a recording, without the line that names this Python."""
    path = recording.find(str(RECORDING))
    rows = recording.rows(path, complain=print)
    *_, last = replay.steps(rows, config.Config(), recording.interval(path, 1.0), 3600.0)
    return without_versions(last)


def without_versions(snapshot: Snapshot) -> str:
    """The exposition of a snapshot without build_info, which differs from machine to machine."""
    lines = families.exposition(snapshot).decode().splitlines(keepends=True)
    return "".join(line for line in lines if "kvpressure_build_info" not in line)


def readme(text: str) -> str:
    """The README with its generated parts made anew."""
    parts = {
        "signals": tables.markdown(catalogue.MARKDOWN_HEADER, catalogue.markdown_rows()),
        "settings": tables.markdown(("flag and key", "default", "meaning"), _settings()),
    }
    for name, part in parts.items():
        before, start, rest = text.partition(f"<!-- generated: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert end, f"the README has no place for {name}"
        text = f"{before}{start}{part}\n{end}{after}"
    return text


def _settings() -> list[tuple[str, ...]]:
    return [(f"`--{name}`", _default(what), what.metadata["help"]) for name, what in config.settings()]


def _default(what: dataclasses.Field[object]) -> str:
    if what.metadata["kind"] == "duration":
        return f"`{what.default:g}s`"
    if isinstance(what.default, tuple):
        return ", ".join(f"`{item}`" for item in what.default)
    if isinstance(what.default, bool):
        return "on" if what.default else "off"
    return f"`{what.default}`" if what.default != "" else ""


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(golden(), encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")
