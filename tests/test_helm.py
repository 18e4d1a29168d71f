"""The Helm chart: it makes what kustomize makes, of the same files, by itself and as a dependency of other charts."""

import copy
import json
import re
import shutil
import subprocess
import tarfile
import textwrap
from pathlib import Path

import pytest
import yaml
from helm_chart import FIXTURES, dependent, each_helm, helm, objects, path, template, version
from helm_help import CHART, README, ROOT
from kubernetes_help import KUBERNETES, VARIANTS, built, by_name, relative

import kvpressure


def test_it_has_the_version_of_the_package():
    """A chart's image is that of its own version, unless a value says otherwise."""
    metadata = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))

    assert kvpressure.__version__ == metadata["version"] == metadata["appVersion"]


@each_helm
def test_helm_finds_no_fault_in_it(binary):
    """Not a warning either."""
    said = helm(binary, "lint", "--strict", str(CHART))

    assert (0, "0 chart(s) failed") == (said.returncode, said.stdout.strip().rpartition(", ")[2])
    assert "WARNING" not in said.stdout


def kustomized():
    """What the two folders of the bundle are, by kustomize."""
    return objects(built(KUBERNETES / "monitoring") + "\n---\n" + built(KUBERNETES / "namespace"))


@each_helm
def test_by_itself_it_makes_the_bundle(binary):
    """With no values set it makes the very objects of kustomize, with the braces of the alerts' texts untouched."""
    found = template(binary, CHART)

    assert kustomized() == found
    assert "{{ $labels.model_name }}" in json.dumps(found["PrometheusRule", "kvpressure"])


@each_helm
def test_its_output_is_for_any_reader_of_yaml(binary):
    """Readers that take a bare = for something else than text read it too, which they do not read of kustomize."""
    said = helm(binary, "template", str(CHART))

    assert kustomized() == by_name(yaml.load_all(said.stdout, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    with pytest.raises(yaml.constructor.ConstructorError):
        yaml.safe_load(built(KUBERNETES / "namespace").partition("---")[0])


@each_helm
def test_a_part_that_the_chart_cannot_follow_is_an_error(binary, tmp_path):
    """A patch with an operation that its templates do not know is refused, not left out."""
    chart = tmp_path / "kvpressure"
    shutil.copytree(CHART, chart)
    part = chart / "files" / "parts" / "native" / "kustomization.yaml"
    part.write_text(part.read_text(encoding="utf-8").replace("op: add", "op: remove"), encoding="utf-8")
    call = tmp_path / "kvpressure" / "templates" / "pod.yaml"
    call.write_text('{{ include "kvpressure.volumes" . }}', encoding="utf-8")

    said = helm(binary, "template", str(chart), "--set", "sidecar.enabled=true")
    assert "kvpressure: the chart cannot remove /template/spec/containers/0/restartPolicy" in said.stderr


@each_helm
def test_a_packaged_chart_needs_no_checkout(binary, tmp_path):
    """The package holds the files behind the links, leaves pictures out, and makes the same objects."""
    said = helm(binary, "package", str(CHART), "--destination", str(tmp_path))
    assert said.returncode == 0, said.stderr
    (package,) = tmp_path.glob("*.tgz")
    with tarfile.open(package) as archive:
        members = archive.getmembers()

    assert all(member.isfile() for member in members)
    assert not [member.name for member in members if member.name.endswith((".png", "README.md"))]
    assert template(binary, CHART) == template(binary, package)
    # Helm keeps a release in a Secret, of a mebibyte at most: the chart and its output, compressed, in base64 twice.
    assert package.stat().st_size < 100_000


@each_helm
def test_links_that_were_not_followed_are_named(binary, tmp_path):
    """A copy without them says which file is missing, and why."""
    chart = tmp_path / "kvpressure"
    shutil.copytree(CHART, chart, symlinks=True, ignore=shutil.ignore_patterns("files"))

    said = helm(binary, "template", str(chart))

    assert said.returncode != 0
    assert re.search(r"files/\S+\.yaml is not in the chart\. Its files/ are symbolic links", said.stderr)


# --- as a dependency ------------------------------------------------------------------------------------------------


def with_sidecar(binary, *words, **sidecar):
    """What the chart of vLLM renders to with this under `sidecar`."""
    values = {"kvpressure": {"sidecar": {"enabled": True, **sidecar}}}
    return template(binary, dependent(binary), *words, values=values)


def comparable(found):
    """
    Objects without what may differ between Helm and kustomize.

    That is the ConfigMaps' names (a release's name here, a hash there), the annotation that stands in for the hash, the
    order of lists whose items have names, and how the settings are written down.
    """
    text = json.dumps(list(found.values()))
    text = re.sub(r'"(?:vllm-)?(kvpressure(?:-vllm-logging)?)(?:-[a-z0-9]{10})?"', r'"\1"', text)
    found = by_name(ordered(json.loads(text)))
    for one in found.values():
        if one["kind"] == "Deployment":
            one["spec"]["template"]["metadata"].pop("annotations", None)
        if "kvpressure.yml" in one.get("data", {}):
            one["data"]["kvpressure.yml"] = yaml.safe_load(one["data"]["kvpressure.yml"])
    return found


def ordered(found):
    if isinstance(found, dict):
        return {key: ordered(value) for key, value in found.items()}
    if isinstance(found, list) and all(isinstance(item, dict) and "name" in item for item in found):
        return sorted(map(ordered, found), key=lambda item: item["name"])
    return [ordered(item) for item in found] if isinstance(found, list) else found


@each_helm
@pytest.mark.parametrize("variant", VARIANTS)
def test_its_templates_make_the_pod_of_the_component(binary, variant, tmp_path):
    """Each variant, included into a chart, gives what the component gives when laid over the same chart's output."""
    found = with_sidecar(
        binary,
        native="classic/" not in variant,
        log={"enabled": "-log" in variant},
        tap={"enabled": "-tap" in variant, "serve": True},
    )

    bare = template(binary, dependent(binary), values={"kvpressure": {"sidecar": {"enabled": False}}})
    assert {"Deployment", "Service"} == {kind for kind, _ in bare}
    assert ["model"] == [one["name"] for one in pod(bare)["initContainers"]]
    (tmp_path / "bare.yaml").write_text(yaml.safe_dump_all(bare.values()), encoding="utf-8")
    overlay = {"resources": ["bare.yaml"], "components": [relative(KUBERNETES / variant, tmp_path)]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")

    assert comparable(objects(built(tmp_path))) == comparable(found)


def pod(found):
    """The pod of the fixture's Deployment."""
    return found["Deployment", "vllm"]["spec"]["template"]["spec"]


def container(found):
    """The sidecar in it."""
    (one,) = (one for one in pod(found)["initContainers"] if one["name"] == "kvpressure")
    return one


@each_helm
def test_ports_are_changed_everywhere(binary):
    """The web port in the container and its flags, the tap's in the Service too, vLLM's in the settings."""
    values = {
        "port": 9100,
        "sidecar": {
            "enabled": True,
            "tap": {"enabled": True, "port": 9001, "serve": True},
            "vllm": {"port": 9000, "scheme": "https"},
        },
    }
    found = template(binary, dependent(binary), values={"kvpressure": values})

    ports = {port["name"]: port["containerPort"] for port in container(found)["ports"]}
    assert {"kvpressure": 9100, "kvpressure-tap": 9001} == ports
    assert {"--web.listen-address=:9100", "--tap.listen=:9001"} <= set(container(found)["args"])
    assert 9001 == found["Service", "vllm"]["spec"]["ports"][0]["targetPort"]
    settings = yaml.safe_load(found["ConfigMap", "vllm-kvpressure"]["data"]["kvpressure.yml"])
    assert "https://127.0.0.1:9000/metrics" == settings["vllm"]["url"]
    assert "https://127.0.0.1:9000" == settings["tap"]["upstream"]


@each_helm
def test_the_service_leads_to_the_tap_when_it_is_told_to(binary):
    """Pods get their tap first, and the Service its port in a step of its own; never one where nobody listens."""

    def leads_to(**tap):
        return with_sidecar(binary, tap=tap)["Service", "vllm"]["spec"]["ports"][0]["targetPort"]

    assert [8000, 8001, 8000] == [
        leads_to(enabled=True),
        leads_to(enabled=True, serve=True),
        leads_to(enabled=False, serve=True),
    ]


@each_helm
def test_what_the_values_say_of_the_container_holds(binary):
    """Image and resources are replaced, security and probe laid over, null takes a field away, volumes are added."""
    digest = "sha256:" + "a" * 64
    given = {
        "image": {"repository": "mirror.example/kvpressure", "tag": "1", "digest": digest, "pullPolicy": "Always"},
        "resources": {"limits": {"memory": "1Gi"}},
        "securityContext": {"runAsUser": None, "runAsGroup": 1000680000},
        "livenessProbe": {"httpGet": {"scheme": "HTTPS"}},
        "extraVolumes": [{"name": "web", "secret": {"secretName": "web"}}],
        "extraVolumeMounts": [{"name": "web", "mountPath": "/etc/web"}],
    }
    plain = with_sidecar(binary)
    changed = with_sidecar(binary, **given)

    expected = copy.deepcopy(container(plain))
    del expected["securityContext"]["runAsUser"]
    expected["securityContext"]["runAsGroup"] = 1000680000
    expected["livenessProbe"]["httpGet"]["scheme"] = "HTTPS"
    expected["image"] = f"mirror.example/kvpressure:1@{digest}"
    expected["imagePullPolicy"] = "Always"
    expected["resources"] = given["resources"]
    expected["volumeMounts"] += given["extraVolumeMounts"]
    assert expected == container(changed)
    assert pod(plain)["volumes"] + given["extraVolumes"] == pod(changed)["volumes"]


@each_helm
def test_changed_settings_roll_the_pods(binary):
    """The annotation changes with the settings, and with nothing else."""

    def annotations(**sidecar):
        return with_sidecar(binary, **sidecar)["Deployment", "vllm"]["spec"]["template"]["metadata"]["annotations"]

    assert annotations() == annotations(resources={"limits": {"cpu": 1}})
    assert annotations() != annotations(config={"kv": {"pin-threshold": 0.9}})
    assert ["checksum/kvpressure"] == list(annotations())


@each_helm
def test_a_cluster_too_old_for_the_sidecar_is_told_so(binary):
    """Before 1.29 only the ordinary container is rendered; before 1.25 the chart by itself is not."""
    old = ("--kube-version", "1.28.5")
    chart = str(dependent(binary))

    said = helm(binary, "template", chart, *old)
    assert "kvpressure: Kubernetes v1.28.5 starts no native sidecars; set sidecar.native to false" in said.stderr
    assert ("Deployment", "vllm") in with_sidecar(binary, *old, native=False)
    assert (
        "incompatible with Kubernetes v1.24.0"
        in helm(binary, "template", str(CHART), "--kube-version", "1.24.0").stderr
    )


@each_helm
def test_the_wrong_scope_is_told_what_the_right_one_is(binary, tmp_path):
    """Who includes a template with a bare dot reads what to write instead."""
    chart = tmp_path / "vllm"
    shutil.copytree(dependent(binary), chart)
    manifest = chart / "templates" / "vllm.yaml"
    manifest.write_text(manifest.read_text(encoding="utf-8").replace(".Subcharts.kvpressure", "."), encoding="utf-8")

    assert 'include "kvpressure..." .Subcharts.kvpressure' in helm(binary, "template", str(chart)).stderr


@each_helm
def test_two_of_it_share_a_chart_by_aliases(binary, tmp_path):
    """An alias names the ConfigMaps, and its own values hold for what is included from it."""
    chart = tmp_path / "vllm"
    shutil.copytree(dependent(binary), chart, ignore=shutil.ignore_patterns("charts", "Chart.lock"))
    metadata = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    (first,) = metadata["dependencies"]
    metadata["dependencies"] = [first, {**first, "alias": "other"}]
    (chart / "Chart.yaml").write_text(yaml.safe_dump(metadata), encoding="utf-8")
    manifest = chart / "templates" / "vllm.yaml"
    manifest.write_text(
        manifest.read_text(encoding="utf-8").replace("Subcharts.kvpressure", "Subcharts.other"), "utf-8"
    )
    said = helm(binary, "dependency", "build", str(chart))
    assert said.returncode == 0, said.stderr

    off = {"monitoring": {"enabled": False}, "namespace": {"enabled": False}}
    found = template(binary, chart, values={"other": {"sidecar": {"enabled": True}, "port": 9100, **off}})

    assert {"vllm-kvpressure", "vllm-other"} == {name for kind, name in found if kind == "ConfigMap"}
    assert 9100 == container(found)["ports"][0]["containerPort"]
    assert {"name": "kvpressure-config", "configMap": {"name": "vllm-other"}} in pod(found)["volumes"]


# --- with a chart of somebody else ----------------------------------------------------------------------------------


def post_renderer(folder: Path) -> Path:
    """The files that the README shows, as it shows them, but for where the checkout is."""
    page = README.read_text(encoding="utf-8").partition("## With a chart of somebody else")[2]
    kustomization, label, script, plugin = re.findall(r"```(?:yaml|sh)\n(.*?)```", page, re.DOTALL)[:4]
    (folder / "plugin.yaml").write_text(plugin, encoding="utf-8")
    (folder / "label").mkdir()
    (folder / "label" / "kustomization.yaml").write_text(label, encoding="utf-8")
    here, count = re.subn(r"\.\./kvpressure/deploy/kubernetes", relative(KUBERNETES, folder), kustomization)
    assert count == 1
    (folder / "kustomization.yaml").write_text(here, encoding="utf-8")
    file = folder / "post-render.sh"
    file.write_text(script, encoding="utf-8")
    file.chmod(0o755)
    return file


@each_helm
def test_a_post_renderer_adds_the_sidecar_to_a_chart_that_takes_none(binary, tmp_path):
    """
    The README's own files do, to vLLM and not to the router, and leave nothing of the chart's output behind.

    Helm 3 runs the script, Helm 4 the plugin that is made of it; a pipe into the script gives the same.
    """
    folder = tmp_path / "plugins" / "kvpressure"
    folder.mkdir(parents=True)
    script = post_renderer(folder)
    chart = FIXTURES / "third-party"

    renderer = str(script) if version(binary) == 3 else "kvpressure"
    found = template(binary, chart, "--post-renderer", renderer, plugins=folder.parent)
    text = helm(binary, "template", "vllm", str(chart)).stdout
    said = subprocess.run([str(script)], check=True, capture_output=True, text=True, input=text, env={"PATH": path()})
    assert found == objects(said.stdout)

    pods = {name: one["spec"]["template"]["spec"] for (kind, name), one in found.items() if kind == "Deployment"}
    (added,) = pods["vllm-small-deployment-vllm"]["initContainers"]
    assert ("kvpressure", "registry.example.org/kvpressure:0.1.0") == (added["name"], added["image"])
    assert "initContainers" not in pods["vllm-deployment-router"]
    assert not (folder / "rendered.yaml").exists()


@each_helm
def test_the_values_that_it_shows_lead_pages_somewhere(binary):
    """With the README's own values the operator's objects have its label, and nobody is paged at 127.0.0.1."""
    page = README.read_text(encoding="utf-8")
    text = re.search(r"```yaml\n( *# kvpressure\.yaml\n.*?)\n *```", page, re.DOTALL)[1]
    found = template(binary, CHART, values=yaml.safe_load(textwrap.dedent(text)))

    assert {"release": "kube-prometheus-stack"} == found["PodMonitor", "kvpressure"]["metadata"]["labels"]
    config = json.dumps(found["AlertmanagerConfig", "kvpressure"])
    assert "127.0.0.1" not in config
    assert {"pagerduty", "slack"} == set(re.findall(r'"key": "(\w+)", "name": "kvpressure-alertmanager"', config))


def test_the_readme_shows_files_that_are_there():
    """Its links into the checkout lead somewhere."""
    links = re.findall(r"\]\(([^)#:]+)[^):]*\)", README.read_text(encoding="utf-8"))

    assert [] == [link for link in links if not (README.parent / link).exists()]
    assert all((README.parent / link).resolve().is_relative_to(ROOT) for link in links)
