"""
What a vLLM exposes and logs, against what kvpressure reads of it.

    python -m tests.e2e.drift --url http://127.0.0.1:8000          a running server
    python -m tests.e2e.drift --exposition vllm.prom.gz            a saved exposition
    python -m tests.e2e.drift --package vllm-0.33.0-....whl        a wheel or a folder, read and not imported

Prints a report. Exits with 0 where nothing that kvpressure reads has changed, 1 where something of it is gone or
renamed, 2 where there is nothing to compare. Bucket edges are told and never break anything: kvpressure reads them.
"""

import argparse
import gzip
import sys
from collections.abc import Sequence
from pathlib import Path

import requests

from kvpressure.vllm.metrics import ExpositionReader
from kvpressure.vllm.reading import ExpositionError

from . import drift_found, drift_logs, drift_package, drift_report, drift_source, drift_table
from .drift_found import Families
from .drift_report import Before, Engine, Report

TIMEOUT = 30.0
"""Seconds for one answer of a server."""


class NothingError(ValueError):
    """There is nothing to compare; the message is one sentence."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; the exit status."""
    arguments = _arguments(argv)
    try:
        found = _report(arguments)
    except requests.RequestException as fault:
        sys.stderr.write(f"drift: {arguments.url} gives no metrics ({type(fault).__name__}): is vLLM ready there?\n")
        return 2
    except (NothingError, drift_source.NotAPackageError, OSError) as fault:
        sys.stderr.write(f"drift: {fault}\n")
        return 2
    sys.stdout.write(drift_report.markdown(found))
    return 1 if found.broken else 0


def report(argv: Sequence[str]) -> Report:
    """
    What is found for the same words.

    Raises:
        NothingError, NotAPackageError, OSError, requests.RequestException: there is nothing to compare.
    """
    return _report(_arguments(argv))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="drift", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--url", help="a running vLLM's address")
    what.add_argument("--exposition", type=Path, help="a file with what /metrics answered, plain or gzip")
    what.add_argument("--package", type=Path, help="a wheel of vLLM, or a folder with vllm/ in it")
    parser.add_argument("--log", type=Path, help="a log of the same vLLM, plain or gzip")
    parser.add_argument("--version", default="", help="its version, where that cannot be seen")
    parser.add_argument("--before", type=Path, help="what to compare families with that kvpressure does not read")
    arguments = parser.parse_args(argv)
    if arguments.version:
        try:
            drift_table.version(arguments.version)
        except ValueError as fault:
            parser.error(f"--version: {fault}")
    return arguments


def _report(arguments: argparse.Namespace) -> Report:
    """All that the arguments ask for."""
    source = None
    if arguments.package is not None:
        source = drift_source.read(arguments.package)
        what, release = arguments.package.name, arguments.version or source.release() or ""
        engines = drift_package.engines(source)
    elif arguments.url is not None:
        what = arguments.url.rstrip("/").removesuffix("/metrics")
        text = _get(f"{what}/metrics")
        release, engines = arguments.version or _release(what), _engines(text, what)
    else:
        what, release = arguments.exposition.name, arguments.version
        engines = _engines(_text(arguments.exposition), what)
    known = drift_table.version(release) if release else None
    formats = drift_logs.formats(source) if source is not None else None
    return Report(
        what,
        release,
        [
            Engine(name, families, drift_table.compare(families, name, known, source=source is not None))
            for name, families in engines.items()
        ],
        formats,
        formats.gone(known) if formats is not None else (),
        drift_logs.lines(_bytes(arguments.log)) if arguments.log is not None else None,
        _before(arguments.before),
    )


def _before(path: Path | None) -> Before | None:
    if path is None:
        return None
    packed = path.is_dir() or path.suffix == ".whl"
    families = drift_package.engines(drift_source.read(path)) if packed else _engines(_text(path), path.name)
    return Before(f"`{path.name}`", families)


def _engines(text: str, what: str) -> dict[str, Families]:
    """The families of an exposition under the engine that the sidecar takes it for."""
    families = drift_found.exposed(text)
    if not families:
        raise NothingError(
            f"{what} has no family of vLLM's: start vLLM without --disable-log-stats, and send it a request first"
        )
    try:
        readings = ExpositionReader().read(text).readings
    except ExpositionError as fault:
        raise NothingError(f"{what} cannot be read: {fault}") from None
    eras = sorted({reading.era for reading in readings.values()}) or ["V1"]
    return {eras[-1]: families}


def _get(url: str) -> str:
    answered = requests.get(url, headers={"Accept": "text/plain;version=0.0.4"}, timeout=TIMEOUT)
    answered.raise_for_status()
    return answered.text


def _release(url: str) -> str:
    """The version that a server states; empty where it does not."""
    answered = requests.get(f"{url}/version", timeout=TIMEOUT)
    stated = answered.json().get("version", "") if answered.ok else ""
    return stated if isinstance(stated, str) and stated[:1].isdigit() else ""


def _bytes(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def _text(path: Path) -> str:
    return _bytes(path).decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main())
