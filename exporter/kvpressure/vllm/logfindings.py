"""What a log turned out to be, and what a user has to change where it is no use."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvpressure.vllm.logmessages import Said

ENOUGH = 100
"""Lines that are not empty after which a log of which none was recognised is called unknown."""
ENOUGH_ANSWERS = 20
"""Answers after which it is odd that nothing was seen of what they consist of."""

Complaint = Literal["unknown", "no_requests", "no_deltas"]
"""
What is wrong with a log as a whole:

* ``unknown``: it is of no format that is understood.
* ``no_requests``: chat requests were answered, and no line tells of any.
* ``no_deltas``: answers are told of when they are complete, but not their chunks.
"""

_CHAT = b"POST /v1/chat/completions "


@dataclass(slots=True)
class Findings:
    """
    Counts of what was found in one log.

    Args:
        lines: lines that are not empty, until one is recognised.
        recognised: whether a line was recognised as one of vLLM's or of a gateway's.
        chats: answers to chat requests in the access log, until a line of a request is found.
        requests: whether there was a line of a request.
        deltas: chunks of answers.
        answers: complete answers that were streamed.
    """

    lines: int = 0
    recognised: bool = False
    chats: int = 0
    requests: bool = False
    deltas: int = 0
    answers: int = 0

    @property
    def complaint(self) -> Complaint | None:
        """What is wrong with the log as a whole, as far as it has been read."""
        if not self.recognised:
            return "unknown" if self.lines >= ENOUGH else None
        if not self.requests:
            return "no_requests" if self.chats >= ENOUGH_ANSWERS else None
        return "no_deltas" if not self.deltas and self.answers >= ENOUGH_ANSWERS else None

    def note_line(self, content: bytes, *, known: bool) -> None:
        """Take note of a line."""
        self.recognised |= known
        self.lines += not self.recognised
        if not self.requests and _CHAT in content:
            self.chats += 1

    def note_events(self, events: Sequence[Said]) -> None:
        """Take note of what a line said of requests."""
        self.requests = True
        for kind, _ in events:
            self.deltas += kind in ("token", "last")
            self.answers += kind == "end"

    def note_deltas(self, count: int) -> None:
        """Take note of many chunks at once."""
        self.requests = True
        self.deltas += count
