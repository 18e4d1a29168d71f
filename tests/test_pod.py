"""
A pod's life by hand, with its processes: who starts and ends first, and what users and counters see of it.

A native sidecar (an init container that restarts) starts before vLLM and is told to stop once vLLM has ended. An
ordinary container is told to stop together with vLLM, while its Service still leads to it.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from commands import free_port, get, running, wait_for
from pod_help import READ_ONLY, Falls, Users, delta, draining_vllm, namespaced, port_of, reachable, sidecar, stream_of

from kvpressure import serve
from kvpressure.config import Config, VllmConfig
from kvpressure.derive.target import Target
from kvpressure.observe.logtail import LogTail
from kvpressure.observe.scraper import Scraper

BURST = 200_000
"""Lines that vLLM writes right before its end."""


def lines_of(*paths):
    """How many lines files have."""
    return sum(path.read_bytes().count(b"\n") for path in paths)


def lab(port, log, *words):
    """A vLLM of the lab that logs every token."""
    return running(
        *("lab", "--log.file", str(log), "--log.requests", "--step.base", "0.005", *words), ready="/health", port=port
    )


# --- what takes long, begun first -----------------------------------------------------------------------------------


def last_stream(seconds, *words):
    """Tell a pod to stop whose last stream lasts for so long: the answer, how long it and the sidecar took, its log."""
    with draining_vllm() as vllm, sidecar(port_of(vllm), *words) as it:
        users = Users(it.tap, 1, chunks=4 * seconds, pause=0.25).wait_begun()
        vllm.process.send_signal(signal.SIGTERM)
        it.terminate()
        began = time.monotonic()
        status = it.ended(40)
        took = time.monotonic() - began
        return users.wait_ended()[0], took, status


@pytest.fixture(scope="module")
def long_ends():
    """Ends that take up to half a minute, under way while other tests run."""
    with ThreadPoolExecutor(2) as pool:
        yield {
            "drained": pool.submit(last_stream, 27, "--tap.drain-timeout", "30s"),
            "cut": pool.submit(last_stream, 27),
        }


# --- vLLM comes and goes --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("long_ends")
@pytest.mark.parametrize("pattern", ["logs/vllm-*.log", "vllm-1.log"])
def test_it_is_up_before_vllm(tmp_path, pattern):
    """
    Beside no vLLM, and with a log that is not there yet, it is ready and says nothing of vLLM.

    It is the same process that samples, follows the log from its first line, and passes requests on once there is one.
    """
    port, path = free_port(), (tmp_path / pattern).with_name("vllm-1.log")
    with sidecar(port, "--log.path", str(tmp_path / pattern)) as it:
        wait_for(lambda: it.value("kvpressure_up") == 0.0, 5)
        assert 200 == get(f"{it.command.url}/-/ready")[0]
        assert 'engine="' not in it.metrics
        refused = Users(it.tap, 1).wait_ended()[0]
        assert 502 == refused.status
        error = json.loads(refused.raw)["error"]
        assert {"message", "type", "param", "code"} == set(error)
        assert 502 == error["code"]

        path.parent.mkdir(exist_ok=True)
        with lab(port, path, "--no-load") as vllm:
            samples = it.value("kvpressure_samples_total")
            wait_for(lambda: it.value("kvpressure_samples_total") >= samples + 2, 20)
            assert 1.0 == it.value("kvpressure_up")
            answers = Users(it.tap, 5, max_tokens=5).wait_ended()
            assert [(200, True)] * 5 == [(answer.status, answer.whole) for answer in answers]
            wait_for(lambda: it.value('kvpressure_requests_streamed_total{model_name="lab-8b",source="log"}') == 5, 15)
            assert 5.0 == it.value('kvpressure_requests_streamed_total{model_name="lab-8b",source="tap"}')
            assert 0 == vllm.stop()
        it.terminate()
        assert 0 == it.ended()

    assert str(lines_of(path)) == it.last_line["log_lines"]
    assert "Traceback" not in it.command.stderr


@pytest.mark.parametrize("names", [("vllm-1.log", "vllm-2.log"), ("vllm-1.log", "vllm-1.log")])
def test_vllm_restarts(tmp_path, names):
    """
    When vLLM is killed under a storm and starts again, no counter falls, and nothing is counted twice.

    The streams of the first one end as it ended them, and its successor's log, in a new file or the same, and its
    streams are followed.
    """
    port, logs = free_port(), [tmp_path / name for name in names]
    storm = ("--scenario", "storm", "--speed", "10")
    preemptions = 'kvpressure_preemptions_total{engine="0",model_name="lab-8b"}'
    with sidecar(port, "--log.path", str(tmp_path / "vllm-*.log")) as it, Falls(it) as falls:
        with lab(port, logs[0], *storm) as first:
            wait_for(lambda: (it.value(preemptions) or 0) > 5, 20)
            broken = Users(it.tap, 3, max_tokens=8_000, ignore_eos=True).wait_begun()
            first.process.kill()
            answers = broken.wait_ended(5)
        assert [(200, False)] * 3 == [(answer.status, answer.whole) for answer in answers]
        wait_for(lambda: it.value("kvpressure_up") == 0.0, 5)
        assert 3.0 == it.value('kvpressure_tap_broken_responses_total{side="upstream"}')
        counted = it.value(preemptions)

        with lab(port, logs[1], *storm) as second:
            wait_for(lambda: it.value(preemptions) > counted + 5, 20)
            seen, said = it.value(preemptions), get(f"{second.url}/metrics")[1]
            line = next(line for line in said.splitlines() if line.startswith("vllm:num_preemptions_total"))
            assert counted < seen <= counted + float(line.rpartition(" ")[2])
            assert Users(it.tap, 1, max_tokens=5).wait_ended()[0].whole
            assert 1.0 == it.value("kvpressure_engine_resets_total")
            assert 0 == second.stop()
        it.terminate()
        assert 0 == it.ended()

    assert [] == falls.found
    assert falls.looks > 10
    assert str(lines_of(*set(logs))) == it.last_line["log_lines"]


# --- a native sidecar's end: after vLLM's ---------------------------------------------------------------------------


def test_a_native_sidecar_reads_the_log_to_its_last_line(tmp_path):
    """All that vLLM wrote right before its end is read, also over a rotation and in a file that was never seen."""
    port, path, other = free_port(), tmp_path / "vllm.log", tmp_path / "worker-2.log"
    with sidecar(port, "--log.path", str(path), "--log.path", str(tmp_path / "worker-*.log")) as it:
        with lab(port, path, "--no-load") as vllm:
            users = Users(it.tap, 3, max_tokens=8_000, ignore_eos=True).wait_begun()
            wait_for(lambda: it.value("kvpressure_log_lines_total") or 0, 10)
            assert 0 == vllm.stop()
            assert [(200, False)] * 3 == [(answer.status, answer.whole) for answer in users.wait_ended(5)]
        half = delta("chatcmpl-a") * (BURST // 2)
        with path.open("ab") as file:
            file.write(half)
        rotated = path.rename(tmp_path / "vllm.log.1")
        path.write_bytes(half)
        other.write_bytes(delta("chatcmpl-b") * 100)
        it.terminate()
        assert 0 == it.ended(6)

    assert str(lines_of(rotated, path, other)) == it.last_line["log_lines"]
    assert lines_of(rotated, path, other) > BURST
    assert "0" == it.last_line["log_lines_dropped"]
    assert "stopped" == it.last_line["msg"]


def test_a_log_that_goes_on_does_not_hold_it_up(tmp_path):
    """As an ordinary container it reads what was there when it was told to stop, and does not follow vLLM for ever."""
    path, stop = tmp_path / "vllm.log", threading.Event()

    def write():
        with path.open("ab", buffering=0) as file:
            while not stop.wait(0.001):
                file.write(delta("chatcmpl-a"))

    with sidecar(free_port(), "--log.path", str(path)) as it:
        writer = threading.Thread(target=write)
        writer.start()
        try:
            wait_for(lambda: it.value("kvpressure_log_lines_total") or 0, 10)
            written = lines_of(path)
            it.terminate()
            assert 0 == it.ended(6)
        finally:
            stop.set()
            writer.join()

    assert written <= int(it.last_line["log_lines"]) <= lines_of(path)
    assert "in time" not in it.command.stderr


def test_a_vllm_that_never_answered_does_not_hold_it_up(tmp_path):
    """While the first sample waits for its answer the log is not read yet, and nothing of it is waited for."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with sidecar(port, "--log.path", str(tmp_path / "vllm.log")) as it:
            began = time.monotonic()
            it.terminate()
            assert 0 == it.ended(10)

    assert time.monotonic() - began < serve._LAST_LINES
    assert "0" == it.last_line["log_lines"]


def test_what_cannot_be_read_in_time_is_told(tmp_path, monkeypatch, caplog):
    """A log volume that hangs does not keep the pod: the end goes on, and a warning says what may be missing."""
    monkeypatch.setattr(serve, "_LAST_LINES", 0.05)

    async def end():
        target = Target(Config(), sources=("log",))
        scraper = Scraper(VllmConfig(), target)
        tail = LogTail((str(tmp_path / "vllm.log"),), target.streams["log"], scraper.now)
        # No sample was ever tried, so that it never reads.
        follow = asyncio.create_task(serve._follow(tail, scraper))
        await serve._read_to_end(tail, follow)
        follow.cancel()
        await scraper.close()

    asyncio.run(end())
    assert ["log.path: what vLLM wrote last was not read to its end in time"] == caplog.messages


# --- an ordinary container's end: together with vLLM ----------------------------------------------------------------


def test_every_stream_reaches_its_end():
    """
    When both are told to stop at once and vLLM ends what it began, fifty users get every byte of their streams.

    Meanwhile the probes and metrics answer, and the sampler goes on; the sidecar ends after the last stream.
    """
    with draining_vllm() as vllm, sidecar(port_of(vllm)) as it:
        users = Users(it.tap, 50, chunks=80, pause=0.1).wait_begun()
        vllm.process.send_signal(signal.SIGTERM)
        it.terminate()
        wait_for(lambda: not reachable(it.tap), 5)
        samples = it.value("kvpressure_samples_total")
        assert 50.0 == it.value("kvpressure_tap_requests")
        wait_for(lambda: it.value("kvpressure_samples_total") > samples + 5, 5)
        assert 1.0 == it.value("kvpressure_up")
        assert [200, 200] == [get(f"{it.command.url}/-/{name}")[0] for name in ("healthy", "ready")]
        answers = users.wait_ended()
        assert 0 == it.ended(5)

    assert [(stream_of(80), True)] * 50 == [(answer.text, answer.whole) for answer in answers]
    assert "50" == it.last_line["responses"]


def test_a_stream_that_outlasts_the_drain_timeout_is_cut():
    """Not before it, and then at once: the process ends, and the user can tell that the answer is not whole."""
    with draining_vllm() as vllm, sidecar(port_of(vllm), "--tap.drain-timeout", "3s") as it:
        users = Users(it.tap, 2, chunks=300, pause=0.1).wait_begun()
        began = time.monotonic()
        it.terminate()
        answers = users.wait_ended(8)
        assert 0 == it.ended(5)

    assert all(3.0 <= answer.ended - began < 8.0 for answer in answers)
    assert all(stream_of(300).startswith(answer.text) and not answer.whole for answer in answers)
    assert all(len(answer.text) > 1000 for answer in answers)


def test_late_connections_are_served_during_the_stop_delay():
    """With tap.stop-delay, who comes while the Service still leads to it is answered; after it, connections end."""
    with draining_vllm() as vllm, sidecar(port_of(vllm), "--tap.stop-delay", "2s") as it:
        began = time.monotonic()
        it.terminate()
        late = []
        while time.monotonic() - began < 1.5:
            late.append(reachable(it.tap))
            time.sleep(0.1)
        users = Users(it.tap, 1, chunks=20, pause=0.1).wait_begun()
        wait_for(lambda: not reachable(it.tap), 5)
        assert 2.0 <= time.monotonic() - began
        assert [stream_of(20)] == [answer.text for answer in users.wait_ended()]
        assert 0 == it.ended(5)

    assert len(late) > 5
    assert all(late)


@pytest.mark.parametrize("words", [(), ("--tap.stop-delay", "20s")])
def test_a_second_signal_hurries(words):
    """Whoever cannot wait ends it at once, with status 0, whatever it is waiting for."""
    with draining_vllm() as vllm, sidecar(port_of(vllm), *words) as it:
        users = Users(it.tap, 1, chunks=300, pause=0.1).wait_begun()
        it.terminate()
        if words:
            time.sleep(0.5)
            assert reachable(it.tap)
        else:
            wait_for(lambda: not reachable(it.tap), 5)
        it.terminate()
        assert 0 == it.ended(5)

    assert not users.wait_ended(5)[0].whole


def test_vllm_does_not_feel_that_a_sidecar_is_killed():
    """A stream that does not pass the tap goes on to its end; one that does is seen to be broken."""
    with draining_vllm() as vllm, sidecar(port_of(vllm)) as it:
        direct = Users(port_of(vllm), 1, chunks=30, pause=0.1).wait_begun()
        through = Users(it.tap, 1, chunks=30, pause=0.1).wait_begun()
        it.command.process.kill()
        assert not through.wait_ended(5)[0].whole
        assert stream_of(30) == direct.wait_ended()[0].text
        assert reachable(port_of(vllm))


# --- a container that can write nowhere -----------------------------------------------------------------------------


def test_a_read_only_root(tmp_path):
    """Without any place to write, without HOME and a temporary directory, all of it works and it ends as it should."""
    words = namespaced()
    if words is None:
        pytest.skip("no mount namespace may be made here")
    port, web, tap, path = free_port(), free_port(), free_port(), tmp_path / "vllm.log"
    command = [
        *(*words, "sh", "-c", READ_ONLY, "sh", sys.executable, "-m", "kvpressure", "serve"),
        *("--web.listen-address", f"127.0.0.1:{web}", "--sample.interval", "200ms", "--log.path", str(path)),
        *("--vllm.url", f"http://127.0.0.1:{port}/metrics", "--tap.listen", f"127.0.0.1:{tap}"),
        *("--tap.upstream", f"http://127.0.0.1:{port}"),
    ]
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    with (
        lab(port, path, "--no-load"),
        subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment) as process,
    ):
        try:
            wait_for(lambda: "kvpressure_up 1" in get(f"http://127.0.0.1:{web}/metrics")[1], 20)
            assert 200 == get(f"http://127.0.0.1:{web}/")[0]
            assert Users(tap, 1, max_tokens=5).wait_ended()[0].whole
            process.send_signal(signal.SIGTERM)
            stderr = process.communicate(timeout=10)[1]
        finally:
            if process.poll() is None:
                process.kill()

    assert 0 == process.returncode
    assert "Traceback" not in stderr
    assert ["INFO"] * len(stderr.splitlines()) == [
        line.split()[1].removeprefix("level=") for line in stderr.splitlines()
    ]
    assert "responses=1" in stderr


# --- what took long -------------------------------------------------------------------------------------------------


def test_a_stream_of_half_a_minute_reaches_its_end(long_ends):
    """With a drain timeout of 30 s, a stream that ends 27 s after both were told to stop is whole."""
    answer, took, status = long_ends["drained"].result()

    assert (stream_of(108), True) == (answer.text, answer.whole)
    assert 0 == status
    assert 25.0 < took < 34.0


def test_the_default_ends_before_the_pod_is_killed(long_ends):
    """Without any setting such a stream is cut after 25 s, and the process ends within the 30 s that a pod has."""
    answer, took, status = long_ends["cut"].result()

    assert not answer.whole
    assert stream_of(108).startswith(answer.text)
    assert 0 == status
    assert 25.0 <= took < 30.0
