"""
Answers that are given more than once, so that a flood of scrapes does not have each one rendered.

All values of an answer are of one moment anyway; whoever asks again at once gets that moment once more, to the byte.
"""

import gzip
import time
from collections.abc import Callable

from aiohttp import web

FRESH = 0.1
"""Seconds for which an answer may be given again."""
SHARE = 0.05
"""Share of time that is spent on making an answer, at most: one that takes over 5 ms is given again for longer."""

_LEVEL = 6  # of gzip


class Kept:
    """
    The body of an answer, plain and compressed.

    Args:
        body: the plain one.
        content_type: of the body.
    """

    def __init__(self, body: bytes, content_type: str) -> None:
        self._body = body
        self._content_type = content_type
        self._compressed: bytes | None = None

    def plain(self) -> web.Response:
        """An answer with this body as it is."""
        return web.Response(body=self._body, headers={"Content-Type": self._content_type})

    def answer(self, request: web.Request, vary: str = "Accept-Encoding") -> web.Response:
        """
        An answer with this body, compressed where that is accepted.

        Args:
            request: says whether its client takes gzip.
            vary: request headers on which the body depends.
        """
        headers = {"Content-Type": self._content_type, "Vary": vary}
        body = self._body
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            if self._compressed is None:
                self._compressed = gzip.compress(body, _LEVEL, mtime=0)
            body = self._compressed
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=headers)


class Answers:
    """
    What was answered a moment ago.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[float, Kept]] = {}

    def get(self, key: str, make: Callable[[], Kept]) -> Kept:
        """
        What was answered a moment ago, or a new answer.

        Args:
            key: what is asked for, of a small fixed set: each is remembered for good.
            make: makes an answer. What it raises is raised, and nothing is kept.
        """
        began = self._clock()
        until, kept = self._kept.get(key, (0.0, None))
        if kept is None or began >= until:
            kept = make()
            ended = self._clock()
            until = ended + max(FRESH, (ended - began) / SHARE)
            self._kept[key] = until, kept
        return kept
