"""The faults, in the order in which each lane goes through them."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from .judge import Rules
from .stage import FILES, Stage

LANES = ("vllm", "streams", "machine")
"""What goes on at the same time, each with a stand-in, users and a sidecar of its own."""

_DOWN = ("KVPressureVLLMDown",)
_PAUSING = ("KVPressureRequestsPausing",)
_VLLM = frozenset({"vllm"})
_LOG = frozenset({"log"})
_ALL = frozenset({"vllm", "tap", "log", "all"})

_PAGE = 4096
_LONGEST = 120  # seconds
_STREAMS = 300

Act = Callable[[Stage], None]


def _nothing(_: Stage) -> None:
    pass


@dataclass(frozen=True)
class Fault:
    """
    One fault.

    Args:
        name: what goes wrong.
        lane: one of ``LANES``.
        seconds: how long.
        begin: how it begins.
        end: how it ends.
        each: what happens every second meanwhile, with its number.
        rules: what may be absent and late.
        pages: alerts that may page where each second is taken for fifteen: the users are really without vLLM.
        patience: seconds in which everything must be back.
        needs: what the machine must allow, see ``machine.missing``.
    """

    name: str
    lane: str
    seconds: float
    begin: Act = _nothing
    end: Act = _nothing
    each: Callable[[Stage, int], None] = field(default=lambda _, __: None)
    rules: Rules = field(default_factory=Rules)
    pages: tuple[str, ...] = ()
    patience: float = 20.0
    needs: tuple[str, ...] = ()


def _mode(mode: str) -> Act:
    return lambda stage: stage.tell("mode", mode=mode)


def _upstream(name: str, seconds: float, mode: str, *, pages: tuple[str, ...] = ()) -> Fault:
    """Metrics that are answered in one wrong way."""
    return Fault(name, "vllm", seconds, _mode(mode), _mode("ok"), rules=Rules(_VLLM), pages=pages)


def _alternate(stage: Stage, second: int) -> None:
    stage.tell("mode", mode="huge" if second % 6 < 3 else "too large")


def _come_and_go(stage: Stage, second: int) -> None:
    """One engine, then four, then two of those, every other second."""
    shown = (["m/0"], ["m/0", "m/1", "m/2", "m/3"], ["m/0", "m/3"])
    if second % 2 == 0:
        stage.tell("engines", keys=shown[second // 2 % 3])


def _one(stage: Stage) -> None:
    stage.tell("engines", keys=["m/0"])


def _jump(stage: Stage, second: int) -> None:
    if second % 2 == 0:
        stage.tell("jump")


def _many(scale: float) -> Act:
    def begin(stage: Stage) -> None:
        users = stage.come(concurrency=100, streams=int(10_000 * scale), tokens=3, every=0.02)
        try:
            users.wait(_LONGEST)
        except subprocess.TimeoutExpired:
            stage.missed.append(f"the streams had not ended after {_LONGEST} s")
        stage.leave()

    return begin


def _endless(stage: Stage) -> None:
    stage.come(concurrency=_STREAMS, streams=0, tokens=0, every=0.5)


def _ended(stage: Stage) -> None:
    stage.streaming(_STREAMS)
    stage.leave()


def _fill(stage: Stage) -> None:
    """Take all that is left of the log's disk; the log itself may go on to the end of its last page."""
    disk = os.statvfs(stage.logs)
    with contextlib.suppress(OSError), (stage.logs / "filler").open("ab", buffering=0) as file:
        # What is asked for at once must leave room for what is logged meanwhile.
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - 64 * _PAGE)
        while file.write(b"\0" * _PAGE):
            pass


def _lock(stage: Stage) -> None:
    stage.logs.chmod(0)


def _unlock(stage: Stage) -> None:
    stage.logs.chmod(0o755)


def _flood(stage: Stage, _second: int) -> None:
    """More connections than there are files, to the sidecar's own port and to the tap; nobody asks for anything."""
    made = 0
    with contextlib.ExitStack() as stack:
        for address in (stage.url, stage.tap.removeprefix("http://")):
            host, _, port = address.partition(":")
            # The first that is not let in at once ends it: the others would only wait.
            with contextlib.suppress(OSError):
                for _ in range(250):
                    stack.enter_context(socket.create_connection((host, int(port)), timeout=0.5))
                    made += 1
        time.sleep(0.5)
    if made <= FILES:
        stage.missed.append(f"only {made} connections were made at once, of more than {FILES}")


def _clock(offset: int) -> Act:
    def step(stage: Stage) -> None:
        (stage.folder / "clock").write_text(f"{offset:+d}\n")
        stage.tell("clock", offset=offset)

    return step


def _starve(stage: Stage) -> None:
    """Two hundredths of a core, less than the sidecar needs."""
    if stage.cpu is not None:
        (stage.cpu / "cpu.cfs_quota_us").write_text("2000")
        (stage.cpu / "cgroup.procs").write_text(str(stage.sidecar.pid))


def _feed(stage: Stage) -> None:
    if stage.cpu is not None:
        (stage.cpu / "cpu.cfs_quota_us").write_text("-1")


def _weigh(stage: Stage) -> None:
    """All that takes memory, at once."""
    stage.tell("mode", mode="huge")
    stage.tell("engines", keys=[f"m/{number}" for number in range(64)])
    stage.come(concurrency=_STREAMS, streams=0, tokens=0, every=0.5)


def _lighten(stage: Stage) -> None:
    stage.streaming(_STREAMS)
    stage.tell("mode", mode="ok")
    _one(stage)
    stage.leave()


def faults(scale: float = 1.0) -> Iterator[Fault]:
    """
    All of them.

    Args:
        scale: a share of the streams and lines of the two floods, for a look at a busy machine.
    """
    restart = Rules(_VLLM, lingers=_LOG, turns_away=True)
    yield Fault("vLLM restarts", "vllm", 6, lambda s: s.tell("down"), lambda s: s.tell("up"), rules=restart)
    # Users are without an answer too, and wait in the middle of one.
    yield _upstream("vLLM hangs", 18, "hang", pages=(*_DOWN, *_PAUSING))
    yield _upstream("answers 500", 16, "500", pages=_DOWN)
    yield _upstream("answers 400 B/s", 14, "drip")
    yield _upstream("answers garbage", 10, "garbage")
    yield _upstream("answers without series", 8, "empty")
    yield Fault(
        "answers 60,000 series more, or 17 MiB", "vllm", 12, end=_mode("ok"), each=_alternate, rules=Rules(_VLLM)
    )
    yield Fault("engines come and go", "vllm", 12, end=_one, each=_come_and_go, rules=Rules(_VLLM))
    yield Fault("model is renamed", "vllm", 6, lambda s: s.tell("engines", keys=["n/0"]), _one, rules=Rules(_VLLM))
    yield Fault("counters jump back", "vllm", 12, each=_jump)

    yield Fault("10,000 short streams", "streams", 0, _many(scale), rules=Rules(lag=8))
    yield Fault("300 streams without end", "streams", 15, _endless, _ended)
    yield Fault("log rotated every second", "streams", 12, each=lambda stage, _: stage.tell("rotate"))
    yield Fault(
        "a million lines of log at once",
        "streams",
        1,
        lambda stage: stage.tell("burst", lines=int(1_000_000 * scale)),
        lambda stage: stage.tell("rotate"),
        rules=Rules(loses=_LOG, lag=5),
        patience=40,
    )
    yield Fault(
        "disk of the log is full",
        "streams",
        10,
        _fill,
        lambda stage: (stage.logs / "filler").unlink(),
        rules=Rules(loses=_LOG),
        needs=("mount",),
    )
    yield Fault(
        "folder of the log is closed, and the log rotated",
        "streams",
        10,
        _lock,
        _unlock,
        lambda stage, second: stage.tell("rotate") if second == 2 else None,
        Rules(may_lack=_LOG, loses=_LOG, lag=5),
        needs=("root", "setpriv"),
    )

    yield Fault(
        "256 MiB, 64 engines, 300 streams",
        "streams",
        15,
        _weigh,
        _lighten,
        rules=Rules(lag=8),
        needs=("root", "memory"),
    )

    yield Fault("500 connections, 256 files", "machine", 10, each=_flood, rules=Rules(_ALL, lag=15, turns_away=True))
    yield Fault(
        "wall clock an hour ahead", "machine", 8, _clock(3600), _clock(0), needs=("faketime",), rules=Rules(loses=_LOG)
    )
    yield Fault(
        "wall clock an hour back", "machine", 8, _clock(-3600), _clock(0), needs=("faketime",), rules=Rules(loses=_LOG)
    )
    yield Fault(
        # What streams through the tap waits for it.
        "2 % of a core",
        "machine",
        20,
        _starve,
        _feed,
        rules=Rules(_ALL, lag=25),
        pages=_PAUSING,
        patience=30,
        needs=("root", "cpu"),
    )
    yield Fault(
        "sidecar stopped for a minute",
        "machine",
        60,
        lambda stage: stage.sidecar.send_signal(signal.SIGSTOP),
        lambda stage: stage.sidecar.send_signal(signal.SIGCONT),
        rules=Rules(_ALL, lag=66),
        pages=_PAUSING,
    )
