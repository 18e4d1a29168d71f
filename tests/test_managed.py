"""deploy/managed: the rules reach other rulers unchanged, and mean the same there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import victoria
import yaml
from alert_harness import fired, scrapes
from alert_traces import Engine, made_up, repeated, watched, within

from kvpressure import recording

ROOT = Path(__file__).parents[1]
MANAGED = ROOT / "deploy" / "managed"
FIXTURES = ROOT / "tests" / "fixtures" / "recordings"
KUBERNETES = ROOT / "deploy" / "kubernetes" / "monitoring"
RULES = [ROOT / "alerts" / f"kvpressure.{name}.yml" for name in ("rules", "alerts")]
ALERTMANAGER = ROOT / "alerts" / "alertmanager.yml"
MIMIR_MOST = 20
"""Rules of a group that Mimir takes by default."""


def shown(first: str) -> str:
    """The command of the README that begins so, with the lines that continue it."""
    text = (MANAGED / "README.md").read_text(encoding="utf-8").replace("\\\n", "")
    found = re.findall(rf"^{re.escape(first)}.*$", text, re.MULTILINE)
    assert len(found) == 1, f"{first}: {found}"
    return str(found[0])


def printed(command: str) -> str:
    """What a shell prints of a command of the README, run as a reader would: from the checkout."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    said = subprocess.run(
        ["bash", "-c", command], check=True, capture_output=True, text=True, cwd=ROOT, env={"PATH": path}
    )
    return said.stdout


def groups(text: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = yaml.safe_load(text)["groups"]
    return found


def recorded(name: str) -> list[recording.Row]:
    path = recording.find(str(FIXTURES / name))
    return list(recording.rows(path, complain=pytest.fail))


# --- Google ----------------------------------------------------------------------------------------------------------


def google() -> dict[str, object]:
    """The object that the README's command makes for Google."""
    document: dict[str, object] = yaml.safe_load(printed(shown("sed -e 's#monitoring.coreos").partition("|")[0]))
    return document


def test_google_gets_the_same_rules():
    """The command changes kind and scope of the PrometheusRule, and leaves out the one field that Google's lacks."""
    ours = yaml.safe_load((KUBERNETES / "prometheusrule.yaml").read_text(encoding="utf-8"))
    ours["apiVersion"], ours["kind"] = "monitoring.googleapis.com/v1", "ClusterRules"
    del ours["metadata"]["namespace"]
    dropped = [
        rule.pop("keep_firing_for")
        for group in ours["spec"]["groups"]
        for rule in group["rules"]
        if "keep_firing_for" in rule
    ]

    assert dropped
    assert google() == ours


def test_a_storm_pages_at_the_same_minute_without_keep_firing_for(tmp_path):
    """What Google's rules lack delays the end of an alert, never its beginning."""
    rows = list(made_up(Engine(preemptions=within(10, 22, 0.3), kv=0.95), minutes=40))
    path = tmp_path / "google.yml"
    path.write_text(yaml.safe_dump(google()["spec"]), encoding="utf-8")
    ours = fired(scrapes(rows), RULES, tmp_path)
    theirs = fired(scrapes(rows), [path], tmp_path)

    assert ("critical", "KVPressurePreemptionStorm") in ours
    assert {key: alert.first for key, alert in ours.items()} == {key: alert.first for key, alert in theirs.items()}
    assert any(theirs[key].last < ours[key].last for key in ours)


def test_google_scrapes_what_the_pod_monitor_selects():
    """Its object has the name, the selector and the endpoint of the PodMonitor for the Operator."""
    theirs = yaml.safe_load((MANAGED / "google-podmonitoring.yaml").read_text(encoding="utf-8"))
    ours = yaml.safe_load((KUBERNETES / "podmonitor.yaml").read_text(encoding="utf-8"))

    assert theirs["metadata"]["name"] == ours["metadata"]["name"]
    assert theirs["spec"]["selector"] == ours["spec"]["selector"]
    assert theirs["spec"]["endpoints"] == ours["spec"]["podMetricsEndpoints"]


# --- Mimir, Amazon ---------------------------------------------------------------------------------------------------


def test_mimir_gets_all_rules_in_groups_that_it_takes(tmp_path):
    """Cut up, no group is longer than Mimir's limit, every rule is there as it was, in order, and promtool takes it."""
    command, _, name = shown("python3 deploy/managed/split.py").partition(" > ")
    text = printed(command)
    cut = groups(text)
    (tmp_path / name).write_text(text, encoding="utf-8")

    assert [group["name"] for group in cut] == [f"kvpressure.rules.{number}" for number in range(1, len(cut) + 1)]
    assert max(len(group["rules"]) for group in cut) <= MIMIR_MOST
    assert [rule for group in cut for rule in group["rules"]] == groups(RULES[0].read_text("utf-8"))[0]["rules"]
    subprocess.run(["promtool", "check", "rules", str(tmp_path / name)], check=True, capture_output=True)


def test_alerts_need_no_cutting():
    """The file of alerts goes to Mimir as it is."""
    (group,) = groups(RULES[1].read_text(encoding="utf-8"))

    assert len(group["rules"]) <= MIMIR_MOST


def test_no_record_reads_another():
    """So groups may be evaluated at once, in any order."""
    (group,) = groups(RULES[0].read_text(encoding="utf-8"))
    names = {rule["record"] for rule in group["rules"]}

    assert {name for rule in group["rules"] for name in names if name in rule["expr"]} == set()


def test_amazon_gets_our_routes_and_its_own_receivers(tmp_path):
    """The definition has our routes and inhibitions, and receivers of the same names; amtool takes it."""
    command, _, _ = shown("{ echo 'alertmanager_config").rpartition(" > ")
    inner = yaml.safe_load(printed(command))["alertmanager_config"]
    path = tmp_path / "alertmanager.yml"
    path.write_text(inner, encoding="utf-8")
    theirs, ours = yaml.safe_load(inner), yaml.safe_load(ALERTMANAGER.read_text(encoding="utf-8"))

    assert [one["name"] for one in theirs.pop("receivers")] == [one["name"] for one in ours.pop("receivers")]
    assert theirs == ours
    subprocess.run(["amtool", "check-config", str(path)], check=True, capture_output=True)


def test_prometheus_takes_the_remote_write_configuration():
    """What stands there is a configuration of Prometheus, under the job that the alerts look for."""
    path = MANAGED / "remote-write.yml"

    subprocess.run(["promtool", "check", "config", "--syntax-only", str(path)], check=True, capture_output=True)
    (job,) = yaml.safe_load(path.read_text(encoding="utf-8"))["scrape_configs"]
    assert job["job_name"] == "kvpressure"


# --- Alloy -----------------------------------------------------------------------------------------------------------


def test_alloy_looks_for_the_labels_that_our_objects_have():
    """The selectors of its configuration are the labels of the PodMonitor and of the PrometheusRule."""
    text = (MANAGED / "alloy-kubernetes.alloy").read_text(encoding="utf-8")
    asked = [
        dict(re.findall(r'(\w+) += "(\w+)"', block))
        for block in re.findall(r"match_labels = \{(.*?)\}", text, re.DOTALL)
    ]

    files = KUBERNETES / "podmonitor.yaml", KUBERNETES / "prometheusrule.yaml"
    assert asked == [yaml.safe_load(path.read_text(encoding="utf-8"))["metadata"]["labels"] for path in files]


def test_alloy_scrapes_the_eight_instances_of_a_host():
    """Its targets are those of the Prometheus beside the systemd units."""
    text = (MANAGED / "alloy-host.alloy").read_text(encoding="utf-8")
    systemd = yaml.safe_load((ROOT / "deploy" / "systemd" / "prometheus.yml").read_text(encoding="utf-8"))

    (job,) = systemd["scrape_configs"]
    assert re.findall(r'"__address__" = "(.*?)"', text) == job["static_configs"][0]["targets"]
    assert re.findall(r'job_name += "(.*?)"', text) == [job["job_name"]]


# --- VictoriaMetrics -------------------------------------------------------------------------------------------------


@pytest.fixture
def needs_victoria(tmp_path):
    """Skips where there is no VictoriaMetrics, or an old one."""
    if reason := victoria.missing(tmp_path):
        pytest.skip(reason)


@pytest.mark.usefixtures("needs_victoria")
def test_vmalert_takes_the_rules(tmp_path):
    """It parses every expression as MetricsQL and every template; one that is broken is told."""
    said = victoria.dry_run(RULES)
    assert (said.returncode, said.stderr) == (0, "")

    broken = tmp_path / "broken.yml"
    broken.write_text(RULES[1].read_text(encoding="utf-8").replace("max without (window)", "max without window", 1))
    assert victoria.dry_run([broken]).returncode != 0


def test_vmagent_takes_the_scrape_configuration():
    """It reads that of Prometheus for a host, and would complain of what it does not know."""
    if shutil.which("vmagent") is None:
        pytest.skip("no vmagent here")
    path = ROOT / "deploy" / "systemd" / "prometheus.yml"
    command = ["vmagent", "-dryRun", "-promscrape.config.strictParse", f"-promscrape.config={path}"]

    subprocess.run([*command, "-remoteWrite.url=http://127.0.0.1:1"], check=True, capture_output=True)


STALL = recorded("compute_stall")
STREAMS = FIXTURES / "compute_stall" / "streams.jsonl.gz"

CASES = {
    "a storm that ends": (
        lambda: scrapes(made_up(Engine(preemptions=within(10, 22, 0.3), kv=0.95), minutes=40)),
        {"Pinned", "PreemptionChurn", "PreemptionStorm"},
    ),
    "an onset": (
        lambda: scrapes(
            made_up(Engine(preemptions=within(3, 6.2, 5), finished=2, waiting=within(3, 6.2, 200)), minutes=30)
        ),
        set(),
    ),
    "churn at 0.2 requests/s": (
        lambda: scrapes(made_up(Engine(preemptions=0.002, finished=0.2, running=4, kv=0.9), minutes=60)),
        {"PreemptionChurn"},
    ),
    "a vLLM that is down for ten minutes": (
        lambda: scrapes(made_up(Engine(), minutes=40, silent=(20, 30))),
        {"VLLMDown"},
    ),
    "a real storm, again and again": (
        lambda: scrapes(repeated(recorded("arm_roomy"), 40)),
        {"InterTokenGapHigh", "PreemptionChurn", "PreemptionStorm"},
    ),
    "a host that stalls, as the tap saw it": (
        lambda: scrapes(repeated(STALL, 25), watched(STREAMS, STALL, 25, again=True)),
        {"RequestsPausing", "StallElsewhere"},
    ),
}


@pytest.mark.usefixtures("needs_victoria")
@pytest.mark.parametrize(("series", "names"), CASES.values(), ids=CASES)
def test_vmalert_fires_what_prometheus_fires(tmp_path, series, names):
    """VictoriaMetrics and Prometheus begin to fire the same alerts, within two evaluations of one another."""
    scraped = list(series())
    ours = {key: alert.first for key, alert in fired(scraped, RULES, tmp_path).items()}
    theirs = victoria.fired(scraped, RULES, tmp_path)

    assert {f"KVPressure{name}" for name in names} == {name for _, name in ours}
    assert set(ours) == set(theirs)
    assert {key: minute for key, minute in theirs.items() if abs(minute - ours[key]) > 0.5} == {}
