# a test's name is the fact that it proves
"""The lab over HTTP behaves as vLLM does: streams, errors, disconnects, logs and time."""

import asyncio
import contextlib
import io
import json
import re
import time
from dataclasses import replace

import pytest
from aiohttp.test_utils import TestClient, TestServer

from kvpressure.lab.engine import Engine
from kvpressure.lab.host import Options
from kvpressure.lab.logs import PeriodicStats, VllmLog
from kvpressure.lab.model import Config, Request, StepTime
from kvpressure.lab.scenarios import CALM, STORM
from kvpressure.lab.server import LabServer
from kvpressure.lab.workload import Length, Phase, Workload

QUICK = StepTime(base=0.002, decode=0.0, prefill=0.0)
SERVER = Config(num_gpu_blocks=17, block_size=4, max_model_len=64, step_time=QUICK)
COMPLETION = {"model": "lab", "prompt": [1, 2, 3, 4, 5], "max_tokens": 3, "ignore_eos": True}
CHAT = {"model": "lab", "messages": [{"role": "user", "content": "good morning"}], "max_tokens": 3, "ignore_eos": True}


class Lab:
    """A running lab: its HTTP client, its parts, and what it logged."""

    def __init__(self, client, server, out) -> None:
        self.client, self.server, self._out = client, server, out
        self.scheduler = server.host.engine.scheduler

    @property
    def log(self):
        return self._out.getvalue()

    async def post(self, path, body, **headers):
        async with self.client.post(path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def stream(self, path, body, **headers):
        async with self.client.post(path, json=body | {"stream": True}, headers=headers) as answer:
            assert answer.content_type == "text/event-stream"
            events = (await answer.text()).split("\n\n")
        assert events.pop() == ""
        assert events.pop() == "data: [DONE]"
        return [json.loads(event.removeprefix("data: ")) for event in events]

    async def metric(self, name):
        async with self.client.get("/metrics") as answer:
            text = await answer.text()
        return float(re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)[1])

    async def until(self, condition):
        deadline = time.monotonic() + 5
        while not condition():
            assert time.monotonic() < deadline, "it never happened"
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(scenario=None, *, load=False, requests=True, speed=1.0):
    """A lab on a free port, without built-in users unless asked for."""
    out = io.StringIO()
    scenario = scenario or replace(CALM, server=SERVER)
    lab = LabServer(Options(scenario, model="lab", load=load, speed=speed), VllmLog(out, requests=requests))
    engine = asyncio.create_task(lab.host.run())
    try:
        async with TestClient(TestServer(lab.app(), handler_cancellation=True)) as client:
            yield Lab(client, lab, out)
    finally:
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)


def in_lab(test):
    """Turn a test of a running lab into a plain function."""

    def run():
        async def inside():
            async with running() as lab:
                await test(lab)

        asyncio.run(inside())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@in_lab
async def test_a_chat_stream_is_a_role_then_one_chunk_per_token_then_usage(lab):
    chunks = await lab.stream(
        "/v1/chat/completions", CHAT | {"stream_options": {"include_usage": True}}, **{"X-Request-Id": "r0"}
    )
    role, *tokens, usage = chunks
    assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks} == {
        ("chatcmpl-r0", "chat.completion.chunk", "lab")
    }
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["finish_reason"] for chunk in tokens] == [None, None, "length"]
    assert all(chunk["choices"][0]["delta"]["content"] for chunk in tokens)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3


@in_lab
async def test_a_completion_stream_has_no_role_and_no_usage_unless_asked(lab):
    chunks = await lab.stream("/v1/completions", COMPLETION, **{"X-Request-Id": "r0"})
    assert [chunk["id"] for chunk in chunks] == ["cmpl-r0"] * 3
    assert [chunk["object"] for chunk in chunks] == ["text_completion"] * 3
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert all(chunk["choices"][0]["text"] for chunk in chunks)


@in_lab
async def test_answers_that_are_not_streamed_come_whole(lab):
    status, body = await lab.post("/v1/completions", COMPLETION)
    assert status == 200
    assert body["choices"][0]["text"] == " tok" * 3
    assert body["usage"] == {"prompt_tokens": 5, "total_tokens": 8, "completion_tokens": 3}
    _, body = await lab.post("/v1/chat/completions", CHAT)
    assert body["choices"][0]["message"] == {"role": "assistant", "content": " tok" * 3}
    assert body["usage"]["prompt_tokens"] == 6


@in_lab
async def test_without_ignore_eos_an_answer_ends_by_itself_between_min_and_max_tokens(lab):
    body = {"prompt": "a b", "max_tokens": 60, "min_tokens": 59}
    _, answer = await lab.post("/v1/completions", body)
    assert answer["usage"]["completion_tokens"] in {59, 60}
    _, answer = await lab.post("/v1/completions", {"prompt": "a b"})
    assert answer["usage"]["completion_tokens"] <= 16


@pytest.mark.parametrize(
    ("path", "change", "status", "sentence"),
    [
        (
            "/v1/completions",
            {"max_tokens": 60},
            400,
            (
                "This model's maximum context length is 64 tokens. However, you requested 60 output tokens and your "
                "prompt contains at least 5 input tokens, for a total of at least 65 tokens. Please reduce the "
                "length of the input prompt or the number of requested output tokens. (parameter=input_tokens, value=5)"
            ),
        ),
        ("/v1/completions", {"model": "gpt"}, 404, "The model `gpt` does not exist."),
        ("/v1/completions", {"max_tokens": 0}, 400, "max_tokens must be at least 1, got 0."),
        ("/v1/completions", {"max_tokens": "3"}, 400, "max_tokens must be an integer."),
        ("/v1/completions", {"min_tokens": 4}, 400, "min_tokens must be between 0 and max_tokens=3, got 4."),
        ("/v1/completions", {"prompt": None}, 400, "prompt must be one text or one list of token ids."),
        ("/v1/completions", {"prompt": ["a", "b"]}, 400, "prompt must be one text or one list of token ids."),
        ("/v1/completions", {"n": 2}, 400, "The lab answers with one choice only."),
        ("/v1/chat/completions", {}, 400, "messages must be a list of at least one message."),
    ],
)
def test_a_bad_request_is_answered_in_vllms_shape(path, change, status, sentence):
    async def inside():
        async with running() as lab:
            got, body = await lab.post(path, COMPLETION | change)
            assert (got, body["error"]["message"], body["error"]["code"]) == (status, sentence, status)
            assert body["error"]["type"] == ("NotFoundError" if status == 404 else "BadRequestError")
            assert lab.scheduler.idle

    asyncio.run(inside())


@in_lab
async def test_a_body_that_is_not_json_is_refused(lab):
    async with lab.client.post("/v1/completions", data=b"{") as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["message"].startswith("The body is not JSON")


@in_lab
async def test_a_client_that_leaves_frees_its_blocks_at_once_and_is_no_success(lab):
    body = COMPLETION | {"max_tokens": 59, "stream": True}
    async with lab.client.post("/v1/completions", json=body) as answer:
        await answer.content.readline()
        assert lab.scheduler.pool.usage > 0
        answer.close()
    await lab.until(lambda: lab.scheduler.idle)
    assert lab.scheduler.pool.free == lab.scheduler.pool.usable
    await lab.until(lambda: "Aborted request(s) cmpl-" in lab.log)
    await asyncio.sleep(0.05)
    assert await lab.metric("vllm:num_requests_running") == 0
    assert await lab.metric("vllm:kv_cache_usage_perc") == 0
    assert await lab.metric("vllm:request_generation_tokens_count") == 0


@in_lab
async def test_a_client_that_gives_up_on_a_whole_answer_frees_its_blocks_too(lab):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.03):
            await lab.post("/v1/completions", COMPLETION | {"max_tokens": 59})
    await lab.until(lambda: lab.scheduler.idle)
    assert lab.scheduler.pool.free == lab.scheduler.pool.usable
    assert "Aborted request(s) cmpl-" in lab.log
    assert await lab.metric("vllm:request_generation_tokens_count") == 0


@in_lab
async def test_clients_that_do_not_fit_together_are_preempted_and_all_get_their_tokens(lab):
    asks = [lab.stream("/v1/completions", COMPLETION | {"max_tokens": 50}) for _ in range(4)]
    answers = await asyncio.gather(*asks)
    assert [len(chunks) for chunks in answers] == [50] * 4
    assert await lab.metric("vllm:num_preemptions_total") > 0
    assert await lab.metric("vllm:generation_tokens_total") == 200


@in_lab
async def test_equal_prompts_share_their_blocks(lab):
    prompt = {"prompt": list(range(20))}
    await lab.post("/v1/completions", COMPLETION | prompt)
    await lab.post("/v1/completions", COMPLETION | prompt)
    assert await lab.metric("vllm:prefix_cache_hits_total") == 16
    # Another beginning, or an equal block in another place, is another content.
    await lab.post("/v1/completions", COMPLETION | {"prompt": [9, *range(1, 20)]})
    await lab.post("/v1/completions", COMPLETION | {"prompt": [0, 1, 2, 3, 8, 9, 10, 11, 12]})
    assert await lab.metric("vllm:prefix_cache_hits_total") == 16 + 4


@in_lab
async def test_the_request_log_tells_all_without_text(lab):
    await lab.stream("/v1/chat/completions", CHAT, **{"X-Request-Id": "r0"})
    kinds = [
        (
            r"\(APIServer pid=\d+\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[\S+:\d+\] Received request chatcmpl-r0: "
            r"params: SamplingParams\(n=1, .*ignore_eos=True, max_tokens=3, .*\), lora_request: None\."
        ),
        r".*\] Added request chatcmpl-r0-[0-9a-f]{8}\.",
        r'INFO:     127\.0\.0\.1:\d+ - "POST /v1/chat/completions HTTP/1\.1" 200 OK',
        r".*\] Generated response chatcmpl-r0 \(streaming delta\): output: '', finish_reason: None",
        r".*\] Generated response chatcmpl-r0 \(streaming delta\): output: '', finish_reason: None",
        r".*\] Generated response chatcmpl-r0 \(streaming delta\): output: '', finish_reason: length",
        r".*\] Generated response chatcmpl-r0 \(streaming complete\): output: '', finish_reason: streaming_complete",
    ]
    lines = lab.log.splitlines()
    assert len(lines) == len(kinds)
    for line, kind in zip(lines, kinds, strict=True):
        assert re.fullmatch(kind, line), line
    assert "morning" not in lab.log


@in_lab
async def test_completions_are_numbered_in_the_log_and_have_no_delta_lines(lab):
    await lab.stream("/v1/completions", COMPLETION, **{"X-Request-Id": "r0"})
    await lab.post("/v1/completions", COMPLETION, **{"X-Request-Id": "r1"})
    assert "Received request cmpl-r0-0: " in lab.log
    assert "(streaming" not in lab.log
    assert "Generated response cmpl-r1-0: output: '', finish_reason: length" in lab.log


@in_lab
async def test_the_small_endpoints_answer_as_vllms(lab):
    async with lab.client.get("/health") as answer:
        assert (answer.status, await answer.text()) == (200, "")
    async with lab.client.get("/version") as answer:
        assert await answer.json() == {"version": "0.32.0"}
    async with lab.client.get("/v1/models") as answer:
        (card,) = (await answer.json())["data"]
        assert (card["id"], card["max_model_len"], card["owned_by"]) == ("lab", 64, "vllm")
    async with lab.client.get("/metrics", headers={"Accept": "application/openmetrics-text"}) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    accept = {"Accept": "application/openmetrics-text;version=1.0.0"}
    async with lab.client.get("/metrics/", headers=accept) as answer:
        assert answer.content_type == "application/openmetrics-text"


def test_the_built_in_users_make_a_storm_without_any_client():
    async def inside():
        async with running(STORM, load=True, speed=40) as lab:
            await lab.until(lambda: lab.server.host.engine.clock > 40)
            assert await lab.metric("vllm:num_preemptions_total") > 50
            stats = re.findall(r"\[loggers\.py:335\] (.*)", lab.log)
            assert 3 <= len(stats) <= 6
            number = r"\d+\.\d"
            assert re.fullmatch(
                rf"Engine 000: Avg prompt throughput: {number} tokens/s, Avg generation throughput: {number} tokens/s, "
                rf"Running: \d+ reqs, Waiting: \d+ reqs, GPU KV cache usage: {number}%, "
                rf"Prefix cache hit rate: {number}%",
                stats[-1],
            )
            assert "Received request chatcmpl-lab-1: " in lab.log
            assert "chatcmpl-lab-1 (streaming complete)" in lab.log

    asyncio.run(inside())


def test_the_statistics_line_comes_every_ten_seconds_once_more_when_idle_and_then_no_more():
    engine, stats = Engine(SERVER), PeriodicStats(caching=True)
    engine.submit(Request("a", 20, 5))
    while not engine.scheduler.idle:
        stats.record(engine.finish(*engine.begin()))
    assert stats.line(9.9) is None
    assert stats.line(10.0).startswith(
        "Engine 000: Avg prompt throughput: 2.0 tokens/s, Avg generation throughput: 0.5 tokens/s, Running: 0 reqs, "
    )
    assert stats.line(20.0).startswith("Engine 000: Avg prompt throughput: 0.0 tokens/s")
    assert stats.line(30.0) is None


def test_model_time_follows_real_time_by_the_asked_speed():
    async def inside():
        async with running(STORM, load=True, requests=False, speed=20) as lab:
            await lab.until(lambda: lab.server.host.engine.clock > 1)
            before, began = lab.server.host.engine.clock, time.monotonic()
            await asyncio.sleep(1)
            speed = (lab.server.host.engine.clock - before) / (time.monotonic() - began)
            assert speed == pytest.approx(20, rel=0.2)

    asyncio.run(inside())


def test_a_request_that_comes_to_an_idle_engine_starts_at_once():
    rare = Phase(seconds=60, rate=0.5, prompt=Length(5), answer=Length(2))
    scenario = replace(CALM, server=SERVER, workload=Workload((rare,)))

    async def inside():
        async with running(scenario, load=True, requests=False, speed=40) as lab:
            await lab.until(lambda: lab.server.host.engine.clock > 30)
            started = await lab.metric("vllm:time_to_first_token_seconds_count")
            assert started > 3
            # Half a second of real time, for which an idle engine can sleep, would be 20 s here.
            assert await lab.metric("vllm:time_to_first_token_seconds_sum") / started < 3

    asyncio.run(inside())
