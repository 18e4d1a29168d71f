"""
``python -m tests.soak [--hours N] [--lane NAME] [--fault WORD] [--write]``: the real sidecar through faults.

Without ``--hours`` once through all of them, some five minutes. With it again and again, and memory must not grow.
``--write`` keeps what came of it in docs/reliability.md: of once through the table, of hours what stands below it.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import machine, pages, report
from .faults import LANES, Fault, faults
from .judge import TIMELY, Judge, Outcome, Period
from .report import Lane, Row
from .stage import Stage, stage

_SETTLE = 3.0
_AFTER = 3.0
_REST = 5.0
_REMEMBERED = 300.0
"""Seconds for which the sidecar's gauges of paused requests look back: users who waited are in them as long."""
_stopped = threading.Event()
_DEFECTS = ("Traceback", "please report", "Task exception was never retrieved", "CancelledError")


class Run:
    """
    One lane's run.

    Args:
        name: the lane.
        todo: its faults.
        until: when no new round begins, on the monotonic clock.
    """

    def __init__(self, name: str, todo: Sequence[Fault], until: float) -> None:
        self._todo = todo
        self._until = until
        self._lane = Lane(name)
        self._failures: Counter[str] = Counter()
        self._began = 0.0
        self._judged: Judge | None = None

    def run(self, folder: Path) -> Lane:
        """
        Go through the faults, until the time is over.

        Raises:
            KeyboardInterrupt: it was to stop.
        """
        lane = self._lane
        place = folder / lane.name
        place.mkdir()
        # A preemption now and then, but in one lane only: right after one, users who pause page nobody.
        preempts = 100 if lane.name == "vllm" else 0
        self._began = time.monotonic()
        with stage(place, preempts=preempts, few_files=lane.name == "machine") as running:
            while True:
                self._round(running)
                if running.sidecar.poll() is not None or time.monotonic() >= self._until:
                    break
            if running.sidecar.poll() is not None:
                lane.complaints.append(f"it ended with status {running.sidecar.returncode}")
        lane.minutes = (time.monotonic() - self._began) / 60
        lane.paced = pages.paced(running.scraper.paced) if lane.minutes >= report.PACED else None
        log = (place / "sidecar.log").read_text(encoding="utf-8", errors="replace")
        lane.complaints += [defect for defect in _DEFECTS if defect in log]
        lane.failures = dict(self._failures) if lane.rounds > 1 else {}
        return lane

    def _round(self, running: Stage) -> None:
        tried: list[tuple[Fault, Period]] = []
        missed: dict[str, tuple[str, ...]] = {}
        skipped = {fault.name: why for fault in self._todo if (why := machine.missing(fault.needs))}
        running.forget()
        for fault in self._todo:
            if fault.name in skipped or running.sidecar.poll() is not None:
                continue
            say(f"{self._lane.name}: {fault.name}")
            running.missed.clear()
            tried.append((fault, _go_through(running, fault)))
            missed[fault.name] = tuple(running.missed)
        _wait(_REST)
        resting = [size for t, size in running.scraper.memory if t > time.monotonic() - _REST]
        self._lane.rests.append((time.monotonic() - self._began, min(resting, default=0.0)))
        self._judge(running, tried, skipped, missed)
        self._lane.rounds += 1

    def _judge(
        self,
        running: Stage,
        tried: list[tuple[Fault, Period]],
        skipped: dict[str, str],
        missed: dict[str, tuple[str, ...]],
    ) -> None:
        scrapes = list(running.scraper.scrapes)
        standin, users = running.ledgers()
        judge = self._judged = Judge(scrapes, standin, users, self._judged)
        rows = {name: Row(name, skipped=why) for name, why in skipped.items()}
        for fault, period in tried:
            outcome = judge.judge(period, fault.rules)
            outcome.wrong.update(missed[fault.name])
            busy = standin.held_up(period.began, period.ended)
            if busy > report.BUSY:
                wrong = {
                    what: times for what, times in outcome.wrong.items() if not any(part in what for part in TIMELY)
                }
                outcome = Outcome(outcome.absent, Counter(wrong), outcome.back, outcome.samples)
            told = pages.stretched(scrapes, period)
            rows[fault.name] = row = Row(
                fault.name,
                period.released - period.began,
                dict(outcome.absent),
                dict(outcome.wrong),
                outcome.back,
                told,
                sorted(set(told) - _explained(fault, period, tried)) if busy <= report.BUSY else [],
                _memory(running.scraper.memory, period),
                busy=busy,
            )
            self._failures[fault.name] += row.failed
        self._failures = +self._failures
        self._lane.rows = [rows[fault.name] for fault in self._todo if fault.name in rows]


def _explained(fault: Fault, period: Period, tried: Sequence[tuple[Fault, Period]]) -> set[str]:
    """Alerts that may fire: those of the fault, and of those that are still in the window of the sidecar's gauges."""
    return set(fault.pages).union(
        *(earlier.pages for earlier, then in tried if 0 <= period.began - then.released <= _REMEMBERED)
    )


def say(text: str) -> None:
    """Tell whoever waits."""
    sys.stderr.write(text + "\n")


def _wait(seconds: float) -> None:
    """Wait, unless it is to stop."""
    if _stopped.wait(max(0.0, seconds)):
        raise KeyboardInterrupt


def _go_through(running: Stage, fault: Fault) -> Period:
    """Let one fault happen, and wait until all is well again."""
    running.wait_whole(frozenset(), _SETTLE)
    _wait(_SETTLE)
    last = running.scraper.scrapes[-1]
    began = time.monotonic()
    fault.begin(running)
    for second in range(round(fault.seconds)):
        fault.each(running, second)
        _wait(began + second + 1 - time.monotonic())
    fault.end(running)
    released = time.monotonic()
    running.wait_whole(last.names, fault.patience)
    _wait(_AFTER)
    return Period(began, released, time.monotonic())


def _memory(points: Sequence[tuple[float, float]], period: Period) -> tuple[float, float]:
    before = [size for t, size in points if t <= period.began]
    after = [size for t, size in points if t <= period.ended]
    return before[-1] if before else 0.0, after[-1] if after else 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run what is asked for.

    Returns:
        0, or 1 where anything did not go as it must.
    """
    # Asked to end, it leaves no process, mount or group behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.split("\n\n")[1])
    parser.add_argument("--hours", type=float, default=0.0, help="go through the faults again until then")
    parser.add_argument("--lane", choices=LANES, help="only this lane")
    parser.add_argument("--fault", default="", help="only faults with this in their name")
    parser.add_argument("--scale", type=float, default=1.0, help="a share of the two floods, where the machine is busy")
    parser.add_argument("--write", action="store_true", help=f"keep the results in {report.PAGE.name}")
    parser.add_argument("--keep", type=Path, help="keep the logs of all processes in this folder")
    options = parser.parse_args(arguments)
    if options.write and (options.lane or options.fault or options.scale != 1):
        parser.error("--write is for all faults at their full size")
    todo = [fault for fault in faults(options.scale) if options.fault in fault.name]
    names = [name for name in LANES if options.lane in (None, name) and any(fault.lane == name for fault in todo)]
    until = time.monotonic() + options.hours * 3600
    folder = Path(tempfile.mkdtemp(prefix="kvpressure-soak-"))
    try:
        with ThreadPoolExecutor(len(names)) as pool:
            runs = [Run(name, [fault for fault in todo if fault.lane == name], until) for name in names]
            waiting = [pool.submit(run.run, folder) for run in runs]
            try:
                lanes = [each.result() for each in waiting]
            except BaseException:
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.SIG_IGN)
                _stopped.set()
                raise
    finally:
        if options.keep:
            shutil.copytree(folder, options.keep, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    if options.write:
        report.save(lanes)
    sys.stdout.write(report.markdown(lanes))
    failed = any(lane.failed for lane in lanes)
    sys.stdout.write("\nNOT AS IT MUST BE: see above.\n" if failed else "\nAll as it must be.\n")
    return int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("python -m tests.soak: interrupted")
