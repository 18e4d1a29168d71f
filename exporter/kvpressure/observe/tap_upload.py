"""A request's body on its way to the upstream: as it comes, and no faster than it is taken."""

from aiohttp.streams import StreamReader

from kvpressure.observe import tap_http
from kvpressure.observe.tap_upstream import Upstream

_MAX_KEPT = 64 * 1024  # bytes that are kept for a moment, should they have to be sent once more


class Upload:
    """
    The body of a request.

    Args:
        content: what arrives.
        chunked: it is sent in chunks.
    """

    def __init__(self, content: StreamReader, *, chunked: bool) -> None:
        self._content = content
        self._chunked = chunked
        self._kept: list[bytes] | None = []
        self._size = 0
        self.complete = False
        """All of it is on its way."""

    @property
    def repeatable(self) -> bool:
        """Whether what has been sent can be sent once more."""
        return self._kept is not None

    @property
    def received(self) -> bool:
        """Whether all of it has come."""
        return self._content.is_eof()

    def begin(self, upstream: Upstream, head: bytes) -> None:
        """Send the head, what an earlier attempt sent of the body, and what else of it is here."""
        earlier = b"".join(self._kept or ())
        data = self._content.read_nowait()
        self._keep(data)
        self.complete = self._content.at_eof()
        self._write(upstream, head, earlier + data)

    async def go_on(self, upstream: Upstream) -> None:
        """Send the rest as it comes, and no faster than it is taken."""
        while not self.complete:
            await upstream.drained()
            data = await self._content.readany()
            self._keep(data)
            self.complete = self._content.at_eof()
            self._write(upstream, b"", data)

    def forget(self) -> None:
        """It need not be sent once more."""
        self._kept = None

    def _keep(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > _MAX_KEPT:
            self._kept = None
        elif self._kept is not None and data:
            self._kept.append(data)

    def _write(self, upstream: Upstream, head: bytes, data: bytes) -> None:
        if self._chunked:
            data = (tap_http.chunk(data) if data else b"") + tap_http.LAST_CHUNK * self.complete
        if upstream.transport is not None and (head or data):
            upstream.transport.write(head + data)
