"""The tap's side towards clients: aiohttp's server below its applications, with three of its decisions taken here."""

from collections.abc import Callable
from typing import Any

from aiohttp import web

from kvpressure.connections import CONNECTIONS, Connection, Handler, Patience, Places
from kvpressure.connections import Server as LimitedServer
from kvpressure.observe.tap_exchange import Exchange

Malformed = Callable[[web.BaseRequest, BaseException | None], web.StreamResponse]
"""Answers what is no request: told of it, and why."""

# No limit to reading: whoever reads slowly is seen, not cut off. keep: longer than clients usually keep a connection,
# so that they are the ones to close it.
_PATIENCE = Patience(head=60.0, keep=75.0, grace=1.0)
_LINGER = 5.0  # seconds for the rest of a request that was answered before it had come
_MAX_HEADERS = 32768  # the limit is on their bytes
_READ = 64 * 1024  # bytes of a request's body that wait for the upstream


class Client(Connection):
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
            max_line_size=limit,
            max_field_size=limit,
            max_headers=_MAX_HEADERS,
            lingering_time=_LINGER,
            read_bufsize=_READ,
            auto_decompress=False,
        )
        self._malformed = malformed

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


class Server(LimitedServer):
    """
    Makes a ``Client`` of every connection, and cancels the handler of one that is lost.

    Args:
        handler: answers a request.
        places: connections at a time, at most.
        refused: is told of each beyond them. That which has waited longest for a request is closed for it, or else it
            is closed itself, at once: to answer it would take a file descriptor.
        malformed: answers what is no request.
        limit: bytes of the longest line of a head.
    """

    def __init__(
        self, handler: Handler, malformed: Malformed, limit: int, places: int, refused: Callable[[], None]
    ) -> None:
        def told(reason: str) -> None:
            if reason == CONNECTIONS:
                refused()

        super().__init__(handler, Places(places, _PATIENCE, told))
        self._malformed = malformed
        self._limit = limit

    def __call__(self) -> web.RequestHandler:
        """The protocol of a new connection."""
        return Client(self, self._malformed, self._limit)

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
