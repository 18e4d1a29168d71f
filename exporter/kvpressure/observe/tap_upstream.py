"""Connections to the upstream: aiohttp's client protocol, heard directly."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader

_MAX_FIELD = 1024 * 1024  # bytes; whatever the upstream sends is the client's business
_MAX_HEADERS = 32768


class Taker(Protocol):
    """What takes the answer that arrives on a connection; every `t` is when its bytes did."""

    def head(self, message: RawResponseMessage, payload: StreamReader, t: float) -> bool:
        """Take the head of an answer, or of an interim one (1xx), and tell whether it was expected."""
        ...

    def data(self, t: float) -> None:
        """Take what can be read of the body now, and note its end."""

    def lost(self, *, unreadable: bool) -> None:
        """Take note that nothing more comes: the connection has ended, or what came is unreadable."""


class Upstream(ResponseHandler):
    """
    One connection.

    aiohttp's ClientSession would not do for a tap: it sends paths and headers in its own spelling, drops bytes that
    are not UTF-8, swallows interim answers, and wakes a task for every chunk. The protocol below it does all the
    parsing, and these are the methods by which it hands on what it has parsed: not documented, so tests/test_tap*.py
    show with every version that it still does.

    Args:
        loop: the running one.
        now: the clock of the events.
        fault: is told of a fault of ours; asyncio would log what it says, which may quote the answer.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now: Callable[[], float], fault: Callable[[Exception], None]
    ) -> None:
        super().__init__(loop)
        self._clock = now
        self._fault = fault
        self._taker: Taker | None = None
        self._room: asyncio.Future[None] | None = None
        self._arrived = 0.0
        self._unreadable = False
        self._surplus = False
        self.expiry: asyncio.TimerHandle | None = None
        """Closes the connection if it stays idle."""

    def serve(self, taker: Taker | None, *, head_only: bool = False) -> None:
        """Give the next answer to `taker`, or none any more; an answer to HEAD is a head only."""
        self._taker = taker
        if taker is not None:
            self.set_response_params(
                skip_payload=head_only,
                read_until_eof=True,
                auto_decompress=False,
                max_line_size=_MAX_FIELD,
                max_field_size=_MAX_FIELD,
                max_headers=_MAX_HEADERS,
            )

    @property
    def usable(self) -> bool:
        """Whether it can take another request, now that its last answer is complete."""
        return self.is_connected() and not self.should_close and not self._surplus

    def drop(self) -> None:
        """Break the connection off at once: the upstream has to know now that nobody waits any more."""
        self._taker = None
        if self.transport is not None:
            self.transport.abort()

    async def drained(self) -> None:
        """Wait while the upstream takes no more of a request's body."""
        while self.writing_paused and self.transport is not None:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    # What asyncio calls:

    def data_received(self, data: bytes) -> None:
        """Stamp what arrived, let it be parsed and hand it on."""
        if not data:
            # The parser goes on after a pause, while the taker is reading.
            super().data_received(data)
            return
        self._arrived = self._clock()
        taker = self._taker
        if taker is None and not self.upgraded:
            # Nothing was asked, so it would be taken for the answer to the next request.
            self.drop()
            return
        try:
            super().data_received(data)
            if taker is not None:
                taker.data(self._arrived)
        except Exception as fault:  # noqa: BLE001
            self._fault(fault)
            self._unreadable = True
        if taker is not None and self._unreadable:
            taker.lost(unreadable=True)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Hand on what this completes, for a body can last until here."""
        taker, self._taker = self._taker, None
        if taker is not None and exc is not None:
            # aiohttp would take this for the end of such a body too.
            taker.lost(unreadable=False)
        super().connection_lost(exc)
        self._wake()
        if taker is not None:
            taker.data(self._clock())
            taker.lost(unreadable=False)

    def resume_writing(self) -> None:
        """There is room again."""
        super().resume_writing()
        self._wake()

    # What aiohttp's protocol calls:

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:  # noqa: ARG002
        """Hand on a head, instead of queueing it."""
        if self._taker is not None and not self._taker.head(*data, self._arrived):
            # Nobody asked for this one, so the next on this connection could not be trusted.
            self._surplus = True

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        """Remember that what came cannot be understood; what the exception says may quote it."""
        super().set_exception(exc, *cause)
        self._unreadable = True

    def _wake(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
