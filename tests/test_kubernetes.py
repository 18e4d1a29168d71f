"""The component for Kubernetes: what it does to workloads of the shapes that people have, built by the real tools."""

import copy

import pytest
import yaml
from commands import kvpressure
from kubernetes_help import (
    CASES,
    EVERY_RENDERER,
    NAME,
    OBSERVED,
    OTHER_RENDERERS,
    SHAPES,
    TOKEN,
    UNLABELLED,
    VARIANTS,
    WORKLOADS,
    built,
    by_name,
    config_map,
    containers,
    flags,
    load,
    load_all,
    named,
    objects,
    original,
    pod,
    rendered,
    sidecar,
    template,
    workload,
    written,
)

import kvpressure as package
from kvpressure.bundle import kubernetes
from kvpressure.config import TapConfig, WebConfig
from kvpressure.expose import server
from kvpressure.settings import split_address

VOLUMES = {"kvpressure-config", "kvpressure-no-token"}
LOG_VOLUMES = {"kvpressure-log", "kvpressure-vllm-logging"}
LOGGING = "VLLM_LOGGING_CONFIG_PATH"
GRACE = 30.0
"""Seconds that Kubernetes gives a pod that says nothing of it."""


def volumes_of(variant):
    """The names of the volumes that a variant adds."""
    return VOLUMES | (LOG_VOLUMES if "log" in variant else set())


# --- what is there, and what was ------------------------------------------------------------------------------------


@pytest.mark.parametrize("renderer", OTHER_RENDERERS)
@pytest.mark.parametrize("variant", ["", *VARIANTS])
def test_every_kustomize_builds_the_same(variant, renderer):
    """Versions of kustomize, in kubectl or alone, agree to the letter, and complain of nothing."""
    assert rendered(variant) == rendered(variant, renderer=renderer)


@pytest.mark.parametrize(("variant", "shape"), CASES)
def test_alone_or_among_others(variant, shape):
    """A workload comes out the same alone in its kustomization and beside all the others."""
    alone = objects(variant, shape)

    assert objects(variant)[("ConfigMap", settings_of(variant, shape))] in alone.values()
    assert {key: objects(variant)[key] for key in alone} == alone


@pytest.mark.parametrize(("variant", "shape"), CASES)
def test_what_was_there_is_untouched(variant, shape):
    """Without what the component adds, by name, every object of the user is what it was, to the last field."""
    for key, before in original(shape).items():
        after = copy.deepcopy(objects(variant)[key])
        if before["kind"] in WORKLOADS:
            strip(template(after), template(before), variant)
        elif before["kind"] == "Service" and "tap" in variant and before["metadata"].get("labels", {}).get(NAME):
            after["spec"]["ports"][0].pop("targetPort")
            before = copy.deepcopy(before)  # noqa: PLW2901
            before["spec"]["ports"][0].pop("targetPort", None)
        assert before == after


def strip(after, before, variant):
    """Take away what the component added, and fail where it is not there."""
    added = volumes_of(variant)
    assert "sidecar" == after["metadata"]["labels"].pop(NAME)
    spec = after["spec"]
    removed(spec, before["spec"], "volumes", added)
    removed(spec, before["spec"], "containers" if "classic" in variant else "initContainers", {NAME})
    if "log" in variant:
        for old in before["spec"]["containers"]:
            new = named(spec["containers"], old["name"])
            removed(new, old, "env", {LOGGING})
            removed(new, old, "volumeMounts", LOG_VOLUMES)


def removed(after, before, key, names):
    """Take the items of these names out of a list, and the list itself where there was none before."""
    items = after[key]
    assert names == {one["name"] for one in items if one["name"] in names}
    after[key] = [one for one in items if one["name"] not in names]
    if not after[key] and key not in before:
        del after[key]


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_not_labelled_is_not_touched(variant):
    """Workloads and Services without the label come out as they went in, alone and beside labelled ones."""
    plain = objects("", UNLABELLED)

    assert original(UNLABELLED) == plain
    for found in (objects(variant), objects(variant, UNLABELLED)):
        assert plain == {key: found[key] for key in plain}


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_comes_beside_the_workloads(variant):
    """Beside the user's objects there are ConfigMaps alone; what they are copied from is never applied."""
    new = set(objects(variant)) - set(objects(""))

    kinds = ["ConfigMap"] * (2 if "log" in variant else 1)
    assert kinds == [kind for kind, _ in new]
    assert all(objects(variant)[key]["metadata"]["labels"] == {"app.kubernetes.io/name": NAME} for key in new)


@pytest.mark.parametrize("shape", OBSERVED)
def test_taken_away_nothing_is_left(shape, tmp_path):
    """An overlay from which the component is removed builds what it built before, byte for byte."""
    path = SHAPES / f"{shape}.yaml"
    before = built(written(tmp_path / "mine", [path]))
    assert before != built(written(tmp_path / "mine", [path], ["metrics-log-tap"]))

    assert before == built(written(tmp_path / "mine", [path]))
    assert original(shape) == by_name(load_all(before))


# --- the container --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variant", "shape"), CASES)
def test_where_the_sidecar_stands(variant, shape):
    """A native sidecar is the last init container, and goes on; a classic one is the last of the containers."""
    spec = pod(variant, shape)
    ours = sidecar(spec)

    if "classic" in variant:
        assert ours is spec["containers"][-1]
        assert "restartPolicy" not in ours
    else:
        assert ours is spec["initContainers"][-1]
        assert "Always" == ours["restartPolicy"]


@pytest.mark.parametrize(("variant", "shape"), CASES)
def test_the_container_is_locked(variant, shape):
    """Not root, nothing to write to, no capability, the runtime's profile: what the standard `restricted` asks."""
    ours = sidecar(pod(variant, shape))

    assert {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsGroup": 65532,
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    } == ours["securityContext"]
    assert all(mount["readOnly"] for mount in ours["volumeMounts"])
    assert "env" not in ours


@pytest.mark.parametrize(("variant", "shape"), CASES)
def test_the_container_has_no_token(variant, shape):
    """Kubernetes leaves its token out where something is mounted already: an empty folder, in our container alone."""
    spec = pod(variant, shape)

    for one in containers(spec):
        at = [mount for mount in one.get("volumeMounts", []) if mount["mountPath"] == TOKEN]
        assert len(at) == (one["name"] == NAME)
    (mount,) = (mount for mount in sidecar(spec)["volumeMounts"] if mount["mountPath"] == TOKEN)
    assert {"name", "emptyDir"} == set(named(spec["volumes"], mount["name"]))


@pytest.mark.parametrize(("variant", "shape"), CASES)
def test_the_pod_is_evicted_no_sooner(variant, shape):
    """Requests equal limits, so the pod's class of service is the one that it was, or a better one."""
    resources = sidecar(pod(variant, shape))["resources"]

    assert resources["requests"] == resources["limits"]
    assert {"cpu", "memory"} == set(resources["limits"])
    before = template(workload(original(shape), shape))["spec"]
    assert quality(before) <= quality(pod(variant, shape))


def quality(spec):
    """The class of service of a pod, as Kubernetes tells it: 2 Guaranteed, 1 Burstable, 0 BestEffort."""
    each = [one.get("resources", {}) for one in containers(spec)]
    if not any(one.get(part) for one in each for part in ("requests", "limits")):
        return 0
    same = all(
        name in one.get("limits", {}) and one.get("requests", {}).get(name, one["limits"][name]) == one["limits"][name]
        for one in each
        for name in ("cpu", "memory")
    )
    return 2 if same else 1


def test_the_classes_of_service_differ():
    """Among the shapes there is one of each class, so that the test above says something."""
    assert {0, 1, 2} == {quality(template(workload(original(shape), shape))["spec"]) for shape in OBSERVED}


@pytest.mark.parametrize(("variant", "shape"), CASES)
def test_vllm_never_waits_for_the_sidecar(variant, shape):
    """Neither readiness nor startup nor a hook: only a liveness probe, on the path that needs no password."""
    ours = sidecar(pod(variant, shape))

    assert set(ours) & {"readinessProbe", "startupProbe", "lifecycle"} == set()
    probe = ours["livenessProbe"]["httpGet"]
    assert {"path": server.HEALTHY_PATH, "port": kubernetes.PORT_NAME} == probe


@pytest.mark.parametrize(("variant", "shape"), CASES)
def test_the_ports(variant, shape):
    """The port that the PodMonitor asks for by name is the one where kvpressure listens; no port is there twice."""
    spec = pod(variant, shape)
    ours = sidecar(spec)["ports"]

    (address,) = WebConfig().listen_address
    assert split_address(address)[1] == kubernetes.PORT == named(ours, kubernetes.PORT_NAME)["containerPort"]
    assert "web.listen-address" not in flags(sidecar(spec))
    ports = [port["containerPort"] for one in containers(spec) for port in one.get("ports", [])]
    names = [port["name"] for one in containers(spec) for port in one.get("ports", []) if "name" in port]
    assert len(set(ports)) == len(ports)
    assert len(set(names)) == len(names)
    assert all(len(name) <= 15 for name in names), "the name of a port has 15 letters at most"


@pytest.mark.parametrize(("variant", "shape"), CASES)
def test_labels_and_selectors(variant, shape):
    """Pods get the label that PodMonitor and NetworkPolicy select; what selects pods for the workload stays."""
    before, after = workload(original(shape), shape), workload(objects(variant), shape)

    assert kubernetes.POD_LABELS.items() <= template(after)["metadata"]["labels"].items()
    selector = before["spec"].get("selector")
    assert selector == after["spec"].get("selector")
    if selector:
        assert selector["matchLabels"].items() <= template(after)["metadata"]["labels"].items()


@pytest.mark.parametrize(("variant", "shape"), CASES)
def test_every_mount_has_its_volume(variant, shape):
    """What is mounted is there, once per path; our ConfigMaps are among what is built, under their hashed names."""
    one = workload(objects(variant), shape)
    spec = template(one)["spec"]
    claims = [claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])]
    known = [volume["name"] for volume in spec["volumes"]] + claims

    assert len(set(known)) == len(known)
    for container in containers(spec):
        mounts = container.get("volumeMounts", [])
        assert {mount["name"] for mount in mounts} <= set(known)
        assert len({mount["mountPath"] for mount in mounts}) == len(mounts)
    for volume in spec["volumes"]:
        if volume["name"] in volumes_of(variant) and "configMap" in volume:
            name = volume["configMap"]["name"]
            assert name.rpartition("-")[0] in {NAME, "kvpressure-vllm-logging"}
            assert config_map(objects(variant), name)


def settings_of(variant, shape):
    """The name of the ConfigMap with the sidecar's settings."""
    return named(pod(variant, shape)["volumes"], "kvpressure-config")["configMap"]["name"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_kvpressure_takes_its_flags_and_settings(variant, tmp_path):
    """The container's own arguments, with the ConfigMap's file in its place, are good to kvpressure itself."""
    spec = pod(variant, "vllm-docs")
    ours = sidecar(spec)
    mount = named(ours["volumeMounts"], "kvpressure-config")["mountPath"]
    for name, text in config_map(objects(variant), settings_of(variant, "vllm-docs")).items():
        (tmp_path / name).write_text(text, encoding="utf-8")

    words = [word.replace(f"{mount}/", f"{tmp_path}/") for word in ours["args"]]
    said = kvpressure(*words, "--config.check")

    assert "serve" == words[0]
    assert f"--config.file={tmp_path}/kvpressure.yml" in words
    assert (0, "") == (said.returncode, said.stderr)


def test_the_image_is_this_version():
    """The manifests name the image of the version that they lie beside."""
    images = {sidecar(pod(variant, shape))["image"] for variant in VARIANTS for shape in OBSERVED}

    assert {f"ghcr.io/kvpressure/kvpressure:{package.__version__}"} == images


@pytest.mark.parametrize(("variant", "shape"), CASES)
def test_streams_may_end_within_the_grace_period(variant, shape):
    """What a pod has to end, 30 s where it says nothing, is longer than all that the sidecar may take for it."""
    spec, default = pod(variant, shape), TapConfig()
    given = flags(sidecar(spec))

    takes = sum(
        float(given.get(f"tap.{name}", f"{seconds}s").removesuffix("s"))
        for name, seconds in (("stop-delay", default.stop_delay), ("drain-timeout", default.drain_timeout))
    )
    assert takes < spec.get("terminationGracePeriodSeconds", GRACE)
    assert ("tap.stop-delay" in given) == ("tap" in variant and "classic" in variant)


# --- changes of one's own -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("renderer", EVERY_RENDERER)
@pytest.mark.parametrize("shape", OBSERVED)
def test_settings_of_ones_own(shape, renderer, tmp_path):
    """A patched ConfigMap has a new name, which is in the pods: they are rolled. A merge fails with newer kustomize."""
    text = "vllm:\n  url: http://127.0.0.1:8080/metrics\ntap:\n  upstream: http://127.0.0.1:8080\n"
    patch = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": {"kvpressure.yml": text}}
    folder = written(
        tmp_path / "mine",
        [SHAPES / f"{shape}.yaml"],
        ["metrics-tap"],
        namespace="llm",
        namePrefix="my-",
        patches=[{"patch": yaml.safe_dump(patch)}],
    )

    found = load_all(built(folder, renderer))

    assert {"llm"} == {one["metadata"]["namespace"] for one in found}
    (one,) = (one for one in found if one["kind"] in WORKLOADS)
    name = named(template(one)["spec"]["volumes"], "kvpressure-config")["configMap"]["name"]
    assert name.startswith("my-kvpressure-")
    assert settings_of("metrics-tap", shape) != name.removeprefix("my-")
    assert {"kvpressure.yml": text} == config_map(by_name(found), name)


def test_no_flag_beats_a_setting_that_the_readme_tells_to_change():
    """Where vLLM is stands in the ConfigMap alone, once for its metrics and once for the tap: flags would win."""
    for variant in VARIANTS:
        assert set(flags(sidecar(pod(variant, "vllm-docs")))) & {"vllm.url", "tap.upstream"} == set()
    data = config_map(objects("metrics-tap"), settings_of("metrics-tap", "vllm-docs"))
    assert {
        "vllm": {"url": "http://127.0.0.1:8000/metrics"},
        "tap": {"upstream": "http://127.0.0.1:8000"},
    } == load(data["kvpressure.yml"])


@pytest.mark.parametrize("variant", ["metrics", "classic/metrics"])
def test_an_image_and_resources_of_ones_own(variant, tmp_path):
    """`images` and `patches` of the overlay change the sidecar as any container."""
    where = "containers" if "classic" in variant else "initContainers"
    patch = {"name": NAME, "resources": {"limits": {"memory": "1Gi"}}}
    document = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "small"}}
    document["spec"] = {"template": {"spec": {where: [patch]}}}
    folder = written(
        tmp_path / "mine",
        [SHAPES / "vllm-docs.yaml"],
        [variant],
        images=[{"name": "ghcr.io/kvpressure/kvpressure", "newName": "registry.example/kv", "newTag": "1"}],
        patches=[{"patch": yaml.safe_dump(document)}],
    )

    found = by_name(load_all(built(folder)))

    ours = sidecar(template(workload(found, "vllm-docs"))["spec"])
    assert "registry.example/kv:1" == ours["image"]
    assert {"cpu": "100m", "memory": "1Gi"} == ours["resources"]["limits"]
