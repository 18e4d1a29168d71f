"""The README of deploy/kubernetes/: what it tells to write is what builds."""

import json
import re

import pytest
from kubernetes_help import (
    EVERY_RENDERER,
    KUBERNETES,
    NAME,
    OBSERVED,
    SHAPES,
    VARIANTS,
    built,
    by_name,
    load,
    load_all,
    named,
    relative,
    sidecar,
    template,
    workload,
)

import kvpressure

README = (KUBERNETES / "README.md").read_text(encoding="utf-8")
ADDRESS = re.compile(r"https://github\.com/kvpressure/kvpressure//deploy/kubernetes/([a-z-]+)\?ref=v([0-9.]+)")


def blocks():
    """The pieces of YAML in it: the kustomization, and what is added to it."""
    found = re.findall(r"^( *)```yaml\n(.+?)\n *```$", README, flags=re.MULTILINE | re.DOTALL)
    return [load(re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)) for indent, text in found]


@pytest.mark.parametrize("renderer", EVERY_RENDERER)
@pytest.mark.parametrize("shape", OBSERVED)
def test_its_kustomization_builds(shape, renderer, tmp_path):
    """With a checkout's folders in the place of addresses it adds the sidecar, the settings and the lock."""
    overlay, settings, lock = blocks()
    assert {"patches"} == set(settings) == set(lock)
    overlay["patches"] = settings["patches"] + lock["patches"]
    for key in ("resources", "components"):
        overlay[key] = [
            relative(KUBERNETES / found[1], tmp_path) if (found := ADDRESS.fullmatch(one)) else one
            for one in overlay[key]
        ]
    (tmp_path / "vllm.yaml").write_bytes((SHAPES / f"{shape}.yaml").read_bytes())
    (tmp_path / "kustomization.yaml").write_text(json.dumps(overlay), encoding="utf-8")

    found = by_name(load_all(built(tmp_path, renderer)))

    assert {overlay["namespace"]} == {one["metadata"]["namespace"] for one in found.values()}
    spec = template(workload(found, shape))["spec"]
    assert sidecar(spec)
    name = named(spec["volumes"], "kvpressure-config")["configMap"]["name"]
    assert "8080" in found["ConfigMap", name]["data"]["kvpressure.yml"]
    (rule,) = found["NetworkPolicy", NAME]["spec"]["ingress"]
    assert "from" in rule


def test_its_addresses_lead_to_folders_of_this_version():
    """Every folder that an address names is there, and its version is the one that the README belongs to."""
    for folder, version in ADDRESS.findall(README):
        assert (KUBERNETES / folder / "kustomization.yaml").is_file()
        assert version == kvpressure.__version__
    assert len(ADDRESS.findall(README)) == README.count("github.com/kvpressure/kvpressure//")


def test_it_names_every_component():
    """Each of the variants has a row in the table, and is a folder; there are no others."""
    rows = re.findall(r"^\| `([a-z-]+)` \|", README, flags=re.MULTILINE)
    folders = {str(path.parent.relative_to(KUBERNETES)) for path in KUBERNETES.rglob("kustomization.yaml")}

    assert set(rows) | {name for name in VARIANTS if "/" in name} == {
        one for one in folders if not one.startswith("parts")
    }


def test_its_links_lead_somewhere():
    """Every file that it links to is there, and every heading in this page."""
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line.lower()).strip().replace(" ", "-")
        for line in re.findall(r"^#+ (.+)$", README, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", README):
        path, _, anchor = target.partition("#")
        if path.startswith("https:"):
            continue
        assert not path or (KUBERNETES / path).exists(), target
        assert path or anchor in headings, target
