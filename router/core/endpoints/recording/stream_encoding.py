"""The compact encoding of a stream: what is needed, beside the JSON body, to reproduce its events byte for byte.

Theory. The text of a stream's events is in the JSON body already. So a run of events is stored as the bytes around the
text (once per template), the offset of the text in the body, and the length of each piece. Everything else is stored
literally. The result is MessagePack, compressed by DEFLATE with the body as its dictionary: the id, the model and the
usage, which both contain, take hardly any space. A stream of another form has more literal bytes, and is still
reproduced exactly. Base64 adds a third to the size; with it, Redis clients that decode replies can read the entry.

    flag (1 byte) + base64(DEFLATE([templates, parts, usage]))
    template = [begin, begin_after, end, end_after, source]; source is an offset in the body, or the text itself
    part = bytes | [template, first number, [length, ...]] | [offset, length] in the body

Sources: RFC 1951 (DEFLATE), zlib's deflateSetDictionary, https://github.com/msgpack/msgpack/blob/master/spec.md.
"""

import zlib
from binascii import a2b_base64, b2a_base64
from typing import Any, Final

import msgspec

from router.core.endpoints.recording.delta_template import StreamParts, TemplateRun

LOSSLESS: Final = b"="
"""The flag of a stream whose JSON body has all the information of its events."""

LOSSY: Final = b"~"
"""The flag of a stream whose JSON body is only for people to read; it cannot answer a request for JSON."""

MAX_DECODED: Final = 64 << 20
"""Bytes that an encoded stream may decompress to. The encoder writes no more, so more is no entry of the router."""

_WINDOW: Final = -15  # 2**15 bytes; negative: raw DEFLATE without header and checksum, since the entry has a checksum
_SMALL_WINDOW: Final = -12  # 2**12 bytes
_LEVEL: Final = 1
_DICTIONARY_EDGE: Final = 256  # bytes of each end of a long body; hashing more of it costs more than it saves
_MIN_COPY: Final = 1024  # bytes; DEFLATE handles shorter repetitions
_PROBE_LENGTH: Final = 32  # bytes
_MAX_PROBES: Final = 16
_SMALL_SIZE: Final = 4096  # bytes; up to this size a window of 4 KiB is enough, which is faster to set up

# What streams of vLLM and OpenAI have around their text, for the dictionary. Part of the format: with other bytes,
# entries that are stored already cannot be decoded.
_COMMON_BYTES: Final = (
    b'data: {"id":"chatcmpl-","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant",'
    b'"content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null}\n\n'
)

_pack = msgspec.msgpack.Encoder().encode
_unpack: Any = msgspec.msgpack.Decoder().decode

STREAM_DECODE_ERRORS: Final = (
    zlib.error,
    msgspec.DecodeError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    OverflowError,
    RecursionError,
)
"""What `decode_stream` raises for bytes that are not an encoded stream, or belong to another body."""


def encode_stream(stream: StreamParts, body: bytes, usage_frame: bytes | None, *, lossless: bool) -> bytes:
    """Encodes the events of a stream, given the JSON `body`.

    `usage_frame`: the usage event, stored apart since not every client wants it. `lossless`: see LOSSLESS and LOSSY.
    Raises ValueError if more than MAX_DECODED bytes cannot be derived from `body`.
    """
    texts: list[list[bytes]] = [[] for _ in stream.templates]
    for part in stream.parts:
        if isinstance(part, TemplateRun):
            texts[part.template_index] += part.texts
    sources = [b"".join(pieces) for pieces in texts]
    templates: list[Any] = []
    # Texts that literal events may repeat, with their offsets in the body. The longest, the body itself, comes first.
    copied = [(body, 0)] if len(body) >= _MIN_COPY else []
    for template, source in zip(stream.templates, sources, strict=True):
        at = _find_text(body, source)
        if at >= 0 and len(source) >= _MIN_COPY:
            copied.append((source, at))
        around = [template.begin, template.begin_after, template.end, template.end_after]
        templates.append([*around, at if at >= 0 else source])
    parts: list[Any] = []
    literals: list[bytes] = []
    for part in stream.parts:
        if not isinstance(part, TemplateRun):
            literals.append(part)
        elif part.texts:
            if literals:
                parts += _replace_copies(b"".join(literals), copied)
                literals = []
            parts.append([part.template_index, part.first_number, list(map(len, part.texts))])
    if literals:
        parts += _replace_copies(b"".join(literals), copied)
    packed = _pack([templates, parts, usage_frame])
    if len(packed) > MAX_DECODED:
        raise ValueError("the encoded stream exceeds its size limit")
    window, memory = (_SMALL_WINDOW, 5) if len(packed) <= _SMALL_SIZE else (_WINDOW, zlib.DEF_MEM_LEVEL)
    compress = zlib.compressobj(_LEVEL, zlib.DEFLATED, window, memory, zlib.Z_DEFAULT_STRATEGY, _dictionary(body))
    packed = compress.compress(packed) + compress.flush()
    return (LOSSLESS if lossless else LOSSY) + b2a_base64(packed, newline=False)


def _find_text(body: bytes, text: bytes) -> int:
    # The result of `body.find(text)`, which preprocesses a long text before it searches. Here, the text is usually at
    # the first match of its first bytes, so search for these and compare the rest. The number of probes is limited,
    # since each one may compare nearly all of `text`.
    start = text[:_PROBE_LENGTH]
    at = 0
    for _ in range(_MAX_PROBES):
        at = body.find(start, at)
        if at < 0 or body.startswith(text, at):
            return at
        at += 1
    return body.find(text, at)


def _replace_copies(events: bytes, copied: list[tuple[bytes, int]]) -> list[Any]:
    """Replaces long texts of the body by references to them: the last event of /v1/responses repeats all of it."""
    parts: list[Any] = [events]
    for text, offset in copied:
        if len(text) <= len(events) and _find_text(events, text) >= 0:
            copy = [offset, len(text)]
            parts = [
                new_part
                for part in parts
                for new_part in (_split_at_text(part, text, copy) if isinstance(part, bytes) else [part])
            ]
    return parts


def _split_at_text(events: bytes, text: bytes, copy: list[int]) -> list[Any]:
    parts: list[Any] = []
    for piece in events.split(text):
        parts += (copy, piece)
    return [part for part in parts[1:] if part]  # without the first copy, which no piece precedes, and empty pieces


def _dictionary(body: bytes) -> bytes:
    if len(body) > 2 * _DICTIONARY_EDGE:
        return b"".join((body[:_DICTIONARY_EDGE], body[-_DICTIONARY_EDGE:], _COMMON_BYTES))
    return body + _COMMON_BYTES


def is_lossless(stream: bytes) -> bool:
    return stream.startswith(LOSSLESS)


def decode_stream(stream: bytes, body: bytes, *, include_usage: bool, end: bytes) -> bytes:
    """The events as the engine sent them, then the usage event if `include_usage`, then `end`.

    Raises STREAM_DECODE_ERRORS.
    """
    inflate = zlib.decompressobj(_WINDOW, zdict=_dictionary(body))
    packed = inflate.decompress(a2b_base64(stream[1:]), MAX_DECODED)  # what is longer is cut off, so `_unpack` raises
    templates, parts, usage = _unpack(packed)
    positions: list[int] = []  # by template, where the text of its next run begins in its source
    sources: list[bytes] = []
    for template in templates:
        source = template[4]
        positions.append(source if isinstance(source, int) else 0)
        sources.append(body if isinstance(source, int) else source)
    frames: list[bytes] = []
    for part in parts:
        if isinstance(part, bytes):
            frames.append(part)
        elif len(part) == 2:  # offset and length of a copy; a run has three items
            frames.append(body[part[0] : part[0] + part[1]])
        else:
            index: int = part[0]
            positions[index] = _decode_run(templates[index], part, sources[index], positions[index], frames)
    if include_usage and usage is not None:
        frames.append(usage)
    frames.append(end)
    return b"".join(frames)


def _decode_run(template: Any, part: Any, source: bytes, at: int, frames: list[bytes]) -> int:
    begin, begin_after, end, end_after, _ = template
    number: int = part[1]
    lengths: list[int] = part[2]
    if begin_after is None and end_after is None:
        # What is between two texts is the same for the whole run, so there are two appends per event, not three.
        between = end + begin
        frames.append(begin)
        for length in lengths:
            frames.append(source[at : at + length])
            frames.append(between)
            at += length
        frames[-1] = end  # in place of the last `between`, since no event follows
        return at
    for length in lengths:
        frames.append(begin if begin_after is None else b"%b%d%b" % (begin, number, begin_after))
        frames.append(source[at : at + length])
        frames.append(end if end_after is None else b"%b%d%b" % (end, number, end_after))
        at += length
        number += 1
    return at
