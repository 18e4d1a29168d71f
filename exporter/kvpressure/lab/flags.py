"""Values of the lab's flags: each function reads one text and says in plain words what it should have been."""

import argparse
import math
import os
import re
from collections.abc import Callable

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]*\.?[0-9]+)(ms|s|m|h)")
_ORIGIN = re.compile(r"(https?://(?:[^\s/?#@:\[\]]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?)(?:/v1)?/?")


class UsageError(Exception):
    """The flags cannot be served as they are; the message is one sentence for the user."""


def positive(text: str) -> float:
    """A number above 0."""
    value = _number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def not_negative(text: str) -> float:
    """A number of 0 or more."""
    value = _number(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return value


def count(least: int) -> Callable[[str], int]:
    """What reads a whole number of at least ``least``."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return read


def duration(text: str) -> float:
    """Seconds, more than none, in ``60s``, ``500ms``, ``1m30s`` or a bare number."""
    parts = _DURATION.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    else:
        seconds = _number(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f'{text!r} is not a duration over 0 like "60s"')
    return seconds


def origin(text: str) -> str:
    """The address of an OpenAI-compatible server, without the ``/v1`` that clients are often given with it."""
    found = _ORIGIN.fullmatch(text)
    if found is None:
        # Not repeated: what is no such URL can hold a password.
        raise argparse.ArgumentTypeError("the value is not a URL like http://127.0.0.1:8000 (without a user name)")
    return found[1]


def cause(error: OSError) -> str:
    """The system's words, without the library's around them; a failed name look-up has negative numbers."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error)).lower()


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    return value if math.isfinite(value) else math.nan
