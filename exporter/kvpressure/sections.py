"""Sections of settings: from strict YAML and from flags, to the last key. What is not understood is an error."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from kvpressure import yamlfile
from kvpressure.settings import ConfigError, parse, shown

Sections = Mapping[str, Any]
"""Dataclasses of settings by their key in the file; the order is that of the documentation."""


def named(sections: Sections) -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Every setting with its dotted name, as in the flag and the file: ``("kv.pin-threshold", field)``."""
    for name, section in sections.items():
        for what in dataclasses.fields(section):
            yield f"{name}.{what.metadata['name'] or what.name.replace('_', '-')}", what


def values(sections: Sections, path: str, flags: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """
    What is set, by section and field: from a YAML file (none where `path` is empty), with `flags` over it.

    Raises:
        ConfigError: the file cannot be read, or a key or a value is not understood.
    """
    given = _from_file(sections, path) if path else {}
    found: dict[str, dict[str, Any]] = {name: {} for name in sections}
    for name, what in named(sections):
        section = name.partition(".")[0]
        if flags and flags.get(name) is not None:
            found[section][what.name] = parse(what, flags[name], f"--{name}")
        elif name in given:
            found[section][what.name] = parse(what, given[name], f"{path}: {name}")
    return found


def _from_file(sections: Sections, path: str) -> dict[str, Any]:
    """The file's values by dotted name, every name known."""
    known = dict(named(sections))
    given: dict[str, Any] = {}
    for section, content in yamlfile.read(path).items():
        if section not in sections:
            raise ConfigError(f"{path}: unknown section {shown(section)}; known are {', '.join(sections)}")
        if content is not None and not isinstance(content, dict):
            raise ConfigError(f"{path}: {section} must be a mapping of settings, not {shown(content)}")
        for key, value in (content or {}).items():
            name = f"{section}.{key}"
            if name not in known:
                others = ", ".join(k.partition(".")[2] for k in known if k.startswith(section + "."))
                raise ConfigError(f"{path}: unknown key {name}; known under {section} are {others}")
            given[name] = value
    return given
