"""The Helm chart's values: what each does, what is refused and how, and that no value makes a bad object."""

import functools
import json
import re
import shutil
from pathlib import Path

import helm_help
import jsonschema
import kubernetes_validate
import pytest
import yaml
from helm_chart import dependent, each_helm, helm, template
from helm_help import CHART, README, SCHEMA, VALUES, tools
from helm_values import values as fitting
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvpressure import config

RULE = ("PrometheusRule", "kvpressure")
POD_MONITOR = ("PodMonitor", "kvpressure")
ALERTMANAGER = ("AlertmanagerConfig", "kvpressure")
POLICY = ("NetworkPolicy", "kvpressure")
SCHEMAS = Path(__file__).parent / "fixtures" / "schemas"
VERSIONS = {"PodMonitor": "v1", "PrometheusRule": "v1", "AlertmanagerConfig": "v1alpha1"}


def minors():
    """The three newest minors of Kubernetes that the validator knows."""
    newest = int(kubernetes_validate.latest_version().split(".")[1])
    return [f"1.{minor}" for minor in range(newest - 2, newest + 1)]


def crd(kind):
    """The schema of a kind of the operator."""
    return json.loads((SCHEMAS / f"{kind}-{VERSIONS[kind]}.schema.json").read_text(encoding="utf-8"))


@functools.cache
def operator(kind):
    """A validator of a kind of the operator."""
    return jsonschema.validators.validator_for(crd(kind))(crd(kind))


def check(found, versions):
    """Every object is valid for these minors of Kubernetes, or for the operator."""
    for (kind, _), one in found.items():
        if kind in VERSIONS:
            operator(kind).validate(one)
        else:
            for minor in versions:
                kubernetes_validate.validate(one, minor, strict=True)


# --- what is generated, and what must agree -------------------------------------------------------------------------


def test_what_is_generated_is_current():
    """The schema's settings and the README's table are what `make generate` writes."""
    table = (
        README.read_text(encoding="utf-8").partition("<!-- generated: values -->\n")[2].partition("\n<!-- end -->")[0]
    )

    assert helm_help.values_table() == table
    text = SCHEMA.read_text(encoding="utf-8")
    assert helm_help.schema(text) == text


def test_the_schema_knows_every_value_and_no_other():
    """The keys of values.yaml are those of the schema, but for two that Helm and other charts put beside them."""

    def agree(given, schema):
        assert set(given) == set(schema)
        for key, value in given.items():
            if isinstance(value, dict) and value:
                agree(value, schema[key]["properties"])

    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))["properties"]
    assert {"global", "enabled"} <= set(schema)
    agree(
        yaml.safe_load(VALUES.read_text(encoding="utf-8")),
        {key: what for key, what in schema.items() if key not in {"global", "enabled"}},
    )


def test_every_value_is_explained():
    """Each has a comment of its own, and each comment reaches the table."""
    rows = helm_help.values_table().splitlines()[2:]

    assert [] == [row for row in rows if not re.fullmatch(r"\| `[\w.]+` \| `.+` \| \S.+ \|", row)]


def test_the_schema_is_strict_everywhere():
    """No object takes what it does not name, but for those whose fields are Kubernetes' own."""

    def loose(schema, path=""):
        if isinstance(schema, dict):
            if "object" in str(schema.get("type")) and schema.get("additionalProperties") is not False:
                yield path
            for key, value in schema.items():
                yield from loose(value, f"{path}/{key}")

    free = {path.removeprefix("/properties") for path in loose(json.loads(SCHEMA.read_text(encoding="utf-8")))}
    assert {"/global", "/sidecar/properties/extraVolumes/items"} == {path for path in free if "receiver/" not in path}


@pytest.mark.parametrize(
    ("kind", "fields", "ours", "own"),
    [
        ("PodMonitor", "podMetricsEndpoints", "endpoint", {"port", "portNumber", "targetPort", "interval"}),
        ("AlertmanagerConfig", "receivers", "receiver", {"name"}),
    ],
)
def test_the_operators_fields_are_the_operators(kind, fields, ours, own):
    """What may be set of an endpoint and of a receiver is what the operator knows, but for what the chart sets."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    endpoint = schema["properties"]["monitoring"]["properties"]["podMonitor"]["properties"]["endpoint"]
    known = {"endpoint": endpoint, "receiver": schema["definitions"]["receiver"]}[ours]["properties"]
    theirs = crd(kind)["properties"]["spec"]["properties"][fields]["items"]["properties"]

    assert set(theirs) - own == set(known)


# --- what they do ---------------------------------------------------------------------------------------------------


@each_helm
def test_every_object_is_valid(binary):
    """By itself and as a dependency, with all that can be switched on, for the three newest minors of Kubernetes."""
    values = {"sidecar": {"enabled": True, "log": {"enabled": True}, "tap": {"enabled": True}}}
    everything = {"monitoring": {"enabled": True}, "namespace": {"enabled": True}, **values}
    found = template(binary, dependent(binary), values={"kvpressure": everything})

    assert 1 + 1 + 2 + 2 + 2 + 4 == len(found)
    check(found, minors())
    check(template(binary, CHART), minors())


@each_helm
def test_each_switch_takes_its_objects_away(binary):
    """And those alone."""
    dashboards = {("ConfigMap", path.stem) for path in (CHART / "files" / "dashboards").glob("*.json")}
    switches = {
        "monitoring": {POD_MONITOR, RULE, *dashboards},
        "monitoring.podMonitor": {POD_MONITOR},
        "monitoring.prometheusRule": {RULE},
        "monitoring.dashboards": dashboards,
        "namespace": {ALERTMANAGER, POLICY},
        "namespace.alertmanagerConfig": {ALERTMANAGER},
        "namespace.networkPolicy": {POLICY},
    }
    everything = template(binary, CHART)

    for switch, gone in switches.items():
        found = template(binary, CHART, "--set", f"{switch}.enabled=false")
        assert {key: one for key, one in everything.items() if key not in gone} == found, switch


@each_helm
def test_what_the_values_say_of_the_bundle_holds(binary):
    """Each is in its place, and whatever else was there stays."""
    found = template(binary, CHART)
    receiver = {"slackConfigs": [{"channel": "#llm", "apiURL": {"name": "a", "key": "b"}}]}
    values = {
        "monitoring": {
            "namespace": "observability",
            "labels": {"team": "sre"},
            "podMonitor": {"namespaces": ["a", "b"], "interval": "30s", "endpoint": {"scheme": "https"}},
            "dashboards": {"labels": {"show": "1"}, "annotations": {"folder": "LLM"}},
        },
        "namespace": {"alertmanagerConfig": {"receivers": {"page": receiver}}},
    }

    for key, one in found.items():
        if key[0] != "NetworkPolicy":
            one["metadata"]["labels"] = {"show": "1"} if key[0] == "ConfigMap" else {"team": "sre"}
        if "namespace" in one["metadata"]:
            one["metadata"]["namespace"] = "observability"
        if key[0] == "ConfigMap":
            one["metadata"]["annotations"] = {"folder": "LLM"}
    found[POD_MONITOR]["spec"]["namespaceSelector"] = {"matchNames": ["a", "b"]}
    found[POD_MONITOR]["spec"]["podMetricsEndpoints"] = [{"port": "kvpressure", "interval": "30s", "scheme": "https"}]
    found[POLICY]["spec"]["ingress"][0]["from"][0]["namespaceSelector"]["matchLabels"] = {
        "kubernetes.io/metadata.name": "observability"
    }
    (page,) = (one for one in found[ALERTMANAGER]["spec"]["receivers"] if one["name"] == "kvpressure-page")
    del page["webhookConfigs"]
    page |= receiver
    changed = template(binary, CHART, values=values)
    assert found == changed
    check(changed, minors()[-1:])


@each_helm
@pytest.mark.parametrize("port", [2, 9100, 65534])
def test_the_lock_stands_at_the_port(binary, port):
    """Prometheus alone gets to it, anybody to every other one, to TCP's first and last too."""
    first, rest = template(binary, CHART, "--set", f"port={port}")[POLICY]["spec"]["ingress"]

    assert [{"protocol": "TCP", "port": port}] == first["ports"]
    assert "from" not in rest
    ranges = sorted((one["port"], one["endPort"]) for one in rest["ports"] if one["protocol"] == "TCP")
    assert [(1, port - 1), (port + 1, 65535)] == ranges


@each_helm
def test_settings_reach_kvpressure_as_they_were_given(binary, tmp_path):
    """It reads the file that the ConfigMap holds, large numbers and odd texts too, and what was not given stays."""
    given_settings = {
        "vllm": {"max-body-bytes": 16777216, "header": ["X-Team: {{ a }} 'b'"]},
        "kv": {"pin-threshold": 0.925},
        "sample": {"interval": "2s"},
        "log": {"level": "warn"},
    }
    values = {"kvpressure": {"sidecar": {"enabled": True, "config": given_settings}}}
    text = template(binary, dependent(binary), values=values)["ConfigMap", "vllm-kvpressure"]["data"]["kvpressure.yml"]
    path = tmp_path / "kvpressure.yml"
    path.write_text(text, encoding="utf-8")

    found = config.load(str(path))
    assert (16777216, ("X-Team: {{ a }} 'b'",)) == (found.vllm.max_body_bytes, found.vllm.header)
    assert (0.925, 2.0, "warn") == (found.kv.pin_threshold, found.sample.interval, found.log.level)
    assert ("http://127.0.0.1:8000/metrics", "http://127.0.0.1:8000") == (found.vllm.url, found.tap.upstream)


# --- what is refused ------------------------------------------------------------------------------------------------


WRONG = [
    ("port=0", "port", "2"),
    ("port=65535", "port", "534"),
    ("nope=1", "", "nope"),
    ("sidecar.native=no", "sidecar.native", "boolean"),
    ("sidecar.vllm.port=http", "sidecar.vllm.port", "integer"),
    ("sidecar.vllm.scheme=unix", "sidecar.vllm.scheme", "https"),
    ("sidecar.image.pullPolicy=Sometimes", "sidecar.image.pullPolicy", "IfNotPresent"),
    ("sidecar.image.digest=sha256:123", "sidecar.image.digest", "pattern"),
    ("sidecar.image.repository=Mirror/x:1 ", "sidecar.image.repository", "pattern"),
    ("sidecar.config.kv.pin-treshold=1", "sidecar.config.kv", "pin-treshold"),
    ("sidecar.config.kv.pin-threshold=2", "sidecar.config.kv.pin-threshold", "1"),
    ("sidecar.config.sample.interval=5 s", "sidecar.config.sample.interval", "pattern"),
    ("sidecar.config.web.listen-address=:1", "sidecar.config.web", "listen-address"),
    ("sidecar.config.tap.listen=:1", "sidecar.config.tap", "listen"),
    ("sidecar.resources.limits.memory=lots", "sidecar.resources.limits.memory", "pattern"),
    ("sidecar.securityContext.runAsuser=1", "sidecar.securityContext", "runAsuser"),
    ("sidecar.extraVolumeMounts[0].name=a", "sidecar.extraVolumeMounts.0", "mountPath"),
    ("monitoring.namespace=Monitoring", "monitoring.namespace", "pattern"),
    ("monitoring.labels.a=1", "monitoring.labels.a", "string"),
    ("monitoring.podMonitor.interval=15", "monitoring.podMonitor.interval", "string"),
    ("monitoring.podMonitor.interval=5m", "monitoring.podMonitor.interval", "pattern"),
    ("monitoring.podMonitor.endpoint.tls=1", "monitoring.podMonitor.endpoint", "tls"),
    ("namespace.alertmanagerConfig.receivers.phone.a=1", "namespace.alertmanagerConfig.receivers", "phone"),
    ("namespace.alertmanagerConfig.receivers.page.a=1", "namespace.alertmanagerConfig.receivers.page", "a"),
]


@each_helm
@pytest.mark.parametrize(("assignment", "place", "says"), WRONG)
def test_a_wrong_value_is_refused_with_its_place(binary, assignment, place, says):
    """One line names the value, or the object it is in, and what is wrong with it."""
    said = helm(binary, "template", str(CHART), "--set", assignment)

    # Helm 3 writes a place as a.b.c, Helm 4 as /a/b/c.
    lines = [line for line in said.stderr.replace("/", ".").splitlines() if place in line and says in line]
    assert said.returncode != 0
    assert len(lines) == 1, said.stderr
    assert "symbolic" not in lines[0]


@each_helm
def test_two_logs_are_refused(binary):
    """The log of the variant is the only one: the flag would win over the file in silence."""
    wrong = ("--set", "sidecar.enabled=true,sidecar.log.enabled=true,sidecar.config.log.path=/a.log")

    said = helm(binary, "template", str(CHART), *wrong)
    assert "leave sidecar.config.log.path out" in said.stderr
    assert said.returncode != 0


@each_helm
@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, ["set namespace.alertmanagerConfig.receivers", "kubectl get pods -A -l kvpressure=sidecar"]),
        ({"namespace": {"enabled": False}}, ["kubectl get pods -A -l kvpressure=sidecar"]),
        ({"namespace": {"enabled": False}, "sidecar": {"enabled": True}, "port": 9100}, ["port-forward POD 9100"]),
        (
            {"namespace": {"enabled": False}, "sidecar": {"enabled": True, "log": {"enabled": True}}},
            ["port-forward POD 10938", "--enable-log-requests"],
        ),
    ],
)
def test_the_notes_say_what_is_next(binary, values, says, tmp_path):
    """And nothing else: a line each. Helm shows them only to a cluster, so they are rendered as an object here."""
    chart = tmp_path / "kvpressure"
    shutil.copytree(CHART, chart)
    notes = (chart / "templates" / "NOTES.txt").read_text(encoding="utf-8")
    for path in (chart / "templates").glob("*.yaml"):
        path.unlink()
    made = '{{ dict "kind" "Notes" "metadata" (dict "name" "notes") "text" (include "notes" .) | toYaml }}'
    (chart / "templates" / "notes.yaml").write_text(f'{{{{ define "notes" }}}}{notes}{{{{ end }}}}\n{made}\n')

    text = template(binary, chart, values=values)["Notes", "notes"]["text"]
    lines = [line for line in text.splitlines() if line]
    if "kubectl get pods" in says[-1]:
        lines = [line for line in lines if "kustomize" not in line]
    assert len(says) == len(lines)
    assert all(part in line for part, line in zip(says, lines, strict=True))


# --- whatever the schema allows -------------------------------------------------------------------------------------


WHOLE = json.loads(SCHEMA.read_text(encoding="utf-8"))
# What the schema leaves to the operator is drawn from what the operator takes.
ENDPOINT = st.sampled_from([{}, {"scheme": "https"}, {"path": "/metrics", "honorLabels": True}])
RECEIVER = st.sampled_from([{}, {"webhookConfigs": [{"url": "http://a/"}]}, {"emailConfigs": [{"to": "a@b.example"}]}])


@st.composite
def drawn(draw):
    """Values for the whole chart."""
    found = draw(fitting(WHOLE, WHOLE))
    monitor = found.get("monitoring", {}).get("podMonitor", {})
    if "endpoint" in monitor:
        monitor["endpoint"] = draw(ENDPOINT)
    receivers = found.get("namespace", {}).get("alertmanagerConfig", {}).get("receivers", {})
    for name in receivers:
        receivers[name] = draw(RECEIVER)
    sidecar = found.get("sidecar", {})
    if sidecar.get("log", {}).get("enabled"):
        sidecar.get("config", {}).get("log", {}).pop("path", None)
    return found


@pytest.mark.skipif(not tools("helm"), reason="needs helm: run `make kubetools`")
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),  # each try of a shrinker would be a process more
)
@given(drawn())
def test_whatever_the_schema_allows_makes_valid_objects(values):
    """Values drawn at random from it render in a chart that depends on this one, and every object is valid."""
    binary = tools("helm")[0]
    found = template(binary, dependent(binary), values={"kvpressure": values})

    check(found, minors()[-1:])
    sidecar = values.get("sidecar", {})
    if sidecar.get("enabled", True):
        written = yaml.safe_load(found["ConfigMap", "vllm-kvpressure"]["data"]["kvpressure.yml"])
        for section, given_settings in sidecar.get("config", {}).items():
            assert given_settings == {key: written[section][key] for key in given_settings}
