"""The report as JSON: every field of the advice, no number rounded. docs/advise.schema.json describes it."""

import json
import math
from dataclasses import asdict

from kvpressure import __version__
from kvpressure.advise.advice import Advice

SCHEMA_VERSION = 1
"""Raised when a field goes away or means something else; a new field does not raise it."""


def text(advice: Advice) -> str:
    """The advice as JSON text in ASCII. A number that is not finite is null, as is one that is not known."""
    document = {"schema_version": SCHEMA_VERSION, "generated_by": f"kvpressure {__version__}", "advice": asdict(advice)}
    return json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"


def _finite(part: object) -> object:
    if isinstance(part, float):
        return part if math.isfinite(part) else None
    if isinstance(part, dict):
        return {name: _finite(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return [_finite(value) for value in part]
    return part
