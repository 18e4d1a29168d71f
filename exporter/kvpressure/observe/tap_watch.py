"""Watching what passes through the tap: event streams become events for a sink, and nothing that fails here is felt."""

import itertools
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvpressure.log import RateLimitedLog
from kvpressure.observe.tap_http import is_encoded, is_event_stream
from kvpressure.observe.tap_refusals import REFUSED
from kvpressure.vllm.sse import SseReader
from kvpressure.vllm.stream import EventKind, StreamEvent, StreamSink, TapFacts

RESPONSES = ("1xx", "2xx", "3xx", "4xx", "5xx")
"""Classes of status of the answers that are passed on."""
BROKEN = ("client", "upstream")
"""The sides that can break an answer off."""
UNOBSERVED = ("encoding", "message_size")
"""Why an event stream was not timed, or in part: it is compressed; one of its messages is too long to be read."""

_log = logging.getLogger(__name__)


def _zero(keys: tuple[str, ...]) -> Counter[str]:
    """Whatever can be counted is 0 before it first happens."""
    return Counter(dict.fromkeys(keys, 0))


@dataclass(slots=True)
class Counts:
    """What ``TapFacts`` tells, as it grows."""

    open: int = 0
    responses: Counter[str] = field(default_factory=lambda: _zero(RESPONSES))
    refused: Counter[str] = field(default_factory=lambda: _zero(REFUSED))
    broken: Counter[str] = field(default_factory=lambda: _zero(BROKEN))
    faults: int = 0
    unobserved: Counter[str] = field(default_factory=lambda: _zero(UNOBSERVED))
    blocked: float = 0.0
    waiting: dict[object, float] = field(default_factory=dict)
    """Streams whose clients do not read now, and since when."""

    def block(self, stream: object, t: float) -> None:
        """The client of a stream has not read since `t`."""
        self.waiting[stream] = t

    def unblock(self, stream: object, t: float) -> None:
        """It reads again, or is gone."""
        self.blocked += t - self.waiting.pop(stream, t)

    def facts(self, t: float) -> TapFacts:
        """All of it at `t`."""
        return TapFacts(
            open=self.open,
            responses=dict(self.responses),
            refused=dict(self.refused),
            broken=dict(self.broken),
            faults=self.faults,
            unobserved=dict(self.unobserved),
            blocked=self.blocked + sum(t - since for since in self.waiting.values()),
        )


class Observer:
    """
    Watches all answers.

    Args:
        sink: takes what happens.
        counts: where faults and streams that cannot be timed are counted.
    """

    def __init__(self, sink: StreamSink, counts: Counts) -> None:
        self._sink = sink
        self._counts = counts
        self._keys = itertools.count(1)
        self._told = RateLimitedLog(_log)

    def watch(self, headers: Mapping[str, str], t: float) -> "Watch | None":
        """
        Begin to watch an answer, if it is a stream of events that can be read.

        Args:
            headers: the answer's.
            t: when they arrived.
        """
        if not is_event_stream(headers):
            return None
        if is_encoded(headers):
            self.unobserved("encoding")
            return None
        watch = Watch(self, self._sink, next(self._keys))
        watch.say("start", t)
        return watch

    def advance(self, t: float) -> None:
        """All that arrived before `t` has been handed on."""
        try:
            self._sink.advance(t)
        except Exception as fault:  # noqa: BLE001  # what is passed on must not suffer
            self.fault(fault)

    def unobserved(self, reason: str) -> None:
        """Count a stream that cannot be timed."""
        self._counts.unobserved[reason] += 1

    def fault(self, fault: Exception) -> None:
        """Count a fault of ours, and tell of it."""
        self._counts.faults += 1
        self._told.fault("a fault in kvpressure at a stream that the tap passes on; please report it", fault)


class Watch:
    """
    Watches one answer.

    Args:
        observer: is told of faults, and of what cannot be timed.
        sink: takes what happens.
        request: the key of the request.
    """

    def __init__(self, observer: Observer, sink: StreamSink, request: int) -> None:
        self._observer = observer
        self._sink = sink
        self._request = request
        self._reader = SseReader()
        self._skipped = False
        self._blind = False  # after a fault

    def chunk(self, t: float, data: bytes) -> None:
        """Take the next bytes of the body, which arrived at `t`."""
        if self._blind:
            return
        try:
            happened = self._reader.feed(data)
            if happened:
                request, model = self._request, self._reader.model
                self._sink.feed([StreamEvent(kind, t, request, choice, model) for kind, choice in happened])
        except Exception as fault:  # noqa: BLE001  # the bytes go on
            self._give_up(t, fault)
            return
        if self._reader.skipped and not self._skipped:
            self._skipped = True
            self._observer.unobserved("message_size")

    def blind(self, t: float) -> None:
        """The client does not read, so that until the next bytes nothing can be said of time."""
        for choice in sorted(self._reader.open):
            self.say("blind", t, choice)

    def end(self, t: float, *, whole: bool) -> None:
        """The body has ended, and it was whole or broken off."""
        if not self._reader.over:
            self.say("end" if whole else "abort", t)

    def say(self, kind: EventKind, t: float, choice: int = 0) -> None:
        """Hand on one event."""
        if self._blind:
            return
        try:
            self._sink.feed([StreamEvent(kind, t, self._request, choice, self._reader.model)])
        except Exception as fault:  # noqa: BLE001
            self._give_up(t, fault)

    def _give_up(self, t: float, fault: Exception) -> None:
        """Stop watching; for the sink the stream ends here, lest it waits for the next chunk."""
        self._blind = True
        self._observer.fault(fault)
        try:
            self._sink.feed([StreamEvent("end", t, self._request)])
        except Exception as another:  # noqa: BLE001
            self._observer.fault(another)
