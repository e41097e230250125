"""An entry as the fields of a Redis hash, and back; docs/debugging-a-miss.md names them for people."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from router.core.types import Entry, Task

FIELDS: Final = Entry.__struct_fields__
"""The names of all fields."""

_NAMES: Final = [name.encode() for name in FIELDS]
_MOST: Final = 1e18  # of any number in an entry; what is beyond it is none of ours
_TASKS: Final[Mapping[bytes, Task]] = {b"code": "code", b"chat": "chat"}
_encode = msgspec.json.Encoder().encode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode


def to_fields(entry: Entry) -> dict[str, bytes]:
    """What is written; what an entry does not have is left out."""
    fields = {
        "digest": entry.digest.encode(),
        "model": entry.model.encode(),
        "engine": entry.engine.encode(),
        "task": entry.task.encode(),
        "created": repr(entry.created).encode(),
        "ttl": repr(entry.ttl).encode(),
        "prompt_tokens": str(entry.prompt_tokens).encode(),
        "completion_tokens": str(entry.completion_tokens).encode(),
        "generation_ms": str(entry.generation_ms).encode(),
        "stale": repr(entry.stale).encode(),
    }
    if entry.body is not None:
        fields["body"] = entry.body
    if entry.frames is not None:
        fields["frames"] = entry.frames
    if entry.usage_frame is not None:
        fields["usage_frame"] = entry.usage_frame
    if entry.documents:
        fields["documents"] = _encode(entry.documents)
    if entry.question:
        fields["question"], fields["params"] = entry.question.encode(), entry.params.encode()
    return fields


def to_entry(fields: Mapping[bytes, bytes]) -> Entry | None:
    """None for what is not there, and for what is there and is no entry."""
    return entry_of([fields.get(name) for name in _NAMES])


def entry_of(values: Any) -> Entry | None:
    """The same, from the values of all FIELDS in their order, each of them bytes or None."""
    (
        digest, body, frames, usage_frame, model, engine, known, created, ttl,
        prompt_tokens, completion_tokens, generation_ms, stale, documents, question, params,
    ) = values  # fmt: skip
    task = _TASKS.get(known)
    if task is None or (body is None and frames is None):
        return None
    try:
        digest, model, engine = digest.decode("ascii"), model.decode("ascii"), engine.decode("ascii")
        created, ttl, stale = float(created), float(ttl), float(stale) if stale is not None else 0.0
        prompt_tokens, completion_tokens = int(prompt_tokens), int(completion_tokens)
        generation_ms = int(generation_ms)
        documents = _decode_names(documents) if documents is not None else ()
        question = question.decode("ascii") if question is not None else ""
        params = params.decode("ascii") if params is not None else ""
    except (AttributeError, TypeError, ValueError):  # it is None, or not what it should be
        return None
    # What goes into headers and counters must be fit for them, whoever wrote it.
    fit = (
        engine.isprintable() and 0.0 <= created <= _MOST and 0.0 <= ttl <= _MOST and 0.0 <= stale <= _MOST
        and 0 <= prompt_tokens <= _MOST and 0 <= completion_tokens <= _MOST and 0 <= generation_ms <= _MOST
    )  # fmt: skip
    if not fit:
        return None
    return Entry(
        digest, body, frames, usage_frame, model, engine, task, created, ttl,
        prompt_tokens, completion_tokens, generation_ms, stale, documents, question, params,
    )  # fmt: skip


def documents_of(field: bytes | None) -> tuple[str, ...]:
    """The names in an entry's field `documents`. Raises ValueError where they cannot be read."""
    return _decode_names(field) if field is not None else ()
