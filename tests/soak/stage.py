"""One lane of the soak: a stand-in, users, the real sidecar between them, and somebody who scrapes it every second."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.launch import free_port
from bench.proc import memory
from tests.alert_harness import STEP

from . import machine
from .judge import Scrape, whole
from .truth import Ledger

DISK = 256 * 1024 * 1024
"""Bytes of the disk that the log is on."""
MEMORY = 256 * 1024 * 1024
"""Bytes that the container may use, as in deploy/kubernetes with the tap."""
FILES = 256
"""Open files of the lane in which they are few."""
_USERS = {"concurrency": 8, "streams": 0, "tokens": 40, "every": 0.05}
_SCRAPE_TIMEOUT = 3.0
_START = 30.0
_TAIL = 2000  # characters of a log


@dataclass
class Stage:
    """What runs in one lane."""

    folder: Path
    url: str
    tap: str
    standin: subprocess.Popen[str]
    sidecar: subprocess.Popen[bytes]
    cpu: Path | None
    scraper: "Scraper"
    users: list[tuple[subprocess.Popen[bytes], Path]] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    """What of the latest fault could not be brought about, in sentences."""
    _read: dict[Path, int] = field(default_factory=dict)

    @property
    def logs(self) -> Path:
        """Where the request log is."""
        return self.folder / "logs"

    def tell(self, do: str, **more: Any) -> None:
        """
        Have the stand-in do something.

        Raises:
            RuntimeError: it is gone.
        """
        if self.standin.stdin is None or self.standin.stdout is None:
            raise RuntimeError("the stand-in has no pipes")
        self.standin.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self.standin.stdin.flush()
        if not self.standin.stdout.readline():
            raise RuntimeError("the stand-in has ended")

    def come(self, **plan: Any) -> subprocess.Popen[bytes]:
        """Users with a plan come."""
        truth = self.folder / f"users-{len(self.users)}.jsonl"
        truth.touch()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.users", self.tap, str(truth), json.dumps(plan)],
            cwd=machine.ROOT,
            stderr=subprocess.DEVNULL,
        )
        self.users.append((process, truth))
        return process

    def leave(self) -> None:
        """All users go but those who are always there."""
        for process, _ in self.users[1:]:
            if process.poll() is None:
                process.terminate()
                process.wait()

    def close(self) -> None:
        """All users go."""
        for process, _ in self.users:
            _end(process)

    def streaming(self, least: int) -> None:
        """Note it where fewer streams than these are open at the stand-in."""
        standin, _ = self.ledgers()
        there = standin.rows[-1]["stream/open"] if standin.rows else 0
        if there < least:
            self.missed.append(f"only {there:.0f} of {least} streams were open")

    def forget(self) -> None:
        """Keep no more of the past than the next judgement needs."""
        del self.scraper.scrapes[:-5]
        for path in self._ledgers():
            self._read[path] = path.stat().st_size

    def ledgers(self) -> tuple[Ledger, list[Ledger]]:
        """What happened since the last ``forget``, as the stand-in and as the users saw it."""
        standin, *users = (Ledger.read(path, self._read.get(path, 0)) for path in self._ledgers())
        return standin, users

    def _ledgers(self) -> list[Path]:
        return [self.folder / "standin.jsonl", *(path for _, path in self.users)]

    def wait_whole(self, names: frozenset[str], seconds: float) -> bool:
        """Wait until the sidecar says all of these again; whether it did."""
        deadline = time.monotonic() + seconds
        asked = time.monotonic()
        while time.monotonic() < deadline:
            last = self.scraper.scrapes[-1] if self.scraper.scrapes else None
            if last is not None and last.start > asked and whole(last, names):
                return True
            time.sleep(0.2)
        return False


class Scraper(threading.Thread):
    """
    Scrapes a sidecar every second, as a Prometheus in a hurry would, and looks at its memory.

    Args:
        listen: its address.
        process: the sidecar.
    """

    def __init__(self, listen: str, process: subprocess.Popen[bytes]) -> None:
        super().__init__(daemon=True)
        self.scrapes: list[Scrape] = []
        self.paced: list[Scrape] = []
        """One in fifteen of all, as a Prometheus scrapes."""
        self.memory: list[tuple[float, float]] = []
        """Moments, and the bytes of the sidecar's own pages then."""
        self._listen = listen
        self._process = process
        self._stopped = threading.Event()

    def run(self) -> None:
        """Scrape until stopped."""
        due = time.monotonic()
        number = 0
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            due = max(due + 1.0, time.monotonic() - 1.0)
            start = time.monotonic()
            text = self._text()
            self.scrapes.append(Scrape(start, time.monotonic(), text))
            if number % STEP == 0:
                self.paced.append(Scrape(start, start, text))
            number += 1
            with contextlib.suppress(OSError, KeyError):
                self.memory.append((start, memory(self._process.pid)["own"]))

    def stop(self) -> None:
        """Stop, and wait for the end."""
        self._stopped.set()
        self.join()

    def _text(self) -> str | None:
        connection = http.client.HTTPConnection(self._listen, timeout=_SCRAPE_TIMEOUT)
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return body.decode() if answer.status == http.HTTPStatus.OK else None


@contextlib.contextmanager
def stage(folder: Path, *, preempts: int, few_files: bool) -> Iterator[Stage]:
    """
    A lane, from when its sidecar has sampled until the block ends.

    Args:
        folder: an empty one, for all that it writes.
        preempts: tenths of a second from one preemption of the stand-in to the next; 0 for none.
        few_files: whether the sidecar may open few files only, and gets a clock that can be set.
    """
    logs = folder / "logs"
    logs.mkdir()
    with contextlib.ExitStack() as stack:
        stack.enter_context(machine.disk(logs, DISK))
        name = f"kvpressure-soak-{os.getpid()}-{folder.name}"
        cpu = stack.enter_context(machine.group("cpu", name))
        limited = stack.enter_context(machine.group("memory", name))
        if limited is not None:
            (limited / "memory.limit_in_bytes").write_text(str(MEMORY))
        standin = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.standin", str(logs), str(folder / "standin.jsonl"), str(preempts)],
            cwd=machine.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stack.enter_context((folder / "standin.log").open("wb")),
            text=True,
        )
        stack.callback(_end, standin)
        upstream = f"http://127.0.0.1:{standin.stdout.readline().strip() if standin.stdout else ''}"
        listen, tap = (f"127.0.0.1:{free_port()}" for _ in range(2))
        settings = {
            "vllm.url": f"{upstream}/metrics",
            "web.listen-address": listen,
            "tap.listen": tap,
            "tap.upstream": upstream,
            "log.path": str(logs / "0.log"),
        }
        sidecar = _sidecar(stack, folder, settings, limited, few_files=few_files)
        scraper = Scraper(listen, sidecar)
        scraper.start()
        stack.callback(scraper.stop)
        running = Stage(folder, listen, f"http://{tap}", standin, sidecar, cpu, scraper)
        stack.callback(running.close)
        if not running.wait_whole(frozenset({"kvpressure_up", "kvpressure_log_files"}), _START):
            said = (folder / "sidecar.log").read_text(encoding="utf-8", errors="replace")[-_TAIL:]
            raise RuntimeError(f"the sidecar of lane {folder.name} did not start; it said: {said or 'nothing'}")
        running.come(**_USERS)
        yield running


def _sidecar(
    stack: contextlib.ExitStack, folder: Path, settings: dict[str, str], limited: Path | None, *, few_files: bool
) -> subprocess.Popen[bytes]:
    """The real program, as it is started in a container, with its log in a file."""
    flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
    offset = folder / "clock"
    offset.write_text("+0\n")
    out = stack.enter_context((folder / "sidecar.log").open("wb"))
    before = [*machine.enter(limited), *(machine.open_files(FILES) if few_files else ()), *machine.unprivileged()]
    process = subprocess.Popen(
        [*before, sys.executable, "-m", "kvpressure", "serve", *flags],
        env={**os.environ, **(machine.clock_environment(offset) if few_files else {})},
        stderr=out,
    )
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()
