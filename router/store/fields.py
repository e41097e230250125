"""An entry as the fields of a Redis hash, and back; docs/debugging-a-miss.md names them for people."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from router.core.types import Entry, Task

FIELDS: Final = (
    "digest", "model", "engine", "task", "created", "ttl", "prompt_tokens", "completion_tokens", "generation_ms",
    "stale", "body", "frames", "usage_frame", "documents", "question", "params",
)  # fmt: skip
"""The names of all fields; an entry has at least the first nine."""

_NEEDED: Final = 9
_PLAIN: Final = FIELDS[:13]
_NAMES: Final = [name.encode() for name in FIELDS]
_MOST: Final = 1e18  # of any number in an entry; what is beyond it is none of ours
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
    return entry_of([fields.get(name) for name in _NAMES])


def entry_of(values: Sequence[bytes | None]) -> Entry | None:
    """The same, from the values of all FIELDS."""
    if None in values[:_NEEDED]:
        return None
    value: Any = values
    (
        digest, model, engine, known, created, ttl, prompt_tokens, completion_tokens, generation_ms,
        stale, body, frames, usage_frame, documents, question, params,
    ) = value  # fmt: skip
    task = _TASKS.get(known)
    if task is None or (body is None and frames is None):
        return None
    try:
        entry = Entry(
            digest=digest.decode("ascii"),
            body=body,
            frames=frames,
            usage_frame=usage_frame,
            model=model.decode("ascii"),
            engine=engine.decode("ascii"),
            task=task,
            created=float(created),
            ttl=float(ttl),
            stale=float(stale) if stale is not None else 0.0,
            prompt_tokens=int(prompt_tokens),
            completion_tokens=int(completion_tokens),
            generation_ms=int(generation_ms),
            documents=documents_of(documents),
            question=(question or b"").decode("ascii"),
            params=(params or b"").decode("ascii"),
        )
    except ValueError:  # which msgspec's DecodeError is, too
        return None
    return entry if _is_fit(entry) else None


def _is_fit(entry: Entry) -> bool:
    """What of it goes into headers and counters must be fit for them, whoever wrote it."""
    return (
        entry.engine.isprintable()
        and 0 <= entry.created <= _MOST
        and 0 <= entry.ttl <= _MOST
        and 0 <= entry.stale <= _MOST
        and 0 <= entry.prompt_tokens <= _MOST
        and 0 <= entry.completion_tokens <= _MOST
        and 0 <= entry.generation_ms <= _MOST
    )


def documents_of(field: bytes | None) -> tuple[str, ...]:
    """The names in an entry's field `documents`. Raises ValueError where they cannot be read."""
    return _decode_names(field) if field is not None else ()
