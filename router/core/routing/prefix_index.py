"""What an engine's prefix cache probably holds: an LRU of the prefixes that were sent to it.

vLLM frees the last blocks of a prompt first, so a prefix that is held has all its own prefixes. The same holds here: of
the entries of one chain, the longest is the oldest. So the longest prefix of a prompt that is held is found by a binary
search.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from router.core.routing.prompt_chain import PIECE, PromptChain

MIN_WEIGHT: Final = 128
"""Bytes that a piece counts at least, so that clients cannot fill the memory with short messages."""

_SPARE_SHARE: Final = 1 / 32  # of the capacity; dropping entries in batches makes each cheap


class PrefixIndex:
    """The prefixes of one engine; a prefix is as recent as the last prompt that has it.

    - `capacity`, `size`: bytes of text.
    """

    __slots__ = ("_pieces", "capacity", "size")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        # In the order of their last use. A dict, and not an OrderedDict, which needs twice the memory.
        self._pieces: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._pieces)

    def __contains__(self, hash_: int) -> bool:
        return hash_ in self._pieces

    def match(self, hashes: Sequence[int]) -> int:
        """How many of the prefixes of a prompt are held, counted from the shortest."""
        pieces = self._pieces
        # Most prompts are new or continue what is held, which one look tells.
        if not hashes or hashes[0] not in pieces:
            return 0
        if hashes[-1] in pieces:
            return len(hashes)
        return bisect_left(range(len(hashes)), True, key=lambda number: hashes[number] not in pieces)

    def add(self, chain: PromptChain) -> None:
        """The engine has processed this prompt, or will have before it gets to later ones."""
        pieces, hashes, ends = self._pieces, chain.hashes, chain.ends
        for number in range(len(hashes) - 1, -1, -1):  # the longest is the first to be dropped
            hash_ = hashes[number]
            weight = pieces.pop(hash_, 0)
            if not weight:
                size = ends[number] - (ends[number - 1] if number else 0)
                weight = _WEIGHTS[size] if size <= PIECE else PIECE
                self.size += weight
            pieces[hash_] = weight
        if self.size > self.capacity:
            self._drop_oldest()

    def clear(self) -> None:
        self._pieces = {}
        self.size = 0

    def _drop_oldest(self) -> None:
        limit = self.capacity * (1 - _SPARE_SHARE)
        oldest = []
        size = self.size
        for hash_, weight in self._pieces.items():
            if size <= limit:
                break
            size -= weight
            oldest.append(hash_)
        for hash_ in oldest:
            del self._pieces[hash_]
        self.size = size


# One object for each weight: the entries then need no memory for them.
_WEIGHTS: Final = tuple(max(MIN_WEIGHT, size) for size in range(PIECE + 1))
