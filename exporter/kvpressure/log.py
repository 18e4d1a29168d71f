"""
The exporter's own log: one line per record on stderr, in logfmt or JSON.

Fields of a record travel as ``extra={"fields": {"reason": "timeout"}}``. Nothing that was read from vLLM and no
credential belongs into a message or a field.
"""

import json
import logging
import math
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, TextIO

from kvpressure.config import LogConfig

MAX_VALUE = 4000
"""Characters of one value; what is longer is cut, so that a line stays under the limits of log collectors."""

_EVERY = 60.0
_MESSAGES = 100
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
_LEVEL_WORDS = {"WARNING": "WARN", "CRITICAL": "ERROR"}


def setup(config: LogConfig, stream: TextIO | None = None) -> None:
    """
    Send every log record of the process to `stream` (stderr where it is None), as `config` says.

    Calling it again replaces what an earlier call set up.
    """
    level = _LEVELS[config.level]
    handler = _Handler(stream or sys.stderr)
    formatter = JsonFormatter if config.format == "json" else LogfmtFormatter
    handler.setFormatter(formatter(tracebacks=level <= logging.DEBUG))
    handler.addFilter(_Throttle())
    root = logging.getLogger()
    for old in [known for known in root.handlers if isinstance(known, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    # At debug, asyncio tells every poll of the event loop: that is noise to anyone but its authors.
    logging.getLogger("asyncio").setLevel(max(level, logging.INFO))


class _Throttle(logging.Filter):
    """Lets each message of asyncio through once a minute: out of files, it repeats one thousands of times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name != "asyncio":
            return True
        key, now = str(record.msg)[:100], time.monotonic()
        if now - self._told.get(key, -math.inf) < _EVERY:
            return False
        if len(self._told) >= _MESSAGES:
            self._told.clear()
        self._told[key] = now
        return True


class _Handler(logging.StreamHandler[TextIO]):
    """The handler of `setup`, told from handlers of others, as of a test runner."""


class _Formatter(logging.Formatter):
    """What both formats share: which keys a line has, and their order."""

    def __init__(self, *, tracebacks: bool = False) -> None:
        super().__init__()
        self._tracebacks = tracebacks

    def _values(self, record: logging.LogRecord) -> dict[str, Any]:
        """The keys of one line: time, level, logger, msg, then the record's fields, then the error."""
        values: dict[str, Any] = {
            "time": _timestamp(record.created),
            "level": _LEVEL_WORDS.get(record.levelname, record.levelname),
            "logger": record.name.removeprefix("kvpressure."),
            "msg": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, Mapping):
            values |= {key: value for key, value in fields.items() if key not in values}
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            values["error"] = f"{type(error).__name__}: {error}"
            if self._tracebacks:
                values["traceback"] = "".join(traceback.format_exception(error))
        return {key: _cut(value) for key, value in values.items()}


class LogfmtFormatter(_Formatter):
    """
    ``time=... level=INFO logger=... msg="..." key=value``: values are quoted and escaped where they need it.

    Args:
        tracebacks: add the traceback of an exception, as one escaped value.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One record as one line."""
        return " ".join(f"{key}={_logfmt(value)}" for key, value in self._values(record).items())


class JsonFormatter(_Formatter):
    """
    One JSON object per record, with the keys of the logfmt lines.

    Args:
        tracebacks: add the traceback of an exception, as one string.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One record as one line."""
        return json.dumps(self._values(record), default=str)


class RateLimitedLog:
    """
    Warns at most once per key and period, and then says how many it held back.

    Args:
        logger: where the lines go.
        every: seconds between two lines of one key.
        clock: seconds, monotonic.
    """

    def __init__(
        self, logger: logging.Logger, *, every: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._every = every
        self._clock = clock
        self._told: dict[str, float] = {}
        self._held: dict[str, int] = {}

    def warning(self, key: str, message: str, *, error: BaseException | None = None, **fields: object) -> bool:
        """
        Log `message`, unless `key` was logged less than a period ago; tell whether it was logged.

        Keys must be of a small fixed set: each is remembered for good.
        """
        now = self._clock()
        last = self._told.get(key)
        if last is not None and now - last < self._every:
            self._held[key] = self._held.get(key, 0) + 1
            return False
        self._told[key] = now
        held = self._held.pop(key, 0)
        if held:
            fields["held_back"] = held
        self._logger.warning(message, extra={"fields": fields}, exc_info=error)
        return True

    def fault(self, message: str, fault: Exception) -> None:
        """Warn of a fault of ours: its kind and where it was. What it says is left out: it may quote what was read."""
        # Not `extract_tb`: that reads the source of every frame, and a stream may wait for it.
        frame, line = list(traceback.walk_tb(fault.__traceback__))[-1]
        where = f"{PurePath(frame.f_code.co_filename).name}:{line}"
        self.warning("fault", message, error_type=type(fault).__name__, where=where)


def _timestamp(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cut(value: object) -> object:
    if isinstance(value, bool | int | float) or value is None:
        return value
    text = str(value)
    return text if len(text) <= MAX_VALUE else text[:MAX_VALUE] + "..."


def _logfmt(value: object) -> str:
    """A value bare where that is unambiguous, else as a JSON string without any unprintable character."""
    text = json.dumps(value) if isinstance(value, bool | int | float) or value is None else str(value)
    if text and text.isprintable() and not set(text) & set(' "=\\'):
        return text
    # json.dumps leaves DEL alone, which a terminal would not.
    return json.dumps(text, ensure_ascii=not text.isprintable()).replace("\x7f", "\\u007f")
