"""The KV blocks of one engine, as its KV events report them, and the pieces of prompts that end in them.

Theory of operation. The PrefixIndex believes that an engine holds what it was sent, and forgets the oldest. KV events
correct it. They name blocks (hashes of an engine's own, with the ids of the tokens) and no text, and the router has no
tokenizer. So it learns which block a piece of a prompt ends in from the ids of the prompt's tokens, which vLLM returns
with a stream (token_ids.py): the newest block with the last ids of the prompt is its last full block, and the blocks
before it are its parents. Each must have the prompt's ids, or nothing is learned. Where a piece ends among the tokens
is known for the whole prompt only; for the others, their share of the bytes says about where.

- A block that is removed takes the piece that ends in it, and those after it.
- If it was the last one of a prompt, pieces that were used before that prompt are gone, too, unless their blocks are
  known: vLLM evicts the least recently used block first, and of a prompt the last one. So what others store in an
  engine pushes out all of what it was sent, also prompts whose blocks are unknown.
- A block that is stored again, for whomever, brings back its piece and those before it.
- A cleared cache, or a restart, leaves nothing.

Equal prompts have the same hashes at all engines of a model (vLLM hashes with SHA-256 and a fixed seed), so what is
learned at one engine is known for all. Where they have not, nothing wrong is learned.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, TypeVar

import msgspec
import xxhash

from router.core.routing.prefix_cache.prefix_index import PrefixIndex
from router.core.routing.prefix_cache.prompt_chain import PromptChain

MAX_BLOCKS: Final = 1 << 21
"""Blocks of an engine that are remembered, the newest; 32 million tokens in blocks of 16."""

MAX_RECENT: Final = 1 << 16
"""Blocks that may be the last one of a prompt that is still being answered, by their tokens."""

MAX_ALIKE: Final = 4
"""Of blocks with the same tokens after different ones, those that may be the last one of a prompt; the newest."""

MAX_WAITING: Final = 256
"""Prompts whose blocks the engine has not reported yet; its events may come after its response."""

MAX_WAITING_BLOCKS: Final = 1 << 18
"""Full blocks of these prompts together; 2 MB."""

MAX_OLDER: Final = 1024
"""Pieces that are looked at, and may be forgotten, when the last block of a prompt is removed."""

MAX_PIECES: Final = 1 << 18
"""Pieces of which the block is remembered, of all engines of a model: 256 MiB of text."""

_T = TypeVar("_T")

_FIRST_BLOCK_SIZE: Final = 16  # until an event shows it: vLLM's on a GPU
_UNKNOWN: Final = -1
_FIRST: Final = -2  # in place of the parent of a first block


class StoredBlocks(msgspec.Struct, frozen=True, gc=False):
    """Consecutive blocks; `parent` is the block before them, None if they begin a prompt."""

    hashes: Sequence[int]
    parent: int | None
    token_ids: Sequence[int]
    block_size: int


class RemovedBlocks(msgspec.Struct, frozen=True, gc=False):
    hashes: Sequence[int]


class ClearedBlocks(msgspec.Struct, frozen=True, gc=False):
    """All of them."""


BlockEvent = StoredBlocks | RemovedBlocks | ClearedBlocks


class _Ends(msgspec.Struct, gc=False):
    """The pieces `first` to `last` of a chain, which end in one block."""

    chain: PromptChain
    first: int
    last: int

    @property
    def hashes(self) -> Sequence[int]:
        return self.chain.hashes[self.first : self.last + 1]


class BlockPieces:
    """Which pieces end in which block, for all engines of one model; the oldest are forgotten.

    A piece ends in one block: that of the last prompt that has it.
    """

    def __init__(self, limit: int = MAX_PIECES) -> None:
        self._limit = limit
        self._ends: dict[int, _Ends] = {}  # by block, the oldest first
        self._blocks: dict[int, int] = {}  # by piece

    def __len__(self) -> int:
        return len(self._blocks)

    def put(self, block: int, chain: PromptChain, first: int, last: int) -> None:
        self._forget(block)
        ends = self._ends[block] = _Ends(chain, first, last)
        for piece in ends.hashes:
            self._blocks[piece] = block
        while len(self._blocks) > self._limit:
            self._forget(next(iter(self._ends)))

    def of(self, block: int) -> _Ends | None:
        ends = self._ends.get(block)
        # Its piece may end in another block by now: the template renders a message differently in later turns.
        return ends if ends is not None and self._blocks.get(ends.hashes[0]) == block else None

    def block_of(self, piece: int) -> int | None:
        return self._blocks.get(piece)

    def _forget(self, block: int) -> None:
        ends = self._ends.pop(block, None)
        for piece in ends.hashes if ends is not None else ():
            if self._blocks.get(piece) == block:
                del self._blocks[piece]


class _Computed(msgspec.Struct, frozen=True, gc=False):
    """A prompt with the number of its tokens, and the digests of its full blocks."""

    chain: PromptChain
    tokens: int
    digests: Sequence[int]
    block_size: int


class PromptBlocks(Protocol):
    """What an EnginePrefill passes on to the blocks of its engine."""

    def learn(self, chain: PromptChain, token_ids: bytes) -> None:
        """The engine has computed this prompt. `token_ids`: as JSON has them, without the brackets."""

    def forget(self) -> None:
        """It was restarted, or events were lost: nothing is known of its blocks any more."""


class NoBlocks:
    """Of an engine whose KV events nobody reads."""

    def learn(self, chain: PromptChain, token_ids: bytes) -> None:
        pass

    def forget(self) -> None:
        pass


NO_BLOCKS: Final = NoBlocks()


class KvBlocks:
    """The blocks of one engine. It changes the engine's `index`.

    - `learned`: prompts whose blocks were found. `waiting`: those whose blocks were not reported so far.
    """

    def __init__(self, index: PrefixIndex, pieces: BlockPieces, limit: int = MAX_BLOCKS) -> None:
        self.learned = 0
        self._index = index
        self._pieces = pieces
        self._limit = limit
        # By hash, the oldest first: the parent, the digest of the tokens, and how often it is stored. vLLM may hold the
        # same block twice, and in memory of the GPU and of the CPU.
        self._blocks: dict[int, tuple[int, int, int]] = {}
        self._recent: dict[int, tuple[int, ...]] = {}  # by the digest of their tokens, the newest first
        self._waiting: dict[int, _Computed] = {}  # by the digest of its last block, the oldest first
        self._waiting_blocks = 0
        self._block_size = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, hash_: int) -> bool:
        return hash_ in self._blocks

    # -- events -------------------------------------------------------------------------------------------------------

    def apply(self, event: BlockEvent) -> None:
        if isinstance(event, StoredBlocks):
            self._store(event)
        elif isinstance(event, RemovedBlocks):
            for hash_ in event.hashes:
                self._remove(hash_)
        else:
            self.forget()
            self._index.clear()

    def forget(self) -> None:
        """See PromptBlocks. The index stays as it is."""
        self._blocks = {}
        self._recent = {}

    def _store(self, event: StoredBlocks) -> None:
        size, blocks = event.block_size, self._blocks
        digests: Sequence[int] = _digests(_pack(event.token_ids), size)
        if len(digests) != len(event.hashes):  # an offloaded block may be reported without its tokens
            digests = [_UNKNOWN] * len(event.hashes)
        else:
            self._block_size = max(self._block_size, size)  # the last block of a prompt may be reported in parts
        parent = _FIRST if event.parent is None else event.parent
        held: _Ends | None = None
        for hash_, digest in zip(event.hashes, digests, strict=True):
            known = blocks.get(hash_)
            if known is not None:
                blocks[hash_] = (known[0], known[1], known[2] + 1)
            else:
                blocks[hash_] = (parent, digest, 1)
            if digest != _UNKNOWN:
                alike = self._recent.pop(digest, None)
                self._recent[digest] = (hash_,) if alike is None else _first(hash_, alike)
            held = self._pieces.of(hash_) or held
            parent = hash_
        if held is not None:
            count, chain = held.last + 1, held.chain
            self._index.add(PromptChain(chain.hashes[:count], chain.ends[:count]))
        for digest in self._waiting.keys() & digests if self._waiting else ():
            if self._take(self._waiting[digest]):
                self._stop_waiting(digest)
        _shrink(blocks, self._limit)
        _shrink(self._recent, MAX_RECENT)

    def _remove(self, hash_: int) -> None:
        known = self._blocks.pop(hash_, None)
        if known is not None and known[2] > 1:
            self._blocks[hash_] = (known[0], known[1], known[2] - 1)
            return
        ends = self._pieces.of(hash_)
        if ends is None:
            return
        hashes = ends.chain.hashes
        if ends.last == len(hashes) - 1:
            older = self._index.used_before(hashes[ends.last], MAX_OLDER)
            self._index.drop([piece for piece in older if self._pieces.block_of(piece) not in self._blocks])
        self._index.drop(hashes[ends.first :])

    # -- prompts ------------------------------------------------------------------------------------------------------

    def learn(self, chain: PromptChain, token_ids: bytes) -> None:
        ids = _parse(token_ids)
        size = self._block_size or _FIRST_BLOCK_SIZE
        digests = _digests(_pack(ids), size)
        if not chain.hashes or not digests:
            return
        computed = _Computed(chain, len(ids), digests, size)
        if not self._take(computed):
            self._stop_waiting(digests[-1])
            self._waiting[digests[-1]] = computed
            self._waiting_blocks += len(digests)
            while len(self._waiting) > MAX_WAITING or self._waiting_blocks > MAX_WAITING_BLOCKS:
                self._stop_waiting(next(iter(self._waiting)))

    def _stop_waiting(self, last: int) -> None:
        computed = self._waiting.pop(last, None)
        if computed is not None:
            self._waiting_blocks -= len(computed.digests)

    def _take(self, computed: _Computed) -> bool:
        """Notes which pieces end in which blocks; returns whether the blocks are known."""
        found = self._find(computed.digests)
        if not found:
            return False
        self.learned += 1
        chain, first = computed.chain, 0
        blocks = [computed.tokens * end // (chain.size * computed.block_size) - 1 for end in chain.ends]
        for number, block in enumerate(blocks):
            if number + 1 == len(blocks) or blocks[number + 1] != block:
                if block in found:
                    self._pieces.put(found[block], chain, first, number)
                first = number + 1
        return True

    def _find(self, digests: Sequence[int]) -> Mapping[int, int]:
        """The blocks of a prompt by their place in it, as far as they are known; empty if they are not these."""
        candidates = self._recent.get(digests[-1], ())
        return next((found for last in candidates if (found := self._path(last, digests))), {})

    def _path(self, last: int, digests: Sequence[int]) -> Mapping[int, int]:
        """As `_find`, with the block that may be the last one."""
        found: dict[int, int] = {}
        hash_ = last
        for number in range(len(digests) - 1, -1, -1):
            known = self._blocks.get(hash_)
            if known is None:  # stored before the first event that was heard
                return {**found, number: hash_} if found and hash_ >= 0 else found
            parent, digest, _ = known
            if digest not in (digests[number], _UNKNOWN) or (parent == _FIRST) is not (number == 0):
                return {}
            found[number] = hash_
            hash_ = parent
        return found


def _parse(token_ids: bytes) -> Sequence[int]:
    try:
        return _decode_ids(b"[%b]" % token_ids)
    except msgspec.MsgspecError:
        return ()


_decode_ids: Final = msgspec.json.Decoder(list[int]).decode


def _pack(token_ids: Sequence[int]) -> bytes:
    try:
        return array("I", token_ids).tobytes()
    except (TypeError, OverflowError):  # no ids of a vocabulary
        return b""


def _digests(tokens: bytes, block_size: int) -> "array[int]":
    """Of each full block."""
    step = block_size * array("I").itemsize
    starts = range(0, len(tokens) - step + 1, step)
    return array("Q", [xxhash.xxh3_64_intdigest(tokens[start : start + step]) for start in starts])


def _first(hash_: int, alike: Sequence[int]) -> tuple[int, ...]:
    return (hash_, *(each for each in alike if each != hash_))[:MAX_ALIKE]


def _shrink(entries: dict[int, _T], limit: int) -> None:
    """Drops the oldest."""
    while len(entries) > limit:
        del entries[next(iter(entries))]
