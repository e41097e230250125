"""What an engine's KV events change of what it is believed to hold."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.simulator.engine.scheduler import Scheduler
from engines.simulator.engine.scheduler import Sequence as EngineSequence
from engines.simulator.kv_cache.block_pool import BlockPool, block_hashes
from engines.simulator.kv_cache.kv_events import BlockOrigin
from engines.simulator.settings import BLOCK_SIZE
from router.core.routing.prefix_cache.kv_blocks import (
    MAX_WAITING,
    MAX_WAITING_BLOCKS,
    BlockEvent,
    BlockPieces,
    ClearedBlocks,
    KvBlocks,
    RemovedBlocks,
    StoredBlocks,
)
from router.core.routing.prefix_cache.prefix_index import PrefixIndex
from router.core.routing.prefix_cache.prompt_chain import PromptChain

TOKEN_BYTES = 4
Path = Sequence[int]
"""A prompt: each number stands for the text of a piece, with 32 tokens."""

PIECE_TOKENS = 2 * BLOCK_SIZE


def tokens(path: Path, more: int = 1) -> list[int]:
    """With `more` tokens that fill no block, as most prompts have them."""
    return [100 * text + n for text in path for n in range(PIECE_TOKENS)] + [7] * more


def chain(path: Path) -> PromptChain:
    hashes = [hash(tuple(path[: end + 1])) & (2**64 - 1) for end in range(len(path))]
    return PromptChain(hashes, [PIECE_TOKENS * TOKEN_BYTES * (n + 1) for n in range(len(path))])


def ids(path: Path, more: int = 1) -> bytes:
    return ",".join(map(str, tokens(path, more))).encode()


class Engine:
    """The block pool of the simulator, its events, and what the router makes of them."""

    def __init__(self, blocks: int = 1000, pieces: BlockPieces | None = None, capacity: int = 1 << 30) -> None:
        self.events: list[BlockEvent] = []
        self.scheduler = Scheduler(BlockPool(blocks, self.removed), 100, self)
        self.index = PrefixIndex(capacity)
        self.known = KvBlocks(self.index, pieces if pieces is not None else BlockPieces())

    def stored(self, _: BlockOrigin, parent: int | None, hashes: Sequence[int], stored: Sequence[int]) -> None:
        self.events.append(StoredBlocks(list(hashes), parent, list(stored), BLOCK_SIZE))

    def removed(self, block_hash: int) -> None:
        self.events.append(RemovedBlocks([block_hash]))

    def cleared(self) -> None:
        self.events.append(ClearedBlocks())

    def publish(self) -> None:
        for event in self.events:
            self.known.apply(event)
        self.events = []

    def compute(self, path: Path, more: int = 1) -> None:
        """For another client, of which the router does not know."""
        sequence = EngineSequence(tuple(tokens(path, more)), BlockOrigin(), lambda: None)
        self.scheduler.submit(sequence)
        assert self.scheduler.admit_next() is sequence
        self.publish()
        self.scheduler.finish(sequence)

    def route(self, path: Path, more: int = 1, *, with_ids: bool = True) -> bool:
        """From the router; the ids of the tokens come back with it, or do not. Returns whether its blocks are known."""
        self.index.add(chain(path))
        self.compute(path, more)
        before = self.known.learned
        if with_ids:
            self.known.learn(chain(path), ids(path, more))
        self.index.add(chain(path))
        return self.known.learned > before

    def believed(self, path: Path) -> int:
        return self.index.match(chain(path).hashes)

    def held(self, path: Path) -> int:
        """The pieces that a prompt of them all would find."""
        hashes = block_hashes(BlockOrigin().chain_start, tokens(path))
        count = next((n for n, each in enumerate(hashes) if each not in self.scheduler.pool), len(hashes))
        return count * BLOCK_SIZE // PIECE_TOKENS


PATHS = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@given(st.lists(st.tuples(PATHS, st.booleans()), max_size=25), st.integers(12, 40))
def test_with_the_ids_of_each_prompt_what_is_believed_is_what_the_engine_holds(
    prompts: list[tuple[Path, bool]], blocks: int
) -> None:
    engine = Engine(blocks)
    known: list[Path] = []
    for path, is_ours in prompts:
        if not is_ours:
            engine.compute(path)
        elif engine.route(path):
            known.append(path)
        for other in known:
            assert engine.believed(other) == engine.held(other)


@given(st.lists(st.tuples(PATHS, st.booleans(), st.booleans()), max_size=25), st.integers(12, 40))
def test_a_prompt_without_ids_is_forgotten_with_the_next_one_whose_ids_are_known(
    prompts: list[tuple[Path, bool, bool]], blocks: int
) -> None:
    engine = Engine(blocks)
    for path, is_ours, with_ids in prompts:
        if is_ours:
            engine.route(path, with_ids=with_ids)
        else:
            engine.compute(path)
    probe = [9, 9, 9, 9]
    engine.route(probe)
    for n in range(10, 10 + blocks):  # others fill the engine
        engine.compute([n])
    assert engine.believed(probe) == 0
    assert len(engine.index) == 0


def test_a_prompt_that_others_send_again_is_known_again() -> None:
    engine = Engine(12)
    engine.route([1, 2])
    engine.compute([5, 6, 7, 8])
    engine.compute([5, 6, 7, 9])
    assert engine.believed([1, 2]) == 0
    engine.compute([1, 2])
    assert engine.believed([1, 2]) == 2


def test_what_is_learned_at_one_engine_is_known_for_the_others() -> None:
    pieces = BlockPieces()
    one, other = Engine(pieces=pieces), Engine(pieces=pieces)
    one.route([1, 2])
    other.compute([1, 2, 3])
    assert other.believed([1, 2, 3]) == 2


def test_a_cleared_cache_leaves_nothing() -> None:
    engine = Engine()
    engine.route([1, 2])
    engine.route([3], with_ids=False)
    assert engine.scheduler.pool.clear()
    engine.cleared()
    engine.publish()
    assert (engine.believed([1, 2]), engine.believed([3]), len(engine.known)) == (0, 0, 0)


def test_after_lost_events_what_is_believed_stays_until_blocks_are_removed() -> None:
    engine = Engine(12)
    engine.route([1, 2])
    engine.known.forget()
    assert engine.believed([1, 2]) == 2
    engine.compute([5, 6, 7, 8])
    assert engine.believed([1, 2]) == engine.held([1, 2]) < 2


def test_pieces_whose_blocks_were_stored_before_the_first_event_are_forgotten_with_what_is_used_later() -> None:
    engine = Engine(12)
    engine.compute([1, 2])
    engine.known.forget()
    assert engine.route([1, 2, 3])
    for text in range(10, 20):
        engine.compute([text])
    assert (engine.believed([1, 2, 3]), engine.held([1, 2, 3])) == (1, 0)
    engine.route([4])
    for text in range(20, 30):
        engine.compute([text])
    assert engine.believed([1, 2, 3]) == 0


@pytest.mark.parametrize(
    "token_ids",
    [
        b"",
        b"x",
        b"1,2",
        ids([1, 3]),
        ids([2]),
        ids([3, 2]),
        ids([9, 1]),
        ids([1, 2, 3]),
        b"-1," + ids([1]),
        b"1e99",
        b"[" * 100_000,
    ],
)
def test_ids_that_no_block_has_teach_nothing(token_ids: bytes) -> None:
    engine = Engine()
    engine.compute([1, 2])
    engine.known.learn(chain([1, 2]), token_ids)
    assert (engine.known.learned, engine.believed([1, 2])) == (0, 0)
    engine.known.learn(PromptChain(), ids([1, 2]))
    assert engine.known.learned == 0


def stored(*hashes: int, parent: int | None = None, text: int = 1) -> StoredBlocks:
    return StoredBlocks(hashes, parent, tokens([text])[: BLOCK_SIZE * len(hashes)], BLOCK_SIZE)


def test_a_block_is_held_until_it_is_removed_as_often_as_it_was_stored() -> None:
    """Twice on the GPU, or on the GPU and offloaded to the CPU."""
    engine = Engine()
    engine.index.add(chain([1]))
    for event in (stored(5, 6), stored(5, 6)):
        engine.known.apply(event)
    engine.known.learn(chain([1]), ids([1]))
    engine.known.apply(RemovedBlocks([6, 5]))
    assert (engine.believed([1]), 6 in engine.known) == (1, True)
    engine.known.apply(RemovedBlocks([6]))
    assert (engine.believed([1]), 6 in engine.known) == (0, False)


def test_an_offloaded_block_without_tokens_still_counts() -> None:
    engine = Engine()
    engine.index.add(chain([1]))
    engine.known.apply(stored(5, 6))
    engine.known.learn(chain([1]), ids([1]))
    engine.known.apply(StoredBlocks([5, 6], None, [], BLOCK_SIZE))
    engine.known.apply(RemovedBlocks([6, 5]))
    assert engine.believed([1]) == 1


def test_only_the_last_block_of_a_prompt_tells_what_else_is_gone() -> None:
    """A block within a prompt may be that of a piece nearby, since its place is estimated."""
    engine = Engine()
    engine.index.add(chain([4]))
    engine.route([1, 2])
    blocks = block_hashes(BlockOrigin().chain_start, tokens([1, 2]))
    engine.known.apply(RemovedBlocks([blocks[1]]))
    assert (engine.believed([4]), engine.believed([1, 2])) == (1, 0)
    engine.route([1, 2])
    engine.known.apply(RemovedBlocks([blocks[3]]))
    assert (engine.believed([4]), engine.believed([1, 2])) == (0, 1)


def test_a_piece_whose_block_has_changed_stays_when_the_former_one_is_removed() -> None:
    """A template may render a message differently in a later turn."""
    engine = Engine()
    engine.index.add(chain([1]))
    engine.known.apply(stored(5, 6))
    engine.known.learn(chain([1]), ids([1]))
    engine.known.apply(stored(7, 8, text=2))
    engine.known.learn(chain([1]), ids([2]))
    engine.known.apply(RemovedBlocks([6]))
    assert engine.believed([1]) == 1
    engine.known.apply(RemovedBlocks([8]))
    assert engine.believed([1]) == 0


def test_short_messages_that_end_in_one_block_are_gone_with_it() -> None:
    engine = Engine()
    short = PromptChain([1, 2, 3], [10, 20, 4 * 2 * BLOCK_SIZE])
    engine.index.add(short)
    engine.known.apply(stored(5, 6))
    engine.known.learn(short, ids([1], more=0))
    engine.known.apply(RemovedBlocks([6]))
    assert engine.index.match([1, 2, 3]) == 2
    middle = PromptChain([1, 2, 3], [4 * BLOCK_SIZE, 4 * BLOCK_SIZE + 4, 4 * 2 * BLOCK_SIZE])
    engine.index.add(middle)
    engine.known.apply(stored(7, 8))
    engine.known.learn(middle, ids([1], more=0))
    engine.known.apply(RemovedBlocks([7]))
    assert engine.index.match([1, 2, 3]) == 0


def test_the_blocks_of_a_prompt_may_be_reported_after_its_response() -> None:
    engine = Engine()
    engine.index.add(chain([1]))
    engine.known.learn(chain([1]), ids([1]))
    assert (engine.known.learned, engine.known.waiting) == (0, 1)
    engine.known.apply(stored(7, text=2))
    engine.known.apply(stored(5, 6))
    assert (engine.known.learned, engine.known.waiting) == (1, 0)
    engine.known.apply(RemovedBlocks([6]))
    assert engine.believed([1]) == 0


def test_memory_is_bounded_whatever_an_engine_reports() -> None:
    pieces = BlockPieces(limit=8)
    engine = Engine(20_000, pieces)
    known = KvBlocks(engine.index, BlockPieces(limit=8), limit=100)
    for n in range(300):
        known.apply(StoredBlocks([n], None, [n] * BLOCK_SIZE, BLOCK_SIZE))
    assert len(known) == 100
    for n in range(MAX_WAITING + 100):
        engine.route([n])
        engine.known.learn(chain([n]), ids([5000 + n]))
    assert engine.known.waiting == MAX_WAITING
    assert len(pieces) <= 8


def test_the_blocks_of_prompts_that_are_never_reported_are_bounded() -> None:
    engine, blocks = Engine(), MAX_WAITING_BLOCKS // 4
    for n in range(6):
        token_ids = f"{n}," + ",".join(["7"] * (blocks * BLOCK_SIZE - 2)) + f",{n}"
        engine.known.learn(chain([n]), token_ids.encode())
    assert engine.known.waiting == 4


def test_blocks_in_a_circle_end() -> None:
    engine = Engine()
    same = tokens([1])[:BLOCK_SIZE]
    engine.known.apply(StoredBlocks([5], 5, same, BLOCK_SIZE))
    engine.known.learn(chain([1]), ",".join(map(str, same * 50)).encode())
    assert (engine.known.learned, engine.known.waiting) == (0, 1)
