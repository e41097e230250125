"""Entries in Redis, written as a router writes them."""

import json
import re
import time
from typing import Any, Final

import hiredis

from router.core.endpoints.recording.delta_template import StreamParts
from router.core.endpoints.recording.stream_encoding import encode_stream
from router.core.types import Entry
from router.store.admin.purge_record import last_record_id
from router.store.codec import encode_entry

NO_HASH: Final = "0" * 16


def entry_key(
    number: int = 0, *, tenant: str = "acme", model: str = "llama", system: str = NO_HASH, rag: str = NO_HASH
) -> str:
    return f"rh:1:{tenant}:{model}:{system}:{rag}:{number:032x}"


def make_entry(**fields: Any) -> Entry:
    values: dict[str, Any] = {
        "digest": "d" * 64, "body": b'{"a": 1}', "stream": None, "model": "llama",
        "engine": "llama-chat", "task": "chat", "created": int(1000 * time.time()) / 1000, "ttl": 3600.0,
        "prompt_tokens": 3, "completion_tokens": 5, "generation_ms": 12, **fields,
    }  # fmt: skip
    return Entry(**values)


def make_streamed_entry(text: str = "The sea is wide.", *, lossless: bool = True, **fields: Any) -> Entry:
    """The entry of a streamed chat with one event per word."""
    words = re.findall(r"\S+\s*", text)
    message = {"role": "assistant", "content": text}
    body = json.dumps({"choices": [{"index": 0, "message": message}]} if lossless else {"text": text}).encode()
    parts = StreamParts()
    for word in words:
        event = {"choices": [{"index": 0, "delta": {"content": word}}]}
        parts.append(b"data: %b\n\n" % json.dumps(event).encode())
    stream = encode_stream(parts, body, b'data: {"usage": {}}\n\n', lossless=lossless)
    return make_entry(body=body, stream=stream, completion_tokens=len(words), **fields)


def redis_fields(stored: Entry) -> dict[bytes, bytes]:
    """The Redis hash fields that a router writes for an entry."""
    # encode_entry gives encoded words of a command; Redis' own parser decodes them.
    reader = hiredis.Reader()
    count, encoded_fields = encode_entry(stored, stored.purges)
    reader.feed(b"".join([b"*%d\r\n" % count, *encoded_fields]))
    flat_fields: list[bytes] = reader.gets()
    return dict(zip(flat_fields[::2], flat_fields[1::2], strict=True))


def redis_fields_format_1(stored: Entry) -> dict[bytes, bytes]:
    """The fields in format 1 for a streamed response: the events as received, and no `format`."""
    fields = {
        name: value for name, value in redis_fields(stored).items() if name not in (b"body", b"stream", b"format")
    }
    return {**fields, b"frames": b"data: {}\n\n", b"usage_frame": b'data: {"usage": {}}\n\n'}


async def store_entry(redis: Any, at: str, stored: Entry | None = None, *, expires: int = 7200) -> str:
    """Stores an entry at a key with this TTL in seconds; returns the key. No known purge covers the entry."""
    await redis.hset(at, mapping={**redis_fields(stored or make_entry()), b"purges": await last_record_id(redis)})
    await redis.expire(at, expires)
    return at
