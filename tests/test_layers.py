"""Imports point one way (exporter/DESIGN.md, Layout): read from the source, and from what `serve` really loads."""

import ast
import subprocess
import sys
from pathlib import Path

import kvpressure

ROOT = Path(kvpressure.__file__).parent

# What each layer may import of kvpressure, beside itself. Listed from the bottom up.
ALLOWED = {
    "__init__": set(),
    "family": set(),
    "signals": {"family", "signals_streams", "signals_exporter"},
    "signals_streams": {"family"},
    "signals_exporter": {"family"},
    "files": set(),
    "settings": set(),
    "yamlfile": {"files", "settings"},
    "sections": {"settings", "yamlfile"},
    "config": {"settings", "sections"},
    "log": {"config"},
    "credentials": {"files", "settings"},
    "listening": {"settings"},
    "connections": set(),
    "threads": set(),
    "tables": set(),
    "recording": set(),
    "runbooks": set(),
    "vllm": {"family", "signals", "config"},
    "derive": {"family", "signals", "signals_streams", "config", "vllm"},
    "observe": {"listening", "connections", "client", "config", "settings", "log", "credentials", "vllm"},
    "expose": {
        "__init__",
        "runbooks",
        "family",
        "signals",
        "signals_streams",
        "signals_exporter",
        "config",
        "settings",
        "yamlfile",
        "log",
        "listening",
        "connections",
        "credentials",
        "vllm",
        "derive",
    },
    "bundle": {
        "runbooks",
        "family",
        "signals",
        "signals_streams",
        "signals_exporter",
        "settings",
        "sections",
        "vllm.names",
    },
    "lab": {"__init__", "vllm.names", "vllm.exposed"},
    "replay": {"config", "family", "signals", "signals_streams", "tables", "recording", "derive", "vllm"},
    "transport": set(),
    "client": {"__init__", "config", "credentials", "settings"},
    "check": {
        "client",
        "credentials",
        "transport",
        "config",
        "settings",
        "family",
        "signals",
        "tables",
        "derive",
        "vllm",
    },
    "advise": {
        "__init__",
        "client",
        "config",
        "credentials",
        "derive",
        "expose.page.tree",
        "expose.page.words",
        "family",
        "files",
        "lab",
        "recording",
        "replay",
        "settings",
        "signals",
        "signals_streams",
        "tables",
        "transport",
        "vllm",
        "yamlfile",
    },
    "serve": {"__init__", "files", "config", "settings", "log", "threads", "vllm", "derive", "expose", "observe"},
    "demo": {"tables"},
    "cli": None,
    "__main__": None,
}
PURE = ("vllm", "derive", "family", "signals", "signals_streams", "signals_exporter")
IMPURE_MODULES = {"time", "datetime", "os", "io", "socket", "asyncio", "aiohttp", "requests", "pathlib", "random"}


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found |= {f"{module}.{alias.name}" if module in PACKAGES else module for alias in node.names}
    return found


PACKAGES = {"kvpressure"} | {f"kvpressure.{path.name}" for path in ROOT.iterdir() if (path / "__init__.py").exists()}


def layer(path: Path) -> str:
    """The package or the module right below kvpressure that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_every_module_belongs_to_a_layer():
    """No module or package stands outside the list, and the list names none that is gone."""
    assert {layer(path) for path in ROOT.rglob("*.py")} == set(ALLOWED)


def test_imports_point_one_way():
    """Each layer imports only itself and what stands below it."""
    wrong = []
    for path in ROOT.rglob("*.py"):
        own, allowed = layer(path), ALLOWED[layer(path)]
        if allowed is None:
            continue
        for name in imports(path):
            if not name.startswith("kvpressure"):
                continue
            inner = name.removeprefix("kvpressure").removeprefix(".") or "__init__"
            inner = "__init__" if inner == "__version__" else inner
            top = inner.partition(".")[0]
            if top != own and top not in allowed and inner not in allowed:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")

    assert wrong == []


def test_the_core_has_no_clock_and_does_no_io():
    """vllm/ and derive/ import nothing that reads a clock, a file or a socket."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in ROOT.rglob("*.py")
        if layer(path) in PURE
        for name in imports(path)
        if name.partition(".")[0] in IMPURE_MODULES
    ]

    assert wrong == []


def test_serve_loads_no_tool():
    """What `kvpressure serve` imports has no generator, no lab and no requests in it."""
    code = "import kvpressure.cli, kvpressure.serve, sys; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()

    unwanted = (
        "kvpressure.advise",
        "kvpressure.bundle",
        "kvpressure.lab",
        "kvpressure.check",
        "kvpressure.demo",
        "grafanalib",
        "requests",
    )
    assert [name for name in loaded if name.startswith(unwanted)] == []


def test_upstream_names_stand_in_one_place():
    """No module outside vllm/ spells one of vLLM's metric names."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in ROOT.rglob("*.py")
        if layer(path) != "vllm"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("vllm:")
    ]

    assert wrong == []


def test_modules_stay_readable():
    """No module is over 400 lines: that would be two modules."""
    long = {
        str(path.relative_to(ROOT)): lines
        for path in ROOT.rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }

    assert long == {}
