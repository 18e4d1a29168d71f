"""``kvpressure lab --users URL``: the flags of the users, and the life of their process."""

import argparse
import asyncio
import contextlib
import gzip
import json
import signal
import sys
from pathlib import Path
from typing import TextIO

from kvpressure.lab.flags import UsageError, cause, count, duration, origin
from kvpressure.lab.scenarios import SCENARIOS
from kvpressure.lab.truth import Record, Totals
from kvpressure.lab.users import NoServerError, Plan, Users

_FLAGS = ("--duration", "--requests", "--chat", "--truth.file")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the users."""
    group = parser.add_argument_group(
        "users instead of a server",
        "they play the scenario's load over HTTP, and tell at the end what they saw, in model time; of the flags above "
        "they heed --scenario, --seed and --speed",
    )
    add = group.add_argument
    add("--users", type=origin, metavar="URL", help="ask the OpenAI-compatible server at this address")
    add("--duration", type=duration, help="leave after this time, whatever is still open")
    add("--requests", type=count(1), metavar="N", help="leave when so many requests have ended")
    add(
        "--chat",
        action=argparse.BooleanOptionalAction,
        help="ask for chat completions (the default), or with --no-chat for completions with prompts of token ids",
    )
    add(
        "--truth.file",
        dest="truth_file",
        metavar="FILE",
        help="write what each user saw, a JSON line per request when it ends; compressed where FILE ends in .gz",
    )


def check(args: argparse.Namespace) -> None:
    """
    Refuse flags of users where there are none.

    Raises:
        UsageError: there is such a flag.
    """
    for flag in _FLAGS:
        if args.users is None and getattr(args, flag.lstrip("-").replace(".", "_")) is not None:
            raise UsageError(f"{flag} is for users: name the server that they ask with --users.")


def run(args: argparse.Namespace) -> int:
    """
    Play until the plan is over, SIGINT or SIGTERM; return the exit code.

    Raises:
        UsageError: the truth file cannot be written.
    """
    plan = Plan(
        url=args.users,
        workload=SCENARIOS[args.scenario].workload,
        seed=args.seed,
        chat=args.chat is not False,
        speed=args.speed,
        duration=args.duration,
        requests=args.requests,
    )
    totals = Totals(args.speed)
    truth = _TruthFile(args.truth_file) if args.truth_file else None

    def ended(record: Record) -> None:
        totals.add(record)
        if truth:
            truth.write(record)

    try:
        asyncio.run(_play(Users(plan, ended)))
    except NoServerError as error:
        return _complain(str(error))
    finally:
        if truth:
            truth.close()
    print(totals.text())  # noqa: T201 - what the users are for
    if truth and truth.fault:
        return _complain(f"--truth.file {args.truth_file} is not complete: {cause(truth.fault)}.")
    return 0


async def _play(users: Users) -> None:
    playing = asyncio.create_task(users.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, playing.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await playing


def _complain(sentence: str) -> int:
    print(f"kvpressure lab: {sentence}", file=sys.stderr)  # noqa: T201 - for the user, not a log line
    return 1


class _TruthFile:
    """
    Records as JSON lines. A disk that is full does not end the users: the first fault is kept, and ends the writing.

    Raises:
        UsageError: the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.fault: OSError | None = None
        try:
            # Closed by whoever made this.
            self._out: TextIO = (
                gzip.open(path, "wt", encoding="utf-8")  # noqa: SIM115
                if path.endswith(".gz")
                else Path(path).open("w", encoding="utf-8")  # noqa: SIM115
            )
        except OSError as error:
            raise UsageError(f"cannot write --truth.file {path}: {cause(error)}.") from error

    def write(self, record: Record) -> None:
        """Append a line."""
        if self.fault is None:
            try:
                self._out.write(json.dumps(record.row()) + "\n")
            except OSError as error:
                self.fault = error

    def close(self) -> None:
        """Write what is left."""
        try:
            self._out.close()
        except OSError as error:
            self.fault = self.fault or error
