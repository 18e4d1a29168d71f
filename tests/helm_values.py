"""Values that a schema allows, drawn at random: for the parts of JSON Schema that the chart's own uses."""

import string
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

HIGHEST = 10**9
"""No number above it: nothing in the chart is larger."""

_TEXT = st.text(string.ascii_letters + string.digits + " '\"{}:#%-=\\\n\u00e4", max_size=12)


def values(schema: Mapping[str, Any], root: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """What fits this schema, whose references lead into `root`."""
    if "$ref" in schema:
        return values(root["definitions"][schema["$ref"].rpartition("/")[2]], root)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = schema.get("type", "object")
    return st.one_of(*(_of(kind, schema, root) for kind in ([kinds] if isinstance(kinds, str) else kinds)))


def _of(kind: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    low, high = schema.get("minimum", 0), schema.get("maximum", HIGHEST)
    if kind == "object":
        return _object(schema, root)
    if kind == "array":
        items = values(schema["items"], root)
        return st.lists(items, min_size=schema.get("minItems", 0), max_size=2, unique_by=repr)
    if kind == "string":
        return _string(schema)
    simple: dict[str, st.SearchStrategy[Any]] = {
        "null": st.none(),
        "boolean": st.booleans(),
        "integer": st.integers(int(low), int(high)),
        "number": st.floats(low, high).filter(lambda number: number == 0 or abs(number) >= 1e-6),
    }
    return simple[kind]


def _object(schema: Mapping[str, Any], root: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    required = schema.get("required", [])
    known = {name: values(what, root) for name, what in schema.get("properties", {}).items()}
    fixed = st.fixed_dictionaries(
        {name: known[name] for name in required}, optional={k: v for k, v in known.items() if k not in required}
    )
    for pattern, what in schema.get("patternProperties", {}).items():
        keys = st.from_regex(pattern, fullmatch=True, alphabet=_ASCII).filter(lambda key: len(key) <= 63)
        return st.dictionaries(keys, values(what, root), max_size=2)
    return fixed


def _string(schema: Mapping[str, Any]) -> st.SearchStrategy[str]:
    longest = schema.get("maxLength", 200)
    text = st.from_regex(schema["pattern"], fullmatch=True, alphabet=_ASCII) if "pattern" in schema else _TEXT
    return text.filter(lambda one: schema.get("minLength", 0) <= len(one) <= longest)


_ASCII = st.characters(min_codepoint=32, max_codepoint=126)
