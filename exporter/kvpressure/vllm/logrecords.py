"""JSON log lines: those of vLLM's JSON formatter, and those that a gateway writes for kvpressure (see ``logs``)."""

from collections.abc import Mapping
from typing import NamedTuple

from kvpressure.vllm.logclock import Stamp, parse_stamp
from kvpressure.vllm.logmessages import MAX_ID
from kvpressure.vllm.stream import EventKind

MAX_CHOICE = 1023
"""The highest number of a choice that is taken; each choice of a request takes memory while it lasts."""

_STAMP_KEYS = ("asctime", "timestamp", "time")
_KINDS: Mapping[str, EventKind] = {"start": "start", "token": "token", "end": "end", "abort": "abort"}
_SECONDS = (1e8, 1e11)  # a time in milliseconds is beyond them


class GatewayEvent(NamedTuple):
    """What one line of a gateway says."""

    kind: EventKind
    request: bytes
    choice: int
    model: str
    stamp: Stamp


def is_gateway(record: Mapping[str, object]) -> bool:
    """Whether a JSON object is meant for kvpressure."""
    return "request_id" in record and "event" in record


def gateway_event(record: Mapping[str, object]) -> GatewayEvent | None:
    """The event that a gateway's object tells of; None where a value is not understood."""
    event, request, choice, model = (record.get(key) for key in ("event", "request_id", "choice", "model"))
    kind = _KINDS.get(event) if isinstance(event, str) else None
    stamp = _time(record.get("time"))
    choice = 0 if choice is None else choice
    if kind is None or stamp is None or type(choice) is not int or not 0 <= choice <= MAX_CHOICE:
        return None
    if not isinstance(request, str | int) or isinstance(request, bool) or request == "":
        return None
    if kind == "token" and record.get("last") is True:
        kind = "last"
    model = model if isinstance(model, str) and len(model) <= MAX_ID else ""
    # JSON can hold half a character, "\\ud800", which is no text: as a label it would break every scrape.
    return GatewayEvent(kind, _bytes(request), choice, _bytes(model).decode(), stamp)


def vllm_message(record: Mapping[str, object]) -> tuple[bytes | None, bytes]:
    """Message and stamp of a line of vLLM's JSON formatter, empty where it has none; None where it is no such line."""
    message = record.get("message")
    stamp = next((value for name in _STAMP_KEYS if isinstance(value := record.get(name), str)), "")
    if not isinstance(message, str) or not (stamp or "levelname" in record):
        return None, b""
    return _bytes(message), _bytes(stamp)


def _time(value: object) -> Stamp | None:
    """Seconds since 1970 as a number, or RFC 3339."""
    if isinstance(value, str):
        return parse_stamp(_bytes(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or not _SECONDS[0] <= value <= _SECONDS[1]:
        return None
    return Stamp(float(value), zoned=True)


def _bytes(value: str | int) -> bytes:
    """A value as UTF-8, with a question mark for what is none."""
    return str(value).encode("utf-8", "replace")
