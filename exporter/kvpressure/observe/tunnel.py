"""Two connections as one: what happens at either end happens at the other, byte for byte."""

import asyncio

from aiohttp import web

from kvpressure.observe.tap_upstream import Upstream


class Early:
    """Collects what aiohttp kept of the bytes that came before a protocol was switched."""

    def __init__(self) -> None:
        self.data = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take some; neither is it the end, nor is anything left."""
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        """The connection has ended, which its transport says too."""


class Pipe(asyncio.Protocol):
    """
    One end of the tunnel: takes a connection over, and hands on what arrives on it.

    Args:
        own: the connection's transport.
        other: that of the other end.
        former: the protocol that had it before; it still has to know when the connection is lost.
    """

    def __init__(self, own: asyncio.Transport, other: asyncio.Transport, former: asyncio.Protocol) -> None:
        self._own = own
        self._other = other
        self._former = former
        self.ended = False
        """This end sends no more."""

    def data_received(self, data: bytes) -> None:
        """Bytes go on as they come."""
        if not self._other.is_closing():
            self._other.write(data)

    def eof_received(self) -> bool:
        """No more comes from here. The other direction goes on until its own end; over TLS it cannot."""
        self.ended = True
        twin = self._other.get_protocol()
        both = isinstance(twin, Pipe) and twin.ended
        if both or not (self._own.can_write_eof() and self._other.can_write_eof()):
            self._other.close()
            return False
        self._other.write_eof()
        return True

    def pause_writing(self) -> None:
        """This end takes no more: let the other wait."""
        self._other.pause_reading()

    def resume_writing(self) -> None:
        """This end takes more again."""
        self._other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """One end is gone, so is the other: when it has got what was sent, or at once after a reset."""
        if exc is None:
            self._other.close()
        else:
            self._other.abort()
        self._former.connection_lost(exc)


async def run(client: web.RequestHandler, upstream: Upstream, head: bytes) -> None:
    """
    Join a client to the upstream, until one of the two connections is lost; then this is cancelled, as by any client.

    Args:
        client: the protocol of the client's connection, with nothing in the works.
        upstream: the connection whose answer was that the protocol is switched.
        head: that answer's head.
    """
    one, other = client.transport, upstream.transport
    if one is None or other is None:
        upstream.drop()
        return
    from_client, from_upstream = Early(), Early()
    client.set_parser(from_client)  # type: ignore[arg-type]  # aiohttp's own is WebSocket's; it needs these two methods
    upstream.set_parser(from_upstream, None)
    one.write(head + from_upstream.data)
    other.write(from_client.data)
    one.set_protocol(Pipe(one, other, client))
    other.set_protocol(Pipe(other, one, upstream))
    try:
        one.resume_reading()
        other.resume_reading()
        await asyncio.get_running_loop().create_future()
    finally:
        one.abort()
        other.abort()
