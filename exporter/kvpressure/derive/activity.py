"""
How many requests streamed in a window, and how many of them were paused.

A request counts in the second of its latest chunk, so that the seconds of a window add up to the requests that
streamed in it, each once; a request that is paused right now is in every window that ends now. A pause counts in the
second in which it ended.
"""

from collections.abc import Iterable

from kvpressure.signals import WINDOWS

_KEEP = int(max(seconds for _, seconds in WINDOWS))


class Place:
    """Where one request counts now: the second of its latest chunk and that of its latest pause, where it has any."""

    __slots__ = ("paused", "streamed")

    def __init__(self) -> None:
        self.streamed: int | None = None
        self.paused: int | None = None


class Activity:
    """Requests by second."""

    __slots__ = ("_paused", "_streamed", "pausing")

    def __init__(self) -> None:
        self._streamed: dict[int, int] = {}
        self._paused: dict[int, int] = {}
        self.pausing = 0
        """Requests that are paused right now."""

    def chunk(self, place: Place, second: int) -> None:
        """A request that is not paused got a chunk."""
        # A clock can step back. Counted earlier than its pause, a request would be paused where it did not stream.
        second = max(second, place.paused or second)
        _move(self._streamed, place.streamed, second)
        place.streamed = second

    def pause(self, place: Place) -> None:
        """A request stands still."""
        self.pausing += 1
        _move(self._streamed, place.streamed, None)
        _move(self._paused, place.paused, None)
        place.streamed = place.paused = None

    def resume(self, place: Place, second: int) -> None:
        """A paused request goes on, or ends."""
        self.pausing -= 1
        _move(self._streamed, place.streamed, second)
        _move(self._paused, place.paused, second)
        place.streamed = place.paused = second

    def counts(self, second: int, seconds: float) -> tuple[int, int]:
        """Requests that streamed in the `seconds` that end with `second`, and those of them that were paused."""
        since = second - int(seconds)
        return _after(since, self._streamed) + self.pausing, _after(since, self._paused) + self.pausing

    def forget(self, second: int) -> None:
        """Drop what no window that ends at `second` or later reaches."""
        for places in (self._streamed, self._paused):
            if len(places) > 2 * _KEEP:
                for old in [number for number in places if number <= second - _KEEP]:
                    del places[old]


def _move(places: dict[int, int], out_of: int | None, into: int | None) -> None:
    # A second that has been forgotten holds nobody any more.
    if out_of in places:
        places[out_of] -= 1
    if into is not None:
        places[into] = places.get(into, 0) + 1


def _after(since: int, places: dict[int, int]) -> int:
    counts: Iterable[int] = (count for second, count in places.items() if second > since)
    return sum(counts)
