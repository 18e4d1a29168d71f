"""The tap's side towards clients: aiohttp's server below its applications, with three of its decisions taken here."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from kvpressure.observe.tap_exchange import Exchange

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Malformed = Callable[[web.BaseRequest, BaseException | None], web.StreamResponse]
"""Answers what is no request: told of it, and why."""

# What it would say quotes what clients send; a handler's faults are told by the handler.
_silent = logging.getLogger(f"{__name__}.http")
_silent.setLevel(logging.CRITICAL + 1)

_KEEP_ALIVE = 75.0  # seconds; longer than clients usually keep a connection, so that they are the ones to close it
_LINGER = 5.0  # seconds for the rest of a request that was answered before it had come
_MAX_HEADERS = 32768  # the limit is on their bytes
_READ = 64 * 1024  # bytes of a request's body that wait for the upstream


class Client(web.RequestHandler):
    """
    A client's connection.

    Args:
        server: what it belongs to, and what limits the number of connections.
        malformed: answers what is no request.
        limit: bytes of the longest line of a head.
    """

    exchange: Exchange | None = None
    """What is being passed on: is told when the client stops reading, and when it has read enough."""

    def __init__(self, server: "Server", malformed: Malformed, limit: int) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=_KEEP_ALIVE,
            logger=_silent,
            access_log=None,  # type: ignore[arg-type]  # as web.AppRunner documents it
            max_line_size=limit,
            max_field_size=limit,
            max_headers=_MAX_HEADERS,
            lingering_time=_LINGER,
            read_bufsize=_READ,
            auto_decompress=False,
        )
        self._malformed = malformed
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless there are as many connections as file descriptors allow."""
        if self._server.take(self):
            super().connection_made(transport)
        elif isinstance(transport, asyncio.Transport):
            transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Free the place."""
        if self._server.give(self):
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Tell at once if the rest of a request cannot be understood."""
        super().data_received(data)
        exchange = self.exchange
        if exchange is None or exchange.upload.received:
            return
        # aiohttp queues its own answer behind the request under way, which waits for the rest for ever. Nothing else
        # can be in the queue while that rest has not come, and nothing public tells of it (tests/test_tap_ends.py).
        if getattr(self, "_messages", None):
            exchange.spoil()

    def pause_writing(self) -> None:
        """The client does not read as fast as is written."""
        super().pause_writing()
        if self.exchange is not None:
            self.exchange.pause()

    def resume_writing(self) -> None:
        """The client has read enough."""
        super().resume_writing()
        if self.exchange is not None:
            self.exchange.resume()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,  # noqa: ARG002  # always 400 here: our handler lets no exception out
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        """Answer what aiohttp could not read, in words that quote nothing of it."""
        return self._malformed(request, exc)


class Server(web.Server):
    """
    Makes a ``Client`` of every connection, and cancels the handler of one that is lost.

    Args:
        handler: answers a request.
        places: connections at a time, at most.
        refused: is told of each beyond them, which is closed at once: to answer it would take a file descriptor.
        malformed: answers what is no request.
        limit: bytes of the longest line of a head.
    """

    def __init__(
        self, handler: Handler, malformed: Malformed, limit: int, places: int, refused: Callable[[], None]
    ) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._places = places
        self._refused = refused
        self._taken: set[Client] = set()
        self._malformed = malformed
        self._limit = limit

    def __call__(self) -> web.RequestHandler:
        """The protocol of a new connection."""
        return Client(self, self._malformed, self._limit)

    def take(self, client: Client) -> bool:
        """A place for a new connection, if there is one."""
        if len(self._taken) >= self._places:
            self._refused()
            return False
        self._taken.add(client)
        return True

    def give(self, client: Client) -> bool:
        """Take back the place of a connection, if it had one."""
        had = client in self._taken
        self._taken.discard(client)
        return had

    def close_idle(self) -> None:
        """Close the connections on which no request is being passed on."""
        for connection in self.connections:
            if isinstance(connection, Client) and connection.exchange is None:
                connection.force_close()


class Passed(web.StreamResponse):
    """
    Tells aiohttp that the answer has been written already.

    Args:
        keep: the connection takes another request.
    """

    def __init__(self, *, keep: bool) -> None:
        super().__init__()
        self._keep = keep

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection takes another request."""
        return self._keep

    async def prepare(self, request: web.BaseRequest) -> Any:  # noqa: ANN401
        """Nothing is left to be written."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to be written."""
