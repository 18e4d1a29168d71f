"""YAML files that must be understood to the last key: settings, and the web configuration."""

from typing import Any

import yaml

from kvpressure import files
from kvpressure.settings import ConfigError, shown


def read(path: str) -> dict[Any, Any]:
    """
    The mapping in a YAML file; empty where the file says nothing.

    Raises:
        ConfigError: it cannot be read, is not YAML, has a key twice, or is not a mapping.
    """
    try:
        document = yaml.load(files.read(path).decode("utf-8"), _Strict)  # noqa: S506  # a SafeLoader
    except OSError as fault:
        raise ConfigError(f"{path}: cannot be read: {fault.strerror}") from fault
    except UnicodeDecodeError as fault:
        raise ConfigError(f"{path}: is not UTF-8 text") from fault
    # The library's own constructors raise the others on a tag whose value is none of its kind.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(fault, "problem", None) or "cannot be parsed"
        raise ConfigError(f"{path}: is not YAML{where}: {problem}") from fault
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: must be a mapping, not {shown(document)}")
    return document


class _Strict(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, where YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        """Construct the mapping of a node."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {shown(str(key.value))} stands here a second time", key.start_mark
                )
            seen.add(key.value if isinstance(key.value, str) else id(key))
        return super().construct_mapping(node, deep=deep)
