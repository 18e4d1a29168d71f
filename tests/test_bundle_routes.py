"""Who is told of which alert: Alertmanager's configuration, held against amtool and a real Alertmanager."""

import contextlib
import datetime as dt
import itertools
import json
import subprocess
import time
import urllib.request
from pathlib import Path

import alerting
import pytest
from commands import get, wait_for

from kvpressure.bundle import alerts, routes
from kvpressure.bundle.config import BundleConfig
from kvpressure.bundle.notify import NotifyConfig
from kvpressure.settings import ConfigError

ALERTS = alerts.alerts(BundleConfig())
SEVERITY = {alert.name: alert.severity for alert in ALERTS}
RECEIVER = {"critical": routes.PAGE, "warning": routes.TICKET, "info": routes.NOWHERE}
SCHEMA = Path(__file__).parent / "fixtures" / "schemas" / "AlertmanagerConfig-v1alpha1.schema.json"


def told_by(page, page_file, ticket, ticket_file):
    """Settings with these receivers and the files of their secrets."""
    return NotifyConfig(page=page, page_secret_file=page_file, ticket=ticket, ticket_secret_file=ticket_file)


KINDS = {
    "webhook": NotifyConfig(),
    "webhook with a token": told_by("webhook", "/etc/alertmanager/page", "webhook", "/etc/alertmanager/ticket"),
    "slack": told_by("slack", "/etc/alertmanager/page", "slack", "/etc/alertmanager/ticket"),
    "pagerduty": told_by("pagerduty", "/etc/alertmanager/key", "pagerduty", "/etc/alertmanager/key"),
    "pagerduty and slack": told_by("pagerduty", "/etc/alertmanager/key", "slack", "/etc/alertmanager/slack"),
}


# --- the files ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def default_file(tmp_path_factory):
    """The default alertmanager.yml."""
    return alerting.written(
        routes.alertmanager(BundleConfig()), tmp_path_factory.mktemp("default") / "alertmanager.yml"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_amtool_takes_every_receiver(kind, tmp_path):
    """The oldest Alertmanager that Debian still has, 0.25, takes the configuration whatever receives."""
    path = alerting.written(routes.alertmanager(BundleConfig(notify=KINDS[kind])), tmp_path / "alertmanager.yml")

    checked = subprocess.run(["amtool", "check-config", path], check=False, capture_output=True, text=True)

    assert (0, "") == (checked.returncode, checked.stderr)
    assert f"{len(routes.INHIBITIONS)} inhibit rules\n - 3 receivers" in checked.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_the_object_is_an_alertmanagerconfig(kind, tmp_path):
    """The object passes the schema of prometheus-operator's own definition, whatever receives."""
    path = alerting.written(routes.alertmanager_config(BundleConfig(notify=KINDS[kind])), tmp_path / "object.yaml")

    command = ["check-jsonschema", "--schemafile", str(SCHEMA), path]
    checked = subprocess.run(command, check=False, capture_output=True, text=True)

    assert 0 == checked.returncode, checked.stdout


def test_both_forms_say_the_same():
    """The object has the routes, times and inhibitions of the file."""
    file, spec = routes.alertmanager(BundleConfig()), routes.alertmanager_config(BundleConfig())["spec"]
    ours = file["route"]["routes"][0]

    assert as_in_file(spec["route"]) == ours
    assert [as_in_file(rule) for rule in spec["inhibitRules"]] == file["inhibit_rules"]
    assert [receiver["name"] for receiver in spec["receivers"]] == [one["name"] for one in file["receivers"]]


def as_in_file(part):
    """A part of the object with the file's keys and matchers."""
    names = {"sourceMatch": "source_matchers", "targetMatch": "target_matchers"}

    def value(key, given):
        if key in ("matchers", *names):
            return [f'{matcher["name"]}{matcher["matchType"]}"{matcher["value"]}"' for matcher in given]
        return [as_in_file(inner) for inner in given] if key == "routes" else given

    snake = {key: "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key) for key in part}
    return {names.get(key, snake[key]): value(key, given) for key, given in part.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_no_secret_is_in_it(kind):
    """What is secret stands in both forms only as where to find it: a file, or a key of a Kubernetes secret."""
    config = BundleConfig(notify=KINDS[kind])
    file, spec = routes.alertmanager(config), routes.alertmanager_config(config)["spec"]

    assert {"routing_key", "service_key", "api_url", "credentials", "password"}.isdisjoint(keys(file))
    secrets = values(spec, ("routingKey", "apiURL", "credentials"))
    assert all(secret.keys() == {"name", "key"} for secret in secrets)
    assert [secret["key"] for secret in secrets] == [
        Path(path).name for path in values(file, ("routing_key_file", "api_url_file", "credentials_file"))
    ]


def keys(part):
    """Every key of a document."""
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return set(part if isinstance(part, dict) else ()).union(*map(keys, inner))


def values(part, names):
    """Every value under one of these keys."""
    if isinstance(part, list):
        return [value for inner in part for value in values(inner, names)]
    if not isinstance(part, dict):
        return []
    return [found for key, value in part.items() for found in ([value] if key in names else values(value, names))]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"page": "pagerduty"},
            (
                "notify.page is pagerduty, which needs a secret; set notify.page-secret-file to the file with "
                "PagerDuty's routing key"
            ),
        ),
        (
            {"ticket": "slack"},
            (
                "notify.ticket is slack, which needs a secret; set notify.ticket-secret-file to the file with Slack's "
                "API URL"
            ),
        ),
        (
            {"ticket_repeat": 60.0},
            (
                "notify.ticket-repeat (60 s) is shorter than notify.ticket-interval (3600 s); raise the one or lower "
                "the other"
            ),
        ),
    ],
)
def test_what_cannot_work_is_one_sentence(given, sentence):
    """A receiver without its secret, and a repetition before a change, are refused with what to do."""
    with pytest.raises(ConfigError) as refused:
        NotifyConfig(**given)

    assert sentence == str(refused.value)


# --- routes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_alert_goes_where_its_severity_says(alert, default_file):
    """amtool sends each alert of the bundle to the page, the ticket or nowhere, by its severity alone."""
    assert_goes_to(RECEIVER[alert.severity], default_file, alertname=alert.name, severity=alert.severity)


@pytest.mark.parametrize(
    "labels",
    [
        {"alertname": ALERTS[0].name},
        {"alertname": ALERTS[0].name, "severity": "page"},
        {"alertname": "SomebodyElsesAlert", "severity": "critical"},
        {"alertname": "SomebodyElsesAlert", "severity": "info"},
    ],
    ids=lambda labels: " ".join(labels.values()),
)
def test_what_nobody_thought_of_opens_a_ticket(labels, default_file):
    """An alert without one of the severities, or of somebody else, is not lost, and pages nobody."""
    assert_goes_to(routes.TICKET, default_file, **labels)


def assert_goes_to(receiver, path, **labels):
    """Amtool's own answer to which receiver gets an alert."""
    command = ["amtool", "config", "routes", "test", f"--config.file={path}", f"--verify.receivers={receiver}"]
    words = [f"{name}={value}" for name, value in labels.items()]
    tested = subprocess.run([*command, *words], check=False, capture_output=True, text=True)

    assert (0, receiver) == (tested.returncode, tested.stdout.strip()), tested.stderr


# --- what is sent ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["webhook", "slack", "pagerduty"])
def test_every_receiver_is_told_all(kind, tmp_path):
    """
    A page and a ticket arrive with the secret that stands in the file, once when it fires and once when it has ended.

    Slack and PagerDuty get the runbook of each alert, and PagerDuty the severity.
    """
    secret = tmp_path / "secret"
    with alerting.webhook() as hook:
        secret.write_text(f"{hook.url}/slack" if kind == "slack" else "a-secret", encoding="utf-8")
        notify = quickly(hook, page=kind, page_secret_file=str(secret), ticket=kind, ticket_secret_file=str(secret))
        document = routes.alertmanager(BundleConfig(notify=notify)) | {"global": {"pagerduty_url": f"{hook.url}/pager"}}
        with alerting.alertmanager(alerting.written(document, tmp_path / "alertmanager.yml"), tmp_path) as url:
            firing = [
                {"alertname": name, "severity": SEVERITY[name], "model_name": name}
                for name in (alerts.PREEMPTION_STORM, alerts.CAPACITY_LOW)
            ]
            post(url, firing)
            wait_for(lambda: len(hook.told) == 2, 10)
            post(url, firing, ended=True)
            wait_for(lambda: len(hook.told) == 4, 10)

    told = [(one.token, json.dumps(one.body)) for one in hook.told]
    assert all("https://runbooks/KVPressure" in body for _, body in told[:2])
    if kind == "webhook":
        assert ["Bearer a-secret"] * 4 == [token for token, _ in told]
        assert ["firing", "firing", "resolved", "resolved"] == [one.body["status"] for one in hook.told]
    elif kind == "slack":
        assert {"/slack"} == {one.path for one in hook.told}
        assert ["good"] * 2 == [one.body["attachments"][0]["color"] for one in hook.told[2:]]
        assert {"#kv-pages", "#kv-tickets"} == {one.body["channel"] for one in hook.told}
    else:
        assert {"a-secret"} == {one.body["routing_key"] for one in hook.told}
        assert {"critical", "warning"} == {one.body["payload"]["severity"] for one in hook.told[:2]}
        assert ["resolve"] * 2 == [one.body["event_action"] for one in hook.told[2:]]


def quickly(hook, **given):
    """Settings with which this webhook is told after a second."""
    return NotifyConfig(
        group_by=("cluster", "namespace", "model_name", "case"),
        page_webhook_url=f"{hook.url}/page",
        ticket_webhook_url=f"{hook.url}/ticket",
        page_wait=1.0,
        page_interval=1.0,
        ticket_wait=1.0,
        ticket_interval=1.0,
        **given,
    )


def post(url, firing, *, ended=False):
    """Let alerts with these labels fire, or end."""
    now = dt.datetime.now(dt.UTC)
    end = {"endsAt": now.isoformat()} if ended else {}
    found = [
        {"labels": labels, "annotations": {"runbook_url": f"https://runbooks/{labels['alertname']}"}} | end
        for labels in firing
    ]
    request = urllib.request.Request(
        f"{url}/api/v2/alerts", json.dumps(found).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert 200 == answer.status


# --- inhibition -----------------------------------------------------------------------------------------------------

ENGINE = {"cluster": "c", "instance": "i", "job": "kvpressure", "model_name": "m", "engine": "0"}
STREAM = {"cluster": "c", "instance": "i", "job": "kvpressure", "model_name": "m", "source": "tap"}
INSTANCE = {"cluster": "c", "instance": "i", "job": "kvpressure"}
OTHER = {
    "engine": {"engine": "1"},
    "model": {"model_name": "n"},
    "instance": {"instance": "j"},
    "cluster": {"cluster": "d"},
    "namespace": {"namespace": "another"},
}
"""What makes a target one that has nothing to do with the source."""

ENGINE_PAIRS = [
    (source, target)
    for source in (alerts.LIVELOCK, alerts.PREEMPTION_STORM)
    for target in (
        alerts.PREEMPTION_STORM,
        alerts.PREEMPTION_CHURN,
        alerts.MEMORY_BOUND,
        alerts.INTER_TOKEN_GAP_HIGH,
        alerts.PINNED,
    )
    if source != target
]
STREAM_PAIRS = list(
    itertools.product(
        (alerts.LIVELOCK, alerts.PREEMPTION_STORM), (alerts.REQUESTS_PAUSING, alerts.INTER_TOKEN_GAP_HIGH)
    )
)
NEWS = (alerts.CAPACITY_LOW, alerts.OUTPUT_LENGTH_SHIFT, alerts.STALL_ELSEWHERE, alerts.SIGNAL_MISSING)
"""What a storm does not imply."""


def cases():
    """Name -> source and target with their labels, and whether the source silences the target."""
    found = {}

    def add(name, source, target, *others, silenced=True):
        found[name] = source, target, silenced
        for other in others:
            if silenced:
                found[f"{name}, another {other}"] = source, (target[0], target[1] | OTHER[other]), False

    for source, target in ENGINE_PAIRS:
        add(f"{source} > {target}", (source, ENGINE), (target, ENGINE), *OTHER)
    for source, target in STREAM_PAIRS:
        others = [other for other in OTHER if other != "engine"]
        add(f"{source} > {target} in streams", (source, ENGINE), (target, STREAM), *others)
    pausing = alerts.REQUESTS_PAUSING
    gap = alerts.INTER_TOKEN_GAP_HIGH
    add(f"{pausing} > {gap}", (pausing, STREAM), (gap, STREAM), "model", "instance", "cluster", "namespace")
    add(f"{pausing} > {gap} of an engine", (pausing, STREAM), (gap, ENGINE), silenced=False)
    add("pauses do not silence a storm", (pausing, STREAM), (alerts.PREEMPTION_STORM, ENGINE), silenced=False)
    for target in NEWS:
        add(f"a storm leaves {target}", (alerts.PREEMPTION_STORM, ENGINE), (target, ENGINE), silenced=False)
    down = alerts.VLLM_DOWN
    for name in SEVERITY:
        if name != down:
            labels = STREAM if name == pausing else ENGINE
            add(f"{down} > {name}", (down, INSTANCE), (name, labels), "instance", "cluster", "namespace")
    add(f"{down} > {gap} in streams", (down, INSTANCE), (gap, STREAM), "instance")
    model = {key: value for key, value in STREAM.items() if key not in ("instance", "source")}
    add(f"{down} leaves all replicas", (down, INSTANCE), (alerts.OUTPUT_LENGTH_SHIFT, model), silenced=False)
    add(
        "no instance, no silence",
        (alerts.EXPORTER_DOWN, {"cluster": "c"}),
        (alerts.LOG_STALLED, INSTANCE),
        silenced=False,
    )
    for target in (alerts.SIGNAL_MISSING, alerts.LOG_STALLED):
        source = (alerts.EXPORTER_DOWN, INSTANCE)
        add(f"{source[0]} > {target}", source, (target, INSTANCE), "instance", "cluster", "namespace")
    add(
        "a blind sidecar hides no storm",
        (alerts.EXPORTER_DOWN, INSTANCE),
        (alerts.PREEMPTION_STORM, ENGINE),
        silenced=False,
    )
    return found


CASES = cases()


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A webhook, and the URL of an Alertmanager that tells it of everything after a second."""
    with alerting.webhook() as hook:
        config = routes.alertmanager(BundleConfig(notify=quickly(hook)))
        folder = tmp_path_factory.mktemp("alertmanager")
        with alerting.alertmanager(alerting.written(config, folder / "alertmanager.yml"), folder) as url:
            yield hook, url


@pytest.fixture(scope="module")
def matrix(quick):
    """
    Case -> how Alertmanager has the target (``active`` or ``suppressed``), and whether the webhook was told of it.

    All cases fire at once; each has a namespace of its own, in which nothing else fires.
    """
    hook, url = quick
    firing = []
    for number, (source, target, _) in enumerate(CASES.values()):
        for role, (name, labels) in (("source", source), ("target", target)):
            alert = {"alertname": name, "severity": SEVERITY[name], "case": f"{number}", "role": role}
            namespace = f"{labels.get('namespace', 'one')}-{number}"
            firing.append(alert | labels | {"namespace": namespace})
    post(url, firing)
    expected = {
        (str(number), "target")
        for number, (_, target, silenced) in enumerate(CASES.values())
        if not silenced and SEVERITY[target[0]] != "info"
    }

    def told():
        return {(alert["labels"]["case"], alert["labels"]["role"]) for one in hook.told for alert in one.body["alerts"]}

    # What is missing after this time fails under its own name.
    with contextlib.suppress(AssertionError):
        wait_for(lambda: expected <= told(), 10)
    # Whatever comes late would come with the next two flushes.
    time.sleep(3)
    states = {
        alert["labels"]["case"]: alert["status"]["state"]
        for alert in json.loads(get(f"{url}/api/v2/alerts?filter=role%3Dtarget")[1])
    }
    return {name: (states[str(n)], (str(n), "target") in told()) for n, name in enumerate(CASES)}


@pytest.mark.parametrize("case", CASES)
def test_inhibition(case, matrix):
    """A real Alertmanager holds back what the source implies, and tells of every other target that is not mere info."""
    _, (target, _), silenced = CASES[case]
    told = not silenced and SEVERITY[target] != "info"

    assert ("suppressed" if silenced else "active", told) == matrix[case]


def test_no_ticket_silences_a_page():
    """Whatever silences is at least as loud as what it silences."""
    loudness = {"info": 0, "warning": 1, "critical": 2}
    wrong = [
        (source, target) for source, target in silences() if loudness[SEVERITY[source]] < loudness[SEVERITY[target]]
    ]

    assert [] == wrong


def test_no_two_alerts_silence_each_other():
    """Inhibition has no circle: of alerts that silence each other nobody would be told."""
    graph = {}
    for source, target in silences():
        graph.setdefault(source, set()).add(target)

    def reached(name, seen=()):
        return {name}.union(*(reached(inner, (*seen, name)) for inner in graph.get(name, ()) if inner not in seen))

    assert [] == [source for source, targets in graph.items() for target in targets if source in reached(target)]


def silences():
    """Every pair of source and target."""
    for rule in routes.INHIBITIONS:
        for source in rule.sources:
            yield from ((source, target) for target in rule.targets or SEVERITY if target != source)


# --- grouping -------------------------------------------------------------------------------------------------------


def test_ranks_of_a_model_are_one_page(quick):
    """Two ranks and another replica that storm are one page; another model and another namespace are two more."""
    hook, url = quick
    name = alerts.PREEMPTION_STORM
    place = {"alertname": name, "severity": SEVERITY[name], "case": "grouping", "cluster": "c"}
    storm = place | {"namespace": "a", "instance": "i", "model_name": "m", "engine": "0"}
    changes = {}, {"engine": "1"}, {"instance": "j"}, {"model_name": "n"}, {"namespace": "b"}
    post(url, [storm | change for change in changes])
    wait_for(lambda: len(hook.of("/page", case="grouping")) == 3, 10)
    time.sleep(2)

    pages = hook.of("/page", case="grouping")
    assert [1, 1, 3] == sorted(len(page.body["alerts"]) for page in pages)
    assert 3 == len({page.body["groupKey"] for page in pages})
