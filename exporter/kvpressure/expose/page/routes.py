"""The page's routes: its first state as HTML, its style and script, and the events that keep it up to date."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from string import Template

from aiohttp import ClientError, web

from kvpressure import __version__
from kvpressure.config import Config
from kvpressure.derive.snapshot import Snapshot
from kvpressure.expose.page.live import RETRY, Live
from kvpressure.expose.page.tree import html
from kvpressure.expose.reuse import Answers, Kept

PATH, EVENTS_PATH, STYLE_PATH, SCRIPT_PATH = "/", "/api/v1/events", "/-/page.css", "/-/page.js"

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Lets the page load its own style and script and listen to its own server, and nothing else."""

MAX_EVENTS = 900
"""Events of one connection; then the page comes back, and is asked again who it is."""

_SEND_BUFFER = 64 * 1024  # bytes that the system keeps for a listener that does not read
_LIVE = web.AppKey("live", Live)
_TEMPLATE = web.AppKey("page", Template)
_ANSWERS = web.AppKey("page-answers", Answers)


def add(app: web.Application, config: Config, snapshot: Callable[[], Snapshot], links: Mapping[str, str]) -> None:
    """
    Add the page to an application.

    Args:
        app: the application.
        config: the settings.
        snapshot: takes a snapshot of now; called on the event loop.
        links: what each of the other paths offers, by path.
    """
    app[_LIVE] = Live(config, snapshot)
    app[_ANSWERS] = Answers()
    items = "\n".join(
        f'<li><a href=".{escape(path)}">{escape(path)}</a> {escape(text)}</li>' for path, text in links.items()
    )
    page = Template(_read("index.html").decode())
    app[_TEMPLATE] = Template(page.safe_substitute(version=escape(__version__), links=items))
    app.cleanup_ctx.append(_keep_up_to_date)
    app.on_shutdown.append(_end_events)
    app.add_routes(
        [
            web.get(PATH, _get_page),
            web.get(STYLE_PATH, _file("page.css", "text/css")),
            web.get(SCRIPT_PATH, _file("page.js", "text/javascript")),
            web.get(EVENTS_PATH, _get_events, allow_head=False),
        ]
    )


def _read(name: str) -> bytes:
    return files("kvpressure.expose.page").joinpath(name).read_bytes()


def _file(name: str, content_type: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    kept = Kept(_read(name), f"{content_type}; charset=utf-8")

    async def get(request: web.Request) -> web.Response:
        return kept.answer(request)

    return get


async def _get_page(request: web.Request) -> web.Response:
    return request.app[_ANSWERS].get(PATH, lambda: _page(request.app)).answer(request)


def _page(app: web.Application) -> Kept:
    snapshot, view = app[_LIVE].now()
    moment = datetime.fromtimestamp(snapshot.t, UTC)
    text = app[_TEMPLATE].substitute(
        title=escape(view.title), main=html(view.main), time=f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    )
    return Kept(text.encode(), "text/html; charset=utf-8")


async def _get_events(request: web.Request) -> web.StreamResponse:
    transport = request.transport
    listener = request.app[_LIVE].join(transport.abort) if transport is not None else None
    if transport is None or listener is None:
        text = "too many pages are open; this one tries again\n"
        return web.Response(status=503, text=text, headers={"Retry-After": "5"})
    # X-Accel-Buffering: a proxy in front must not collect the events.
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
    try:
        with contextlib.suppress(ConnectionError, ClientError):  # whoever looked may go at any moment
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            await response.prepare(request)
            await response.write(RETRY)
            for _ in range(MAX_EVENTS):
                message = await listener.next()
                if message is None:
                    break
                await response.write(message)
    finally:
        request.app[_LIVE].leave(listener)
    return response


async def _keep_up_to_date(app: web.Application) -> AsyncIterator[None]:
    task = asyncio.create_task(app[_LIVE].run())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _end_events(app: web.Application) -> None:
    app[_LIVE].close()
