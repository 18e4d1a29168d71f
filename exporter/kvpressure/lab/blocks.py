"""The paged KV cache as vLLM V1 keeps it: one free list that unreferenced prefix-cache blocks share."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Block:
    """
    One block of the pool.

    Args:
        users: how many sequences hold it; 0 means that it counts as free.
        key: what its content is, once it is full and prefix caching is on.
    """

    users: int = 0
    key: Hashable = None


@dataclass(slots=True)
class BlockPool:
    """
    The blocks of one engine.

    Args:
        num_gpu_blocks: the pool as vLLM reports it. One of these is the null block, which no sequence can use.
        caching: keep full blocks for reuse after their last user is gone.
    """

    num_gpu_blocks: int
    caching: bool = True
    _blocks: list[Block] = field(init=False)
    # A dict keeps insertion order and removes from the middle in O(1): oldest free block first.
    _free: dict[int, None] = field(init=False)
    _cached: dict[Hashable, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._blocks = [Block() for _ in range(self.usable)]
        self._free = dict.fromkeys(range(self.usable))

    @property
    def usable(self) -> int:
        """Blocks that sequences can hold: all but the null block."""
        return self.num_gpu_blocks - 1

    @property
    def free(self) -> int:
        """Blocks without a user, cached ones among them."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the usable blocks that have a user, 0 to 1 (vLLM's ``BlockPool.get_usage``)."""
        return 1.0 - self.free / self.usable

    def hits(self, keys: Iterable[Hashable]) -> list[int]:
        """The blocks that already hold the longest known prefix of ``keys``."""
        found: list[int] = []
        for key in keys:
            block = self._cached.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def unused(self, blocks: Sequence[int]) -> int:
        """How many of these have no user, so that taking them also takes from the free list."""
        return sum(1 for block in blocks if not self._blocks[block].users)

    def share(self, blocks: Sequence[int]) -> None:
        """One more sequence uses these blocks as they are."""
        for number in blocks:
            block = self._blocks[number]
            if not block.users:
                del self._free[number]
            block.users += 1

    def take(self, count: int) -> list[int]:
        """
        The ``count`` oldest free blocks, for new content. The caller has seen that so many are free.

        A cached block that is taken is forgotten here: this is a prefix eviction, not a preemption.
        """
        taken: list[int] = []
        for _ in range(count):
            number = next(iter(self._free))
            del self._free[number]
            block = self._blocks[number]
            if block.key is not None:
                del self._cached[block.key]
                block.key = None
            block.users = 1
            taken.append(number)
        return taken

    def name(self, number: int, key: Hashable) -> None:
        """A block became full: remember its content. Of two equal blocks the first is kept."""
        block = self._blocks[number]
        if self.caching and block.key is None and key not in self._cached:
            block.key = key
            self._cached[key] = number

    def release(self, blocks: Sequence[int]) -> None:
        """One sequence lets go of its blocks. The last ones go first, so that the beginning stays cached longest."""
        for number in reversed(blocks):
            block = self._blocks[number]
            block.users -= 1
            if not block.users:
                self._free[number] = None
