"""An entry as the fields of a Redis hash, and back; docs/debugging-a-miss.md names them for people."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import xxhash

from router.core.types import Entry, Task

FIELDS: Final = (*Entry.__struct_fields__, "checksum")
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
_CHECKSUM: Final = "$8\r\nchecksum\r\n$16\r\n%s\r\n"
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
    text += _MARK % (len(mark), mark) + _CHECKSUM % checksum(entry.body, entry.frames, entry.usage_frame)
    count += 4
    words = [text.encode("ascii")]
    documents = _encode(entry.documents) if entry.documents else None
    for name, value in (
        (b"body", entry.body), (b"frames", entry.frames), (b"usage_frame", entry.usage_frame), (b"documents", documents)
    ):  # fmt: skip
        if value is not None:
            words += (b"$%d\r\n%b\r\n$%d\r\n" % (len(name), name, len(value)), value, b"\r\n")
            count += 2
    return count, words


def checksum(body: bytes | None, frames: bytes | None, usage_frame: bytes | None) -> str:
    """xxh3-64 in hex over what clients are given of an entry. Lengths come first; that of what is absent is -1."""
    lengths = b"%d %d %d\n" % (_length(body), _length(frames), _length(usage_frame))
    digest = xxhash.xxh3_64(lengths)
    for piece in (body, frames, usage_frame):
        if piece is not None:
            digest.update(piece)
    return digest.hexdigest()


def _length(piece: bytes | None) -> int:
    return -1 if piece is None else len(piece)


def to_entry(fields: Mapping[bytes, bytes]) -> Entry | None:
    """None for what is not there, and for what is there and is no entry, or a damaged one."""
    return entry_of([fields.get(name) for name in _NAMES])


def entry_of(values: Any) -> Entry | None:
    """The same, from the values of all FIELDS in their order, each of them bytes or None."""
    (
        digest, body, frames, usage_frame, model, engine, known, created, ttl,
        prompt_tokens, completion_tokens, generation_ms, stale, documents, question, params, mark,
        written_checksum,
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
    if not fit or written_checksum != checksum(body, frames, usage_frame).encode():
        return None
    return Entry(
        digest, body, frames, usage_frame, model, engine, task, created, ttl,
        prompt_tokens, completion_tokens, generation_ms, stale, documents, question, params, purges,
    )  # fmt: skip


def documents_of(field: bytes | None) -> tuple[str, ...]:
    """The names in an entry's field `documents`. Raises ValueError where they cannot be read."""
    return _decode_names(field) if field is not None else ()
