"""Random changes to inputs, repeatable by their seed."""

import random
from collections.abc import Sequence

_LONGEST = 1 << 16
_MOST_CHANGES = 6


class Mutator:
    """
    Makes inputs out of those of a corpus.

    Args:
        corpus: what to begin with.
        seed: the same one makes the same inputs.
    """

    def __init__(self, corpus: Sequence[bytes], seed: int) -> None:
        self._corpus = [*corpus, b""]
        self._chance = random.Random(seed)

    def next(self) -> bytes:
        """Another input."""
        data = bytearray(self._chance.choice(self._corpus))
        for _ in range(self._chance.randint(1, _MOST_CHANGES)):
            self._chance.choice((self._flip, self._put, self._cut, self._copy, self._splice, self._lines))(data)
        return bytes(data[:_LONGEST])

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._chance.randrange(len(data))] = self._chance.choice(b'\n\r\x00\x1b"\\ ,.:{}[]()09azAZ\x80\xff')

    def _put(self, data: bytearray) -> None:
        at = self._chance.randint(0, len(data))
        data[at:at] = self._piece(self._chance.choice(self._corpus), 40)

    def _cut(self, data: bytearray) -> None:
        start = self._chance.randint(0, len(data))
        del data[start : start + self._chance.choice((1, 2, 8, 64, 512))]

    def _copy(self, data: bytearray) -> None:
        at = self._chance.randint(0, len(data))
        data[at:at] = self._piece(bytes(data), 400) * self._chance.randint(1, 4)

    def _splice(self, data: bytearray) -> None:
        other = self._chance.choice(self._corpus)
        at, start = self._chance.randint(0, len(data)), self._chance.randint(0, len(other))
        data[at:] = other[start:]

    def _lines(self, data: bytearray) -> None:
        """Some lines in another order."""
        lines = bytes(data).split(b"\n")
        start = self._chance.randrange(len(lines))
        some = lines[start : start + 8]
        self._chance.shuffle(some)
        lines[start : start + 8] = some
        data[:] = b"\n".join(lines)

    def _piece(self, data: bytes, longest: int) -> bytes:
        start = self._chance.randint(0, len(data))
        return data[start : start + self._chance.randint(0, longest)]
