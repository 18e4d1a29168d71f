"""The configuration itself as a file: every setting at its default, commented out under what it is for."""

import dataclasses
import json
import textwrap
from typing import Any

from kvpressure.bundle.config import SECTIONS, settings
from kvpressure.bundle.promql import duration, number

_WIDTH = 116


def text() -> str:
    """YAML that says nothing until a line is uncommented."""
    parts = []
    for section, described in SECTIONS.items():
        lines = [_comment(described.__doc__.strip().split("\n\n")[0], ""), f"{section}:"]
        for name, what in settings():
            if name.startswith(f"{section}."):
                lines += [_comment(what.metadata["help"], "  "), f"  # {name.partition('.')[2]}: {value(what)}"]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def value(what: dataclasses.Field[Any]) -> str:
    """A setting's default as YAML."""
    default: Any = what.default
    if what.metadata["kind"] == "duration":
        return duration(default)
    if isinstance(default, float):
        return number(default)
    return json.dumps(list(default) if isinstance(default, tuple) else default)


def _comment(sentence: str, margin: str) -> str:
    flat = " ".join(sentence.split())
    return textwrap.fill(flat, _WIDTH, initial_indent=f"{margin}# ", subsequent_indent=f"{margin}# ")
