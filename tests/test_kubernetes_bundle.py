"""What belongs to Prometheus in Kubernetes: it finds the sidecars, it holds the very files, and schemas take it all."""

import dataclasses
import functools
import json
import re
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
from kubernetes_help import (
    EVERY_RENDERER,
    KUBERNETES,
    NAME,
    OBSERVED,
    ROOT,
    SHAPES,
    UNLABELLED,
    VARIANTS,
    built,
    by_name,
    load,
    load_all,
    named,
    objects,
    pod,
    sidecar,
    template,
    workload,
    written,
)
from kubernetes_validate import utils
from packaging.version import Version

from kvpressure.bundle import kubernetes, write
from kvpressure.bundle.config import BundleConfig, KubernetesConfig
from kvpressure.config import WebConfig
from kvpressure.settings import split_address

FOLDERS = (kubernetes.MONITORING, kubernetes.NAMESPACE, kubernetes.SERVICE_MONITOR)
SCHEMAS = Path(__file__).parent / "fixtures" / "schemas"
OPERATOR = {path.name.partition("-")[0]: path for path in SCHEMAS.glob("*-v1*.schema.json")}
"""The schemas of the Prometheus operator, by kind."""
MINORS = sorted(map(Version, {utils.major_minor(version) for version in utils.all_versions()}))[-3:]
"""The three newest minors of Kubernetes that the validator knows."""


@functools.cache
def folder(name, renderer=()):
    """What a folder of the bundle builds, by kind and name."""
    return by_name(load_all(built(KUBERNETES / name, renderer)))


def every_object():
    """All that is built of all variants and folders, once each where it is the same, with where it comes from."""
    found = {}
    for where in (*VARIANTS, *FOLDERS):
        these = folder(where) if where in FOLDERS else objects(where)
        for (kind, name), one in these.items():
            found.setdefault(json.dumps(one, sort_keys=True), (f"{where}: {kind} {name}", one))
    return list(found.values())


# --- schemas --------------------------------------------------------------------------------------------------------


@pytest.fixture
def _schemas_once(monkeypatch):
    """The validator reads 2 MB of schemas for each object; here it keeps them."""
    monkeypatch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))


@pytest.mark.parametrize("minor", MINORS, ids=str)
@pytest.mark.usefixtures("_schemas_once")
def test_kubernetes_takes_everything(minor):
    """Every object of a built-in kind is one of that kind, with no field that Kubernetes does not know."""
    unknown = set()
    for where, one in every_object():
        try:
            assert str(minor) == kubernetes_validate.validate(one, str(minor), strict=True), where
        except kubernetes_validate.SchemaNotFoundError:
            unknown.add(one["kind"])

    assert {"LeaderWorkerSet", *OPERATOR} == unknown


@pytest.mark.parametrize("minor", MINORS, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.usefixtures("_schemas_once")
def test_kubernetes_takes_the_pods_of_a_leaderworkerset(variant, minor):
    """That kind is unknown to the validator, but the template of its leader is one of a pod like any other."""
    found = template(workload(objects(variant), "leaderworkerset"))

    one = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "leader"}, "template": found}
    assert str(minor) == kubernetes_validate.validate(one, str(minor), strict=True)


def test_the_validator_is_strict():
    """A field that is misspelt in the sidecar is refused, so that the tests above say something."""
    text = json.dumps(workload(objects("metrics"), "vllm-docs"))
    wrong = json.loads(text.replace('"livenessProbe"', '"livenesProbe"'))

    with pytest.raises(kubernetes_validate.ValidationError, match="livenesProbe"):
        kubernetes_validate.validate(wrong, str(MINORS[-1]), strict=True)


@pytest.mark.parametrize("kind", ["AlertmanagerConfig", "PodMonitor", "PrometheusRule", "ServiceMonitor"])
def test_the_operator_takes_its_objects(kind, tmp_path):
    """Each passes the schema of prometheus-operator's own definition, as it is built."""
    found = [one for name in FOLDERS for one in folder(name).values() if one["kind"] == kind]
    path = tmp_path / "object.json"
    (one,) = found
    path.write_text(json.dumps(one), encoding="utf-8")

    said = subprocess.run(
        ["check-jsonschema", "--schemafile", str(OPERATOR[kind]), str(path)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stdout


# --- how sidecars are found -----------------------------------------------------------------------------------------


def selected(labels, selector):
    """Whether a selector by labels takes an object with these."""
    assert {"matchLabels"} == set(selector)
    return selector["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_pod_monitor_finds_every_sidecar(variant):
    """It selects the pods that have one and no others, in every namespace, and asks for a port that they have."""
    spec = folder("monitoring")["PodMonitor", NAME]["spec"]

    assert {"any": True} == spec["namespaceSelector"]
    (endpoint,) = spec["podMetricsEndpoints"]
    for shape in OBSERVED:
        assert selected(template(workload(objects(variant), shape))["metadata"]["labels"], spec["selector"])
        assert named(sidecar(pod(variant, shape))["ports"], endpoint["port"])["containerPort"] == listening()
    for one in load_all((SHAPES / f"{UNLABELLED}.yaml").read_text(encoding="utf-8")):
        if one["kind"] != "Service":
            assert not selected(one["spec"]["template"]["metadata"]["labels"], spec["selector"])


def listening():
    """The port where kvpressure listens if it is not told otherwise."""
    (address,) = WebConfig().listen_address
    return split_address(address)[1]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_service_monitor_finds_every_sidecar(variant):
    """Its Service leads to every pod with a sidecar, ready or not, by the port's number, and has no address itself."""
    service = folder("servicemonitor")["Service", NAME]
    monitor = folder("servicemonitor")["ServiceMonitor", NAME]["spec"]

    assert selected(service["metadata"]["labels"], monitor["selector"])
    assert {"selector", "jobLabel", "endpoints"} == set(monitor), "its own namespace is where a Service finds pods"
    (endpoint,) = monitor["endpoints"]
    assert named(service["spec"]["ports"], endpoint["port"])["targetPort"] == listening()
    assert ("None", True) == (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"])
    for shape in OBSERVED:
        labels = template(workload(objects(variant), shape))["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
    assert "tap" != service["metadata"]["labels"].get(NAME), "the tap's component would turn it to another port"


def test_the_alerts_know_both_jobs():
    """The job that either monitor gives its targets is one that the alerts ask for when a sidecar is gone."""
    found = re.fullmatch(r'job=~"(.+)"', BundleConfig().select.exporter_job)
    pods = folder("monitoring")["PodMonitor", NAME]["metadata"]
    label = folder("servicemonitor")["ServiceMonitor", NAME]["spec"]["jobLabel"]
    services = folder("servicemonitor")["Service", NAME]["metadata"]["labels"]

    assert re.fullmatch(found[1], f"{pods['namespace']}/{pods['name']}")
    assert re.fullmatch(found[1], services[label])


def test_the_service_monitors_job_is_not_its_name():
    """Under a name of one's own, the job is still the one that the alerts ask for."""
    config = BundleConfig(kubernetes=KubernetesConfig(name="mine"))

    service, monitor = kubernetes.service(config), kubernetes.service_monitor(config)

    assert ("mine", "mine") == (service["metadata"]["name"], monitor["metadata"]["name"])
    assert NAME == service["metadata"]["labels"][monitor["spec"]["jobLabel"]]


@pytest.mark.parametrize(("seconds", "text"), [(20.0, "20s"), (1.5, "1s500ms"), (60.0, "1m")])
def test_both_monitors_ask_as_often(seconds, text):
    """The scrape interval of the configuration is that of both, in Prometheus' own words, which know no fraction."""
    config = BundleConfig(kubernetes=KubernetesConfig(scrape_interval=seconds))

    (pods,) = kubernetes.pod_monitor(config)["spec"]["podMetricsEndpoints"]
    (services,) = kubernetes.service_monitor(config)["spec"]["endpoints"]
    assert pods == services == {"port": NAME, "interval": text}


# --- the lock -------------------------------------------------------------------------------------------------------


def let_in(policy, port, protocol="TCP", namespace="elsewhere", own="llm"):
    """Whether a policy lets somebody in, as Kubernetes reads it: the rules add up."""
    labels = {"kubernetes.io/metadata.name": namespace}

    def from_there(peer):
        if "podSelector" in peer:
            assert {"podSelector": {}} == peer
            return namespace == own
        return selected(labels, peer["namespaceSelector"])

    def to_there(one):
        return one["protocol"] == protocol and one["port"] <= port <= one.get("endPort", one["port"])

    return any(
        (any(from_there(peer) for peer in rule["from"]) if "from" in rule else True)
        and any(to_there(one) for one in rule["ports"])
        for rule in policy["spec"]["ingress"]
    )


def test_only_prometheus_reaches_the_sidecar():
    """Its port is open to the namespace of Prometheus alone, every other one to everybody, by TCP and UDP."""
    policy = folder("namespace")["NetworkPolicy", NAME]

    assert {"podSelector": {"matchLabels": kubernetes.POD_LABELS}} == {"podSelector": policy["spec"]["podSelector"]}
    assert ["Ingress"] == policy["spec"]["policyTypes"]
    closed = [port for port in range(1, 65536) if not let_in(policy, port)]
    assert [listening()] == closed
    assert not let_in(policy, listening(), namespace="llm")
    assert let_in(policy, listening(), namespace="monitoring")
    assert all(let_in(policy, port, "UDP") for port in (1, listening(), 65535))


@pytest.mark.parametrize(("namespace", "there"), [("watch", "watch"), ("", "llm")])
def test_prometheus_elsewhere(namespace, there):
    """The namespace is the configuration's; where it names none, the one that the policy is in."""
    config = BundleConfig(kubernetes=KubernetesConfig(namespace=namespace))

    policy = kubernetes.network_policy(config)

    for one in ("monitoring", "watch", "llm"):
        assert let_in(policy, kubernetes.PORT, namespace=one) == (one == there)
    kubernetes_validate.validate(policy, str(MINORS[-1]), strict=True)


# --- what is in them ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("renderer", EVERY_RENDERER)
def test_all_that_is_for_prometheus(renderer):
    """These objects, in its namespace: the dashboards too, though they lie in another folder."""
    found = folder("monitoring", renderer)

    dashboards = {path.stem for path in (ROOT / "dashboards").glob("*.json")}
    monitors = {("PodMonitor", NAME), ("PrometheusRule", NAME)}
    assert monitors | {("ConfigMap", name) for name in dashboards} == set(found)
    assert {"monitoring"} == {one["metadata"]["namespace"] for one in found.values()}


def test_the_dashboards_are_the_very_files():
    """Each ConfigMap holds one file, to the letter, and the label that Grafana's sidecar looks for."""
    for (kind, name), one in folder("monitoring").items():
        if kind == "ConfigMap":
            text = (ROOT / "dashboards" / f"{name}.json").read_text(encoding="utf-8")
            assert {f"{name}.json": text} == one["data"]
            assert "1" == one["metadata"]["labels"]["grafana_dashboard"]


def test_the_objects_are_small_enough():
    """`kubectl apply` keeps a copy in an annotation, of 256 KiB at most; an object may have 1 MiB with it."""
    for (kind, name), one in folder("monitoring").items():
        copy = len(json.dumps(one, separators=(",", ":"), ensure_ascii=False).encode())
        assert copy < 200 * 1024, f"{kind} {name} has {copy} bytes"


def test_the_rules_are_those_of_the_files():
    """The PrometheusRule holds the groups of the two files that a plain Prometheus loads."""
    groups = [
        group
        for name in ("kvpressure.rules.yml", "kvpressure.alerts.yml")
        for group in load((ROOT / "alerts" / name).read_text(encoding="utf-8"))["groups"]
    ]

    assert groups == folder("monitoring")["PrometheusRule", NAME]["spec"]["groups"]


@pytest.mark.parametrize("name", [kubernetes.NAMESPACE, kubernetes.SERVICE_MONITOR])
def test_what_goes_beside_vllm_takes_its_namespace(name, tmp_path):
    """The folders for the namespace of vLLM have none of their own, and build beside the component in the user's."""
    overlay = written(
        tmp_path / "mine", [SHAPES / "vllm-docs.yaml", KUBERNETES / name], ["metrics-tap"], namespace="llm"
    )

    found = by_name(load_all(built(overlay)))

    assert set(folder(name)) < set(found)
    assert not [one for one in folder(name).values() if "namespace" in one["metadata"]]
    for key, one in folder(name).items():
        assert found[key] == one | {"metadata": one["metadata"] | {"namespace": "llm"}}


def test_a_bundle_of_ones_own(tmp_path):
    """What `kvpressure bundle --out` writes elsewhere builds there, with its own names and labels."""
    config = dataclasses.replace(
        BundleConfig(),
        kubernetes=KubernetesConfig(namespace="watch", labels=("team=ml",), dashboard_labels=("dashboards=yes",)),
    )
    write.write(tmp_path, write.bundle(config))

    found = by_name(load_all(built(tmp_path / "deploy" / "kubernetes" / "monitoring")))

    assert set(folder("monitoring")) == set(found)
    assert {"watch"} == {one["metadata"]["namespace"] for one in found.values()}
    labels = {kind: found[kind, name]["metadata"]["labels"] for kind, name in found}
    assert {
        "ConfigMap": {"dashboards": "yes"},
        "PodMonitor": {"team": "ml"},
        "PrometheusRule": {"team": "ml"},
    } == labels
