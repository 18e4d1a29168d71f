"""The families that a package's source makes: its declarations of metrics, read from the syntax and never executed."""

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvpressure.vllm import names

from . import drift_source
from .drift_found import Families, Found
from .drift_source import Source

KINDS = ("gauge", "counter", "histogram", "info")

MENTIONED = "named in the source"
"""Said of a name whose declaration is not understood, if it has one."""

_LONGEST_NOTE = 60


def engines(source: Source) -> dict[str, Families]:
    """
    The families of each engine in a package, V0 before V1.

    V0 is there as long as its engine is a class of its own: 0.11 keeps the metrics, and the name as another for V1's.
    Its metrics stand in engine/, V1's everywhere else; a package with V0 alone has no v1/.
    """
    found: dict[str, Families] = {}
    v0 = "engine/llm_engine.py" in source.files and any(
        isinstance(node, ast.ClassDef) and node.name == "LLMEngine" for node in source.tree("engine/llm_engine.py").body
    )
    for engine in ("V0", "V1"):
        families: Families = {}
        for path in source.naming():
            if path.startswith("engine/") == (engine == "V0"):
                for family in _declared(path, source):
                    families[family.name] = _better(families.get(family.name), family)
        _drop_mentions(families)
        if names.CACHE_CONFIG.aliases[0].name in families:
            _add_cache_labels(families, source)
        if families and (engine == "V1" or v0):
            found[engine] = families
    return found


def _drop_mentions(families: Families) -> None:
    """A counter is named with and without ``_total``: one of them is its declaration."""
    for name in [name for name, family in families.items() if not family.kind]:
        base = name.removesuffix("_total")
        if base != name and base in families:
            del families[name]


@dataclass(frozen=True, slots=True)
class _Place:
    """
    Where a piece of syntax stands.

    Args:
        node: the piece.
        scope: the function around it, or the module.
        condition: the innermost condition that it stands under, in words; empty for none.
    """

    node: ast.AST
    scope: ast.AST
    condition: str = ""


def _declared(path: str, source: Source) -> Iterator[Found]:
    """What a file declares, and what it merely names."""
    tree = source.tree(path)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for place in _walk(tree):
        match place.node:
            case ast.Call() as call:
                first = call.args[0] if call.args else None
                yield from _named(_given(call).get("name", first), call, place, source)
            case ast.Dict(keys=keys, values=values):
                # The offloading connector's are a table: name -> OffloadingCounterMetadata(...).
                for key, value in zip(keys, values, strict=True):
                    if isinstance(value, ast.Call):
                        yield from _named(key, value, place, source)
            case ast.Constant(value=str() as text) if id(place.node) not in docs and _is_name(text):
                yield Found(text.removeprefix(names.PREFIX), note=MENTIONED)


def _named(name: ast.expr | None, call: ast.Call, place: _Place, source: Source) -> Iterator[Found]:
    """The family that a call makes under a name, if it makes one."""
    kind = _kind(call.func)
    written = drift_source.text(name, place.scope, source) if kind else None
    if written is None or not _is_name(written):
        return
    short = written.removeprefix(names.PREFIX)
    given = _given(call)
    labels, whole = drift_source.labels(given.get("labelnames"), place.scope, source)
    edges = drift_source.edges(given.get("buckets"), place.scope, source) if kind == "histogram" else None
    yield Found(
        short.removesuffix("_total") if kind == "counter" else short,
        kind,
        labels,
        whole and "labelnames" in given,
        edges=edges,
        note=place.condition,
    )


def _given(call: ast.Call) -> dict[str, ast.expr]:
    """The arguments of a call that are given by name."""
    return {word.arg: word.value for word in call.keywords if word.arg}


def _is_name(value: str) -> bool:
    rest = value.removeprefix(names.PREFIX)
    return rest != value and rest.replace("_", "a").isalnum() and rest.islower()


def _kind(function: ast.expr) -> str:
    """The type that a call makes, by the name of what is called: Gauge, _gauge_cls, OffloadingGaugeMetadata."""
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return next((kind for kind in KINDS if kind in called.lower()), "")


def _better(old: Found | None, new: Found) -> Found:
    """Of two finds of one name, the one that tells more; the first of equals."""
    return new if old is None or (not old.kind and new.kind) else old


def _walk(tree: ast.Module) -> Iterator[_Place]:
    """Every node of a module."""
    stack = [_Place(tree, tree)]
    while stack:
        place = stack.pop()
        yield place
        node, scope, condition = place.node, place.scope, place.condition
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            scope, condition = node, ""
        if isinstance(node, ast.If):
            test = textwrap.shorten(ast.unparse(node.test), _LONGEST_NOTE, placeholder=" ...")
            stack.extend(_Place(part, scope, f"only if {test}") for part in node.body)
            stack.extend(_Place(part, scope, f"only if not ({test})") for part in node.orelse)
            stack.append(_Place(node.test, scope, condition))
        else:
            stack.extend(_Place(child, scope, condition) for child in ast.iter_child_nodes(node))


def _add_cache_labels(families: Families, source: Source) -> None:
    """cache_config_info has the fields of CacheConfig for labels, and one for the engine where there are several."""
    info = names.CACHE_CONFIG.aliases[0].name
    fields: set[str] = set()
    for path, content in source.files.items():
        if "class CacheConfig" in content:
            for node in ast.walk(source.tree(path)):
                if isinstance(node, ast.ClassDef) and node.name == "CacheConfig":
                    fields |= set(_fields(node))
    old = families[info]
    families[info] = replace(old, labels=old.labels | fields, whole=False, note="")


def _fields(cache: ast.ClassDef) -> Iterator[str]:
    """The fields of a class: annotated in its body, or set on `self`, as 0.6 did."""
    for field in cache.body:
        if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
            yield ast.unparse(field.target)
    for part in ast.walk(cache):
        if isinstance(part, ast.Assign | ast.AnnAssign):
            for target in part.targets if isinstance(part, ast.Assign) else [part.target]:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    yield target.attr
