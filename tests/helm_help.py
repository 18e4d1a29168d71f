"""
What is generated for the Helm chart, and where the tools for Kubernetes are.

Generated (tests/generate.py writes it): the part of `values.schema.json` about kvpressure's settings, and the table of
values in deploy/helm/README.md.
"""

import functools
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvpressure import config, tables

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "kvpressure"
README = ROOT / "deploy" / "helm" / "README.md"
SCHEMA = CHART / "values.schema.json"
VALUES = CHART / "values.yaml"


@functools.cache
def tools(name: str) -> tuple[str, ...]:
    """
    Every one of these that is to be had, newest first.

    They are those that the environment names (KVPRESSURE_HELM, KVPRESSURE_KUBECTL; like PATH), those of
    `make kubetools`, and that of PATH.
    """
    given = os.environ.get(f"KVPRESSURE_{name.upper()}", "")
    kept = sorted((ROOT / ".cache" / "kube").glob(f"v*/{name}"), reverse=True)
    places = [*filter(None, given.split(os.pathsep)), *map(str, kept), shutil.which(name) or ""]
    return tuple(dict.fromkeys(place for place in places if Path(place).is_file()))


def values_table() -> str:
    """The table of values in the README, made of values.yaml and its comments."""
    return tables.markdown(("value", "default", "meaning"), list(_values()))


def _values() -> Iterator[tuple[str, str, str]]:
    """Every value that holds no others, with its default and the comment above it."""
    path: list[str] = []
    comment: list[str] = []
    for line in VALUES.read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r"( *)([A-Za-z]+):(?: (.+))?", line):
            depth = len(found[1]) // 2
            path[depth:] = [found[2]]
            if found[3]:
                yield f"`{'.'.join(path)}`", f"`{found[3]}`", " ".join(comment)
            comment = []
        else:
            comment = [*comment, line.strip().removeprefix("# ")] if line else []


OWN = ("web.listen-address", "tap.listen")
"""Settings that are no part of `sidecar.config`, because values of their own set them, and more than them."""


def schema(text: str) -> str:
    """The schema of the values with its part about kvpressure's settings made anew."""
    whole = json.loads(text)
    sections: dict[str, Any] = {}
    for name, what in config.settings():
        section, _, key = name.partition(".")
        if name not in OWN:
            sections.setdefault(section, _object({}))["properties"][key] = _kind(what.metadata)
    whole["definitions"]["config"] = {"$comment": "Generated from kvpressure.config.", **_object(sections)}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _kind(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a setting takes in the YAML file, as far as JSON Schema can say it."""
    bounds = {"minimum": metadata["low"], "maximum": metadata["high"]}
    bounds = {name: bound for name, bound in bounds.items() if bound is not None}
    found: dict[str, dict[str, Any]] = {
        "count": {"type": "integer", **bounds},
        "number": {"type": "number", **bounds},
        "ratio": {"type": "number", **bounds},
        "duration": {"type": ["number", "string"], "minimum": 0, **bounds, "pattern": _DURATION},
        "switch": {"type": "boolean"},
        "url": {"type": "string", "pattern": "^https?://[^@\\s]+$"},
        "origin": {"type": "string", "pattern": "^https?://[^@/\\s]+/?$"},
        "path": {"type": "string", "pattern": "^/[A-Za-z0-9_./-]*[A-Za-z0-9_-]$"},
        "level": {"enum": ["debug", "info", "warn", "error"]},
        "format": {"enum": ["logfmt", "json"]},
        "headers": {"type": ["string", "array"], "items": {"type": "string"}},
        "files": {"type": ["string", "array"], "minLength": 1, "items": {"type": "string", "minLength": 1}},
        "text": {"type": "string"},
        "file": {"type": "string"},
    }
    return found[metadata["kind"]]


_DURATION = "^([0-9]*\\.?[0-9]+|([0-9]*\\.?[0-9]+(ms|s|m|h|d))+)$"
