"""KV blocks as in vLLM's block pool: shared by prefix while used, cached while their memory is not needed.

Theory of operation. A block holds `BLOCK_SIZE` tokens. A full block has a hash of its tokens and of all tokens before
it, so equal prefixes have equal hashes. A hashed block that no sequence uses stays in the cache as *idle*: it counts as
free, and the least recently used idle block is evicted first. One block is never allocated, as in vLLM.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from engines.simulator.settings import BLOCK_SIZE


def block_hash(parent_hash: int, tokens: Items[int]) -> int:
    """The hash of a full block that follows the block with `parent_hash` (for the first block, a salt)."""
    return xxh3_64_intdigest(array("Q", [parent_hash]).tobytes() + array("q", tokens).tobytes())


def block_hashes(salt: int, tokens: Items[int]) -> list[int]:
    hashes, parent = [], salt
    for start in range(0, len(tokens) - BLOCK_SIZE + 1, BLOCK_SIZE):
        parent = block_hash(parent, tokens[start : start + BLOCK_SIZE])
        hashes.append(parent)
    return hashes


@dataclass(slots=True)
class SequenceBlocks:
    """The blocks of one sequence: `hashed` ones in order, and a number of others that are still private to it."""

    hashed: list[int] = field(default_factory=list)
    private: int = 0

    @property
    def count(self) -> int:
        return len(self.hashed) + self.private


class BlockPool:
    """All blocks of one engine.

    - The number of used blocks is the number of distinct blocks that sequences hold.
    - A prompt hits the longest run of its first blocks that are cached, but never its last token.
    - Only free blocks are allocated; idle blocks are evicted in the order in which they became idle.
    """

    def __init__(self, blocks: int, on_removed: Callable[[int], None] = lambda _: None) -> None:
        """`on_removed` is called with the hash of each block that is evicted."""
        self._on_removed = on_removed
        self._total = blocks - 1
        self._references: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._private = 0

    @property
    def used(self) -> int:
        return len(self._references) + self._private

    @property
    def usage(self) -> float:
        """Share of used blocks, 0 to 1."""
        return self.share(self.used)

    def share(self, blocks: float) -> float:
        return blocks / self._total

    def __contains__(self, value: int) -> bool:
        """Whether a full block with this hash is in use or idle."""
        return value in self._references or value in self._idle

    def allocate(self, hashes: Items[int], length: int) -> tuple[SequenceBlocks, int] | None:
        """Blocks for a prompt of `length` tokens, and the number of its cached tokens; None if there is no room."""
        hits = 0
        # `length - 1`: the last token is always computed, since its logits give the first generated token.
        for value in hashes[: (length - 1) // BLOCK_SIZE]:
            if value not in self:
                break
            hits += 1
        fresh = -(-length // BLOCK_SIZE) - hits
        # Idle blocks count as free; reusing one uses it up.
        revived = sum(value in self._idle for value in hashes[:hits])
        if self.used + fresh + revived > self._total:
            return None
        for value in hashes[:hits]:
            self._add_reference(value)
        blocks = SequenceBlocks(list(hashes[:hits]))
        for value in hashes[hits:]:
            self._evict_idle()
            if value in self:
                # A block with the same content exists: the new one stays private, without a hash, as in vLLM.
                self._private += 1
                blocks.private += 1
            else:
                self._references[value] = 1
                blocks.hashed.append(value)
        for _ in range(fresh - (len(hashes) - hits)):
            self._evict_idle()
            self._private += 1
            blocks.private += 1
        return blocks, hits * BLOCK_SIZE

    def append_block(self, blocks: SequenceBlocks) -> bool:
        """Allocates one more block for a sequence; False if none is free."""
        if self.used >= self._total:
            return False
        self._evict_idle()
        self._private += 1
        blocks.private += 1
        return True

    def cache_full_block(self, blocks: SequenceBlocks, value: int) -> bool:
        """Marks a private block as full, so that other sequences can share it; False if there is such a block."""
        if value in self:
            return False
        self._private -= 1
        blocks.private -= 1
        self._references[value] = 1
        blocks.hashed.append(value)
        return True

    def free(self, blocks: SequenceBlocks) -> None:
        # The last blocks become idle first, since they are the least likely to be shared.
        for value in reversed(blocks.hashed):
            self._references[value] -= 1
            if self._references[value] == 0:
                del self._references[value]
                self._idle[value] = None
        self._private -= blocks.private
        blocks.hashed, blocks.private = [], 0

    def clear(self) -> bool:
        """Forgets all idle blocks; False if sequences use blocks, and then nothing is forgotten, as in vLLM."""
        if self.used:
            return False
        self._idle.clear()
        return True

    def _add_reference(self, value: int) -> None:
        self._idle.pop(value, None)
        self._references[value] = self._references.get(value, 0) + 1

    def _evict_idle(self) -> None:
        if self.used + len(self._idle) >= self._total and self._idle:
            self._on_removed(self._idle.popitem(last=False)[0])
