"""A vLLM that answers badly: what the whole sampler, with its real target, counts, exposes and logs."""

import asyncio
import gc
import re
import socket
import threading
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvpressure.config import Config, VllmConfig
from kvpressure.derive.target import Target
from kvpressure.observe.scraper import Scraper

GOOD = (
    'vllm:num_requests_running{model_name="m",engine="0"} 2\n'
    'vllm:num_requests_waiting{model_name="m",engine="0"} 0\n'
    'vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.5\n'
    'vllm:num_preemptions_total{model_name="m",engine="0"} %d\n'
    'vllm:request_success_total{model_name="m",engine="0",finished_reason="stop"} 10\n'
)
REAL = (Path(__file__).parent / "fixtures" / "lab" / "vllm-0.32.0.prom").read_text(encoding="utf-8")
MB = 1_000_000


def http(body, declared=None):
    """An answer of 200 with a body, whose length is declared wrongly where asked for."""
    data = body.encode() if isinstance(body, str) else body
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (declared or len(data)) + data


@contextmanager
def vllm(answers):
    """A server that gives one answer after the other, each on a connection of its own; None is silence."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)

        def serve():
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(5)
                    connection.recv(65536)
                    try:
                        connection.sendall(answer) if answer is not None else connection.recv(1)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        thread.join(10)


def sampled(answers, **settings):
    """The target after sampling each answer once, and the up state after each."""
    config = Config()
    target = Target(config, interval=1.0)
    ups = []

    async def main(url):
        clock = iter(range(10_000))
        scraper = Scraper(VllmConfig(url=url, **settings), target, clock=lambda: float(next(clock)))
        for _ in answers:
            await scraper.sample_once()
            ups.append(target.snapshot(scraper.now()).up)
        await scraper.close()
        return target.snapshot(scraper.now())

    with vllm(answers) as url:
        return asyncio.run(main(url)), ups


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "timeout"),
        (b"HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", "status"),
        (http("<html><body>hello</body></html>\n"), "not_exposition"),
        (http(""), "empty"),
        (http(GOOD % 7, declared=5000), "truncated"),
        (http((GOOD % 7)[:-30]), "truncated"),
        (http("x" * MB * 100), "too_large"),
    ],
    ids=["hang", "500", "html", "empty", "cut-off", "cut-line", "100-MB"],
)
def test_a_failed_sample_and_the_next_good_one(answer, reason, logged):
    """A failed sample sets up to 0 and is counted by its reason and logged; the next good one goes on where it was."""
    settings = {"timeout": 0.5} if answer is None else {}

    snapshot, ups = sampled([http(GOOD % 5), answer, http(GOOD % 9)], **settings)

    assert [True, False, True] == ups
    assert {reason: 1} == snapshot.errors
    assert 4.0 == snapshot.engines[0].preemptions
    assert f"reason={reason}" in logged.getvalue()
    assert "sampling works again after 1 failed samples" in logged.getvalue()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('vllm:num_requests_swapped{model_name="m"} NaN\n', "bad_value"),
        ('vllm:num_requests_swapped{model_name="m"} +Inf\n', "bad_value"),
        ('vllm:num_requests_swapped{model_name="m"} -3\n', "bad_value"),
        ('vllm:num_requests_running{model_name="m",engine="0"} 2\n', "duplicate_series"),
        ('vllm:num_requests_swapped{model_name="%s"} 1\n' % ("x" * MB), "label_too_long"),
        ("vllm:num_requests_swapped{model_name= 1\n", "bad_line"),
    ],
    ids=["nan", "infinity", "negative", "duplicate", "1-MB-label", "broken"],
)
def test_a_bad_part_is_skipped(line, reason, logged):
    """A part that cannot be used is skipped, counted and logged once; the rest of the sample is used."""
    body = http(GOOD % 5 + line)

    snapshot, ups = sampled([body, http(GOOD % 9 + line), body])

    assert [True, True, True] == ups
    assert {reason: 3} == snapshot.errors
    assert 2.0 == snapshot.engines[0].running
    assert 1 == logged.getvalue().count("part of a sample was skipped")


def test_no_series_at_all_is_told(logged):
    """A vLLM without statistics is up, gives no engine, and the log says which flag may be the reason."""
    snapshot, ups = sampled([http("python_info 1.0\n")] * 2)

    assert [True, True] == ups
    assert () == snapshot.engines
    assert "preemptions_total" in snapshot.unavailable
    assert 1 == logged.getvalue().count("--disable-log-stats")


def test_a_hundred_megabytes_are_not_kept(logged):  # noqa: ARG001
    """A body of 100 MB is refused at the cap of 1 MB, not read to its end."""
    snapshot, _ = sampled([http("x" * MB * 100)], max_body_bytes=MB)

    assert {"too_large": 1} == snapshot.errors


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"#" * 3 * MB, "too_large"),
        (http("#" * 2 * MB), "truncated"),
        (http("{" * 2 * MB), "not_exposition"),
        (http("".join(f'f{n}{{a="b"}} 1\n' for n in range(100_000))), "too_many_series"),
    ],
)
def test_refused_bodies_do_not_wait_for_the_collector(answer, reason, monkeypatch, logged):  # noqa: ARG001
    """A body that is refused is gone at once: Python may look for cycles so rarely that many would come together."""
    monkeypatch.setattr("kvpressure.vllm.metrics.MAX_NEW", 50_000)
    gc.disable()
    tracemalloc.start()
    try:
        snapshot, _ = sampled([answer] * 8, max_body_bytes=2 * MB)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()

    assert {reason: 8} == snapshot.errors
    assert kept < 4 * MB


def test_a_real_exposition_has_no_problem(logged):
    """The untouched exposition of a real vLLM 0.32 gives one engine, and the log says that it is sampled."""
    snapshot, ups = sampled([http(REAL)] * 2)

    assert [True, True] == ups
    assert {} == snapshot.errors
    assert 1 == len(snapshot.engines)
    assert ["sampling vLLM"] == re.findall('msg="(.*?)"', logged.getvalue())
