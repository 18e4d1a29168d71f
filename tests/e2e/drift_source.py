"""
The source of a vLLM that is not imported: its files, and what expressions in them come to where that can be seen.

Only constants are followed: through names, through attributes of classes, through sums of lists, and through vLLM's own
functions of bucket edges. Anything else stays unknown; nothing is executed.
"""

import ast
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from kvpressure.vllm import names

TOKENS = (1.0, 2.0, 5.0)
"""Edges that grow by 1, 2, 5, 10, ... up to max_model_len: known by their beginning only."""

_MENTION = re.compile(rf"[\"']{names.PREFIX}[a-z]")


class Source:
    """
    The Python files of one package.

    Args:
        files: text by path, from the package's own folder on: ``v1/metrics/loggers.py``.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files
        self._trees: dict[str, ast.Module] = {}
        self._constants: dict[str, list[ast.expr]] | None = None

    def tree(self, path: str) -> ast.Module:
        """The syntax of a file; empty where it is no Python that this interpreter reads."""
        if path not in self._trees:
            try:
                self._trees[path] = ast.parse(self.files[path])
            except SyntaxError:
                self._trees[path] = ast.Module([], [])
        return self._trees[path]

    def naming(self) -> list[str]:
        """Paths of the files that spell a metric's name, in order."""
        return sorted(path for path, text in self.files.items() if _MENTION.search(text))

    def release(self) -> str | None:
        """The package's version, as it states it itself; None where it does not."""
        for path in ("_version.py", "version.py"):
            for node in ast.walk(self.tree(path)) if path in self.files else ():
                if isinstance(node, ast.Assign) and "__version__" in _targets(node):
                    value = node.value
                    if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value[:1].isdigit():
                        return value.value
        return None

    def assigned(self, name: str) -> list[ast.expr]:
        """What is assigned to a name or an attribute, anywhere in the files that name metrics or their edges."""
        if self._constants is None:
            self._constants = {}
            paths = {*self.naming(), *(path for path in self.files if path.startswith("v1/metrics/"))}
            for path in sorted(paths):
                for node in ast.walk(self.tree(path)):
                    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                        for target in _targets(node):
                            self._constants.setdefault(target, []).append(node.value)
        return self._constants.get(name, [])


class NotAPackageError(ValueError):
    """What was given holds no vLLM; the message is one sentence."""


def read(path: Path) -> Source:
    """
    Read a wheel, a folder with `vllm/` in it (an unpacked wheel, site-packages), or that folder itself.

    Raises:
        NotAPackageError: there is no vLLM in it.
        OSError: it cannot be read.
    """
    files: dict[str, str] = {}
    if path.is_dir():
        home = path if (path / "__init__.py").is_file() else path / "vllm"
        for file in sorted(home.rglob("*.py")):
            files[file.relative_to(home).as_posix()] = file.read_text(encoding="utf-8", errors="replace")
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                if name.startswith("vllm/") and name.endswith(".py"):
                    files[name.removeprefix("vllm/")] = wheel.read(name).decode("utf-8", "replace")
    source = Source(files)
    if not source.naming():
        raise NotAPackageError(f"{path} holds no vLLM: name a wheel, or a folder with vllm/ in it")
    return source


def text(node: ast.expr | None, scope: ast.AST, source: Source) -> str | None:
    """The string that an expression comes to; None where that cannot be seen."""
    return next((value for value in _constants(node, scope, source) if isinstance(value, str)), None)


def labels(node: ast.expr | None, scope: ast.AST, source: Source, depth: int = 0) -> tuple[frozenset[str], bool]:
    """The strings of a list, and whether these are all of them."""
    if node is None:
        return frozenset(), True
    if isinstance(node, ast.List | ast.Tuple):
        parts = [text(item, scope, source) for item in node.elts]
        return frozenset(part for part in parts if part is not None), None not in parts
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        (left, all_left), (right, all_right) = (labels(side, scope, source, depth) for side in (node.left, node.right))
        return left | right, all_left and all_right
    if isinstance(node, ast.Name) and depth < _DEEP:
        values = list(_assigned_in(scope, node.id))
        if len(values) == 1:
            return labels(values[0], scope, source, depth + 1)
    return frozenset(), False


def edges(node: ast.expr | None, scope: ast.AST, source: Source, depth: int = 0) -> tuple[float, ...] | None:
    """The numbers of a list of bucket edges, or TOKENS; None where they cannot be seen."""
    if node is None or depth > _DEEP:
        return None
    if isinstance(node, ast.List | ast.Tuple):
        values = [item.value for item in node.elts if isinstance(item, ast.Constant)]
        numbers = tuple(float(value) for value in values if isinstance(value, int | float))
        return numbers if len(numbers) == len(node.elts) else None
    if isinstance(node, ast.Call):
        return _called_edges(node, source)
    if isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        meant = list(_assigned_in(scope, name)) or source.assigned(name)
        known = {found for one in meant if (found := edges(one, scope, source, depth + 1)) is not None}
        return known.pop() if len(known) == 1 else None
    return None


def _called_edges(call: ast.Call, source: Source) -> tuple[float, ...] | None:
    """Edges by vLLM's functions: those of tokens, and since 0.32 histogram_buckets("inter_token_latency")."""
    if "1_2_5" in ast.unparse(call.func):
        return TOKENS
    key = call.args[0] if call.args else None
    if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
        return None
    if key.value == "request_tokens":
        return TOKENS
    for value in source.assigned(f"{key.value.upper()}_BUCKETS"):
        if (found := edges(value, ast.Module([], []), source)) is not None:
            return found
    return None


_DEEP = 4


def _constants(node: ast.expr | None, scope: ast.AST, source: Source) -> Iterator[object]:
    if isinstance(node, ast.Constant):
        yield node.value
    elif isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        values = list(_assigned_in(scope, name)) if isinstance(node, ast.Name) else []
        for value in values or source.assigned(name):
            if isinstance(value, ast.Constant) and value.value is not None:
                yield value.value


def _assigned_in(scope: ast.AST, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and name in _targets(node):
            yield node.value


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [t.id if isinstance(t, ast.Name) else t.attr for t in targets if isinstance(t, ast.Name | ast.Attribute)]
