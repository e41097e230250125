"""An entry as the fields of a Redis hash, and back; docs/debugging-a-miss.md names them for people."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import xxhash

from router.core.types import Entry, Task

FORMAT: Final = b"2"
"""The version of this format. What stands in Redis in another one is a miss."""

FIELDS: Final = (*Entry.__struct_fields__, "checksum", "format")
"""The names of all fields."""

_NAMES: Final = [name.encode() for name in FIELDS]


def _form(*names: str) -> str:
    """Fields with holes for the length of the value, and the value, of each."""
    return "".join([f"${len(name)}\r\n{name}\r\n$%d\r\n%s\r\n" for name in names])


_ALWAYS: Final = _form(
    "digest",
    "model",
    "engine",
    "task",
    "created",
    "ttl",
    "prompt_tokens",
    "completion_tokens",
    "generation_ms",
    "stale",
)
_COUNT: Final = 20  # words of these
_HALVES: Final = _form("question", "params")
_MARK: Final = _form("purges")
_CHECKSUM: Final = f"$8\r\nchecksum\r\n$16\r\n%s\r\n$6\r\nformat\r\n${len(FORMAT)}\r\n{FORMAT.decode()}\r\n"
_LIKE_AN_ENTRY: Final = frozenset((b"digest", b"model", b"engine", b"task", b"created", b"completion_tokens"))
_MOST: Final = 1e18  # of any number in an entry; what is beyond it is none of ours
_TASKS: Final[Mapping[bytes, Task]] = {b"code": "code", b"chat": "chat"}
_encode = msgspec.json.Encoder().encode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode


def to_words(entry: Entry, purges: tuple[int, int]) -> tuple[int, list[bytes]]:
    """What is written: fields and values, as words of Redis' protocol, and how many they are.

    What an entry does not have is left out. Its names are ASCII, as the configuration's are. `purges` becomes the
    entry's, which only its writer knows.
    """
    created, ttl, stale = repr(entry.created), repr(entry.ttl), repr(entry.stale)
    prompt, completion, took = f"{entry.prompt_tokens}", f"{entry.completion_tokens}", f"{entry.generation_ms}"
    text = _ALWAYS % (
        len(entry.digest), entry.digest, len(entry.model), entry.model, len(entry.engine), entry.engine,
        len(entry.task), entry.task, len(created), created, len(ttl), ttl, len(prompt), prompt,
        len(completion), completion, len(took), took, len(stale), stale,
    )  # fmt: skip
    count = _COUNT
    if entry.question:
        text += _HALVES % (len(entry.question), entry.question, len(entry.params), entry.params)
        count += 4
    mark = f"{purges[0]}-{purges[1]}"
    text += _MARK % (len(mark), mark) + _CHECKSUM % checksum(entry.body, entry.stream)
    count += 6
    words = [text.encode("ascii")]
    documents = _encode(entry.documents) if entry.documents else None
    for name, value in ((b"body", entry.body), (b"stream", entry.stream), (b"documents", documents)):
        if value is not None:
            words += (b"$%d\r\n%b\r\n$%d\r\n" % (len(name), name, len(value)), value, b"\r\n")
            count += 2
    return count, words


def checksum(body: bytes, stream: bytes | None) -> str:
    """xxh3-64 in hex over what clients are given of an entry. Lengths come first; that of no stream is -1."""
    digest = xxhash.xxh3_64(b"%d %d\n" % (len(body), len(stream) if stream is not None else -1))
    digest.update(body)
    if stream is not None:
        digest.update(stream)
    return digest.hexdigest()


def to_entry(fields: Mapping[bytes, bytes]) -> Entry | None:
    """None for what is not there, and for what is there and is no entry, or a damaged one."""
    return entry_of([fields.get(name) for name in _NAMES])


def entry_of(values: Any) -> Entry | None:
    """The same, from the values of all FIELDS in their order, each of them bytes or None."""
    (
        digest, body, stream, model, engine, known, created, ttl,
        prompt_tokens, completion_tokens, generation_ms, stale, documents, question, params, mark,
        written_checksum, format_,
    ) = values  # fmt: skip
    task = _TASKS.get(known)
    if task is None or body is None or format_ != FORMAT:
        return None
    try:
        digest, model, engine = digest.decode("ascii"), model.decode("ascii"), engine.decode("ascii")
        created, ttl, stale = float(created), float(ttl), float(stale) if stale is not None else 0.0
        prompt_tokens, completion_tokens = int(prompt_tokens), int(completion_tokens)
        generation_ms = int(generation_ms)
        documents = _decode_names(documents) if documents is not None else ()
        question = question.decode("ascii") if question is not None else ""
        params = params.decode("ascii") if params is not None else ""
        milliseconds, _, number = mark.partition(b"-")
        purges = (int(milliseconds), int(number))
    except (AttributeError, TypeError, ValueError):  # it is None, or not what it should be
        return None
    # What goes into headers and counters must be fit for them, whoever wrote it.
    fit = (
        engine.isprintable() and 0.0 <= created <= _MOST and 0.0 <= ttl <= _MOST and 0.0 <= stale <= _MOST
        and 0 <= prompt_tokens <= _MOST and 0 <= completion_tokens <= _MOST and 0 <= generation_ms <= _MOST
        and 0 <= purges[0] <= _MOST and 0 <= purges[1] <= _MOST
    )  # fmt: skip
    # The JSON of a body that was cut or replaced may still be valid, so only a checksum shows the damage.
    if not fit or written_checksum != checksum(body, stream).encode():
        return None
    return Entry(
        digest, body, stream, model, engine, task, created, ttl,
        prompt_tokens, completion_tokens, generation_ms, stale, documents, question, params, purges,
    )  # fmt: skip


def is_of_another_format(format_: bytes | None) -> bool:
    """Whether the field `format` is that of an entry which an older or newer router wrote; the first had none."""
    return format_ != FORMAT


def why_no_entry(fields: Mapping[bytes, bytes]) -> str:
    """Why `to_entry` gives none for these fields, in words for people."""
    format_ = fields.get(b"format")
    if format_ is None and fields.keys() >= _LIKE_AN_ENTRY:
        format_ = b"1"  # which had no such field
    if format_ is not None and format_ != FORMAT and format_.isdigit() and len(format_) < 10:
        return f"written in format {format_.decode()}; this router reads format {FORMAT.decode()}"
    return "not an entry that the router would use: a field is missing, holds what it cannot, or the checksum is wrong"


def documents_of(field: bytes | None) -> tuple[str, ...]:
    """The names in an entry's field `documents`. Raises ValueError where they cannot be read."""
    return _decode_names(field) if field is not None else ()
