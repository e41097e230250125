"""Entries in a Redis, written as a router writes them, for the tests of what looks for them."""

import time
from typing import Any, Final

import hiredis

from router.core.types import Entry
from router.store.fields import to_words
from router.store.purge_record import last_record

NONE: Final = "0" * 16


def key(number: int = 0, *, tenant: str = "acme", model: str = "llama", system: str = NONE, rag: str = NONE) -> str:
    """The key of one of many entries."""
    return f"rh:1:{tenant}:{model}:{system}:{rag}:{number:032x}"


def entry(**fields: Any) -> Entry:
    """An entry that was written just now."""
    told: dict[str, Any] = {
        "digest": "d" * 64, "body": b'{"a": 1}', "frames": None, "usage_frame": None, "model": "llama",
        "engine": "llama-chat", "task": "chat", "created": round(time.time(), 3), "ttl": 3600.0, "prompt_tokens": 3,
        "completion_tokens": 5, "generation_ms": 12, **fields,
    }  # fmt: skip
    return Entry(**told)


def fields_of(stored: Entry) -> dict[bytes, bytes]:
    """What a router writes of an entry, as Redis reads it."""
    reader = hiredis.Reader()
    count, words = to_words(stored, stored.purges)
    reader.feed(b"".join([b"*%d\r\n" % count, *words]))
    read: list[bytes] = reader.gets()
    return dict(zip(read[::2], read[1::2], strict=True))


async def store(redis: Any, at: str, stored: Entry | None = None, *, expires: int = 7200) -> str:
    """Stores an entry at a key, which Redis drops after so many seconds; gives the key. No known purge covers it."""
    await redis.hset(at, mapping={**fields_of(stored or entry()), b"purges": await last_record(redis)})
    await redis.expire(at, expires)
    return at
