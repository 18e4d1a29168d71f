"""What pyproject.toml says that the package needs."""

import ast
import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
PART_OF_AIOHTTP = {"multidict"}
"""Its headers are made of it, so any version of it that is installed beside it fits."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def declared(lines):
    """The range of each distribution, by its name as indexes have it."""
    return {plain(found.name): found.specifier for found in map(Requirement, lines)}


def plain(name):
    """A distribution's name, without what indexes make no difference of."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imported():
    """The distributions of others that the package imports, wherever in it."""
    tops = set()
    for path in (ROOT / "exporter" / "kvpressure").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                tops |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                tops.add(node.module.partition(".")[0])
    known = packages_distributions()
    return {plain(name) for top in tops for name in known.get(top, ())} - {"kvpressure"}


def test_whatever_is_imported_is_asked_for():
    """What comes along with a dependency, in whatever version suits that, is a dependency of its own."""
    optional = PROJECT["optional-dependencies"]
    asked = declared([*PROJECT["dependencies"], *optional["auth"], *optional["bundle"]])

    assert {"aiohttp", "requests", "urllib3"} <= imported()
    assert imported() - set(asked) - PART_OF_AIOHTTP == set()


@pytest.mark.parametrize(("version", "fits"), [("1.26.20", False), ("2.1.0", False), ("2.2.0", True), ("2.8.0", True)])
def test_urllib3_has_read1(version, fits):
    """Bodies are read by read1, which urllib3 has from 2.2 on; requests is content with 1.26."""
    asked = declared(PROJECT["dependencies"]).get("urllib3", SpecifierSet())

    assert asked.contains(version) is fits
