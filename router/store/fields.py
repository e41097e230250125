"""An entry as the fields of a Redis hash, and back; docs/debugging-a-miss.md names them for people."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

import msgspec

from router.core.types import Entry, Task

_PLAIN: Final = (
    "digest", "model", "engine", "task", "created", "ttl", "stale", "prompt_tokens", "completion_tokens",
    "generation_ms", "body", "frames", "usage_frame",
)  # fmt: skip
_TASKS: Final[Mapping[bytes, Task]] = {b"code": "code", b"chat": "chat"}
_encode = msgspec.json.Encoder().encode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode


def to_fields(entry: Entry) -> Any:  # redis-py's type for it names every kind of number and buffer
    """What is written; what an entry does not have is left out."""
    fields: dict[str, Any] = {name: value for name in _PLAIN if (value := getattr(entry, name)) is not None}
    if entry.documents:
        fields["documents"] = _encode(entry.documents)
    if entry.question:
        fields["question"], fields["params"] = entry.question, entry.params
    return fields


def to_entry(fields: Mapping[bytes, bytes]) -> Entry | None:
    """None for what is not there, and for what is there and is no entry."""
    if not fields:
        return None
    body, frames = fields.get(b"body"), fields.get(b"frames")
    task = _TASKS.get(fields.get(b"task", b""))
    if task is None or (body is None and frames is None):
        return None
    try:
        entry = Entry(
            digest=fields[b"digest"].decode("ascii"),
            body=body,
            frames=frames,
            usage_frame=fields.get(b"usage_frame"),
            model=fields[b"model"].decode("ascii"),
            engine=fields[b"engine"].decode("ascii"),
            task=task,
            created=float(fields[b"created"]),
            ttl=float(fields[b"ttl"]),
            stale=float(fields.get(b"stale", 0)),
            prompt_tokens=int(fields[b"prompt_tokens"]),
            completion_tokens=int(fields[b"completion_tokens"]),
            generation_ms=int(fields[b"generation_ms"]),
            documents=documents_of(fields.get(b"documents")),
            question=fields.get(b"question", b"").decode("ascii"),
            params=fields.get(b"params", b"").decode("ascii"),
        )
    except (KeyError, ValueError):  # msgspec's DecodeError is a ValueError
        return None
    # What of it goes into headers and counters must be fit for them, whoever wrote it.
    counts = (
        entry.created, entry.ttl, entry.stale, entry.prompt_tokens, entry.completion_tokens, entry.generation_ms,
    )  # fmt: skip
    fit = entry.engine.isprintable() and all(isfinite(count) and count >= 0 for count in counts)
    return entry if fit else None


def documents_of(field: bytes | None) -> tuple[str, ...]:
    """The names in an entry's field `documents`. Raises ValueError where they cannot be read."""
    return _decode_names(field) if field is not None else ()
