"""What keeps clients of the web server from taking the event loop, the memory or the connections from the sampler."""

import asyncio
import logging
import math
import ssl
from collections import Counter, deque
from collections.abc import Mapping

from aiohttp import web

from kvpressure.config import WebConfig
from kvpressure.connections import CONNECTIONS, SLOW, Connection, Patience, Places, Server, open_files
from kvpressure.log import RateLimitedLog

IN_FLIGHT = "inflight"
"""Why a request was refused: too many answers wait for their clients to read them."""
REASONS = (CONNECTIONS, IN_FLIGHT, SLOW)
"""Every reason for which the web server refuses something."""

OTHER_FILES = 128
"""File descriptors for all but connections to the web server and the tap: sampler, log, the system's own."""

RATE = 400.0
"""
Requests answered per second; more wait for their turn. Each costs the event loop about half a millisecond, so that a
flood takes a fifth of it. With all default places taken by a flood, the last waits 0.64 s: less than a probe would.
"""
BURST = 20
"""Requests answered at once after a silence: a page and some scrapers."""
_PATIENCE = Patience(head=10.0, read=30.0, keep=75.0)  # keep: longer than a usual scrape interval
_MAX_HEAD = 64 * 1024  # bytes
_LINGER = 1.0  # seconds for the rest of a request that was answered before it had come

_log = logging.getLogger(__name__)


class Guard:
    """
    The limits of one web server, and what they refused.

    Args:
        config: the settings.
    """

    def __init__(self, config: WebConfig) -> None:
        self.refused: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        """What was refused, by reason."""
        self.places: Places | None = None
        self._config = config
        self._told = RateLimitedLog(_log)

    def listen(self) -> Places:
        """The places for the connections of a server that begins."""
        self.places = Places(places(self._config.max_connections), _PATIENCE, self._closed)
        return self.places

    def admit(self) -> bool:
        """Whether one more answer may be made; if need be, whoever has not read one for longest is cut off."""
        if self.places is None or self.places.stuck < self._config.max_requests or self.places.close_stuck():
            return True
        self.refused[IN_FLIGHT] += 1
        self._told.warning(
            IN_FLIGHT, "requests are refused: too many answers are not being read", limit=self._config.max_requests
        )
        return False

    def _closed(self, reason: str) -> None:
        self.refused[reason] += 1
        if reason == CONNECTIONS:
            limit = places(self._config.max_connections)
            self._told.warning(reason, "connections are closed: too many are open", limit=limit)


def places(wanted: int) -> int:
    """
    Connections that the web server may have at a time: a quarter, at most, of what the limit of open files allows.

    Args:
        wanted: what was configured.
    """
    return max(8, min(wanted, (open_files() - OTHER_FILES) // 4))


class Pace:
    """Lets so many requests have their turn per second, in the order in which they came, and the others wait."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = -math.inf
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self) -> None:
        """Wait for one's turn."""
        if not self._waiting and self._spend():
            return
        waiting = self._loop.create_future()
        self._waiting.append(waiting)
        if self._timer is None:
            self._wait()
        await waiting

    def _spend(self) -> bool:
        now = self._loop.time()
        due = max(self._due, now - BURST / RATE)
        if due > now:
            return False
        self._due = due + 1 / RATE
        return True

    def _wait(self) -> None:
        self._timer = self._loop.call_at(self._due, self._next)

    def _next(self) -> None:
        self._timer = None
        # Who has gone meanwhile costs no turn.
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        if self._waiting and self._spend():
            self._waiting.popleft().set_result(None)
        if self._waiting:
            self._wait()


class Visitor(Connection):
    """
    A connection to the web server.

    Args:
        server: what it belongs to.
    """

    _head = 0  # bytes that came and are of no request yet

    def __init__(self, server: "Web") -> None:
        super().__init__(server, lingering_time=_LINGER)
        self._headers = server.headers

    def data_received(self, data: bytes) -> None:
        """Refuse a head that does not end."""
        super().data_received(data)
        if self.waits:
            self._head += len(data)
            if self._head > _MAX_HEAD and self.transport is not None:
                self.transport.write(_too_large(self._headers))
                self.force_close()
        else:
            self._head = 0

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002
        status: int = 500,
        exc: BaseException | None = None,  # noqa: ARG002
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        """Answer what aiohttp could not read, in words that quote nothing of it."""
        response = web.Response(status=status, text="bad request\n", headers=self._headers)
        response.force_close()
        return response


class Web(Server):
    """
    Makes a ``Visitor`` of every connection.

    Args:
        app: what aiohttp makes of the application.
        guard: the limits.
        tls: what to serve with, if not in plain text.
        headers: of answers that the application does not give.
    """

    def __init__(self, app: web.Server, guard: Guard, tls: ssl.SSLContext | None, headers: Mapping[str, str]) -> None:
        pace = Pace()

        async def paced(request: web.BaseRequest) -> web.StreamResponse:
            await pace.turn()
            if sum(len(name) + len(value) for name, value in request.raw_headers) > _MAX_HEAD:
                response = web.Response(status=431, text="the headers are too large\n", headers=headers)
                response.force_close()
                return response
            return await app.request_handler(request)

        super().__init__(paced, guard.listen(), tls, request_factory=app.request_factory)
        self.headers = headers

    def __call__(self) -> web.RequestHandler:
        """The protocol of a new connection."""
        return Visitor(self)


class Runner(web.AppRunner):
    """
    Runs an application behind its guard.

    Args:
        app: the application.
        guard: the limits.
        tls: what to serve with, if not in plain text.
        headers: of answers that the application does not give.
        shutdown_timeout: seconds for requests that are being answered at the end.
    """

    def __init__(
        self,
        app: web.Application,
        guard: Guard,
        tls: ssl.SSLContext | None,
        headers: Mapping[str, str],
        shutdown_timeout: float,
    ) -> None:
        super().__init__(app, shutdown_timeout=shutdown_timeout)
        self._guard = guard
        self._tls = tls
        self._headers = headers

    async def _make_server(self) -> web.Server:
        return Web(await super()._make_server(), self._guard, self._tls, self._headers)


def _too_large(headers: Mapping[str, str]) -> bytes:
    """The answer to a head that has not ended."""
    own = {"Connection": "close", "Content-Length": "0"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in (own | dict(headers)).items())
    return f"HTTP/1.1 431 Request Header Fields Too Large\r\n{lines}\r\n".encode()
