"""CPU time and memory of processes, from /proc. Imports little, because it also measures from within."""

import os
import subprocess
import sys
from pathlib import Path

MIB = 1024 * 1024
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """
    User and system time that a process has taken so far.

    Where the kernel keeps it, to the nanosecond, of the threads that are there; else in ticks of ten milliseconds.
    """
    told = [_schedstat(path) for path in Path(f"/proc/{pid}/task").iterdir()]
    if told and all(told):
        return sum(told) / 1e9
    # The command's name, in parentheses, may hold spaces.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _schedstat(task: Path) -> int:
    """Nanoseconds that a thread has run; 0 where the kernel does not count them, or it has just ended."""
    try:
        return int((task / "schedstat").read_text(encoding="utf-8").split()[0])
    except OSError:
        return 0


def memory(pid: int | None = None) -> dict[str, int]:
    """Bytes of a process (this one where none is given): resident, of that its own pages, and the peak so far."""
    status = Path(f"/proc/{pid or 'self'}/status").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    names = {"resident": "VmRSS", "own": "RssAnon", "peak": "VmHWM"}
    return {name: int(fields[field].split()[0]) * 1024 for name, field in names.items()}


def imports_memory(modules: str) -> int:
    """Resident bytes of a fresh interpreter that has imported nothing but `modules`, separated by commas."""
    code = f"import {modules}\nprint(open('/proc/self/status').read().partition('VmRSS:')[2].split()[0])"
    return int(run_python("-c", code)) * 1024


def run_python(*arguments: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True).stdout
