"""The batches of KV events of one publisher, in the order of their numbers.

vLLM numbers its batches from 0, and sends those that it still has again on request (vllm/distributed/kv_events.py).

- A batch is applied once, whether it comes as it is published or is sent again.
- After a gap, nothing is applied until the replay has ended. What it did not bring is lost: then nothing is known of
  the blocks any more, and what is believed of the prompts stays.
- A number that is not above the one before is of a publisher that has started again, so its cache is empty.
- A batch that cannot be read is as one without events, and so is an event of a type that is not known here.
"""

from typing import Any, Final

import msgspec

from router.core.routing.prefix_cache.kv_blocks import BlockEvent, ClearedBlocks, KvBlocks, RemovedBlocks, StoredBlocks

MAX_BLOCK_SIZE: Final = 1 << 16
MAX_GROUPS: Final = 256

_HASH_BITS: Final = (1 << 64) - 1
_HASH_BYTES: Final = 8


class _Stored(msgspec.Struct, tag="BlockStored", gc=False):
    block_hashes: list[int | bytes]
    token_ids: list[int]
    block_size: int
    parent_block_hash: int | bytes | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved", gc=False):
    block_hashes: list[int | bytes]
    group_idx: int | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    pass


class _Batch(msgspec.Struct, array_like=True, gc=False):
    ts: Any
    events: list[msgspec.Raw]


_decode_batch: Final = msgspec.msgpack.Decoder(_Batch).decode
_decode_event: Final = msgspec.msgpack.Decoder(_Stored | _Removed | _Cleared).decode
_DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class KvEventBatches:
    """Applies the batches of one publisher to the blocks of its engine.

    - `received`: batches. `unreadable`: batches and events that cannot be read. `lost`: batches that never came.
      `restarts`: of the publisher.
    """

    def __init__(self, blocks: KvBlocks) -> None:
        self.blocks = blocks
        self.received = self.unreadable = self.lost = self.restarts = 0
        self._next = 0  # the number of the first batch that is not applied
        self._last_published = -1  # the number of the last one that did not come from a replay
        # Groups of layers whose blocks are dropped while the prompt is still used, such as those of a sliding window.
        self._partial_groups: set[int | None] = set()

    def on_published(self, number: int, payload: bytes) -> int | None:
        """None, or the number of the first batch that is missing: then a replay is due, and `on_replay_end`."""
        if number <= self._last_published:
            self.restarts += 1
            self._next = 0
            self.blocks.apply(ClearedBlocks())
        self._last_published = number
        if number > self._next:
            return self._next
        self._take(number, payload)
        return None

    def on_replayed(self, number: int, payload: bytes) -> None:
        self._take(number, payload)

    def on_replay_end(self, number: int, payload: bytes) -> None:
        """The replay has ended, or has failed; the batch that it was due for follows, unless it was in it."""
        self._take(number, payload)

    def _take(self, number: int, payload: bytes) -> None:
        if number < self._next:
            return
        if number > self._next:
            # Before the first batch that was heard, there was nothing to lose.
            self.lost += number - self._next if self.received else 0
            self.blocks.forget()
        self.received += 1
        self._next = number + 1
        try:
            events = _decode_batch(payload).events
        except _DECODE_ERRORS:
            self.unreadable += 1
            return
        for raw in events:
            try:
                event = self._read(raw)
            except _DECODE_ERRORS:
                self.unreadable += 1
                continue
            if event is not None:
                self.blocks.apply(event)

    def _read(self, raw: msgspec.Raw) -> BlockEvent | None:
        event = _decode_event(raw)
        if isinstance(event, _Cleared):
            return ClearedBlocks()
        if isinstance(event, _Removed):
            is_partial = event.group_idx in self._partial_groups
            return None if is_partial else RemovedBlocks([_hash(each) for each in event.block_hashes])
        if _is_partial(event.kv_cache_spec_kind):
            if len(self._partial_groups) < MAX_GROUPS:
                self._partial_groups.add(event.group_idx)
            return None
        if not 0 < event.block_size <= MAX_BLOCK_SIZE:
            raise msgspec.ValidationError("block_size")
        parent = event.parent_block_hash
        return StoredBlocks(
            [_hash(each) for each in event.block_hashes], None if parent is None else _hash(parent), event.token_ids,
            event.block_size,
        )  # fmt: skip


def _is_partial(kind: str | None) -> bool:
    """`kind`: vLLM's, such as full_attention, mla_attention, sliding_window or mamba; None before it was reported."""
    return kind is not None and ("sliding" in kind or "chunked" in kind or "mamba" in kind)


def _hash(value: int | bytes) -> int:
    """vLLM sends the last 64 bits of a hash, or all of it (VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0)."""
    return value & _HASH_BITS if isinstance(value, int) else int.from_bytes(value[-_HASH_BYTES:], "big")
