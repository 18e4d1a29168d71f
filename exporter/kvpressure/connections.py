"""
Connections of clients, for the web server and the tap: how many there may be, and how long each may say nothing.

Whoever opens connections and leaves them so, or sends and reads a byte now and then, must not take the places of the
others. At the limit the connection goes that has waited longest for a request, rather than the one that comes.
"""

import asyncio
import contextlib
import logging
import resource
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import cast

from aiohttp import web

CONNECTIONS = "connections"
"""Why a connection was closed: there were too many."""
SLOW = "slow"
"""Why a connection was closed: its client took too long to send a head, or to read an answer."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_MOST_FILES = 1024 * 1024  # where the system sets no limit
_STUCK = 1.0  # seconds; a client that has not read for less may be on a slow line

# What aiohttp would say quotes what clients send; a handler's faults are told by the handler.
_silent = logging.getLogger(f"{__name__}.http")
_silent.setLevel(logging.CRITICAL + 1)


@dataclass(frozen=True, slots=True)
class Patience:
    """
    How long a client may take, in seconds.

    Args:
        head: to send a whole head, from the connection's beginning or the first byte of a later one; and for TLS.
        read: to read what has been written; None for as long as it likes.
        keep: between two requests.
        grace: a connection without a request that is younger than this is not closed to make room.
    """

    head: float
    read: float | None = None
    keep: float = 75.0
    grace: float = 0.0


class Places:
    """
    Places for connections.

    Args:
        number: connections at a time, at most.
        patience: what a client may take.
        told: is told why a connection was closed, or one that came was refused: ``CONNECTIONS`` or ``SLOW``.
    """

    def __init__(self, number: int, patience: Patience, told: Callable[[str], None]) -> None:
        self.patience = patience
        self.told = told
        self._number = number
        self._loop = asyncio.get_running_loop()
        # Each in the order in which they became so, with the time of it.
        self._taken: dict[Connection, float] = {}
        self._idle: dict[Connection, float] = {}
        self._stuck: dict[Connection, float] = {}

    def __len__(self) -> int:
        return len(self._taken)

    @property
    def stuck(self) -> int:
        """Connections whose clients have not read all that was written."""
        return len(self._stuck)

    def take(self, connection: "Connection") -> bool:
        """A place for a new connection, if need be that of one which does nothing."""
        if len(self._taken) >= self._number:
            self.told(CONNECTIONS)
            if not (self._close_idle() or self.close_stuck() or self._close_oldest()):
                return False
        self._taken[connection] = self._loop.time()
        self.idle(connection)
        return True

    def give(self, connection: "Connection") -> None:
        """Take back a place, if the connection has one."""
        self._taken.pop(connection, None)
        self._idle.pop(connection, None)
        self._stuck.pop(connection, None)

    def idle(self, connection: "Connection") -> None:
        """No request is on the connection from now on."""
        if connection in self._taken:
            self._idle[connection] = self._loop.time()

    def busy(self, connection: "Connection") -> None:
        """A request is on it."""
        self._idle.pop(connection, None)

    def is_idle(self, connection: "Connection") -> bool:
        """Whether no request is on it."""
        return connection in self._idle

    def block(self, connection: "Connection") -> None:
        """Its client does not read."""
        if connection in self._taken and self.patience.read is not None:
            self._stuck[connection] = self._loop.time()

    def unblock(self, connection: "Connection") -> None:
        """Its client has read."""
        self._stuck.pop(connection, None)

    def clear(self) -> None:
        """Close all."""
        for one in list(self._taken):
            one.drop()

    def close_stuck(self) -> bool:
        """Close the connection whose client has not read for longest; tell whether there is one."""
        return self._close(iter(self._stuck.items()), _STUCK)

    def _close_idle(self) -> bool:
        unstuck = ((one, since) for one, since in self._idle.items() if one not in self._stuck)
        return self._close(unstuck, self.patience.grace)

    def _close_oldest(self) -> bool:
        """One that is being answered. Where answers are streams of tokens, those come before whoever is new."""
        return self.patience.read is not None and self._close(iter(self._taken.items()), 0.0)

    def _close(self, ordered: Iterator[tuple["Connection", float]], least: float) -> bool:
        """Close the first one, if it has been so for long enough."""
        found = next(ordered, None)
        if found is None or self._loop.time() - found[1] < least:
            return False
        found[0].drop()
        return True


class Connection(web.RequestHandler):
    """
    A client's connection, on aiohttp's protocol.

    Args:
        server: what it belongs to.
        options: aiohttp's.
    """

    def __init__(self, server: "Server", **options: object) -> None:
        self._places = server.places
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=server.places.patience.keep,
            logger=_silent,
            access_log=None,  # type: ignore[arg-type]  # as web.AppRunner documents it
            **options,  # type: ignore[arg-type]
        )
        self._tls = server.tls
        self._wire: asyncio.Transport | None = None
        self._securing: asyncio.Task[None] | None = None
        self._made = False
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, if there is a place."""
        # It is one by what it does; with uvloop's event loop it is of another class.
        transport = cast("asyncio.Transport", transport)
        if not self._places.take(self):
            transport.abort()
            return
        self._wire = transport
        self._expect()
        if self._tls is None:
            self._begin(transport)
            return
        # Whoever connects and never shakes hands has a place and a deadline as well; asyncio would give it neither.
        transport.pause_reading()
        self._securing = self._loop.create_task(self._secure(transport, self._tls))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Free the place."""
        self._forget()
        if self._made:
            self._made = False
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Watch how long a head takes to come."""
        super().data_received(data)
        if not self.waits:
            return
        # Nothing public tells that a request is here (tests/test_guard.py).
        if getattr(self, "_messages", None):
            self.occupied()
        elif self._reading is None:
            self._expect()

    def pause_writing(self) -> None:
        """The client does not read as fast as is written."""
        super().pause_writing()
        self._places.block(self)
        limit = self._places.patience.read
        if limit is not None and self._writing is None:
            self._writing = self._loop.call_later(limit, self._late)

    def resume_writing(self) -> None:
        """The client has read enough."""
        super().resume_writing()
        self._places.unblock(self)
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    @property
    def waits(self) -> bool:
        """Whether no request is on it, but for the beginning of a head."""
        return self._places.is_idle(self)

    def occupied(self) -> None:
        """A request is here."""
        self._places.busy(self)
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def free(self) -> None:
        """The request has been answered."""
        self._places.idle(self)

    def drop(self) -> None:
        """Close it at once, whatever is on it."""
        self._forget()
        if self._wire is not None:
            self._wire.abort()

    def _begin(self, transport: asyncio.Transport) -> None:
        self._wire = transport
        if self._places.patience.read is not None:
            # What is left in the buffer has a deadline, also when the connection is being closed.
            transport.set_write_buffer_limits(high=1, low=0)
        self._made = True
        super().connection_made(transport)

    async def _secure(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        patience = self._places.patience
        secured: asyncio.Transport | None = None
        with contextlib.suppress(OSError):  # it is no TLS, or none that is allowed, or it took too long
            secured = await self._loop.start_tls(
                transport,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=patience.head,
                ssl_shutdown_timeout=patience.read,
            )
        if secured is None:
            self.drop()
        else:
            self._begin(secured)

    def _expect(self) -> None:
        self._reading = self._loop.call_later(self._places.patience.head, self._late)

    def _late(self) -> None:
        self._places.told(SLOW)
        self.drop()

    def _forget(self) -> None:
        self._places.give(self)
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()
        self._reading = self._writing = None


class Server(web.Server):
    """
    Makes a ``Connection`` of every connection, and cancels the handler of one that is lost.

    Args:
        handler: answers a request.
        places: what limits the connections.
        tls: what to serve with, if not in plain text.
        options: aiohttp's, for the server.
    """

    def __init__(
        self,
        handler: Handler,
        places: Places,
        tls: ssl.SSLContext | None = None,
        **options: object,
    ) -> None:
        async def marked(request: web.BaseRequest) -> web.StreamResponse:
            connection = request.protocol
            if not isinstance(connection, Connection):
                return await handler(request)
            connection.occupied()
            try:
                return await handler(request)
            finally:
                connection.free()

        super().__init__(marked, handler_cancellation=True, **options)  # type: ignore[arg-type]
        self.places = places
        self.tls = tls

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # aiohttp's signature
        """Close all connections, also those that aiohttp has not been told of yet."""
        await super().shutdown(timeout)
        self.places.clear()


def open_files() -> int:
    """How many files and connections this process may have open, after raising that as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return most if soft == resource.RLIM_INFINITY else soft
