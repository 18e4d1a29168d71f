"""docker-compose.yml, by its text and by the tools. Brought up for real it is by deploy/containers/test-compose.sh."""

import http.server
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from commands import kvpressure

from kvpressure.bundle import alerts

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
COMPOSE = ROOT / "docker-compose.yml"
PARTS = [COMPOSE, *sorted((DEPLOY / "compose").glob("*.yml"))]
UNPACKED = ROOT / ".cache" / "containers" / "debian" / "usr" / "bin" / "docker-compose"
YOURS = "http://host.docker.internal:8000"
ALWAYS = {"kvpressure", "prometheus", "alertmanager", "pages", "grafana"}


def compose():
    """The command that is there, if any: Docker's plugin or the program of its own."""
    plain = shutil.which("docker-compose") or (str(UNPACKED) if UNPACKED.exists() else None)
    if plain:
        return [plain]
    if shutil.which("docker") and not subprocess.run(["docker", "compose", "version"], check=False).returncode:
        return ["docker", "compose"]
    return pytest.skip("needs docker compose (deploy/containers/debian-tools.sh unpacks one)")


def services():
    """Each service as it is written, with what YAML merges into it."""
    return {name: it for part in PARTS for name, it in yaml.safe_load(part.read_text("utf-8"))["services"].items()}


def rendered(url=None):
    """The services as Compose understands them, where VLLM_URL is this."""
    environment = {name: value for name, value in os.environ.items() if name not in ("VLLM_URL", "SCENARIO")}
    ran = subprocess.run(
        [*compose(), "--file", COMPOSE, "config", "--format", "json"],
        check=True,
        capture_output=True,
        text=True,
        env=environment | ({} if url is None else {"VLLM_URL": url}),
    )
    return json.loads(ran.stdout)["services"]


def mounts(service):
    """Path in the container to path here, of what a service gets from this checkout."""
    pairs = (line.split(":") for line in service.get("volumes", ()))
    return {target: (ROOT / source, options) for source, target, *options in pairs if source.startswith(".")}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_the_files_are_compose_files(part):
    """Each file fits the schema of the Compose specification."""
    ran = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", part],
        check=False,
        capture_output=True,
        text=True,
    )
    assert 0 == ran.returncode, ran.stdout


def test_yamllint_has_nothing_to_say():
    """The files that people edit are clean by yamllint."""
    yamllint = shutil.which("yamllint") or pytest.skip("needs yamllint")
    rules = "{extends: default, rules: {line-length: {max: 120}, document-start: disable}}"
    folders = [DEPLOY / name for name in ("compose", "prometheus", "grafana")]
    ran = subprocess.run([yamllint, "-d", rules, COMPOSE, *folders], check=False, capture_output=True, text=True)
    assert (0, "") == (ran.returncode, ran.stdout)


def test_every_image_has_a_version():
    """No image floats: each has a full version, or is built here."""
    for name, service in services().items():
        built = "kvpressure:local" == service["image"]
        assert built or re.fullmatch(r"\S+/\S+:v?\d+\.\d+\.\d+(@sha256:[0-9a-f]{64})?", service["image"]), name
    assert ["kvpressure"] == [name for name, service in services().items() if "build" in service]


def test_every_port_is_on_the_loopback():
    """Nothing is reachable from another machine, and no two services want one port."""
    ports = [port for service in services().values() for port in service.get("ports", ())]
    assert {"3000", "8001", "9090", "9093", "10938"} == {port.split(":")[1] for port in ports}
    assert 5 == len(ports)
    assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in ports)


@pytest.mark.parametrize("name", sorted(services()))
def test_every_container_is_locked(name):
    """A read-only root, no capability, no new privileges, limits, a log that is cut, and time to end."""
    service = services()[name]
    assert service["read_only"] is True
    assert ["ALL"] == service["cap_drop"]
    assert ["no-new-privileges:true"] == service["security_opt"]
    assert "mem_limit" in service
    assert "pids_limit" in service
    assert "stop_grace_period" in service
    assert {"max-size", "max-file"} == set(service["logging"]["options"])
    assert not {"privileged", "cap_add", "user", "pid", "ipc", "devices"} & set(service)
    for here, options in mounts(service).values():
        assert here.exists(), here
        assert ["ro"] == options, here


def test_out_of_the_box_the_lab_is_watched():
    """Without VLLM_URL, or with an empty one, the stand-in runs, and users ask it through the tap."""
    for url in (None, ""):
        found = rendered(url)
        assert ALWAYS | {"lab", "users"} == set(found)
        assert {"--vllm.url=http://lab:8000/metrics", "--tap.upstream=http://lab:8000"} < set(
            found["kvpressure"]["command"]
        )
        assert "http://kvpressure:8001" == found["users"]["command"][-1]


def test_your_vllm_is_watched_and_asked_nothing():
    """With VLLM_URL neither the stand-in nor users exist: whoever sends requests is you."""
    found = rendered(YOURS)
    assert ALWAYS == set(found)
    assert {f"--vllm.url={YOURS}/metrics", f"--tap.upstream={YOURS}"} < set(found["kvpressure"]["command"])
    assert ["host.docker.internal=host-gateway"] == [
        host.replace(":", "=") for host in found["kvpressure"]["extra_hosts"]
    ]


@pytest.mark.parametrize("url", [None, YOURS])
def test_the_commands_are_ours(url):
    """Flags in the compose file are flags of kvpressure, in both renderings."""
    found = rendered(url)
    ran = kvpressure("serve", "--config.check", *found["kvpressure"]["command"])
    assert 0 == ran.returncode, ran.stderr
    for name in {"lab", "users"} & set(found):
        ran = kvpressure(*found[name]["command"], "--list")
        assert 0 == ran.returncode, ran.stderr


def test_prometheus_has_all_it_is_told_to_read(tmp_path):
    """In the folders that the container sees, promtool finds the configuration and both files of rules."""
    service = services()["prometheus"]
    folder = tmp_path / "etc" / "prometheus"
    folder.mkdir(parents=True)
    for target, (here, _) in mounts(service).items():
        (tmp_path / target.lstrip("/")).symlink_to(here)
    file = next(word for word in service["command"] if "config.file" in word).partition("=")[2]
    checked = tmp_path / file.lstrip("/")
    ran = subprocess.run(["promtool", "check", "config", checked], check=False, capture_output=True, text=True)
    assert 0 == ran.returncode, ran.stderr
    named = yaml.safe_load(checked.read_text("utf-8"))["rule_files"]
    rules = [yaml.safe_load((folder / name).read_text("utf-8")) for name in named]
    known = {rule.get("alert") for file in rules for group in file["groups"] for rule in group["rules"]}
    assert alerts.PREEMPTION_STORM in known


def test_prometheus_asks_services_that_are_there():
    """Each target is a service of the stack and a port of it; the job has the name that the rules expect."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    (managers,) = config["alerting"]["alertmanagers"]
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert {"kvpressure", "vllm"} == set(jobs)
    for one in (managers, *jobs.values()):
        for target in one["static_configs"][0]["targets"]:
            host, port = target.split(":")
            assert f"127.0.0.1:{port}:{port}" in services()[host]["ports"]
    (tap,) = jobs["vllm"]["static_configs"][0]["targets"]
    assert f"--tap.listen=:{tap.split(':')[1]}" in services()["kvpressure"]["command"]


def test_alertmanager_tells_pages():
    """Its configuration is the one that is shipped, and `pages` listens where that sends: on its own loopback."""
    ((target, (here, _)),) = mounts(services()["alertmanager"]).items()
    assert ROOT / "alerts" / "alertmanager.yml" == here
    assert f"--config.file={target}" in services()["alertmanager"]["command"]
    told = {
        urlsplit(hook["url"]).netloc
        for receiver in yaml.safe_load(here.read_text("utf-8"))["receivers"]
        for hook in receiver.get("webhook_configs", ())
    }
    host, port = pages().ADDRESS
    assert {f"{host}:{port}"} == told
    assert "service:alertmanager" == services()["pages"]["network_mode"]


def test_grafana_shows_the_dashboards_and_lets_nobody_in():
    """Data source and dashboards are provisioned from files that are there; visitors are viewers and cannot log in."""
    service = services()["grafana"]
    seen = mounts(service)
    (sources,) = (DEPLOY / "grafana" / "provisioning" / "datasources").iterdir()
    (source,) = yaml.safe_load(sources.read_text("utf-8"))["datasources"]
    asked = urlsplit(source["url"])
    assert f"127.0.0.1:{asked.port}:{asked.port}" in services()[asked.hostname]["ports"]
    assert (True, "prometheus") == (source["isDefault"], source["type"])
    (providers,) = (DEPLOY / "grafana" / "provisioning" / "dashboards").iterdir()
    (provider,) = yaml.safe_load(providers.read_text("utf-8"))["providers"]
    folder, _ = seen[provider["options"]["path"]]
    assert ROOT / "dashboards" == folder
    said = service["environment"]
    home = Path(said["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert provider["options"]["path"] == str(home.parent)
    assert "kvpressure-oncall" == json.loads((folder / home.name).read_text("utf-8"))["uid"]
    assert ("true", "Viewer") == (said["GF_AUTH_ANONYMOUS_ENABLED"], said["GF_AUTH_ANONYMOUS_ORG_ROLE"])
    assert ("true", "false") == (said["GF_AUTH_DISABLE_LOGIN_FORM"], said["GF_AUTH_BASIC_ENABLED"])


def pages():
    """The webhook's script, which is no package."""
    spec = importlib.util.spec_from_file_location("pages", DEPLOY / "alertmanager" / "pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def webhook():
    """Where it listens, on a free port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), pages().Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def post(url, body):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as fault:
        with fault:
            return fault.code


def test_pages_writes_a_line_for_each_alert(webhook, capsys):
    """A notification of Alertmanager is a line per alert: where it goes, its state, its labels, its summary."""
    storm = {"alertname": "KVPressurePreemptionStorm", "severity": "critical", "model_name": "m", "pod": "p"}
    told = {
        "version": "4",
        "alerts": [
            {"status": "firing", "labels": storm, "annotations": {"summary": "vLLM\ninterrupts."}},
            {"status": "resolved", "labels": {"alertname": "B"}, "annotations": {}},
        ],
    }
    assert 200 == post(f"{webhook}/page", json.dumps(told).encode())
    assert (
        'page firing alertname=KVPressurePreemptionStorm severity=critical model_name=m "vLLM\\ninterrupts."\n'
        'page resolved alertname=B ""\n'
    ) == capsys.readouterr().out


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"alerts": [1]}', b'{"alerts": [{"status": "firing"}]}'])
def test_pages_refuses_what_is_no_notification(webhook, capsys, body):
    """It answers 400 and writes nothing."""
    assert 400 == post(f"{webhook}/page", body)
    assert ("", "") == tuple(capsys.readouterr())
