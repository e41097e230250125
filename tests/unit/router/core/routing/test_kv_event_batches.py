"""Batches of KV events: each is applied once and in order, whatever is lost, repeated or unreadable on the way."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.simulator.kv_cache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from router.core.routing.prefix_cache.kv_blocks import BlockPieces, KvBlocks
from router.core.routing.prefix_cache.kv_event_batches import MAX_GROUPS, KvEventBatches
from router.core.routing.prefix_cache.prefix_index import PrefixIndex

encode = msgspec.msgpack.encode


def stored(*hashes: int, **more: Any) -> BlockStored:
    return BlockStored(list(hashes), None, list(range(16 * len(hashes))), 16, None, "GPU", None, **more)


def removed(*hashes: int, **more: Any) -> BlockRemoved:
    return BlockRemoved(list(hashes), "GPU", **more)


def batch(*events: BlockStored | BlockRemoved | AllBlocksCleared) -> bytes:
    return encode(EventBatch(1.5, list(events), 0))


def reader() -> KvEventBatches:
    return KvEventBatches(KvBlocks(PrefixIndex(1 << 20), BlockPieces()))


def held(batches: KvEventBatches, up_to: int = 100) -> list[int]:
    return [hash_ for hash_ in range(up_to) if hash_ in batches.blocks]


def test_events_are_applied_in_the_order_of_their_batch() -> None:
    batches = reader()
    assert batches.on_published(0, batch(stored(1, 2), removed(2), stored(3))) is None
    assert held(batches) == [1, 3]
    assert batches.on_published(1, batch(AllBlocksCleared(), stored(4))) is None
    assert held(batches) == [4]


def test_after_a_gap_the_batches_of_the_replay_are_applied_first() -> None:
    batches = reader()
    batches.on_published(0, batch(stored(1)))
    assert batches.on_published(3, batch(removed(2))) == 1
    assert held(batches) == [1]
    for number, hash_ in ((1, 2), (2, 3)):
        batches.on_replayed(number, batch(stored(hash_)))
    batches.on_replay_end(3, batch(removed(2)))
    assert (held(batches), batches.lost) == ([1, 3], 0)


def test_a_batch_that_the_replay_has_brought_is_not_applied_again() -> None:
    batches = reader()
    missing = batches.on_published(1, batch(stored(2)))
    assert missing == 0
    for number, payload in enumerate((batch(stored(1)), batch(stored(2)), batch(removed(2)))):
        batches.on_replayed(number, payload)
    batches.on_replay_end(1, batch(stored(2)))
    assert batches.on_published(2, batch(removed(2))) is None
    assert batches.on_published(3, batch(stored(4))) is None
    assert (held(batches), batches.restarts) == ([1, 4], 0)


def test_batches_that_never_come_leave_no_blocks_known() -> None:
    batches = reader()
    batches.on_published(0, batch(stored(1)))
    assert batches.on_published(3, batch(stored(4))) == 1
    batches.on_replayed(2, batch(stored(3)))  # number 1 is not kept any more
    batches.on_replay_end(3, batch(stored(4)))
    assert (held(batches), batches.lost) == ([3, 4], 1)


def test_a_replay_that_fails_loses_what_is_missing() -> None:
    batches = reader()
    batches.on_published(0, batch(stored(1)))
    assert batches.on_published(3, batch(stored(4))) == 1
    batches.on_replay_end(3, batch(stored(4)))
    assert (held(batches), batches.lost) == ([4], 2)


def test_at_the_first_batch_nothing_can_have_been_lost() -> None:
    batches = reader()
    assert batches.on_published(7, batch(stored(1))) == 0
    batches.on_replay_end(7, batch(stored(1)))
    assert (held(batches), batches.lost) == ([1], 0)


def test_numbers_that_begin_again_are_a_restart() -> None:
    batches = reader()
    for number in range(3):
        batches.on_published(number, batch(stored(number + 1)))
    assert batches.on_published(1, batch(stored(9))) == 0  # its first batch was published before it was heard
    assert held(batches) == []
    batches.on_replayed(0, batch(stored(8)))
    batches.on_replay_end(1, batch(stored(9)))
    assert (held(batches), batches.restarts) == ([8, 9], 1)


def test_the_same_number_again_is_a_restart() -> None:
    batches = reader()
    batches.on_published(0, batch(stored(1)))
    batches.on_published(0, batch(stored(2)))
    assert (held(batches), batches.restarts) == ([2], 1)


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(0, 5))
def test_whatever_is_lost_on_the_way_is_there_after_a_replay(arrives: list[bool], ahead: int) -> None:
    """`ahead`: how far the replay is before what was published when it was requested."""
    published = [
        batch(stored(n), removed(n - 2)) if n % 3 == 0 and n > 1 else batch(stored(n)) for n in range(len(arrives))
    ]
    direct, lossy = reader(), reader()
    last = -1
    for number, payload in enumerate(published):
        direct.on_published(number, payload)
        if not arrives[number]:
            continue
        missing = lossy.on_published(number, payload)
        if missing is not None:
            last = min(number + ahead, len(published) - 1)
            for replayed in range(missing, last + 1):
                lossy.on_replayed(replayed, published[replayed])
            lossy.on_replay_end(number, payload)
        last = max(last, number)
        known = reader()
        for n, each in enumerate(published[: last + 1]):
            known.on_published(n, each)
        assert held(lossy) == held(known)
    assert (lossy.lost, lossy.restarts) == (0, 0)


@pytest.mark.parametrize(
    ("payload", "unreadable"),
    [
        (b"", 1),
        (b"\xc1", 1),
        (encode({"events": []}), 1),
        (encode([1.0, [{"type": "BlockMoved"}, {"type": "BlockStored"}, 5]]), 3),
        (encode([1.0, [{"type": "BlockStored", "block_hashes": [1], "token_ids": [1], "block_size": 0}]]), 1),
        (encode([1.0, [{"type": "BlockStored", "block_hashes": [1], "token_ids": ["a"], "block_size": 1}]]), 1),
        (encode([None, [], 3, "a field of the future"]), 0),
    ],
)
def test_what_cannot_be_read_is_skipped(payload: bytes, unreadable: int) -> None:
    batches = reader()
    assert batches.on_published(0, payload) is None
    assert batches.on_published(1, batch(stored(1))) is None
    assert (held(batches), batches.unreadable) == ([1], unreadable)


def test_an_event_of_an_unknown_type_does_not_hide_the_others_of_its_batch() -> None:
    batches = reader()
    known = msgspec.to_builtins(stored(1)) | {"type": "BlockStored", "new": [1, 2]}
    batches.on_published(0, encode([1.0, [{"type": "BlockMoved"}, known]]))
    assert held(batches) == [1]


@given(st.binary(max_size=60), st.integers(0, 5))
def test_no_payload_raises_an_exception(payload: bytes, number: int) -> None:
    batches = reader()
    batches.on_published(0, payload)
    batches.on_published(number, payload)
    batches.on_replay_end(number, payload)


def test_a_hash_in_bytes_counts_by_its_last_64_bits() -> None:
    batches = reader()
    event = {"type": "BlockStored", "block_hashes": [b"\x07" * 24 + (5).to_bytes(8, "big")], "token_ids": [1] * 16,
             "block_size": 16}  # fmt: skip
    batches.on_published(0, encode([1.0, [event]]))
    assert held(batches) == [5]
    batches.on_published(1, batch(removed(5 + (1 << 63) - (1 << 63))))
    assert held(batches) == []


def test_blocks_of_layers_that_drop_them_early_are_ignored() -> None:
    batches = reader()
    window = stored(2, group_idx=1, kv_cache_spec_kind="sliding_window")
    batches.on_published(0, batch(stored(1, group_idx=0, kv_cache_spec_kind="full_attention"), window))
    batches.on_published(1, batch(removed(1, group_idx=1)))
    assert held(batches) == [1]
    for group in range(MAX_GROUPS + 10):
        batches.on_published(2 + group, batch(stored(3, group_idx=group, kv_cache_spec_kind="mamba")))
    assert held(batches) == [1]
