"""The page's server: what changes is told to whoever looks, and who does not read costs nothing."""

import asyncio
import contextlib
import dataclasses
import json
import time

import aiohttp

from kvpressure.config import Config, WebConfig
from kvpressure.derive.snapshot import EngineSnapshot, Snapshot
from kvpressure.expose.page import live as page_live
from kvpressure.expose.page import routes
from kvpressure.expose.server import make_app, serve

EVENTS = "/api/v1/events"


class Stage:
    """Snapshots whose queue grows by one each time."""

    def __init__(self):
        self.taken = 0
        self.name = "m"

    def __call__(self):
        self.taken += 1
        engine = EngineSnapshot(self.name, "0", "V1", "calm", "unknown", waiting=float(self.taken))
        return Snapshot(1e9 + self.taken, up=True, engines=(engine,), last_good=1e9, interval=1.0)


@contextlib.asynccontextmanager
async def running(snapshot):
    """The exporter's server on a free port: its base URL and its application."""
    config = Config(web=WebConfig(listen_address=("127.0.0.1:0",)))
    app = make_app(config, metrics=lambda _: (b"", "text/plain"), state=dict, snapshot=snapshot)
    runner = await serve(app, config)
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", app
    finally:
        await runner.cleanup()


async def events(response, count):
    """The next messages of a stream."""
    found = []
    async for line in response.content:
        if line.startswith(b"data: "):
            found.append(json.loads(line[6:]))
            if len(found) == count:
                return found
    return found


async def until(true):
    """Wait until something holds."""
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come true in time")


def test_events():
    """The first event has all of the page, each later one only what changed; the stream is no file and no cache's."""

    async def main():
        async with (
            running(Stage()) as (base, _),
            aiohttp.ClientSession() as session,
            session.get(base + EVENTS) as response,
        ):
            return response.headers, await events(response, 3)

    headers, (first, *later) = asyncio.run(main())

    assert headers["Content-Type"].startswith("text/event-stream")
    assert headers["Cache-Control"] == "no-store"
    assert first["title"] == "Unknown \N{MIDDLE DOT} kvpressure"
    assert [[]] == [way for way, _ in first["changes"]]
    assert first["changes"][0][1][0] == "main"
    assert all(change[0] for event in later for change in event["changes"])
    assert 1 == later[1]["t"] - later[0]["t"]
    assert all(len(json.dumps(event)) < 1500 for event in later)


def test_nobody_looks():
    """While nobody looks a snapshot is taken every five seconds, and no page is made of it."""
    stage = Stage()
    live = page_live.Live(Config(), stage)
    for _ in range(60):
        live.tick()

    assert 12 == stage.taken
    assert live._shown is None


def test_a_fault_is_told_once(logged):
    """A snapshot that cannot be taken breaks one second; it is logged, the page gives a 500, and it goes on."""
    stage = Stage()

    def broken():
        if stage.taken < 2:
            stage.taken += 1
            raise RuntimeError("the cause")
        return stage()

    async def main():
        async with running(broken) as (base, _), aiohttp.ClientSession() as session:
            await asyncio.sleep(0.05)
            async with session.get(base + "/") as response:
                assert response.status == 500
            async with session.get(base + EVENTS) as response:
                return await events(response, 1)

    assert asyncio.run(main())
    assert 1 == logged.getvalue().count("the page cannot be brought up to date")


def test_too_many_listeners():
    """The seventeenth page is refused; when one of the others goes, there is room again."""

    async def main():
        async with running(Stage()) as (base, app), contextlib.AsyncExitStack() as stack:
            session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
            opened = [await session.get(base + EVENTS) for _ in range(page_live.MAX_LISTENERS)]
            async with session.get(base + EVENTS) as response:
                refused = response.status, await response.text(), response.headers["Retry-After"]
            opened.pop().close()
            await until(lambda: len(app[routes._LIVE]._listeners) < page_live.MAX_LISTENERS)
            async with session.get(base + EVENTS) as response:
                again = response.status
            for response in opened:
                response.close()
            return refused, again

    refused, again = asyncio.run(main())
    assert (503, "too many pages are open; this one tries again\n", "5") == refused
    assert again == 200


def test_who_does_not_read_is_dropped():
    """A listener that reads nothing is cut off once it is behind; meanwhile the others get every event."""
    stage = Stage()

    async def main():
        async with running(stage) as (base, app):
            port = int(base.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(f"GET {EVENTS} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await reader.readline()
            live = app[routes._LIVE]
            async with aiohttp.ClientSession() as session, session.get(base + EVENTS) as response:
                await until(lambda: len(live._listeners) == 2)
                # More than what the system's buffers hold, as a page of many engines is after some time.
                for _ in range(200):
                    stage.name = f"{stage.taken}" * 50_000
                    live.tick()
                    await events(response, 1)
                    if len(live._listeners) == 1:
                        break
                left = len(live._listeners)
            writer.transport.abort()
            await asyncio.sleep(0.05)
            return left

    assert 1 == asyncio.run(main())


def test_a_stream_ends_in_time(monkeypatch):
    """A stream ends after its share of events, so that whoever looks is asked again who it is."""
    monkeypatch.setattr(routes, "MAX_EVENTS", 2)

    async def main():
        async with (
            running(Stage()) as (base, _),
            aiohttp.ClientSession() as session,
            session.get(base + EVENTS) as response,
        ):
            return await events(response, 10)

    assert 2 == len(asyncio.run(main()))


def test_shutdown_does_not_wait_for_pages():
    """With pages open, one of which reads nothing, shutting down takes under a second, and their streams end."""

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            base, _ = await stack.enter_async_context(running(Stage()))
            session = aiohttp.ClientSession()
            reading = await session.get(base + EVENTS)
            deaf = await session.get(base + EVENTS)
            await events(reading, 1)
            before = time.monotonic()
            await stack.aclose()
            took = time.monotonic() - before
            rest = await events(reading, 100)
            deaf.close()
            await session.close()
            return took, rest

    took, rest = asyncio.run(main())
    assert took < 1
    assert len(rest) < 3


def test_after_the_end_nobody_joins():
    """Once the server ends, no page is kept up to date any more."""
    live = page_live.Live(Config(), Stage())
    live.close()

    assert live.join(lambda: None) is None


def test_page_is_small():
    """The page of sixteen engines, with its style and script, is under 100 KB."""
    one = Stage()()
    engines = tuple(dataclasses.replace(one.engines[0], engine=str(n), verdict="healthy") for n in range(16))

    async def main():
        async with (
            running(lambda: dataclasses.replace(one, engines=engines)) as (base, _),
            aiohttp.ClientSession(headers={"Accept-Encoding": "identity"}) as session,
        ):
            sizes = []
            for path in (routes.PATH, routes.STYLE_PATH, routes.SCRIPT_PATH):
                async with session.get(base + path) as response:
                    sizes.append(len(await response.read()))
            return sizes

    assert sum(asyncio.run(main())) < 100_000
