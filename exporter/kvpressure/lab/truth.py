"""What users saw of their own requests: the truth that an observer of their streams is held against. Pure."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from kvpressure.lab.simulate import PAUSE_SECONDS

LEFT = "left"
"""How a request ended whose user saw no first token in time."""

STOPPED = "stopped"
"""How a request ended that was still open when the users were stopped."""

_CUT = re.compile(r"\w+ at (\d+\.\d+)")
_FAULTS = ("error_event", "bad_chunk")
"""How an answer ended whose last chunk is not one."""

_ROUND = 4
"""Digits of a second, as in the recordings: a tenth of a millisecond."""


@dataclass(slots=True)
class Record:
    """
    One request as its user saw it. Times are wall clock, in seconds since 1970.

    Args:
        number: counted from 0.
        start: when it was sent.
        prompt: prompt tokens that were asked.
        max_tokens: answer tokens that were asked.
        id: the response's id.
        ts: when each chunk came: every ``data:`` line with a JSON object, as in the recordings.
        token_ts: when each of those came that carried a token: not the one that opens a chat answer with its role.
        error: why the answer is not complete; None where it is.
        cut: when it ended before its end, by whichever side; None where it is complete.
        done: whether the end of the stream came.
    """

    number: int
    start: float
    prompt: int
    max_tokens: int
    id: str | None = None
    ts: list[float] = field(default_factory=list)
    token_ts: list[float] = field(default_factory=list)
    error: str | None = None
    cut: float | None = None
    done: bool = False

    def __post_init__(self) -> None:
        self.start = round(self.start, _ROUND)

    def take(self, line: bytes, now: float) -> None:
        """Take one line of the stream, without its end, that came at `now`. The one that sets `error` is the last."""
        if line.startswith(b"data: [DONE]"):
            self.done = True
        if not line.startswith(b"data: {"):
            return
        now = round(now, _ROUND)
        self.ts.append(now)
        try:
            message = json.loads(line[6:])
            token = _carries_token(message)
        except (ValueError, AttributeError, TypeError):
            self.end("bad_chunk", now)
            return
        self.id = self.id or message.get("id")
        if message.get("error"):
            self.end("error_event", now)
        elif token:
            self.token_ts.append(now)

    def end(self, how: str, now: float) -> None:
        """The answer ended before its end, at `now`. What was first said of it holds."""
        if self.error is None:
            self.cut = round(now, _ROUND)
            self.error = f"{how} at {self.cut:.{_ROUND}f}"

    @property
    def kind(self) -> str:
        """The first word of `error`: how it ended, or the status; empty where it is complete."""
        return self.error.split(maxsplit=1)[0] if self.error else ""

    def gaps(self, pause: float = PAUSE_SECONDS) -> list[float]:
        """
        Seconds between its tokens.

        A gap that was still open when the answer was cut is one where it was a pause already, longer than `pause`
        seconds: its user has felt it.
        """
        times = self.token_ts
        if times and self.cut and round(self.cut - times[-1], _ROUND) > pause:
            times = [*times, self.cut]
        return [round(after - before, _ROUND) for before, after in pairwise(times)]

    def row(self) -> dict[str, Any]:
        """The line of a recording's ``streams.jsonl``."""
        return {
            "i": self.number,
            "id": self.id,
            "start": self.start,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "ts": self.ts,
            "error": self.error,
        }

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Record":
        """
        The record of such a line.

        A line does not say which chunks carried a token: all did but a chat answer's first and a stream's error.
        """
        error, ts = row["error"], row["ts"]
        found = _CUT.fullmatch(error or "")
        token_ts = ts[str(row["id"] or "").startswith("chatcmpl-") :]
        if str(error).startswith(_FAULTS):
            token_ts = token_ts[:-1]
        return cls(
            number=row["i"],
            id=row["id"],
            start=row["start"],
            prompt=row["prompt"],
            max_tokens=row["max_tokens"],
            ts=ts,
            token_ts=token_ts,
            error=error,
            cut=float(found[1]) if found else None,
            done=error is None,
        )


class Totals:
    """
    Sums over records; its size does not grow with them.

    Args:
        speed: gap seconds per second of the records: where the server plays faster than real time.
    """

    def __init__(self, speed: float = 1.0) -> None:
        self.requests = 0
        self.streamed = 0
        """Requests that got at least one token."""
        self.paused = 0
        """Of these: some gap was longer than a second."""
        self.longest: float | None = None
        self.endings: Counter[str] = Counter()
        """Requests that did not complete, by how they ended."""
        self._speed = speed
        self._gaps: Counter[float] = Counter()

    def add(self, record: Record) -> None:
        """Count one record that is over."""
        gaps = [gap * self._speed for gap in record.gaps(PAUSE_SECONDS / self._speed)]
        longest = max(gaps, default=None)
        self.requests += 1
        if record.error:
            self.endings[record.kind] += 1
        self.streamed += bool(record.token_ts)
        if longest is not None:
            self.paused += longest > PAUSE_SECONDS
            self.longest = max(longest, self.longest or 0.0)
        # Three digits keep the table small and the percentile within half a percent.
        self._gaps.update(float(f"{gap:.2e}") for gap in gaps)

    @property
    def failed(self) -> int:
        """Requests that ended neither well nor because their user or all users left."""
        return self.endings.total() - self.endings[LEFT] - self.endings[STOPPED]

    @property
    def paused_share(self) -> float | None:
        """Share of the streaming requests that paused, 0 to 1; None where none streamed."""
        return self.paused / self.streamed if self.streamed else None

    @property
    def p99(self) -> float | None:
        """99th percentile of the gaps in seconds (nearest rank, three digits); None where there is no gap."""
        rank = math.ceil(0.99 * self._gaps.total())
        for gap, count in sorted(self._gaps.items()):
            rank -= count
            if rank <= 0:
                return gap
        return None

    def text(self) -> str:
        """Two lines for people."""
        others = Counter({kind: n for kind, n in self.endings.items() if kind not in (LEFT, STOPPED)})
        kinds = ", ".join(f"{kind} {count}" for kind, count in others.most_common())
        share, longest, p99 = self.paused_share, self.longest, self.p99
        return (
            f"{self.requests} requests: {self.failed} failed{f' ({kinds})' if kinds else ''}, "
            f"{self.endings[LEFT]} left without a token, {self.endings[STOPPED]} open at the end\n"
            f"{self.streamed} got a token, {self.paused} of them paused for more than {PAUSE_SECONDS:g} s "
            f"({'-' if share is None else f'{share:.1%}'}); "
            f"gaps: longest {_seconds(longest)}, p99 {_seconds(p99)}"
        )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} s"


def _carries_token(message: Mapping[str, Any]) -> bool:
    """Whether a message has a choice with more in it than the role that opens a chat answer."""
    return any(
        choice.get("finish_reason") or "role" not in (delta := choice.get("delta") or {}) or _more_than_role(delta)
        for choice in message.get("choices") or ()
    )


def _more_than_role(delta: Mapping[str, Any]) -> bool:
    return any(value for key, value in delta.items() if key != "role")
