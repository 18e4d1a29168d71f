"""The lab's users over real sockets: what they ask, what they see, and that nothing the server does ends them."""

import asyncio
import contextlib
import io
import json
import math
import re
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web
from commands import free_port

from kvpressure.lab import users
from kvpressure.lab.host import Options
from kvpressure.lab.logs import VllmLog
from kvpressure.lab.model import Config, StepTime
from kvpressure.lab.openai import read_ask
from kvpressure.lab.scenarios import CALM, STORM
from kvpressure.lab.server import LabServer
from kvpressure.lab.simulate import Trace
from kvpressure.lab.truth import LEFT, STOPPED, Totals
from kvpressure.lab.users import NoServerError, Plan, Users
from kvpressure.lab.workload import Arrival, Length, Phase, Workload

QUICK = StepTime(base=0.002, decode=0.0, prefill=0.0)
SERVER = Config(num_gpu_blocks=200, block_size=4, max_model_len=64, step_time=QUICK)
FEW = Workload((Phase(seconds=600, rate=100.0, prompt=Length(10), answer=Length(5)),))


class Lab:
    """A running lab: its address, its parts, and what its engine did."""

    def __init__(self, server, port) -> None:
        self.server, self.url = server, f"http://127.0.0.1:{port}"
        self.scheduler = server.host.engine.scheduler
        self.trace, self.gaps = Trace(), []
        finish = server.host.engine.finish

        def note(result, duration):
            iteration = finish(result, duration)
            self.trace.add(iteration, 0)
            self.gaps += [token.gap for token in iteration.tokens if token.gap is not None]
            return iteration

        server.host.engine.finish = note

    async def waiting_or_running(self):
        async with aiohttp.ClientSession() as session, session.get(self.url + "/metrics") as answer:
            text = await answer.text()
        return [
            float(re.search(rf"^vllm:num_requests_{state}{{[^}}]*}} (\S+)$", text, re.MULTILINE)[1])
            for state in ("running", "waiting")
        ]


@contextlib.asynccontextmanager
async def lab(scenario=None, *, port=0, speed=1.0):
    """A lab without users of its own."""
    scenario = scenario or replace(CALM, server=SERVER)
    server = LabServer(Options(scenario, load=False, speed=speed), VllmLog(io.StringIO(), requests=False))
    port = port or free_port()
    running = Lab(server, port)
    engine = asyncio.create_task(server.host.run())
    try:
        async with served(server.app(), port):
            yield running
    finally:
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)


@contextlib.asynccontextmanager
async def served(app, port):
    """An application on a port."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def play(plan):
    """The records of a plan that is played to its end."""
    records = []
    await Users(plan, records.append).run()
    return records


async def play_against(handler, *, requests=1, workload=FEW):
    """The records of users of a server that answers every request for a completion with this handler."""

    async def models(_):
        return web.json_response({"data": [{"id": "m"}]})

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.post("/v1/chat/completions", handler)])
    async with served(app, free_port()) as url:
        return await play(Plan(url, workload, requests=requests))


def event_stream(*writes, end=True):
    """A handler that writes these bytes, and then either ends well or drops the connection."""

    async def handle(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for data in writes:
            await response.write(data)
            await asyncio.sleep(0.02)
        if not end:
            request.transport.abort()
        return response

    return handle


def token(text=" tok", **choice):
    message = {"id": "x", "choices": [{"index": 0, "delta": {"content": text}} | choice]}
    return b"data: " + json.dumps(message).encode() + b"\n\n"


# --- what they ask ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chat", [True, False])
def test_a_prompt_has_as_many_tokens_as_were_drawn(chat):
    """The lab counts the length that was drawn, of text and of token ids alike, and the asked answer."""
    plan = Plan("http://x", FEW, chat=chat)
    for prompt in (5, 100, 777):
        _, body = users.ask_of(plan, "m", 3, Arrival(0.0, prompt, 50, 0))
        ask = read_ask(body, chat=chat, model="m", limit=8192)
        assert (prompt, 50, True, True) == (len(ask.prompt), ask.max_tokens, ask.ignore_eos, ask.stream)


@pytest.mark.parametrize("chat", [True, False])
def test_prompts_share_the_prefix_that_the_scenario_says_and_nothing_else(chat):
    """Of a shared prefix of 40 tokens two prompts have two blocks of 16 in common; without one they have none."""

    def common(shared):
        plan = Plan("http://x", FEW, chat=chat)
        bodies = [users.ask_of(plan, "m", number, Arrival(0.0, 100, 5, shared))[1] for number in range(2)]
        keys = [read_ask(body, chat=chat, model="m", limit=8192).block_keys(16) for body in bodies]
        return sum(a == b for a, b in zip(*keys, strict=True))

    assert (2, 0) == (common(40), common(0))


def test_the_same_seed_asks_the_same_and_another_seed_something_else():
    """Text and token ids come from the seed and the number of the request alone."""
    arrival = Arrival(0.0, 50, 5, 0)
    asks = [users.ask_of(Plan("http://x", FEW, seed=seed), "m", 7, arrival) for seed in (1, 1, 2)]

    assert asks[0] == asks[1]
    assert asks[0] != asks[2]


def test_requests_come_when_the_workload_says():
    """A burst of ten at once, then the lengths and the pace of the same arrivals that the built-in load draws."""
    phase = Phase(seconds=600, rate=40.0, prompt=Length(10, 0.5), answer=Length(5, 0.5), burst=10)

    async def inside():
        async with lab() as running:
            return await play(Plan(running.url, Workload((phase,)), seed=4, requests=50))

    records = sorted(asyncio.run(inside()), key=lambda record: record.number)
    drawn = [arrival for arrival, _ in zip(users.arrivals(Workload((phase,)), 4), range(50), strict=False)]
    begin = records[0].start
    assert [(a.prompt_tokens, a.answer_tokens) for a in drawn] == [(r.prompt, r.max_tokens) for r in records]
    assert [a.time for a in drawn] == pytest.approx([r.start - begin for r in records], abs=0.5)


# --- what they see ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chat", [True, False])
def test_they_see_every_chunk(chat):
    """Five tokens are five chunks of a completion, and six of a chat answer, whose first is only a role."""

    async def inside():
        async with lab() as running:
            return await play(Plan(running.url, FEW, chat=chat, requests=20))

    records = asyncio.run(inside())
    assert {(None, 5, 6 if chat else 5)} == {(r.error, len(r.token_ts), len(r.ts)) for r in records}
    assert {f"{'chatcmpl' if chat else 'cmpl'}-r{number}" for number in range(20)} == {r.id for r in records}


def test_chunks_are_told_apart_however_the_network_cuts_them():
    """A line in two pieces is one chunk, two lines in one piece are two that came together."""
    first = token()
    handle = event_stream(first[:20], first[20:] + token() + token(finish_reason="stop"), b"data: [DO", b"NE]\n\n")

    (record,) = asyncio.run(play_against(handle))
    assert (3, None, True) == (len(record.token_ts), record.error, record.done)
    assert 1 == len(set(record.token_ts))


def test_what_they_saw_agrees_with_what_the_engine_did():
    """In a storm at five times its pace they and the engine agree on pauses and on p99, and then all is free again."""
    speed = 5.0

    async def inside():
        async with lab(STORM, speed=speed) as running:
            totals = Totals(speed)
            await Users(Plan(running.url, STORM.workload, speed=speed, duration=10.0), totals.add).run()
            await asyncio.sleep(0.3)
            return totals, running, await running.waiting_or_running()

    totals, running, left_over = asyncio.run(inside())
    figures = running.trace.window()
    p99 = sorted(running.gaps)[math.ceil(0.99 * len(running.gaps)) - 1]
    assert totals.failed == 0
    # A token that was on its way when its user left was made and not seen.
    assert 100 < totals.streamed <= figures.streamed <= totals.streamed + 5
    # Who is cut off in a pause has paused for its user; the engine never ends that gap.
    assert figures.paused <= totals.paused <= figures.paused + totals.endings[STOPPED]
    assert figures.paused > 10
    assert totals.p99 == pytest.approx(p99, rel=0.1, abs=0.02)
    assert [0, 0] == left_over
    assert running.scheduler.idle


# --- whoever leaves ---------------------------------------------------------------------------------------------


def test_who_sees_no_first_token_in_time_leaves_and_frees_what_it_held():
    """Behind a long answer nobody is served: all leave, and the queue is empty before the long one ends."""
    slow = replace(SERVER, max_num_seqs=1, step_time=StepTime(base=0.1, decode=0.0, prefill=0.0))
    workload = replace(FEW, phases=(replace(FEW.phases[0], answer=Length(50)),), patience=0.5)

    async def inside():
        async with lab(replace(CALM, server=slow)) as running:
            records = []
            plan = Plan(running.url, workload, requests=10)
            playing = asyncio.create_task(Users(plan, records.append).run())
            await asyncio.sleep(2.0)
            found = await running.waiting_or_running(), [record.kind for record in records]
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            await asyncio.sleep(0.3)
            return found, await running.waiting_or_running(), records

    (meanwhile, kinds), after, records = asyncio.run(inside())
    assert ([1, 0], [LEFT] * 9) == (meanwhile, kinds)
    assert [0, 0] == after
    # The one whose answer had begun has stayed for longer than its patience.
    assert STOPPED == records[-1].kind
    assert records[-1].cut - records[-1].start > 1.5


def test_the_duration_ends_everything_that_is_open():
    """After it all users have left: every record is told, and those that were cut off say when."""
    slow = replace(SERVER, step_time=StepTime(base=0.2, decode=0.0, prefill=0.0))

    async def inside():
        async with lab(replace(CALM, server=slow)) as running:
            return await play(Plan(running.url, FEW, duration=0.5))

    records = asyncio.run(inside())
    assert records
    assert {STOPPED} == {record.kind for record in records}
    assert all(0 <= record.cut - record.start <= 1.0 for record in records)


# --- servers that fail ------------------------------------------------------------------------------------------


def test_they_go_on_while_a_server_restarts():
    """A server that is gone for a while costs what was open and what came meanwhile; then all is well again."""
    pace = Workload((Phase(seconds=600, rate=50.0, prompt=Length(10), answer=Length(20)),))
    port = free_port()

    async def inside():
        records = []
        plan = Plan(f"http://127.0.0.1:{port}", pace)
        playing = asyncio.create_task(Users(plan, records.append).run())
        async with lab(port=port):
            await asyncio.sleep(1.0)
        await asyncio.sleep(0.5)
        async with lab(port=port):
            await asyncio.sleep(1.0)
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
        return sorted(records, key=lambda record: record.number)

    records = asyncio.run(inside())
    kinds = [record.kind for record in records]
    assert kinds.count("") > 40
    assert "ClientConnectorError" in kinds
    last_error = max(number for number, kind in enumerate(kinds) if kind not in ("", STOPPED))
    assert "" in kinds[:last_error]
    assert "" in kinds[last_error:]


@pytest.mark.parametrize(
    ("handler", "kind", "tokens"),
    [
        (event_stream(token(), end=False), "ClientPayloadError", 1),
        (event_stream(token()), "unfinished", 1),
        (event_stream(token(), b'data: {"error":{"code":500}}\n\n', b"data: [DONE]\n\n"), "error_event", 1),
        (event_stream(token(), b"data: {nonsense\n\n", token(), b"data: [DONE]\n\n"), "bad_chunk", 1),
        (event_stream(b"no events at all"), "unfinished", 0),
    ],
)
def test_an_answer_that_breaks_off_is_told_with_what_came_of_it(handler, kind, tokens):
    """How it broke off is one word with the time, and its tokens up to then are kept."""
    (record,) = asyncio.run(play_against(handler))

    assert (kind, tokens) == (record.kind, len(record.token_ts))
    assert record.error == f"{kind} at {record.cut:.4f}"


def test_a_refusal_is_told_with_its_status_and_its_reason():
    """What a server says instead of a stream is kept, cut to a length."""

    async def busy(_):
        return web.Response(status=503, text="busy " * 100)

    (record,) = asyncio.run(play_against(busy))
    assert ("503", [], None) == (record.kind, record.ts, record.cut)
    assert record.error == "503 " + ("busy " * 100)[:200]


def test_a_server_that_does_not_say_what_it_serves_is_one_sentence():
    """Nobody there, a server that fails, and an answer of another kind: each is told once the time is over."""

    async def inside(handler):
        app = web.Application()
        app.add_routes([web.get("/v1/models", handler)] if handler else [])
        async with served(app, free_port()) as url, aiohttp.ClientSession() as session:
            with pytest.raises(NoServerError) as caught:
                await users.served_model(session, url, seconds=0.1)
        return str(caught.value).replace(url, "URL")

    async def failing(_):
        return web.Response(status=500)

    async def other(_):
        return web.json_response({"data": []})

    async def text(_):
        return web.Response(text="hello")

    start = "URL/v1/models does not name a model within 0.1 s: "
    assert asyncio.run(inside(None)) == start + "the status is 404."
    assert asyncio.run(inside(failing)) == start + "the status is 500."
    assert asyncio.run(inside(other)) == start + "the answer is no list of models."
    assert asyncio.run(inside(text)) == start + "no good answer."

    async def nobody():
        async with aiohttp.ClientSession() as session:
            await users.served_model(session, f"http://127.0.0.1:{free_port()}", seconds=0.1)

    with pytest.raises(NoServerError, match=r"does not name a model within 0\.1 s: it cannot be reached\.$"):
        asyncio.run(nobody())


def test_a_server_that_is_slow_to_start_is_waited_for():
    """Users that are started before their server ask it once it is there."""
    port = free_port()

    async def inside():
        playing = asyncio.create_task(play(Plan(f"http://127.0.0.1:{port}", FEW, requests=3)))
        await asyncio.sleep(0.5)
        async with lab(port=port):
            return await playing

    assert [None] * 3 == [record.error for record in asyncio.run(inside())]
