"""One setting: its default, help text, kind and bounds, and how a text or YAML value becomes it."""

import dataclasses
import math
import re
from dataclasses import field
from typing import Any
from urllib.parse import SplitResult, urlsplit

_LONGEST_SHOWN = 80
_HIGHEST_PORT = 65535


class ConfigError(ValueError):
    """A setting that cannot be used; the message is one sentence that names it and says what to do."""


def setting(  # noqa: PLR0913  # one line of a table, all but three by keyword
    default: Any,  # noqa: ANN401  # the field's own annotation gives the type
    text: str,
    kind: str,
    *,
    low: float | None = None,
    high: float | None = None,
    name: str = "",
) -> Any:  # noqa: ANN401
    """A dataclass field that also knows its help text, its kind and its bounds, and its name where that is another."""
    return field(default=default, metadata={"help": text, "kind": kind, "low": low, "high": high, "name": name})


def parse(what: dataclasses.Field[Any], given: object, where: str) -> Any:  # noqa: ANN401
    """
    The value of a setting, from text or YAML.

    Raises:
        ConfigError: it is not of the setting's kind, or out of its bounds; the sentence starts with `where`.
    """
    kind = what.metadata["kind"]
    try:
        value = _PARSERS[kind](given)
    except (TypeError, ValueError, OverflowError) as fault:
        raise ConfigError(f"{where}: {_safe(kind, given)} is not {_KINDS[kind]}") from fault
    low, high = what.metadata["low"], what.metadata["high"]
    unit = "s" if kind == "duration" else ""
    if low is not None and value < low:
        raise ConfigError(f"{where}: {shown(given)} is too small; the least is {low:g}{unit}")
    if high is not None and value > high:
        raise ConfigError(f"{where}: {shown(given)} is too large; the most is {high:g}{unit}")
    return value


def shown(given: object) -> str:
    """A value as the user wrote it, cut to a length that fits into a sentence."""
    text = type(given).__name__ if isinstance(given, dict | list) else _written(given)
    return repr(text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "...")


def _written(given: object) -> str:
    try:
        return str(given)
    except ValueError:  # Python writes no number of thousands of digits
        return "a number of thousands of digits"


def _safe(kind: str, given: object) -> str:
    """The value, unless it can hold a secret: a header, or a URL with a user name, a query or, a mistake, a header."""
    secret = kind in ("headers", "webhook") or (
        kind in ("url", "origin") and not set("@? ").isdisjoint(_written(given))
    )
    if secret:
        return "the value"
    flat = isinstance(given, list) and all(isinstance(item, str) for item in given)
    return shown(", ".join(given) if flat else given)  # type: ignore[arg-type]


def duration(text: str) -> float:
    """
    Seconds in a duration as Prometheus writes it ("1s", "500ms", "1m30s"), or in a bare number.

    Raises:
        ValueError: it is neither.
    """
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    if re.fullmatch(r"[0-9]*\.?[0-9]+", text, re.ASCII):
        return float(text)
    parts = re.findall(r"([0-9]*\.?[0-9]+)(ms|s|m|h|d)", text)
    if not parts or "".join(n + u for n, u in parts) != text:
        raise ValueError(text)
    return sum(float(n) * units[u] for n, u in parts)


def some_time(flag: str, text: str, example: str) -> float:
    """
    Seconds that a flag of a command says, more than none.

    Raises:
        ConfigError: it is no such duration; the sentence shows the example.
    """
    try:
        seconds = duration(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < math.inf:
        raise ConfigError(f'{flag}: {shown(text)} is not a duration over 0 like "{example}"')
    return seconds


def _text(given: object) -> str:
    if not isinstance(given, str):
        raise TypeError
    if not given.isprintable():
        raise ValueError
    return given


def _number(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise TypeError
    if isinstance(given, str) and not re.fullmatch(r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?", given, re.ASCII):
        raise ValueError
    value = float(given)
    if not math.isfinite(value):
        raise ValueError
    return value


def _count(given: object) -> int:
    value = _number(given)
    if value != int(value):
        raise ValueError
    return int(value)


def _duration(given: object) -> float:
    seconds = duration(given) if isinstance(given, str) else _number(given)
    if not 0.0 <= seconds < math.inf:
        raise ValueError
    return seconds


def _switch(given: object) -> bool:
    if isinstance(given, bool):
        return given
    return {"true": True, "false": False}[_text(given)] if given in ("true", "false") else _raise()


def _raise() -> Any:  # noqa: ANN401
    raise ValueError


def _url(given: object) -> str:
    text = _text(given)
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or re.search(r"\s", text):
        raise ValueError
    _ = parts.port  # raises ValueError where it is no port number
    return text if parts.path not in ("", "/") else parts._replace(path="/metrics").geturl()


def _origin(given: object) -> str:
    parts = urlsplit(_url(given))
    if parts.path != "/metrics" or parts.query or parts.fragment or str(given).rstrip("/").endswith("/metrics"):
        raise ValueError
    return f"{parts.scheme}://{parts.netloc}"


def _webhook(given: object) -> str:
    _url(given)
    return _text(given)


def _files(given: object) -> tuple[str, ...]:
    lines = _lines(given)
    if not lines or not all(lines):
        raise ValueError
    return lines


def _lines(given: object) -> tuple[str, ...]:
    if not isinstance(given, str | list | tuple):
        raise TypeError
    return tuple(_text(line) for line in ([given] if isinstance(given, str) else given))


def _headers(given: object) -> tuple[str, ...]:
    lines = _lines(given)
    for line in lines:
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: ?[\t\x20-\x7e]*", line):
            raise ValueError
    return lines


def _addresses(given: object) -> tuple[str, ...]:
    lines = _lines(given)
    for line in lines:
        split_address(line)
    if not lines:
        raise ValueError
    return lines


def split_address(text: str) -> tuple[str, int]:
    """
    Host (empty for every interface) and port of "host:port", ":port" or "[::1]:port".

    Raises:
        ValueError: it is none of these.
    """
    parts = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]\s]*)):([0-9]{1,5})", text)
    if parts is None or int(parts[3]) > _HIGHEST_PORT:
        raise ValueError
    return parts[1] or parts[2] or "", int(parts[3])


def port_of(url: SplitResult) -> int:
    """The port of an http or https URL, also where it is left out."""
    return url.port or (443 if url.scheme == "https" else 80)


def _path(given: object) -> str:
    text = _text(given)
    if not re.fullmatch(r"/[A-Za-z0-9_./-]*[A-Za-z0-9_-]", text) or text.startswith(("/-/", "/api/")):
        raise ValueError
    return text


_MATCHER = r'[a-zA-Z_][a-zA-Z0-9_]*(=|!=|=~|!~)"(\\.|[^"\\])*"'


def _matchers(given: object) -> str:
    text = _text(given).strip()
    if text and not re.fullmatch(rf"{_MATCHER}(\s*,\s*{_MATCHER})*", text, re.ASCII):
        raise ValueError
    return text


def _labels(given: object) -> tuple[str, ...]:
    labels = _lines(given)
    if not all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", label, re.ASCII) for label in labels):
        raise ValueError
    return labels


def _pairs(given: object) -> tuple[str, ...]:
    pairs = _lines(given)
    if not all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_./-]*=[A-Za-z0-9_.-]*", pair, re.ASCII) for pair in pairs):
        raise ValueError
    return pairs


def _alert_url(given: object) -> str:
    text = _text(given)
    if "{alert}" not in text or "}" in text.replace("{alert}", "") or "{" in text.replace("{alert}", ""):
        raise ValueError
    _url(text.replace("{alert}", "x"))
    return text


def _one_of(*allowed: str) -> Any:  # noqa: ANN401
    def parse(given: object) -> str:
        if given not in allowed:
            raise ValueError
        return str(given)

    return parse


_PARSERS: dict[str, Any] = {
    "url": _url,
    "origin": _origin,
    "files": _files,
    "text": _text,
    "file": _text,
    "number": _number,
    "ratio": _number,
    "count": _count,
    "duration": _duration,
    "switch": _switch,
    "headers": _headers,
    "addresses": _addresses,
    "path": _path,
    "level": _one_of("debug", "info", "warn", "error"),
    "format": _one_of("logfmt", "json"),
    "matchers": _matchers,
    "labels": _labels,
    "pairs": _pairs,
    "alert-url": _alert_url,
    "window": _one_of("1m", "5m", "15m"),
    "webhook": _webhook,
    "receiver": _one_of("webhook", "slack", "pagerduty"),
}
_KINDS = {
    "url": "a URL like http://127.0.0.1:8000/metrics (http or https, no user name in it)",
    "origin": "a URL like http://127.0.0.1:8000 (http or https, without a path)",
    "files": "the path of a file or a pattern like /var/log/vllm/*.log",
    "text": "text",
    "file": "the path of a file",
    "number": "a number",
    "ratio": "a number",
    "count": "a whole number",
    "duration": 'a duration like "1s", "500ms" or "5m"',
    "switch": "true or false",
    "headers": 'a header like "Name: value"',
    "addresses": 'an address like ":10938" or "127.0.0.1:10938"',
    "path": "a path like /metrics (not under /-/ or /api/)",
    "level": "one of debug, info, warn, error",
    "format": "logfmt or json",
    "matchers": 'matchers of labels like namespace="chat",cluster=~"eu-.+"',
    "labels": "a list of label names",
    "pairs": "a list of labels like release=prometheus",
    "alert-url": "a URL with {alert} where the alert's name goes",
    "window": "a window that the exporter has: 1m, 5m or 15m",
    "webhook": "a URL like http://127.0.0.1:9095/page (http or https, no user name in it)",
    "receiver": "one of webhook, slack, pagerduty",
}
