"""Encodes an entry as the fields of a Redis hash, and decodes it. docs/debugging-a-miss.md lists the fields."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
import xxhash

from router.core.types import Entry, Task

FORMAT_VERSION: Final = b"2"
"""The version of this format. An entry of another version is a miss."""

FIELD_NAMES: Final = (*Entry.__struct_fields__, "checksum", "format")

_ENCODED_FIELD_NAMES: Final = [name.encode() for name in FIELD_NAMES]

_FORMAT_1_FIELDS: Final = frozenset((b"digest", b"model", b"engine", b"task", b"created", b"completion_tokens"))
_MAX_NUMBER: Final = 1e18  # the router writes no larger number
_TASKS: Final[Mapping[bytes, Task]] = {b"code": "code", b"chat": "chat"}


def _name_part(name: str) -> str:
    """A field's name in Redis' protocol, and the `$` before the length of its value."""
    return f"${len(name)}\r\n{name}\r\n$"


_DIGEST: Final = _name_part("digest")
_CREATED: Final = _name_part("created")
_PROMPT_TOKENS: Final = _name_part("prompt_tokens")
_COMPLETION_TOKENS: Final = _name_part("completion_tokens")
_GENERATION_MS: Final = _name_part("generation_ms")
_PURGES: Final = _name_part("purges")
_CHECKSUM: Final = _name_part("checksum")
_QUESTION: Final = _name_part("question")
_PARAMS: Final = _name_part("params")
_TEXT_WORDS: Final = 2 * 13  # names and values of the fields that every entry has, except the body

_encode_json = msgspec.json.Encoder().encode
_decode_document_names = msgspec.json.Decoder(tuple[str, ...]).decode


def encode_entry(entry: Entry, checked_purges: tuple[int, int]) -> tuple[int, list[bytes]]:
    """The number of words and their encoding, to be sent to Redis: fields and values in Redis' protocol.

    Absent values are left out. All text but the body, the stream and the documents is ASCII, as the names in the
    configuration are. `checked_purges` replaces the entry's `purges`: only the writer knows it.
    """
    digest, question, params = entry.digest, entry.question, entry.params
    created = "%.3f" % entry.created  # noqa: UP031 - repr, to all digits, costs five times as much
    prompt, completion, taken = str(entry.prompt_tokens), str(entry.completion_tokens), str(entry.generation_ms)
    position, check = f"{checked_purges[0]}-{checked_purges[1]}", checksum(entry.body, entry.stream)
    # Not by hiredis, which takes some 1600 instructions for each word (docs/decisions/0001).
    text = (
        f"{_shared_fields(entry.model, entry.engine, entry.task, entry.ttl, entry.stale)}"
        f"{_DIGEST}{len(digest)}\r\n{digest}\r\n{_CREATED}{len(created)}\r\n{created}\r\n"
        f"{_PROMPT_TOKENS}{len(prompt)}\r\n{prompt}\r\n{_COMPLETION_TOKENS}{len(completion)}\r\n{completion}\r\n"
        f"{_GENERATION_MS}{len(taken)}\r\n{taken}\r\n{_PURGES}{len(position)}\r\n{position}\r\n"
        f"{_CHECKSUM}{len(check)}\r\n{check}\r\n"
    )
    count = _TEXT_WORDS
    if question:
        text += f"{_QUESTION}{len(question)}\r\n{question}\r\n{_PARAMS}{len(params)}\r\n{params}\r\n"
        count += 4
    words = [text.encode("ascii")]
    # These may be large or not ASCII, so they are not copied into the text.
    documents = _encode_json(entry.documents) if entry.documents else None
    for key, value in ((b"body", entry.body), (b"stream", entry.stream), (b"documents", documents)):
        if value is not None:
            words += (b"$%d\r\n%b\r\n$%d\r\n" % (len(key), key, len(value)), value, b"\r\n")
            count += 2
    return count, words


@lru_cache(maxsize=1024)
def _shared_fields(model: str, engine: str, task: Task, ttl: float, stale: float) -> str:
    """The fields that many entries have in common, in Redis' protocol."""
    values = {
        "model": model, "engine": engine, "task": task, "ttl": repr(ttl), "stale": repr(stale),
        "format": FORMAT_VERSION.decode(),
    }  # fmt: skip
    return "".join([f"{_name_part(name)}{len(text)}\r\n{text}\r\n" for name, text in values.items()])


def checksum(body: bytes, stream: bytes | None) -> str:
    """xxh3-64 in hex over what clients get of an entry. The lengths come first; that of an absent stream is -1."""
    digest = xxhash.xxh3_64(b"%d %d\n" % (len(body), len(stream) if stream is not None else -1))
    digest.update(body)
    if stream is not None:
        digest.update(stream)
    return digest.hexdigest()


def decode_entry(fields: Mapping[bytes, bytes]) -> Entry | None:
    """None for an absent or damaged entry, and for fields that are no entry."""
    return decode_values([fields.get(name) for name in _ENCODED_FIELD_NAMES])


def decode_values(values: Any) -> Entry | None:
    """The same for the values of all FIELD_NAMES in their order, each of them bytes or None."""
    (
        digest, body, stream, model, engine, task_name, created, ttl,
        prompt_tokens, completion_tokens, generation_ms, stale, documents, question, params, position,
        written_checksum, format_,
    ) = values  # fmt: skip
    task = _TASKS.get(task_name)
    if task is None or body is None or format_ != FORMAT_VERSION:
        return None
    try:
        digest, model, engine = digest.decode("ascii"), model.decode("ascii"), engine.decode("ascii")
        created, ttl, stale = float(created), float(ttl), float(stale) if stale is not None else 0.0
        prompt_tokens, completion_tokens = int(prompt_tokens), int(completion_tokens)
        generation_ms = int(generation_ms)
        documents = _decode_document_names(documents) if documents is not None else ()
        question = question.decode("ascii") if question is not None else ""
        params = params.decode("ascii") if params is not None else ""
        milliseconds, _, number = position.partition(b"-")
        purges = (int(milliseconds), int(number))
    except (AttributeError, TypeError, ValueError):  # a value is None or malformed
        return None
    # Anyone with access to Redis may have written it, and these values go into headers and counters.
    valid = (
        engine.isprintable()
        and 0.0 <= created <= _MAX_NUMBER
        and 0.0 <= ttl <= _MAX_NUMBER
        and 0.0 <= stale <= _MAX_NUMBER
        and 0 <= prompt_tokens <= _MAX_NUMBER
        and 0 <= completion_tokens <= _MAX_NUMBER
        and 0 <= generation_ms <= _MAX_NUMBER
        and 0 <= purges[0] <= _MAX_NUMBER
        and 0 <= purges[1] <= _MAX_NUMBER
    )
    # A truncated or replaced body may still be valid JSON, so only the checksum detects the damage.
    if not valid or written_checksum != checksum(body, stream).encode():
        return None
    return Entry(
        digest, body, stream, model, engine, task, created, ttl,
        prompt_tokens, completion_tokens, generation_ms, stale, documents, question, params, purges,
    )  # fmt: skip


def is_other_format(format_: bytes | None) -> bool:
    """Whether `format` is that of an entry from an older or newer router; the first format had no such field."""
    return format_ != FORMAT_VERSION


def invalid_entry_reason(fields: Mapping[bytes, bytes]) -> str:
    """Why `decode_entry` returns None for these fields, as a message for people."""
    format_ = fields.get(b"format")
    if format_ is None and fields.keys() >= _FORMAT_1_FIELDS:
        format_ = b"1"  # which had no such field
    if format_ is not None and format_ != FORMAT_VERSION and format_.isdigit() and len(format_) < 10:
        return f"written in format {format_.decode()}; this router reads format {FORMAT_VERSION.decode()}"
    return "not a valid entry: a field is missing or invalid, or the checksum is wrong"


def decode_documents(field: bytes | None) -> tuple[str, ...]:
    """The document names in an entry's field `documents`. Raises ValueError if they are malformed."""
    return _decode_document_names(field) if field is not None else ()
