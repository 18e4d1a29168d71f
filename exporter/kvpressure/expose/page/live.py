"""The page kept up to date: one snapshot a second while somebody looks, and what changed in it to all who do."""

import asyncio
import json
import logging
from collections.abc import Callable

from kvpressure.config import Config
from kvpressure.derive.snapshot import Snapshot
from kvpressure.expose.page.history import EVERY
from kvpressure.expose.page.tree import Change, Element, changes
from kvpressure.expose.page.view import Memory, View, view
from kvpressure.log import RateLimitedLog

_log = logging.getLogger(__name__)

MAX_LISTENERS = 16
"""Pages that are kept up to date at a time. Those beyond it are refused, and try again."""
MAX_BEHIND = 4
"""Messages that a listener may be behind; then it is dropped, and comes back for all of it."""
TICK = 1.0
"""Seconds between two messages."""
RETRY = b"retry: 1000\n\n"
"""What every listener is told first: to come back after a second, wherever it is cut off."""


class Listener:
    """
    One page that is kept up to date.

    Args:
        abort: breaks its connection off at once.
    """

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_BEHIND)
        self.begun = False
        """Whether it has been sent the whole page: then what changes in it is enough."""

    async def next(self) -> bytes | None:
        """The next message; None at the end."""
        return await self._messages.get()

    def give(self, message: bytes | None) -> bool:
        """Send a message, or the end; where it does not read its messages it is dropped, and this is false."""
        try:
            self._messages.put_nowait(message)
        except asyncio.QueueFull:
            self._abort()
            return False
        return True


class Live:
    """
    The page, and those who look at it.

    Args:
        config: the settings.
        snapshot: takes a snapshot of now; called on the event loop.
    """

    def __init__(self, config: Config, snapshot: Callable[[], Snapshot]) -> None:
        self._config = config
        self._snapshot = snapshot
        self._memory = Memory()
        self._listeners: set[Listener] = set()
        self._shown: Element | None = None
        self._ticks = 0
        self._closed = False
        self._faults = RateLimitedLog(_log)

    def now(self) -> tuple[Snapshot, View]:
        """A snapshot and the page of it."""
        snapshot = self._snapshot()
        return snapshot, view(snapshot, self._memory, self._config)

    def join(self, abort: Callable[[], None]) -> Listener | None:
        """
        Keep one more page up to date; None where there are too many already, or it ends.

        Args:
            abort: breaks the listener's connection off at once.
        """
        if self._closed or len(self._listeners) >= MAX_LISTENERS:
            return None
        listener = Listener(abort)
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """Forget a listener, known or not."""
        self._listeners.discard(listener)

    async def run(self) -> None:
        """Go on until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            try:
                self.tick()
            except Exception as fault:  # noqa: BLE001  # the next second may be a better one
                self._faults.warning("tick", "the page cannot be brought up to date", error=fault)
            due = max(due + TICK, loop.time())
            await asyncio.sleep(due - loop.time())

    def tick(self) -> None:
        """A second has passed. Without a listener only the points of the charts are taken."""
        self._ticks += 1
        if not self._listeners:
            self._shown = None
            if self._ticks % EVERY == 1:
                self._memory.record(self._snapshot())
            return
        snapshot = self._snapshot()
        self._memory.record(snapshot)
        seen = view(snapshot, self._memory, self._config)
        before, self._shown = self._shown, seen.main
        update = _message(snapshot.t, seen.title, list(changes(before, seen.main))) if before else b""
        whole = b""
        for listener in list(self._listeners):
            if not (listener.begun and update):
                whole = whole or _message(snapshot.t, seen.title, [([], seen.main)])
            if not listener.give(update if listener.begun and update else whole):
                self.leave(listener)
            listener.begun = True

    def close(self) -> None:
        """End all listeners, now."""
        self._closed = True
        for listener in self._listeners:
            listener.give(None)
        self._listeners.clear()


def _message(t: float, title: str, changed: list[Change]) -> bytes:
    """One event of the stream; JSON has no line break in it."""
    data = json.dumps({"t": t, "title": title, "changes": changed}, separators=(",", ":"), allow_nan=False)
    return f"data: {data}\n\n".encode()
