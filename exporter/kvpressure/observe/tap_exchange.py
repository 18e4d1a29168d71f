"""One request and its answer on their way through the tap."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from aiohttp import web
from aiohttp.http import HttpVersion11, RawResponseMessage
from aiohttp.streams import StreamReader

from kvpressure.observe import tap_http
from kvpressure.observe.tap_upload import Upload
from kvpressure.observe.tap_upstream import Upstream
from kvpressure.observe.tap_watch import Counts, Observer, Watch

BLOCKED = 0.01
"""Seconds. A client that does not read for longer than this is slow; a shorter wait is a moment of scheduling."""

CROSSED = 1.0
"""
Seconds. An idle connection that the upstream closed while the request was on its way breaks within a round trip. One
that breaks later may have broken because of the request, which is not sent again then, nor kept for that.
"""


class Outcome(Enum):
    """How an exchange ended."""

    PASSED = auto()
    EARLY = auto()
    """The answer was complete before the request was."""
    SWITCHED = auto()
    """The upstream switches protocols; its head has not been passed on."""
    UNANSWERED = auto()
    """The connection was closed and nothing had come."""
    UNREADABLE = auto()
    """What came is no answer."""
    CUT = auto()
    """The answer ended before its end, and so did the client's."""
    MALFORMED = auto()
    """The request's body cannot be understood."""


@dataclass(frozen=True, slots=True)
class Around:
    """
    What all exchanges share.

    Args:
        observer: watches the answers.
        counts: what is counted.
        now: the clock of the events.
    """

    observer: Observer
    counts: Counts
    now: Callable[[], float]


class Client(Protocol):
    """What an exchange needs of the protocol of a client's connection."""

    @property
    def writing_paused(self) -> bool:
        """Whether the client has to read before more is written."""
        ...


class Exchange:
    """
    Passes one request on, and its answer back; each chunk is written in the very call that reads it.

    Args:
        request: what came.
        transport: the client's.
        host: what to give as Host where the request names none.
        around: what it shares with others.
    """

    def __init__(self, request: web.BaseRequest, transport: asyncio.Transport, host: bytes, around: Around) -> None:
        headers = request.raw_headers
        target = request.raw_path.encode("utf-8", "surrogateescape")
        chunked = "chunked" in request.headers.get("Transfer-Encoding", "").lower()
        self.upload = Upload(request.content, chunked=chunked)
        self.close = not request.keep_alive
        """The client's connection ends with this answer."""
        self.answered = False
        """The head of an answer has come."""
        self.switch = b""
        """The head with which protocols are switched."""
        self._head = tap_http.request_head(request.method, target, headers, host)
        self._bodiless = request.method == "HEAD"
        self._upgrades = tap_http.wants_upgrade(headers)
        self._old = request.version < HttpVersion11
        self._transport = transport
        self._around = around
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[Outcome] = self._loop.create_future()
        self._upstream: Upstream | None = None
        self._watch: Watch | None = None
        self._payload: StreamReader | None = None
        self._held = b""
        self._chunked = False
        self._until_close = False
        self._paused_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._spoiled = False

    async def run(self, client: Client, upstream: Upstream, *, fresh: bool) -> Outcome:
        """
        Pass it through, and tell how that ended. If this is cancelled, the upstream knows at once.

        It can be run once more, on another connection, while nothing has been answered and the upload is repeatable.

        Args:
            client: the protocol of the client's connection.
            upstream: free for this request. It is so again after ``PASSED``, is the caller's after ``SWITCHED``, and
                is dropped after all else.
            fresh: it has not had a request before this one.
        """
        self._upstream, self._done = upstream, self._loop.create_future()
        uploading: asyncio.Task[None] | None = None
        forgetting = self._loop.call_later(CROSSED, self.upload.forget)
        upstream.serve(self, head_only=self._bodiless)
        try:
            if client.writing_paused:
                self.pause()
            if self._spoiled:
                self._end(Outcome.MALFORMED)
            else:
                self.upload.begin(upstream, self._head)
            if fresh:
                self.upload.forget()
            if not self.upload.complete:
                uploading = self._loop.create_task(self.upload.go_on(upstream))
                uploading.add_done_callback(self._uploaded)
            outcome = await self._done
        except BaseException:
            if self.answered and self._done.cancelled():
                # The client has left, or the tap is closing.
                self._broken("client" if self._transport.is_closing() else "")
            upstream.drop()
            raise
        finally:
            forgetting.cancel()
            self.resume()
            self._upstream = None
            if uploading is not None:
                uploading.cancel()
        if outcome not in (Outcome.PASSED, Outcome.SWITCHED):
            upstream.drop()
        return outcome

    # What the upstream's connection calls:

    def head(self, message: RawResponseMessage, payload: StreamReader, t: float) -> bool:
        """An answer begins, or an interim one is here; tell whether it was expected."""
        if self.answered or self._done.done():
            return False
        headers, status = message.raw_headers, message.code
        reason = message.reason.encode("utf-8", "surrogateescape")
        if status < 200:  # noqa: PLR2004  # 1xx
            self._interim(tap_http.response_head(status, reason, headers, close=False, old=False), status)
            return True
        self.answered = True
        self.upload.forget()
        self._around.counts.responses[f"{status // 100}xx"] += 1
        bodiless = self._bodiless or status in tap_http.NO_BODY
        self._chunked = message.chunked and not self._old and not bodiless
        self._until_close = not bodiless and not self._chunked and "Content-Length" not in message.headers
        self.close |= self._until_close or not self.upload.complete
        self._held = tap_http.response_head(status, reason, headers, close=self.close, old=self._old)
        self._payload = payload
        if not bodiless:
            self._watch = self._around.observer.watch(message.headers, t)
        return True

    def _interim(self, head: bytes, status: int) -> None:
        """Another head follows, unless this one switches protocols."""
        if status == tap_http.SWITCHING:
            self.switch = head
            self._end(Outcome.SWITCHED if self._upgrades else Outcome.UNREADABLE)
            return
        # The upstream has begun to answer, so the request must not be sent to it once more.
        self.upload.forget()
        if not self._old:
            self._write(head)

    def data(self, t: float) -> None:
        """Pass on what is here of the body, and its end."""
        payload = self._payload
        if payload is None or self._done.done() or payload.exception() is not None:
            return
        body = payload.read_nowait()
        while more := payload.read_nowait():
            body += more
        out = tap_http.chunk(body) if self._chunked and body else body
        if self._held:
            out, self._held = self._held + out, b""
        complete = payload.at_eof()
        if complete and self._chunked:
            out += tap_http.LAST_CHUNK
        if out:
            self._write(out)
        watch = self._watch
        if watch is not None and body:
            watch.chunk(t, body)
        if complete:
            if watch is not None:
                watch.end(t, whole=True)
            self._end(Outcome.PASSED if self.upload.complete else Outcome.EARLY)
        elif self._paused_at is not None:
            # Reading on in the parser's stead may have started it again.
            self._hold()

    def lost(self, *, unreadable: bool) -> None:
        """Nothing more comes. As it would without us, the client finds its answer cut off."""
        if self._done.done():
            return
        if not self.answered:
            self._end(Outcome.UNREADABLE if unreadable else Outcome.UNANSWERED)
            return
        self._broken("upstream")
        self.close = True
        if self._until_close:
            # Whoever reads until the connection is closed learns only from a reset that this was not the end.
            self._transport.abort()
        else:
            self._transport.close()
        self._end(Outcome.CUT)

    # What the client's connection calls:

    def pause(self) -> None:
        """The client does not read as fast as the upstream sends."""
        if self._paused_at is None:
            self._paused_at = self._around.now()
            self._timer = self._loop.call_later(BLOCKED, self._blind)
        self._hold()

    def resume(self) -> None:
        """The client has read enough."""
        if self._paused_at is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._paused_at = None
        self._around.counts.unblock(self, self._around.now())
        if self._upstream is not None and self._upstream.transport is not None:
            self._upstream.transport.resume_reading()

    def spoil(self) -> None:
        """The rest of the request cannot be understood, so it will never be complete."""
        self._spoiled = True
        self._end(Outcome.MALFORMED)

    def _hold(self) -> None:
        """Let the upstream wait."""
        if self._upstream is not None and self._upstream.transport is not None:
            self._upstream.transport.pause_reading()

    def _blind(self) -> None:
        """It has been so for longer than a moment: when the next bytes arrive here, they may have come long before."""
        if self._watch is not None and self._paused_at is not None:
            self._around.counts.block(self, self._paused_at)
            self._watch.blind(self._around.now())

    def _uploaded(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._end(Outcome.MALFORMED)

    def _broken(self, side: str) -> None:
        if side:
            self._around.counts.broken[side] += 1
        if self._watch is not None:
            self._watch.end(self._around.now(), whole=False)

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def _end(self, outcome: Outcome) -> None:
        if not self._done.done():
            self._done.set_result(outcome)
