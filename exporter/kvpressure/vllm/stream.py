"""
What observers of token streams hand over: events of one request each, and facts about the observer itself.

The request log and the tap give the same events, so that everything after them is written once.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

EventKind = Literal["start", "token", "last", "blind", "end", "abort"]
"""
What happened to a request:

* ``start``: it was accepted; nothing has been streamed yet.
* ``token``: a chunk of one choice arrived.
* ``last``: the same, and the choice is complete (it has a finish reason).
* ``blind``: until the choice's next chunk nothing can be said of time, for instance because its client does not read.
* ``end``: the response is complete.
* ``abort``: the response was broken off, by whichever side.
"""

Source = Literal["tap", "log"]
SOURCES: tuple[Source, ...] = ("tap", "log")
"""Observers of streams, the one that sees most first: what a verdict or an alert takes where both are there."""


class StreamEvent(NamedTuple):
    """
    One event of one request.

    Args:
        kind: see ``EventKind``.
        t: when, in seconds since 1970.
        request: which request, by a name that never leaves the process.
        choice: which of the answers that the request asked for (`n`).
        model: the model that the response names; empty where the observer does not know.
    """

    kind: EventKind
    t: float
    request: Hashable
    choice: int = 0
    model: str = ""


class StreamSink(Protocol):
    """What takes the events of one source. No method raises."""

    def feed(self, events: Iterable[StreamEvent]) -> None:
        """Take events, in the order in which they happened."""
        ...

    def advance(self, t: float) -> None:
        """All events before `t` have been fed: who has been silent until then, pauses."""
        ...

    def lose(self, t: float) -> None:
        """Events before `t` were lost, or its clock was set: no gap reaches across it."""
        ...


@dataclass(frozen=True, slots=True)
class LogFacts:
    """
    The log observer, so far.

    Args:
        files: files followed now.
        lines: lines read.
        dropped: lines skipped unread because reading could not keep up.
        lag: seconds between a line's writing and its reading, of the latest line whose time is known.
        errors: by reason, each from a small fixed set.
    """

    files: int = 0
    lines: int = 0
    dropped: int = 0
    lag: float | None = None
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TapFacts:
    """
    The tap, so far.

    Args:
        open: requests being passed through now.
        responses: responses passed on, by class of status (``2xx``).
        refused: requests answered by the tap itself, by reason from a small fixed set.
        broken: responses that ended before their end, by the side that broke off: ``client`` or ``upstream``.
        faults: times that observing failed while the bytes went on.
        unobserved: event streams passed on that could not be timed, by reason from a small fixed set.
        blocked: seconds that streams waited for clients that did not read, summed over streams.
    """

    open: int = 0
    responses: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    broken: Mapping[str, int] = field(default_factory=dict)
    faults: int = 0
    unobserved: Mapping[str, int] = field(default_factory=dict)
    blocked: float = 0.0
