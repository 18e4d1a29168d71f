# small helpers, named for what they do
"""
Kustomizations built with the real tools, and what is in them.

Overlays are written into a folder outside the checkout, as a user's would be, and name the checkout's folders by their
relative path: kustomize takes no absolute one.
"""

import functools
import itertools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml
from helm_help import tools

ROOT = Path(__file__).parents[1]
KUBERNETES = ROOT / "deploy" / "kubernetes"
SHAPES = Path(__file__).parent / "fixtures" / "kubernetes"
UNLABELLED = "unlabelled"

OBSERVED = sorted(path.stem for path in SHAPES.glob("*.yaml") if path.stem != UNLABELLED)
"""The files with a workload that is labelled for the sidecar."""
NATIVE = ("metrics", "metrics-log", "metrics-tap", "metrics-log-tap")
VARIANTS = (*NATIVE, *(f"classic/{name}" for name in NATIVE))
"""The components, by their folder below deploy/kubernetes/."""
CASES = [
    pytest.param(variant, shape, id=f"{variant} {shape}") for variant, shape in itertools.product(VARIANTS, OBSERVED)
]
"""Each component with each shape of a workload."""
LOGGED = [variant for variant in VARIANTS if "log" in variant]
TAPPED = [variant for variant in VARIANTS if "tap" in variant]

NEEDS = "needs kubectl: run `make kubetools`"
_KUSTOMIZE = shutil.which("kustomize")
RENDERERS = [*((path, "kustomize") for path in tools("kubectl")), *([(_KUSTOMIZE, "build")] if _KUSTOMIZE else [])]
"""What builds kustomizations: every kubectl, the newest first, and kustomize itself, as versions of it differ."""
EVERY_RENDERER = RENDERERS or [pytest.param((), marks=pytest.mark.skip(reason=NEEDS))]
OTHER_RENDERERS = RENDERERS[1:] or [pytest.param((), marks=pytest.mark.skip(reason="needs a second kustomize"))]


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Reads a bare `=` as text, as Kubernetes does and kustomize writes it."""


Loader.yaml_implicit_resolvers = {
    first: [one for one in found if first != "="] for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
NAME = "kvpressure"
WORKLOADS = ("Deployment", "StatefulSet", "LeaderWorkerSet")
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105  # where Kubernetes mounts it


def built(folder, renderer=()):
    """The text that a kustomization builds, with the newest tool. It must build without a word of complaint."""
    if not RENDERERS:
        pytest.skip(NEEDS)
    said = subprocess.run([*(renderer or RENDERERS[0]), str(folder)], check=False, capture_output=True, text=True)
    assert (0, "") == (said.returncode, said.stderr)
    return said.stdout


def written(folder, resources, components=(), **more):
    """Write a kustomization of these files and folders (copies of the former) with these components."""
    folder.mkdir(exist_ok=True)
    names = []
    for path in resources:
        if path.is_dir():
            names.append(relative(path, folder))
        else:
            names.append(path.name)
            (folder / path.name).write_bytes(path.read_bytes())
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": names,
        "components": [relative(KUBERNETES / name, folder) for name in components],
        **more,
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return folder


def relative(path, folder):
    """The way from a folder to a path."""
    return os.path.relpath(path.resolve(), folder.resolve())


@functools.cache
def rendered(variant, *shapes, renderer=()):
    """The text of an overlay of some shapes, all where none is named; with no component where `variant` is empty."""
    names = shapes or (*OBSERVED, UNLABELLED)
    with tempfile.TemporaryDirectory() as folder:
        paths = [SHAPES / f"{name}.yaml" for name in names]
        return built(written(Path(folder) / "mine", paths, [variant] if variant else []), renderer)


@functools.cache
def objects(variant, *shapes):
    """The same as objects, by kind and name. They are shared: copy them before a change."""
    return by_name(load_all(rendered(variant, *shapes)))


def load(text):
    """One document."""
    return yaml.load(text, Loader)  # noqa: S506  # a safe one


def load_all(text):
    """All documents."""
    return list(yaml.load_all(text, Loader))  # the same


def by_name(documents):
    """Objects by kind and name; none is there twice."""
    found = {}
    for one in documents:
        key = one["kind"], one["metadata"]["name"]
        assert key not in found
        found[key] = one
    return found


@functools.cache
def original(shape):
    """The objects of a shape as they were."""
    return by_name(load_all((SHAPES / f"{shape}.yaml").read_text(encoding="utf-8")))


def workload(found, shape):
    """The one workload of a shape among built objects."""
    (key,) = (key for key, one in original(shape).items() if one["kind"] in WORKLOADS)
    return found[key]


def template(one):
    """The template of the pods with vLLM in them."""
    if one["kind"] == "LeaderWorkerSet":
        return one["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    return one["spec"]["template"]


def pod(variant, shape):
    """The spec of a pod with a sidecar."""
    return template(workload(objects(variant), shape))["spec"]


def containers(spec):
    """All containers of a pod."""
    return [*spec.get("initContainers", []), *spec["containers"]]


def sidecar(spec):
    """The one container of ours."""
    (found,) = (one for one in containers(spec) if one["name"] == NAME)
    return found


def named(items, name):
    """The one of these with a name."""
    (found,) = (one for one in items if one["name"] == name)
    return found


def flags(container):
    """The flags of a container's arguments, by name."""
    return dict(word.removeprefix("--").split("=", 1) for word in container["args"] if word.startswith("--"))


def config_map(found, name):
    """What a ConfigMap among built objects holds."""
    return found["ConfigMap", name]["data"]
