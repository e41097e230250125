"""What an engine's prefix cache probably holds: an LRU of the prefixes that were sent to it.

vLLM frees the last blocks of a prompt first, so a prefix that is held has all its own prefixes. The same holds here: of
the entries of one chain, the longest is the oldest. So the longest prefix of a prompt that is held is found by a binary
search.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile
from typing import Final

from router.core.routing.prefix_cache.prompt_chain import PIECE, PromptChain

MIN_WEIGHT: Final = 128
"""Bytes that a piece counts at least, so that clients cannot fill the memory with short messages."""

MAX_MARKS: Final = 64
"""Each second one is dropped then, so the older a mark is, the further it is from the next."""

_SPARE_SHARE: Final = 1 / 32  # of the capacity; dropping entries in batches makes each cheap


class PrefixIndex:
    """The prefixes of one engine; a prefix is as recent as the last prompt that has it.

    - `capacity`, `size`: bytes of text.
    - `clears`: how often the engine has lost all that it held.

    How long its oldest prefix has not been used is known without a time for each: from time to time a mark is put among
    them, which no use moves. What is before a mark was last used before it.
    """

    __slots__ = ("_marks", "_pieces", "capacity", "clears", "size")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self.clears = 0
        # In the order of their last use. A dict, and not an OrderedDict, which needs twice the memory.
        self._pieces: dict[int, int] = {}
        self._marks: list[int] = []  # keys among the pieces, which no hash can be: the time in ms, negative

    def __len__(self) -> int:
        return len(self._pieces) - len(self._marks)

    def __contains__(self, hash_: int) -> bool:
        return hash_ in self._pieces

    @property
    def max_entries(self) -> int:
        return max(1, self.capacity // MIN_WEIGHT)

    def match(self, hashes: Sequence[int]) -> int:
        """How many of the prefixes of a prompt are held, counted from the shortest."""
        pieces = self._pieces
        # Most prompts are new or continue what is held, which one look shows.
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

    def mark(self, now: float) -> None:
        """Notes that everything that is held was last used before `now`, in seconds; it only grows."""
        mark = -1 - int(1000 * now)
        if mark in self._pieces or next(reversed(self._pieces), -1) < 0:  # nothing was used since the last one
            return
        self._pieces[mark] = 0
        self._marks.append(mark)
        if len(self._marks) > MAX_MARKS:
            # Every second one, and not the first, which is the oldest use.
            for dropped in self._marks[1::2]:
                del self._pieces[dropped]
            self._marks = self._marks[::2]

    def oldest_use(self) -> float | None:
        """A time after the last use of the prefix that would be forgotten first, by the marks; None is unknown."""
        holds_older = False
        for piece in self._pieces:
            if piece >= 0:
                holds_older = True
            elif holds_older:
                return (-1 - piece) / 1000
        return None

    def entries(self) -> tuple[list[int], list[int]]:
        """The hashes, and how many bytes each counts, the oldest first."""
        pieces = self._pieces
        return [piece for piece in pieces if piece >= 0], [weight for weight in pieces.values() if weight]

    def add_older(self, hashes: Iterable[int], weights: Iterable[int]) -> None:
        """Adds entries of another index, the oldest first, as if they had come before all that it has."""
        own = self._pieces
        pieces = {
            hash_: _WEIGHTS[min(weight, PIECE)]
            for hash_, weight in zip(hashes, weights, strict=True)
            if hash_ not in own
        }
        pieces.update(own)
        self._pieces = pieces
        self.size = sum(pieces.values())
        if self.size > self.capacity:
            self._drop_oldest()

    def clear(self) -> None:
        self._pieces = {}
        self._marks = []
        self.size = 0
        self.clears += 1

    def drop(self, hashes: Iterable[int]) -> None:
        """The engine does not hold these prefixes any more."""
        for hash_ in hashes:
            self.size -= self._pieces.pop(hash_, 0)

    def used_before(self, hash_: int, limit: int) -> Sequence[int]:
        """What was used before this prefix, the oldest first, `limit` at most; empty if it is not held."""
        if hash_ not in self._pieces:
            return ()
        older = takewhile(lambda each: each != hash_, self._pieces)
        return list(islice((each for each in older if each >= 0), limit))  # without the marks

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
        if oldest and self._marks and self._marks[0] not in self._pieces:
            self._marks = [mark for mark in self._marks if mark in self._pieces]
        self.size = size


# One object for each weight: the entries then need no memory for them.
_WEIGHTS: Final = tuple(max(MIN_WEIGHT, size) for size in range(PIECE + 1))
