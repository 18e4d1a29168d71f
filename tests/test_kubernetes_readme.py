"""The README of deploy/kubernetes/: what it tells to write is what builds."""

import json
import re
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml
from commands import kvpressure
from kubernetes_help import (
    EVERY_RENDERER,
    KUBERNETES,
    NAME,
    NATIVE,
    OBSERVED,
    SHAPES,
    VARIANTS,
    built,
    by_name,
    load,
    load_all,
    named,
    objects,
    original,
    relative,
    sidecar,
    template,
    workload,
)
from webdoor import hashed, issued

import kvpressure as package

README = (KUBERNETES / "README.md").read_text(encoding="utf-8")
ADDRESS = re.compile(r"https://github\.com/kvpressure/kvpressure//deploy/kubernetes/([a-z-]+)\?ref=v([0-9.]+)")
CHECKOUT = "../kvpressure/deploy/kubernetes/"
BUNDLE = "mine/deploy/kubernetes/"
SCHEMAS = Path(__file__).parent / "fixtures" / "schemas"
IMAGE = "registry.example.org/kvpressure:0.1.0"
TLS = "/etc/kvpressure-web"


def texts():
    """The pieces of YAML in it, as they stand."""
    found = re.findall(r"^( *)```yaml\n(.+?)\n *```$", README, flags=re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


OVERLAY, MY, LABELS, LOCK, WEB, DOOR, SCRAPE = texts()


def uncommented():
    """The first with what is commented out in it, but for the sentence about it."""
    return re.sub(r"^# (?!Where)", "", OVERLAY, flags=re.MULTILINE)


def place(folder, shape, overlay):
    """Write it beside a workload, with the checkout's folders at their place, and those of a bundle of the defaults."""
    for key in {"resources", "components"} & set(overlay):
        overlay[key] = [
            relative(KUBERNETES / one.removeprefix(start), folder)
            if one.startswith(start := CHECKOUT if one.startswith(CHECKOUT) else BUNDLE)
            else one
            for one in overlay[key]
        ]
    if shape:
        (folder / "vllm.yaml").write_bytes((SHAPES / f"{shape}.yaml").read_bytes())
    (folder / "kustomization.yaml").write_text(json.dumps(overlay), encoding="utf-8")
    return folder


@pytest.mark.parametrize("renderer", EVERY_RENDERER)
@pytest.mark.parametrize("shape", OBSERVED)
def test_its_kustomization_builds(shape, renderer, tmp_path):
    """It adds the sidecar, of the image that it names, with vLLM at the port that it names once that is uncommented."""
    urls = []
    for text in (OVERLAY, uncommented()):
        overlay = load(text)
        found = by_name(load_all(built(place(tmp_path, shape, overlay), renderer)))

        assert {overlay["namespace"]} == {one["metadata"]["namespace"] for one in found.values()}
        spec = template(workload(found, shape))["spec"]
        assert IMAGE == sidecar(spec)["image"]
        name = named(spec["volumes"], "kvpressure-config")["configMap"]["name"]
        urls.append(load(found["ConfigMap", name]["data"]["kvpressure.yml"]))

    assert ["http://127.0.0.1:8000/metrics", "http://127.0.0.1:8080/metrics"] == [one["vllm"]["url"] for one in urls]
    assert ["http://127.0.0.1:8000", "http://127.0.0.1:8080"] == [one["tap"]["upstream"] for one in urls]


def test_it_counts_the_workloads_with_a_sidecar(tmp_path):
    """The command that looks for a forgotten label counts each workload once, and none where the label is missing."""
    words = re.search(r"kubectl kustomize \. \| (grep -c .+)", README)[1].split()

    def count(text):
        return subprocess.run(words, check=False, capture_output=True, text=True, input=text).stdout.strip()

    for variant in VARIANTS:
        assert str(len(OBSERVED)) == count(json_lines(objects(variant)))
    overlay = place(tmp_path, "unlabelled", load(OVERLAY))
    assert "0" == count(built(overlay))


def json_lines(found):
    """Objects as kustomize writes them, as far as lines go."""
    return yaml.safe_dump_all(found.values())


def test_its_bundle_is_what_it_says(tmp_path):
    """`my.yml` gives a PodMonitor with its label, and receivers that read the keys that the Secret is made with."""
    (tmp_path / "my.yml").write_text(MY, encoding="utf-8")
    said = kvpressure("bundle", "--config", str(tmp_path / "my.yml"), "--out", str(tmp_path / "mine"))
    assert said.returncode == 0, said.stderr

    folder = tmp_path / BUNDLE
    labels = dict(one.split("=") for one in load(MY)["kubernetes"]["labels"])
    monitoring = by_name(load_all(built(folder / "monitoring")))
    assert labels == monitoring["PodMonitor", NAME]["metadata"]["labels"]
    config = by_name(load_all(built(folder / "namespace")))["AlertmanagerConfig", NAME]
    assert labels == config["metadata"]["labels"]
    receivers = {one["name"]: one for one in config["spec"]["receivers"]}
    keys = [
        receivers["kvpressure-page"]["pagerdutyConfigs"][0]["routingKey"],
        receivers["kvpressure-ticket"]["slackConfigs"][0]["apiURL"],
    ]
    made = re.search(r"-n llm create secret generic (\S+) (.+)", README[README.index("```yaml\n   # my.yml") :])
    assert [{"name": made[1], "key": word.removeprefix("--from-file=")} for word in made[2].split()] == keys


def test_its_labels_reach_what_prometheus_selects(tmp_path):
    """The kustomization with other labels gives them to the PodMonitor and the rules, and selects the same pods."""
    found = by_name(load_all(built(place(tmp_path, "", load(LABELS)))))

    (wanted,) = load(LABELS)["labels"]
    for kind in ("PodMonitor", "PrometheusRule"):
        assert wanted["pairs"] == found[kind, NAME]["metadata"]["labels"]
    assert {"matchLabels": {NAME: "sidecar"}} == found["PodMonitor", NAME]["spec"]["selector"]


def test_its_lock_opens_nothing_else(tmp_path):
    """With the patch for pods that have a policy already, ours only lets Prometheus in."""
    found = by_name(load_all(built(place(tmp_path, "", load(LOCK)))))

    (rule,) = found["NetworkPolicy", NAME]["spec"]["ingress"]
    assert "from" in rule


@pytest.mark.parametrize("variant", ["metrics", "metrics-log-tap"])
@pytest.mark.parametrize("shape", [one for one in OBSERVED if workload(original(one), one)["kind"] == "Deployment"])
def test_its_door_is_locked(shape, variant, tmp_path):
    """The patches for TLS give a Deployment's sidecar the Secret, readable for its group, and a probe by HTTPS."""
    overlay = load(OVERLAY)
    overlay |= {"patches": load(DOOR)["patches"], "components": [CHECKOUT + variant]}
    found = by_name(load_all(built(place(tmp_path, shape, overlay))))
    spec = template(workload(found, shape))["spec"]
    ours = sidecar(spec)
    assert spec["securityContext"]["fsGroup"] == ours["securityContext"]["runAsGroup"]
    assert {"secretName": "kvpressure-web", "defaultMode": 0o440} == named(spec["volumes"], "kvpressure-web")["secret"]
    assert TLS == named(ours["volumeMounts"], "kvpressure-web")["mountPath"]
    assert "HTTPS" == ours["livenessProbe"]["httpGet"]["scheme"]
    assert "/-/healthy" == ours["livenessProbe"]["httpGet"]["path"]


def test_the_exporter_takes_its_door(tmp_path, authority):
    """kvpressure accepts the settings and the web.yml that it shows, with a real certificate and hash in them."""
    settings = load(load(DOOR)["patches"][0]["patch"])["data"]["kvpressure.yml"]
    certificate, key = issued(authority, "sidecar", "kvpressure")
    web = WEB.replace("$2b$12$...", hashed("sesame")).replace(f"{TLS}/tls.crt", certificate)
    (tmp_path / "web.yml").write_text(web.replace(f"{TLS}/tls.key", key), encoding="utf-8")
    (tmp_path / "web.yml").chmod(0o600)
    config = tmp_path / "kvpressure.yml"
    config.write_text(settings.replace(TLS, str(tmp_path)), encoding="utf-8")

    said = kvpressure("serve", "--config.file", str(config), "--config.check")
    assert (0, "") == (said.returncode, said.stderr)


def test_prometheus_gets_in(tmp_path):
    """The PodMonitor with what it shows is one that the operator takes, and logs in as the user of web.yml."""
    found = by_name(load_all(built(place(tmp_path, "", load(SCRAPE)))))["PodMonitor", NAME]

    schema = json.loads((SCHEMAS / "PodMonitor-v1.schema.json").read_text(encoding="utf-8"))
    jsonschema.validators.validator_for(schema)(schema).validate(found)
    (endpoint,) = found["spec"]["podMetricsEndpoints"]
    assert "https" == endpoint["scheme"]
    (user,) = load(WEB)["basic_auth_users"]
    made = re.search(r"-n monitoring create secret generic (\S+) \\\n +(.+)", README)
    assert f"--from-literal=username={user}" in made[2]
    keys = [endpoint["tlsConfig"]["ca"]["secret"], *endpoint["basicAuth"].values()]
    assert {made[1]} == {one["name"] for one in keys}
    assert {one["key"] for one in keys} == {re.split("[= ]", word)[1] for word in made[2].split()}


def test_its_addresses_lead_to_folders_of_this_version():
    """Every folder that an address names is there, and its version is the one that the README belongs to."""
    for folder, version in ADDRESS.findall(README):
        assert (KUBERNETES / folder / "kustomization.yaml").is_file()
        assert version == package.__version__
    assert len(ADDRESS.findall(README)) == README.count("github.com/kvpressure/kvpressure//")


def test_it_names_every_component():
    """Each of the variants has a row in the table, and is a folder; so are the three for Prometheus, and no others."""
    rows = re.findall(r"^\| `([a-z-]+)` \|", README, flags=re.MULTILINE)
    folders = {str(path.parent.relative_to(KUBERNETES)) for path in KUBERNETES.rglob("kustomization.yaml")}
    others = {"monitoring", "namespace", "servicemonitor"}

    assert list(NATIVE) == rows
    assert all(f"`{name}`" in README for name in others)
    assert {*VARIANTS, *others} == {one for one in folders if not one.startswith("parts")}


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
