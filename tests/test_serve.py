"""The whole sidecar as a process, beside the lab as another."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import free_port, get, kvpressure, running, wait_for
from prometheus_client import CollectorRegistry

from kvpressure.expose.families import render

STORM = ("--scenario", "storm", "--speed", "10")


def values(text):
    """Sample (name with labels) -> value of an exposition."""
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line and not line.startswith("#")
    }


def value(text, start):
    """The value of the first sample of this name, or with these labels, or None."""
    return next((found for name, found in values(text).items() if start in (name, name.partition("{")[0])), None)


def storms(text):
    """Whether the exposition shows what a storm leads to, sooner or later."""
    verdict = value(text, 'kvpressure_verdict{engine="0",model_name="lab-8b",verdict="kv_memory"}')
    gaps = value(text, "kvpressure_long_gaps_per_thousand_requests") or 0.0
    return verdict == 1.0 and gaps > 0.0 and value(text, "kvpressure_preemptions_total") > 20


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The lab under a storm ten times as fast as real time, and the sidecar beside it."""
    log = str(tmp_path_factory.mktemp("lab") / "vllm.log")
    with (
        running("lab", "--scenario", "storm", "--speed", "10", "--log.file", log, ready="/health") as lab,
        running(
            "serve",
            "--vllm.url",
            f"{lab.url}/metrics",
            "--sample.interval",
            "200ms",
            "--sample.duty-budget",
            "1",
            ready="/-/ready",
        ) as sidecar,
    ):
        wait_for(lambda: storms(get(f"{sidecar.url}/metrics")[1]), 60)
        yield lab, sidecar


def test_a_storm_is_seen(pair):
    """Beside a lab that storms, the verdict is kv_memory and no headline signal is missing."""
    _, sidecar = pair
    text = get(f"{sidecar.url}/metrics")[1]

    assert 1.0 == value(text, "kvpressure_up")
    assert 1.0 == value(text, 'kvpressure_verdict{engine="0",model_name="lab-8b",verdict="kv_memory"}')
    assert value(text, "kvpressure_preemptions_per_thousand_requests") > 100
    assert value(text, "kvpressure_kv_pinned_ratio") > 0.1
    assert value(text, "kvpressure_inter_token_gap_p99_seconds") > 0.0
    assert value(text, "kvpressure_long_gaps_per_thousand_requests") > 0.0
    assert value(text, "kvpressure_requests_running") > 0


def test_it_counts_what_the_lab_counts(pair):
    """From its first reading on the sidecar witnesses what the lab counts: nearly all of it, and no more."""
    lab, sidecar = pair

    def seen():
        return value(get(f"{sidecar.url}/metrics")[1], "kvpressure_preemptions_total")

    def counted():
        return value(get(f"{lab.url}/metrics")[1], "vllm:num_preemptions_total")

    before = seen(), counted()
    wait_for(lambda: counted() >= before[1] + 100, 60)
    gained = counted() - before[1]
    wait_for(lambda: seen() - before[0] >= 0.8 * gained, 10)
    assert seen() <= counted()


def test_the_exposition_is_good_prometheus(pair):
    """promtool finds nothing to say about the sidecar's metrics."""
    text = get(f"{pair[1].url}/metrics")[1]

    checked = subprocess.run(["promtool", "check", "metrics"], input=text, check=False, capture_output=True, text=True)

    assert (0, "", "") == (checked.returncode, checked.stdout, checked.stderr)


def test_openmetrics_on_request(pair):
    """A scraper that asks for OpenMetrics gets it, and it ends as OpenMetrics does."""
    text = get(f"{pair[1].url}/metrics", {"Accept": "application/openmetrics-text; version=1.0.0"})[1]

    assert text.endswith("# EOF\n")
    assert "kvpressure_preemptions_total{" in text
    assert "_created" not in text


def test_state_is_the_snapshot(pair):
    """The JSON state has the same engine, verdict and windows as the metrics."""
    state = json.loads(get(f"{pair[1].url}/api/v1/state")[1])

    engine = state["engines"][0]
    assert ("lab-8b", "0", "V1", "kv_memory") == (
        engine["model_name"],
        engine["engine"],
        engine["era"],
        engine["verdict"],
    )
    assert ["1m", "5m", "15m"] == [window["window"] for window in engine["windows"]]
    assert engine["evidence"]["preempted"] > 0


def test_probes_and_landing_page(pair):
    """The probes answer, and the page at / leads to the metrics."""
    url = pair[1].url

    assert [200, 200] == [get(f"{url}/-/healthy")[0], get(f"{url}/-/ready")[0]]
    assert "/metrics" in get(f"{url}/")[1]


def test_vllm_goes_and_comes_back():
    """While vLLM is away only what was counted is left; when it is back the counters go on; it is ready throughout."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    with running("serve", "--vllm.url", url, "--sample.interval", "100ms", ready="/-/ready") as sidecar:
        metrics = f"{sidecar.url}/metrics"
        wait_for(lambda: value(get(metrics)[1], "kvpressure_up") == 0.0, 5)
        assert value(get(metrics)[1], 'kvpressure_sample_errors_total{reason="refused"}') > 0

        with running("lab", *STORM, ready="/health", port=port):
            wait_for(lambda: (value(get(metrics)[1], "kvpressure_preemptions_total") or 0) > 5, 20)
        wait_for(lambda: value(get(metrics)[1], "kvpressure_kv_usage_ratio") is None, 10)
        gone = get(metrics)[1]
        counted = value(gone, "kvpressure_preemptions_total")
        assert counted > 5
        assert 0.0 == value(gone, "kvpressure_up")
        assert 1.0 == value(gone, 'kvpressure_regime{engine="0",model_name="lab-8b",regime="unknown"}')
        assert value(gone, "kvpressure_preemptions_per_thousand_requests") is None
        assert 200 == get(f"{sidecar.url}/-/ready")[0]

        with running("lab", *STORM, ready="/health", port=port):
            wait_for(lambda: (value(get(metrics)[1], "kvpressure_preemptions_total") or 0) > counted + 5, 20)
            assert 1.0 == value(get(metrics)[1], "kvpressure_engine_resets_total")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_within_a_second(number):
    """SIGTERM and SIGINT end it with status 0 in under a second, vLLM there or not, and without a traceback."""
    with running("serve", "--vllm.url", f"http://127.0.0.1:{free_port()}/metrics", ready="/-/healthy") as sidecar:
        status = sidecar.stop(number)

    assert 0 == status
    assert sidecar.stopped_in < 1.0
    assert "Traceback" not in sidecar.stderr


_SILENT_NAMES = """
import socket, sys, time
ask = socket.getaddrinfo
def silent(host, *rest, **named):
    if host == "vllm":
        print("asked", flush=True)
        time.sleep(60)
    return ask(host, *rest, **named)
socket.getaddrinfo = silent
from kvpressure.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_name_server_that_does_not_answer_delays_no_end():
    """A name that is being looked for cannot be given up, so the process ends without it."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-c", _SILENT_NAMES, "serve", "--web.listen-address", address]
    with subprocess.Popen(
        [*command, "--vllm.url", "http://vllm/metrics"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "asked\n"
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=10)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "Traceback" not in said


def test_a_taken_port_is_one_sentence():
    """A port that is taken is named in one sentence, exit status 2."""
    with running("serve", "--vllm.url", f"http://127.0.0.1:{free_port()}/metrics", ready="/-/healthy") as first:
        said = kvpressure("--web.listen-address", first.url.removeprefix("http://"))

    assert 2 == said.returncode
    assert first.url.removeprefix("http://") in said.stderr.splitlines()[-1]
    assert "Traceback" not in said.stderr


def test_sighup_is_told_and_survived():
    """SIGHUP ends nothing, and the log says that a restart is what loads a changed configuration."""
    with running("serve", "--vllm.url", f"http://127.0.0.1:{free_port()}/metrics", ready="/-/healthy") as sidecar:
        sidecar.process.send_signal(signal.SIGHUP)
        wait_for(lambda: get(f"{sidecar.url}/-/healthy")[0] == 200, 5)
        status = sidecar.stop()

    assert status == 0
    assert "SIGHUP is ignored" in sidecar.stderr


@pytest.mark.parametrize(
    "accept", ["text/plain;version=abc", "application/openmetrics-text;version=1.x", "*/*;q=x", ""]
)
def test_any_accept_header_gets_metrics(accept):
    """An Accept header that makes no sense is answered with the plain format."""
    body, content_type = render(CollectorRegistry(auto_describe=False), accept)

    assert isinstance(body, bytes)
    assert content_type.startswith(("text/plain", "application/openmetrics-text"))


def test_a_stop_while_it_starts_as_process_1():
    """The kernel drops what process 1 does not handle; SIGTERM during the imports still ends it, as if well."""
    command = [
        "unshare",
        "--pid",
        "--fork",
        sys.executable,
        "-m",
        "kvpressure",
        "serve",
        "--vllm.url",
        "http://127.0.0.1:9/metrics",
    ]
    port = free_port()
    with subprocess.Popen([*command, "--web.listen-address", f"127.0.0.1:{port}"], stderr=subprocess.PIPE) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_for(lambda: process.poll() is not None or children.read_text(encoding="ascii"), 10)
        if process.poll() is not None:
            pytest.skip("this machine does not let a process have its own numbers: unshare --pid --fork fails")
        child = int(children.read_text(encoding="ascii"))
        maps = Path(f"/proc/{child}/maps")
        loaded = ""
        try:
            while not _handles(child, signal.SIGTERM):
                # Before what takes long, which is aiohttp.
                assert "aiohttp" not in loaded
                loaded = maps.read_text(encoding="utf-8")
            os.kill(child, signal.SIGTERM)
            assert process.wait(10) == 0
        finally:
            process.kill()


def _handles(pid, number):
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return bool(int(re.search(r"SigCgt:\s*([0-9a-f]+)", status)[1], 16) & 1 << (number - 1))
