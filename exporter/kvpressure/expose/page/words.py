"""Numbers as people read them. Each function takes base units; None, what cannot be known, is a dash."""

import math
import re

UNKNOWN = "\N{EN DASH}"
"""What stands where a value cannot be known."""

_SPACE = "\N{NO-BREAK SPACE}"  # a number and its unit stay together
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_ONE_IN = 0.3  # above it, "1 in 3" and "1 in 2" would hide too much


def count(value: float | None) -> str:
    """A count, or a rate per thousand: ``0.4``, ``17``, ``12,345``."""
    if value is None:
        return UNKNOWN
    if value == 0.0 or value >= 10.0 or float(value).is_integer():  # noqa: PLR2004  # two digits are enough
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.05 else f"<{_SPACE}0.1"  # noqa: PLR2004  # what rounds to 0.0 is not nothing


def percent(ratio: float | None) -> str:
    """A share from 0 to 1; what is neither nothing nor all is not rounded to it."""
    if ratio is None:
        return UNKNOWN
    shown = round(100.0 * ratio)
    if shown == 0 and ratio > 0.0:
        return f"<{_SPACE}1{_SPACE}%"
    return f">{_SPACE}99{_SPACE}%" if shown == 100 and ratio < 1.0 else f"{shown}{_SPACE}%"  # noqa: PLR2004  # per cent


def seconds(value: float | None) -> str:
    """A short time, like a gap: ``53 ms``, ``1.24 s``, ``14 s``."""
    if value is None:
        return UNKNOWN
    if value < 0.9995:  # noqa: PLR2004  # what rounds to a second is one
        return f"{1000.0 * value:.0f}{_SPACE}ms"
    return f"{value:.2f}{_SPACE}s" if value < 9.995 else f"{value:.0f}{_SPACE}s"  # noqa: PLR2004  # three digits


def span(value: float) -> str:
    """How long something has lasted: ``40 s``, ``6 min``, ``2 h 5 min``, ``3 d 4 h``. Cut, not rounded."""
    if value < _MINUTE:
        return f"{max(0.0, math.floor(value)):.0f}{_SPACE}s"
    if value < _HOUR:
        return f"{value // _MINUTE:.0f}{_SPACE}min"
    if value < _DAY:
        return _two(value, _HOUR, "h", _MINUTE, "min")
    return _two(value, _DAY, "d", _HOUR, "h")


def one_in(ratio: float) -> str:
    """A share as people count: ``1 in 4``, above that ``53 %``."""
    if ratio <= 0.0:
        return "none"
    return percent(ratio) if ratio > _ONE_IN else f"1 in {round(1.0 / ratio):,}"


def over(threshold: float) -> str:
    """The threshold of a pause: ``over a second``, ``over 2.5 s``."""
    return "over a second" if threshold == 1.0 else f"over {threshold:g}{_SPACE}s"


def number_of(value: float, one: str, many: str) -> str:
    """A count with its noun: ``1 request``, ``14 requests``."""
    return f"{count(value)} {one if value == 1.0 else many}"


def capital(text: str) -> str:
    """The text as the start of a sentence; names like ``vLLM`` and ``num_gpu_blocks`` keep their spelling."""
    first = re.split("[ ,:;']", text, maxsplit=1)[0]
    return text[:1].upper() + text[1:] if first.isalpha() and first.islower() else text


def _two(value: float, large: float, large_unit: str, small: float, small_unit: str) -> str:
    rest = value % large // small
    whole = f"{value // large:.0f}{_SPACE}{large_unit}"
    return f"{whole}{_SPACE}{rest:.0f}{_SPACE}{small_unit}" if rest else whole
