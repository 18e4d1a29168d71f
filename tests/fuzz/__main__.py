"""``python -m tests.fuzz``: fuzz for some seconds, and tell how to repeat what failed."""

import argparse
import importlib
import importlib.util
import pkgutil
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from .mutate import Mutator

FAILED = Path(".cache") / "fuzz"
"""Where inputs that failed are kept."""

_SHOWN = 2000  # bytes of a failed input that are printed
_EXECUTED = re.compile(rb"number_of_executed_units:\s*(\d+)")


class Target(NamedTuple):
    """A function to be fuzzed, and inputs to begin with."""

    module: str
    name: str
    run: Callable[[bytes], object]
    corpus: Sequence[bytes]

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def targets() -> list[Target]:
    """All targets of all modules beside this one."""
    found = []
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if info.name not in ("__main__", "mutate", "guided"):
            module = importlib.import_module(f"{__package__}.{info.name}")
            corpus = getattr(module, "CORPUS", ())
            found += [Target(info.name, name, run, corpus) for name, run in getattr(module, "TARGETS", {}).items()]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Fuzz what is asked for.

    Returns:
        0, or 1 where an input failed.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Look for inputs that break a reader.")
    parser.add_argument("seconds", nargs="?", type=float, default=30.0, help="for each module; 30 where it is missing")
    parser.add_argument("what", nargs="*", help="modules, or targets as module.target; all where none is named")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 2**31), help="repeat a run")
    parser.add_argument("--input", type=Path, metavar="FILE", help="run the targets once, with this input")
    options = parser.parse_args(arguments)
    chosen = [t for t in targets() if not options.what or t.module in options.what or str(t) in options.what]
    if not chosen:
        parser.error("there is no such target")
    if options.input:
        for target in chosen:
            target.run(options.input.read_bytes())
        return 0
    ways = {"at random": _random}
    if importlib.util.find_spec("atheris") is not None:
        ways["guided by coverage"] = _guided
    failed = 0
    for target in chosen:
        seconds = options.seconds / sum(other.module == target.module for other in chosen) / len(ways)
        for name, way in ways.items():
            found, executions = way(target, seconds, options.seed)
            _say(f"{target}: {executions} inputs in {seconds:g} s, {name}, seed {options.seed}")
            if found is not None:
                failed = 1
                _tell(target, found)
                break
    return failed


def _random(target: Target, seconds: float, seed: int) -> tuple[bytes | None, int]:
    """The input that failed, if one did, and the number of those that were tried."""
    mutator = Mutator(target.corpus, seed)
    end = time.monotonic() + seconds
    executions = 0
    while time.monotonic() < end:
        data = target.corpus[executions] if executions < len(target.corpus) else mutator.next()
        executions += 1
        try:
            target.run(data)
        except Exception:  # noqa: BLE001  # whatever it is, it is what we are looking for
            traceback.print_exc()
            return data, executions
    return None, executions


def _guided(target: Target, seconds: float, seed: int) -> tuple[bytes | None, int]:
    """The same, by atheris."""
    with tempfile.TemporaryDirectory() as folder:
        corpus, failures = Path(folder) / "corpus", Path(folder) / "failures"
        corpus.mkdir()
        failures.mkdir()
        for number, data in enumerate(target.corpus):
            (corpus / f"{number:04}").write_bytes(data)
        options = [f"-max_total_time={max(1, round(seconds))}", f"-seed={seed}", "-max_len=65536", "-timeout=20"]
        options += [f"-artifact_prefix={failures}/", "-print_final_stats=1", str(corpus)]
        command = [sys.executable, "-m", f"{__package__}.guided", target.module, target.name, *options]
        done = subprocess.run(command, check=False, capture_output=True)
        counted = _EXECUTED.search(done.stderr)
        found = next((path.read_bytes() for path in sorted(failures.iterdir())), None)
        if done.returncode:
            sys.stderr.write((done.stdout + done.stderr).decode("utf-8", "replace")[-_SHOWN * 4 :])
            if found is None:
                raise RuntimeError(f"atheris ended with status {done.returncode} and no input")
        return found, int(counted[1]) if counted else 0


def _tell(target: Target, data: bytes) -> None:
    FAILED.mkdir(parents=True, exist_ok=True)
    path = FAILED / f"{target}-{zlib.crc32(data):08x}"
    path.write_bytes(data)
    shown = repr(data[:_SHOWN]) + (" ..." if len(data) > _SHOWN else "")
    _say(f"{target} fails with {len(data)} bytes: {shown}")
    _say(f"again: python -m tests.fuzz --input {path} 0 {target}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
