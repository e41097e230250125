"""What happens to the KV blocks of an engine, as vLLM publishes it: `vllm/distributed/kv_events.py`, field by field."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
from xxhash import xxh3_64_intdigest

from engines.simulator.settings import BLOCK_SIZE

_MEDIUM = "GPU"
_GROUP = 0
_KIND = "full_attention"


@dataclass(frozen=True, slots=True)
class BlockOrigin:
    """What separates the blocks of prompts with equal tokens."""

    cache_salt: str | None = None
    lora_name: str | None = None
    lora_id: int | None = None

    @property
    def chain_start(self) -> int:
        """The hash before that of the first block."""
        parts = [self.cache_salt or ""] if self.lora_name is None else [self.cache_salt or "", self.lora_name]
        return xxh3_64_intdigest("\0".join(parts).encode())

    def extra_keys(self, blocks: int, *, first: bool) -> list[tuple[str, ...] | None]:
        """vLLM's for each block: the adapter, and the salt for the first block of a prompt."""
        adapter = () if self.lora_name is None else (self.lora_name,)
        salt = (self.cache_salt,) if self.cache_salt and first else ()
        return [adapter + salt or None, *[adapter or None] * (blocks - 1)]


class BlockStored(msgspec.Struct, omit_defaults=True, tag=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, omit_defaults=True, tag=True):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    """`ts` is in Unix seconds."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class KvEvents(Protocol):
    """Gets what happens to blocks, and publishes it when a step ends."""

    def stored(self, origin: BlockOrigin, parent: int | None, hashes: Sequence[int], tokens: Sequence[int]) -> None:
        """These blocks with these tokens; `parent` is the hash of the block before them."""

    def removed(self, block_hash: int) -> None: ...

    def cleared(self) -> None: ...

    def publish(self) -> None: ...


class NoKvEvents:
    """Tells nobody."""

    def stored(self, origin: BlockOrigin, parent: int | None, hashes: Sequence[int], tokens: Sequence[int]) -> None: ...

    def removed(self, block_hash: int) -> None: ...

    def cleared(self) -> None: ...

    def publish(self) -> None: ...


NO_KV_EVENTS: Final[KvEvents] = NoKvEvents()


class PublishedKvEvents:
    """Collects the events of a step into a batch for `send`. `now` gives Unix seconds; `rank`: data parallel."""

    def __init__(self, send: Callable[[bytes], None], now: Callable[[], float], rank: int = 0) -> None:
        self._rank = rank
        self._send = send
        self._now = now
        self._events: list[BlockStored | BlockRemoved | AllBlocksCleared] = []
        self._encoder = msgspec.msgpack.Encoder()

    def stored(self, origin: BlockOrigin, parent: int | None, hashes: Sequence[int], tokens: Sequence[int]) -> None:
        self._events.append(
            BlockStored(
                list(hashes), parent, list(tokens), BLOCK_SIZE, origin.lora_id, _MEDIUM, origin.lora_name,
                origin.extra_keys(len(hashes), first=parent is None), _GROUP, _KIND,
            )
        )  # fmt: skip

    def removed(self, block_hash: int) -> None:
        self._events.append(BlockRemoved([block_hash], _MEDIUM, _GROUP))

    def cleared(self) -> None:
        self._events.append(AllBlocksCleared())

    def publish(self) -> None:
        if self._events:
            events, self._events = self._events, []
            # vLLM's publisher sets the rank, which is 0 without data parallelism.
            self._send(self._encoder.encode(EventBatch(self._now(), events, self._rank)))


class KvEndpointError(Exception):
    """An endpoint cannot be bound or connected."""
