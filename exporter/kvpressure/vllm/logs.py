"""
vLLM's request log -> events of streams, one reader per log.

Which format a log has is told line by line and never configured:

* vLLM's own text lines, with the prefix of any version, in colour or not (``logmessages``); they say whole seconds, so
  the time of their reading is taken instead, and where there is none they cannot be timed;
* the same with the prefix of a container runtime, or in Docker's JSON (``logframes``), whose time is taken; the time
  alone will do as a prefix, and a logging configuration can write it;
* vLLM's JSON formatter, with or without a runtime around it, whose time then wins;
* one JSON object per line, as a gateway can write it for kvpressure::

      {"request_id": "a1", "event": "start", "time": 1796022992.4004, "model": "m"}
      {"request_id": "a1", "event": "token", "time": "2026-11-30T05:16:32.4004Z", "choice": 0}
      {"request_id": "a1", "event": "token", "time": 1796022992.9, "last": true}
      {"request_id": "a1", "event": "end", "time": 1796022992.9}

  ``event`` is start, token, end or abort; ``time`` is a number of seconds since 1970, or RFC 3339 text, and wins over a
  runtime's; ``choice`` (0 where it is missing), ``model`` and, on a choice's latest token, ``last`` are optional.

Nothing but the id of a request is kept of a line. Answers with several choices look like one choice in vLLM's log, so
their gaps look shorter than they are.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import repeat

from kvpressure.vllm.logclock import LogClock, Stamp, minute, parse_stamp, seconds
from kvpressure.vllm.logfindings import Findings
from kvpressure.vllm.logframes import Frames
from kvpressure.vllm.loglines import LineBuffer
from kvpressure.vllm.logmessages import key, may_say, said, text_message
from kvpressure.vllm.logrecords import gateway_event, is_gateway, vllm_message
from kvpressure.vllm.logshape import Found, Shape, distinct, shape_of
from kvpressure.vllm.stream import StreamEvent

BLUR = 0.5
"""Seconds. Lines without a time of their own that were written in a longer span than this say nothing of gaps."""
PROBLEMS = ("bad_record", "clock_set", "line_too_long", "no_time")
"""What can be wrong with lines; a fixed set, for it becomes values of a label."""

_MAX_STEPS = 8  # times within one read that a clock is believed to have been set
_LEARN_AFTER = 2  # deltas of an unknown shape before it is learned; twice as many before each later one
_LEARN_AFTER_MOST = 4096


@dataclass(slots=True)
class Batch:
    """
    Events in the order of their lines.

    Args:
        lost: where it is set, no gap reaches from before this moment into the events.
        events: the events.
    """

    lost: float | None = None
    events: list[StreamEvent] = field(default_factory=list)


class LogReader:
    """
    Reads one log, from whatever pieces.

    Args:
        reference: see ``LogClock``.
        problems: counts lines that something is wrong with, by reason, one of ``PROBLEMS``.
    """

    def __init__(self, reference: float | None = None, problems: Counter[str] | None = None) -> None:
        self.problems: Counter[str] = Counter() if problems is None else problems
        self.clock = LogClock(reference)
        self.findings = Findings()
        self.lines = 0
        """Lines that were read."""
        self.latest: float | None = None
        """The moment of the latest line of a request that has a time of its own."""
        self._buffer = LineBuffer(self.problems)
        self._frames = Frames(self.problems)
        self._shape: Shape | None = None
        self._unshaped = 0
        self._learn_after = _LEARN_AFTER
        self._begin(None, None)

    def read(self, data: bytes, arrival: float | None = None, since: float | None = None) -> list[Batch]:
        """
        The events of all lines that `data` completes.

        Args:
            data: the log's next bytes.
            arrival: when they were read, in seconds since 1970 by our clock, which never jumps; None where the log is
                not read as it is written, so that only the times in it count.
            since: a moment by the same clock at which no line that ends in `data` had been written yet; None where
                none is known.
        """
        self._begin(arrival, since)
        for block in self._buffer.blocks(data):
            self._read_block(block)
        if self._low is not None and arrival is not None and since is not None:
            self.clock.note(self._low, arrival, since)
        return [batch for batch in self._batches if batch.events or batch.lost is not None]

    def leap(self, *, within_line: bool) -> None:
        """What is read next stands somewhere else in the log, at the beginning of a line or within one."""
        if within_line:
            self._buffer.skip()
        else:
            self._buffer.drop()

    def successor(self) -> "LogReader":
        """The reader of the file in which this log goes on. The old one may have a few more lines to read."""
        reader = LogReader(problems=self.problems)
        reader.clock, reader.findings, reader.latest = self.clock, self.findings, self.latest
        reader._frames, self._frames = self._frames, Frames(self.problems)
        reader._shape = self._shape
        return reader

    def _begin(self, arrival: float | None, since: float | None) -> None:
        self._arrival, self._since = arrival, since
        self._blurred = arrival is not None and (since is None or arrival - since > BLUR)
        self._steps = 0
        self._low: float | None = None
        """The earliest moment of the lines of this read."""
        self._batches = [Batch()]

    def _read_block(self, block: bytes) -> None:
        """Read whole lines: all deltas at once, and the others in between one by one."""
        shape = self._shape
        found = None if shape is None or self._frames.pending else shape.find(block)
        deltas = self._deltas(shape, found) if shape is not None and found is not None else None
        if found is None or deltas is None:
            self._read_lines(block[:-1].split(b"\n"))
            return
        lines = block.split(b"\n") if found.others else []
        taken = 0
        for passed, number in enumerate(found.others):
            self._take(deltas[taken : number - passed])
            taken = number - passed
            steps = self._steps
            self._read_line(lines[number])
            if self._frames.pending or self._steps != steps:
                # What follows can be the second part of a line, whatever it looks like, or has another time.
                self._read_lines(lines[number + 1 : -1])
                return
        self._take(deltas[taken:])

    def _take(self, deltas: list[StreamEvent]) -> None:
        self._batches[-1].events.extend(deltas)
        self.findings.note_deltas(len(deltas))
        self.lines += len(deltas)

    def _deltas(self, shape: Shape, found: Found) -> list[StreamEvent] | None:
        """The events of deltas of the known shape; None where they must be looked at one by one."""
        if not found.requests:
            return []
        times: Iterable[float]
        if shape.stamped:
            stamps = _stamps(shape.zone, found)
            if not stamps or self._steps >= _MAX_STEPS:
                return None
            zoned, low = bool(shape.zone), min(stamps)
            shift = self.clock.shift(Stamp(low, zoned), Stamp(max(stamps), zoned), self._arrival, self._since)
            if shift is None:
                return None
            times = [stamp + shift for stamp in stamps] if shift else stamps
            self._note(low + shift, stamps[-1] + shift)
        elif self._arrival is None or self._blurred:
            return None
        else:
            times = repeat(self._arrival)
        # All of it happens below Python: making each event by a call would take three times as long.
        fields = zip(repeat("token"), times, found.requests, repeat(0), repeat(""), strict=False)
        return list(map(tuple.__new__, repeat(StreamEvent), fields))

    def _read_lines(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._read_line(line)

    def _read_line(self, line: bytes) -> None:
        """Read any line."""
        self.lines += 1
        if not line:
            return
        joined = self._frames.pending
        framed = self._frames.open(line)
        if framed is None:
            return
        content, stamp, record, plain = framed
        if not content:
            return
        if record is not None and is_gateway(record):
            self._read_gateway(record)
            return
        message: bytes | None = b""
        if record is not None:
            message, own = vllm_message(record)
            stamp = stamp or own
        elif may_say(content) or not self.findings.recognised:
            message = text_message(content)
        self.findings.note_line(content, known=message is not None)
        events = said(message) if message else []
        if not events:
            return
        self.findings.note_events(events)
        t = self._moment(parse_stamp(stamp) if stamp else None)
        if t is not None:
            self._batches[-1].events.extend(StreamEvent(kind, t, key(request)) for kind, request in events)
        kind, request = events[0]
        if kind == "token" and not joined:
            self._learn(line, stamp, request, quoted=record is not None or not plain)

    def _read_gateway(self, record: Mapping[str, object]) -> None:
        self.findings.note_line(b"", known=True)
        event = gateway_event(record)
        if event is None:
            self.problems["bad_record"] += 1
            return
        t = self._moment(event.stamp)
        if t is not None:
            self._batches[-1].events.append(StreamEvent(event.kind, t, key(event.request), event.choice, event.model))

    def _moment(self, stamp: Stamp | None) -> float | None:
        """When a line was written, on our clock; None where that cannot be told."""
        arrival = self._arrival
        if stamp is not None and self._steps < _MAX_STEPS:
            t, was_set = self.clock.place(stamp, arrival, self._since)
            if was_set:
                self.problems["clock_set"] += 1
                self._batches.append(Batch(lost=t))
                self._steps += 1
                self._low = None
                # Set that often, there must be lines of two clocks in one log: neither is of use.
                self._blurred |= self._steps == _MAX_STEPS
            self._note(t, t)
            return t
        if arrival is None:
            self.problems["no_time"] += 1
            return None
        if self._blurred:
            self._blurred = False
            self._batches.append(Batch(lost=arrival))
        return arrival

    def _note(self, low: float, latest: float) -> None:
        self._low = low if self._low is None else min(self._low, low)
        self.latest = latest

    def _learn(self, line: bytes, stamp: bytes, request: bytes, *, quoted: bool) -> None:
        """Learn the shape of deltas from one that was not of the known shape."""
        self._unshaped += 1
        if self._unshaped < self._learn_after:
            return
        # It takes a millisecond, and a log of many shapes must not make us learn all the time.
        self._unshaped, self._learn_after = 0, min(2 * self._learn_after, _LEARN_AFTER_MOST)
        self._shape = shape_of(line, stamp, request, quoted=quoted) or self._shape


def _stamps(zone: bytes, found: Found) -> list[float]:
    """The stamps of deltas, in seconds since 1970; empty where one of the minutes does not exist."""
    bases = {text: minute(text, zone) for text in distinct(found.minutes)}
    try:
        numbers = list(map(float, found.seconds))
    except ValueError:
        numbers = list(map(seconds, found.seconds))
    first = bases[found.minutes[0]]
    if first is not None and len(bases) == 1:
        return list(map(first.__add__, numbers))
    known = {text: base for text, base in bases.items() if base is not None}
    if len(known) < len(bases):
        return []
    return [known[text] + number for text, number in zip(found.minutes, numbers, strict=True)]
