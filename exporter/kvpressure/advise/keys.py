"""A mapping in a file, understood to its last key: each key is a setting, as in the exporter's own configuration."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from kvpressure.advise.seen import AdviseError
from kvpressure.settings import ConfigError, parse, shown

Part = TypeVar("Part")


def known(part: type[Part], content: Mapping[Any, Any], where: str, *, beside: tuple[str, ...] = ()) -> Part:
    """
    What a mapping sets, checked by kind and bounds; what it does not set keeps its default.

    Args:
        part: a dataclass of settings, one per key.
        content: the mapping.
        where: the file, and the key that the mapping stands under, for the sentence.
        beside: keys that are read elsewhere.

    Raises:
        AdviseError: a key is not known, or a value is not understood.
    """
    fields = {what.name: what for what in dataclasses.fields(part)}  # type: ignore[arg-type]  # a dataclass
    found: dict[str, Any] = {}
    for key, value in content.items():
        if key in beside:
            continue
        if key not in fields:
            raise AdviseError(f"{where}: unknown key {shown(str(key))}; known are {', '.join((*fields, *beside))}")
        if value is None:
            raise AdviseError(f"{where}: {key} has no value; give one or leave the key out")
        try:
            found[key] = parse(fields[key], value, f"{where}: {key}")
        except ConfigError as fault:
            raise AdviseError(str(fault)) from fault
    return part(**found)


def mapping(content: object, where: str) -> Mapping[Any, Any]:
    """
    The value as a mapping.

    Raises:
        AdviseError: it is none.
    """
    if not isinstance(content, dict):
        raise AdviseError(f"{where} must be a mapping of keys, not {shown(content)}")
    return content
