"""The Helm chart rendered by the real tools, by itself and as a dependency, and what is in it."""

import atexit
import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helm_help import CHART, tools
from kubernetes_help import by_name, load_all

FIXTURES = Path(__file__).parent / "fixtures" / "helm"
Objects = dict[tuple[str, str], dict[str, Any]]
"""Objects by kind and name."""


def helm(
    binary: str, *words: str, values: Mapping[str, Any] | None = None, plugins: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run helm away from the user's own settings and plugins; `values` go in by stdin."""
    more = ("--values", "-") if values is not None else ()
    return subprocess.run(
        [binary, *words, *more],
        check=False,
        capture_output=True,
        text=True,
        input=json.dumps(values) if values is not None else None,
        env={"PATH": path(), "HOME": str(_home()), "HELM_PLUGINS": str(plugins or _home())},
    )


def path() -> str:
    """PATH, with kubectl in it where there is one: what a post-renderer needs."""
    return os.pathsep.join([*(str(Path(tool).parent) for tool in tools("kubectl")[:1]), os.environ["PATH"]])


@functools.cache
def version(binary: str) -> int:
    """The major version of a helm."""
    said = helm(binary, "version", "--template", "{{.Version}}").stdout
    return int(said.removeprefix("v").partition(".")[0])


@functools.cache
def dependent(binary: str) -> Path:
    """The fixture's chart of vLLM with this chart built into it by `helm dependency build`, out of the checkout."""
    chart = _new_folder() / "vllm"
    shutil.copytree(FIXTURES / "vllm", chart)
    metadata = chart / "Chart.yaml"
    text = metadata.read_text(encoding="utf-8")
    metadata.write_text(re.sub("file://.*", f"file://{CHART}", text), encoding="utf-8")
    said = helm(binary, "dependency", "build", str(chart))
    assert said.returncode == 0, said.stderr
    return chart


@functools.cache
def _home() -> Path:
    return _new_folder()


def _new_folder() -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    return folder


def template(binary: str, chart: Path, *words: str, **how: Any) -> Objects:
    """The objects that a chart renders to, as the release `vllm` in the namespace `llm`."""
    said = helm(binary, "template", "vllm", str(chart), "--namespace", "llm", *words, **how)
    assert said.returncode == 0, said.stderr
    return objects(said.stdout)


def objects(text: str) -> Objects:
    """Those in a stream of documents, of which some may be empty."""
    return by_name([one for one in load_all(text) if one])


HELMS = [pytest.param(path, id=f"helm {version(path)}") for path in tools("helm")]
each_helm = pytest.mark.parametrize(
    "binary", HELMS or [pytest.param("", marks=pytest.mark.skip(reason="needs helm: run `make kubetools`"))]
)
"""The test runs with every helm, the newest first."""
