"""Reads the stored answers of many entries, some at a time, and shows or searches their text."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

from router.core.endpoints.recording.answer_text import answer_preview, preview_of_beginning
from router.net.redis.commands import Command
from router.store.admin.scan import RedisClient, execute_commands

MAX_SEARCHED: Final = 16 << 20
"""Bytes of Redis' memory of an entry whose answer is searched."""

_MAX_SHOWN: Final = 256 << 10  # bytes of an entry whose answer is decoded for its first words
_BEGINNING: Final = 4096  # bytes that are read of a larger one
# The router that serves an administrator also serves requests, and each batch is decoded without a pause.
_BATCH_ENTRIES: Final = 50
_BATCH_BYTES: Final = 2 << 20

# No GETRANGE reads a field of a hash. pcall: a value of another type must not fail the others of the batch.
_BEGINNING_SCRIPT: Final = (
    "local body = redis.pcall('HGET', KEYS[1], 'body') "
    "if type(body) ~= 'string' then return false end "
    "return string.sub(body, 1, ARGV[1])"
)


async def fetch_previews(client: RedisClient, keys: Sequence[str], sizes: Sequence[int | None]) -> list[str | None]:
    """The first words of each answer; see answer_preview. `sizes`: the entries' bytes. Raises RedisBackendError."""
    previews: list[str | None] = []
    for batch in _batches(keys, [min(size or 0, _MAX_SHOWN) for size in sizes]):
        large = [(sizes[at] or 0) > _MAX_SHOWN for at in batch]
        commands: list[Command] = [
            ("EVAL", _BEGINNING_SCRIPT, 1, keys[at], _BEGINNING) if is_large else ("HGET", keys[at], "body")
            for at, is_large in zip(batch, large, strict=True)
        ]
        for body, is_large in zip(await execute_commands(client, commands), large, strict=True):
            show = preview_of_beginning if is_large else answer_preview
            previews.append(show(body) if body is not None else None)
    return previews


async def read_bodies(
    client: RedisClient, keys: Sequence[str], sizes: Sequence[int | None]
) -> AsyncIterator[tuple[str, bytes | None]]:
    """The key and the body of each; None for one that is gone, is no entry, or is too large. Raises RedisBackendError.

    There is a pause after each batch, in which the caller's event loop serves others.
    """
    for batch in _batches(keys, [size or 0 for size in sizes]):
        # Decoding a larger one takes longer than a request may wait.
        read = [keys[at] for at in batch if (sizes[at] or 0) <= MAX_SEARCHED]
        bodies = dict(zip(read, await execute_commands(client, [("HGET", key, "body") for key in read]), strict=True))
        for at in batch:
            yield keys[at], bodies.get(keys[at])


def _batches(keys: Sequence[str], sizes: Sequence[int]) -> Iterator[list[int]]:
    """The indexes of the keys, in their order."""
    batch: list[int] = []
    total = 0
    for at in range(len(keys)):
        if batch and (len(batch) == _BATCH_ENTRIES or total + sizes[at] > _BATCH_BYTES):
            yield batch
            batch, total = [], 0
        batch.append(at)
        total += sizes[at]
    if batch:
        yield batch
