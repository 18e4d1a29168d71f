"""What the machine lets us do to a process: limits, a small disk, another clock. All of it needs root, on Linux."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
_GROUPS = Path("/sys/fs/cgroup")
_FAKETIME = ("/usr/lib/*/faketime/libfaketimeMT.so.1", f"{ROOT}/.cache/faketime/usr/lib/*/faketime/libfaketimeMT.so.1")


def missing(needs: Sequence[str]) -> str:
    """Why what is needed is not there, as the end of a sentence; empty where all of it is."""
    reasons = {
        "root": "" if os.geteuid() == 0 else "needs root",
        "setpriv": "" if shutil.which("setpriv") else "needs setpriv",
        "faketime": "" if faketime() else "needs the package libfaketime",
        "cpu": ""
        if os.access(_GROUPS / "cpu" / "cpu.cfs_quota_us", os.W_OK)
        else "needs a cgroup of CPU that can be written (version 1)",
        "memory": ""
        if os.access(_GROUPS / "memory" / "tasks", os.W_OK)
        else "needs a cgroup of memory that can be written (version 1)",
        "mount": "" if os.geteuid() == 0 and shutil.which("mount") else "needs a disk of its own, so root",
    }
    return "; ".join(reason for need in needs if (reason := reasons[need]))


def faketime() -> Path | None:
    """The library that gives a process another wall clock."""
    found = [path for pattern in _FAKETIME for path in Path("/").glob(pattern.lstrip("/"))]
    return found[0] if found else None


def clock_environment(offset: Path) -> dict[str, str]:
    """The variables under which a process adds the seconds in a file to its wall clock, and to nothing else."""
    library = faketime()
    if library is None:
        return {}
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
        "NO_FAKE_STAT": "1",
    }


def unprivileged() -> list[str]:
    """Words before a command that take root's right to read what it may not."""
    return [] if missing(("root", "setpriv")) else ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


@contextlib.contextmanager
def disk(folder: Path, size: int) -> Iterator[bool]:
    """A file system of `size` bytes in a folder, where the machine allows it; whether it does."""
    if missing(("mount",)):
        yield False
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield True
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


@contextlib.contextmanager
def group(kind: str, name: str) -> Iterator[Path | None]:
    """A control group of `kind` (cpu, memory), where the machine allows it; gone at the end, with nobody in it."""
    if missing((kind,)):
        yield None
        return
    folder = _GROUPS / kind / name
    folder.mkdir()
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def enter(folder: Path | None) -> list[str]:
    """Words before a command that start it in a control group."""
    if folder is None:
        return []
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(folder / "cgroup.procs")]


def open_files(most: int) -> list[str]:
    """Words before a command that let it open so many files only."""
    return ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(most)]
