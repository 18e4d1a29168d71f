"""The request log and the tap in a pod: what vLLM is told to write, where, and which Services lead to the tap."""

import json
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from kubernetes_help import (
    CASES,
    LOGGED,
    NAME,
    OBSERVED,
    SHAPES,
    TAPPED,
    UNLABELLED,
    VARIANTS,
    WORKLOADS,
    built,
    by_name,
    config_map,
    containers,
    flags,
    load_all,
    named,
    objects,
    original,
    pod,
    sidecar,
    template,
    workload,
    written,
)

from kvpressure.settings import split_address
from kvpressure.vllm.logs import LogReader

LOGGING = "VLLM_LOGGING_CONFIG_PATH"
LOG_CASES = [case for case in CASES if case.values[0] in LOGGED]
TAP_CASES = [case for case in CASES if case.values[0] in TAPPED]
MI = 1024 * 1024


# --- the log: volume and environment --------------------------------------------------------------------------------


@pytest.mark.parametrize(("variant", "shape"), CASES)
def test_who_writes_and_who_reads(variant, shape):
    """Every container that was there gets vLLM's logging configuration and a folder to write to; ours only reads it."""
    spec = pod(variant, shape)
    before = {one["name"] for one in template(workload(original(shape), shape))["spec"]["containers"]}

    told = {one["name"] for one in containers(spec) if any(item["name"] == LOGGING for item in one.get("env", []))}
    assert told == (before if variant in LOGGED else set())
    writers = {
        one["name"]
        for one in containers(spec)
        for mount in one.get("volumeMounts", [])
        if mount["name"] == "kvpressure-log" and not mount.get("readOnly")
    }
    assert writers == told
    assert ("log.path" in flags(sidecar(spec))) == (variant in LOGGED)


@pytest.mark.parametrize(("variant", "shape"), LOG_CASES)
def test_one_file_by_one_name(variant, shape):
    """vLLM's file, as its configuration names it through its mount, is the one that the sidecar follows."""
    spec = pod(variant, shape)
    path = flags(sidecar(spec))["log.path"]
    folder, _, _ = path.rpartition("/")

    assert path == configuration(variant, shape)["handlers"]["requests"]["filename"]
    for one in [sidecar(spec), *written_by(spec)]:
        assert folder == named(one["volumeMounts"], "kvpressure-log")["mountPath"]
    for one in written_by(spec):
        mount = named(one["volumeMounts"], "kvpressure-vllm-logging")
        assert f"{mount['mountPath']}/vllm-logging.json" == named(one["env"], LOGGING)["value"]
        assert mount["readOnly"]


def written_by(spec):
    """The containers of the user that may be vLLM."""
    return [one for one in spec["containers"] if one["name"] != NAME]


def configuration(variant, shape):
    """vLLM's logging configuration, from the ConfigMap that the pod mounts."""
    name = named(pod(variant, shape)["volumes"], "kvpressure-vllm-logging")["configMap"]["name"]
    return json.loads(config_map(objects(variant), name)["vllm-logging.json"])


@pytest.mark.parametrize(("variant", "shape"), LOG_CASES)
def test_the_log_never_evicts_the_pod(variant, shape):
    """All files together are half the volume's limit at most, so that even a rotation that hangs leaves room."""
    volume = named(pod(variant, shape)["volumes"], "kvpressure-log")
    handler = configuration(variant, shape)["handlers"]["requests"]

    limit = volume["emptyDir"]["sizeLimit"]
    assert limit.endswith("Mi")
    assert 0 < handler["maxBytes"] * (handler["backupCount"] + 1) <= int(limit.removesuffix("Mi")) * MI / 2
    assert "medium" not in volume["emptyDir"], "memory would count against the containers' own limits"


def test_a_configuration_of_ones_own_is_replaced(tmp_path):
    """Where the variable is set already it is there once, and ours: as the README says."""
    shape = (
        (SHAPES / f"{UNLABELLED}.yaml").read_text(encoding="utf-8").replace('kvpressure: "no"', "kvpressure: sidecar")
    )
    (tmp_path / "mine.yaml").write_text(shape, encoding="utf-8")

    found = by_name(load_all(built(written(tmp_path / "overlay", [tmp_path / "mine.yaml"], ["metrics-log"]))))

    (vllm,) = found["Deployment", "embeddings"]["spec"]["template"]["spec"]["containers"]
    assert [{"name": LOGGING, "value": "/etc/kvpressure/vllm-logging.json"}] == vllm["env"]


# --- the log: what vLLM writes with it ------------------------------------------------------------------------------

WRITER = """
import json, logging, logging.config, sys

logging.config.dictConfig(json.loads(sys.argv[1]))
text = "secret" * 100
for number in range(int(sys.argv[2])):
    log = logging.getLogger("vllm.entrypoints.logger")
    log.info("Received request %s: params: %s, lora_request: None.", "chatcmpl-a", text)
    logging.getLogger("vllm.v1.engine.async_llm").info("Added request %s.", "chatcmpl-a-1")
    for _ in range(3):
        log.info("Generated response %s%s: output: %r, finish_reason: %s", "chatcmpl-a", " (streaming delta)", "", None)
    logging.getLogger("vllm.engine.metrics").info("Engine 000: %s", text)
"""


def vllm_writes(folder, *, rounds=1, zone="UTC", **handler):
    """What a process with vLLM's loggers writes with the configuration, to the file and to the console."""
    config = configuration("metrics-log", "vllm-docs")
    config["handlers"]["requests"] |= {"filename": str(folder / "requests.log"), **handler}
    program = folder / "request_logger.py"
    program.write_text(WRITER, encoding="utf-8")
    said = subprocess.run(
        [sys.executable, "-W", "error", str(program), json.dumps(config), str(rounds)],
        check=True,
        capture_output=True,
        text=True,
        env={"TZ": zone},
    )
    return (folder / "requests.log").read_bytes(), said.stdout


def test_lines_are_short_and_stamped(tmp_path):
    """A message is cut after 240 characters; the time before it has milliseconds; what else vLLM says stays away."""
    before = datetime.now(UTC)
    written_lines, console = vllm_writes(tmp_path)

    lines = written_lines.decode().splitlines()
    assert ["Received", "Added", *["Generated"] * 3] == [line.split("] ", 1)[1].split()[0] for line in lines]
    assert 240 == len(lines[0].split("] ", 1)[1])
    for line in lines:
        stamp = datetime.fromisoformat(line.split()[0])
        assert len("2026-11-30T07:16:32.123Z") == len(line.split()[0])
        assert abs((stamp - before).total_seconds()) < 60
    assert ["Added", "Engine"] == [line.split("] ", 1)[1].split()[0] for line in console.splitlines()]
    assert console.splitlines()[1].endswith("secret" * 100), "what vLLM prints is as it was"


def test_kvpressure_reads_what_vllm_writes(tmp_path):
    """The lines are events, at the very millisecond of their stamp."""
    data, _ = vllm_writes(tmp_path)

    events = [event for batch in LogReader().read(data) for event in batch.events]

    assert ["start", "token", "token", "token"] == [event.kind for event in events]
    stamps = [line.split()[0].decode() for line in data.splitlines() if b"Added" not in line]
    assert [datetime.fromisoformat(stamp).timestamp() for stamp in stamps] == pytest.approx(
        [event.t for event in events]
    )


@pytest.mark.parametrize("zone", ["Asia/Shanghai", "America/St_Johns"])
def test_a_pod_with_a_time_zone(zone, tmp_path):
    """Python stamps in local time, whatever stands behind the seconds: a log that is followed is set right."""
    now = datetime.now(UTC).timestamp()
    data, _ = vllm_writes(tmp_path, zone=zone)
    later = datetime.now(UTC).timestamp()

    events = [event for batch in LogReader().read(data, later, now) for event in batch.events]

    assert 4 == len(events)
    assert all(now - 1 <= event.t <= later + 1 for event in events)


def test_the_file_is_rotated(tmp_path):
    """However much is written, the files together stay under what the configuration allows."""
    vllm_writes(tmp_path, rounds=500, maxBytes=20_000)

    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("requests.log*")}
    assert {"requests.log", "requests.log.1"} == set(sizes)
    assert all(0 < size <= 20_000 for size in sizes.values())


# --- the tap --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variant", "shape"), TAP_CASES)
def test_services_lead_to_the_tap(variant, shape):
    """The first port of a labelled Service leads to the port where the tap listens; all else of Services stays."""
    ours = sidecar(pod(variant, shape))
    port = named(ours["ports"], "kvpressure-tap")["containerPort"]

    assert split_address(flags(ours)["tap.listen"]) == ("", port)
    for key, before in original(shape).items():
        if before["kind"] == "Service":
            labelled = before["metadata"].get("labels", {}).get(NAME) == "tap"
            first, *others = objects(variant)[key]["spec"]["ports"]
            assert first == before["spec"]["ports"][0] | ({"targetPort": port} if labelled else {})
            assert others == before["spec"]["ports"][1:]


def test_there_are_services_of_both_kinds():
    """Among the shapes some Services are labelled for the tap and some are not, with one port and with several."""
    services = [one for shape in OBSERVED for one in original(shape).values() if one["kind"] == "Service"]

    assert {True, False} == {NAME in one["metadata"].get("labels", {}) for one in services}
    assert {True, False} == {len(one["spec"]["ports"]) > 1 for one in services}


@pytest.mark.parametrize(("variant", "shape"), TAP_CASES)
def test_probes_reach_vllm_itself(variant, shape):
    """No probe of a container leads to the tap: who stops the tap does not make vLLM look dead."""
    spec = pod(variant, shape)
    tap = named(sidecar(spec)["ports"], "kvpressure-tap")

    for one in containers(spec):
        for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
            probe = one.get(kind, {})
            port = (probe.get("httpGet") or probe.get("tcpSocket") or {}).get("port")
            assert port not in {tap["containerPort"], tap["name"]}


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant not in TAPPED])
def test_without_the_tap_no_service_changes(variant):
    """Only the variants with a tap touch a Service, labelled or not, and only they have its port and flags."""
    for shape in OBSERVED:
        for key, before in original(shape).items():
            if before["kind"] not in WORKLOADS:
                assert before == objects(variant)[key]
        ours = sidecar(pod(variant, shape))
        assert [NAME] == [port["name"] for port in ours["ports"]]
        assert not [name for name in flags(ours) if name.startswith("tap.")]
