"""A stream in few bytes: what it takes, beside the JSON answer, to give its events again byte for byte.

Theory. The text of a stream's events is in the JSON answer already. So a run of events is stored as what stands around
the text (once per template), where the text begins in the answer, and the length of each piece. Everything else is
stored as it came. The whole is MessagePack, compressed by DEFLATE with the answer as its dictionary: the id, the model
or the usage, which are in both, cost next to nothing. Where a stream is unlike this, more of it is stored as it came,
and it is still exact. Base64 costs a third more, and keeps an entry readable with clients that decode what Redis says.

    flag (1 byte) + base64(DEFLATE([templates, parts, usage]))
    template = [begin, begin_after, end, end_after, source]; source is an offset in the answer, or the text itself
    part = bytes | [template, first number, [length, ...]] | [offset, length] in the answer

Sources: RFC 1951 (DEFLATE), zlib's deflateSetDictionary, https://github.com/msgpack/msgpack/blob/master/spec.md.
"""

import zlib
from binascii import a2b_base64, b2a_base64
from typing import Any, Final

import msgspec

from router.core.endpoints.delta_template import StreamParts, TemplateRun

LOSSLESS: Final = b"="
"""The flag of a stream whose JSON answer says all that its events said."""

LOSSY: Final = b"~"
"""The flag of a stream whose JSON answer is only there for people to read."""

MAX_DECODED: Final = 64 << 20
"""Bytes that an encoded stream may decompress to; more is not one of ours."""

_WINDOW: Final = -15  # of 32 KiB; no header and no checksum: the entry has one
_SMALL_WINDOW: Final = -12
_LEVEL: Final = 1
_DICTIONARY_EDGE: Final = 256  # bytes of each end of a long answer; to hash more would cost more than it saves
_MIN_COPY: Final = 1024  # bytes; shorter repetitions are left to DEFLATE
_PROBE_LENGTH: Final = 32  # bytes
_MAX_PROBES: Final = 16
_SMALL_SIZE: Final = 4096  # bytes; so much or less needs no more than a window of 4 KiB, which is faster to set up

# What streams of vLLM and of the APIs' owners have around their text. The bytes are part of the format.
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
"""What `decode_stream` raises for bytes that are no encoded stream, or not of this answer."""


def encode_stream(stream: StreamParts, body: bytes, usage_frame: bytes | None, *, lossless: bool) -> bytes:
    """The events of a stream beside the JSON answer `body`; `usage` is the usage event, which is kept apart.

    Raises ValueError for more than MAX_DECODED bytes that do not follow from the answer.
    """
    texts: list[list[bytes]] = [[] for _ in stream.templates]
    for part in stream.parts:
        if isinstance(part, TemplateRun):
            texts[part.template_index] += part.texts
    sources = [b"".join(pieces) for pieces in texts]
    templates: list[Any] = []
    copied = [(body, 0)] if len(body) >= _MIN_COPY else []  # texts that may come again, and where the answer has them
    for template, source in zip(stream.templates, sources, strict=True):
        at = _find_text(body, source)
        if at >= 0 and len(source) >= _MIN_COPY:
            copied.append((source, at))
        around = [template.begin, template.begin_after, template.end, template.end_after]
        templates.append([*around, at if at >= 0 else source])
    parts: list[Any] = []
    single: list[bytes] = []
    for part in stream.parts:
        if not isinstance(part, TemplateRun):
            single.append(part)
        elif part.texts:
            if single:
                parts += _replace_copies(b"".join(single), copied)
                single = []
            parts.append([part.template_index, part.first_number, list(map(len, part.texts))])
    if single:
        parts += _replace_copies(b"".join(single), copied)
    packed = _pack([templates, parts, usage_frame])
    if len(packed) > MAX_DECODED:
        raise ValueError("more than an encoded stream may have")
    window, memory = (_SMALL_WINDOW, 5) if len(packed) <= _SMALL_SIZE else (_WINDOW, zlib.DEF_MEM_LEVEL)
    compress = zlib.compressobj(_LEVEL, zlib.DEFLATED, window, memory, zlib.Z_DEFAULT_STRATEGY, _dictionary(body))
    packed = compress.compress(packed) + compress.flush()
    return (LOSSLESS if lossless else LOSSY) + b2a_base64(packed, newline=False)


def _find_text(body: bytes, text: bytes) -> int:
    """The same as `body.find(text)`, which spends much on preparing for a long text that it then finds at once."""
    start = text[:_PROBE_LENGTH]
    at = 0
    for _ in range(_MAX_PROBES):
        at = body.find(start, at)
        if at < 0 or body.startswith(text, at):
            return at
        at += 1
    return body.find(text, at)


def _replace_copies(events: bytes, copied: list[tuple[bytes, int]]) -> list[Any]:
    """Events with long pieces of the answer in them, such as the last of /v1/responses, which repeats all of it."""
    parts: list[Any] = [events]
    for text, offset in copied:
        if len(text) <= len(events) and _find_text(events, text) >= 0:
            copy = [offset, len(text)]
            parts = [
                one
                for part in parts
                for one in (_split_at_text(part, text, copy) if isinstance(part, bytes) else [part])
            ]
    return parts


def _split_at_text(events: bytes, text: bytes, copy: list[int]) -> list[Any]:
    parts: list[Any] = []
    for piece in events.split(text):
        parts += (copy, piece)
    return [part for part in parts[1:] if part]


def _dictionary(body: bytes) -> bytes:
    if len(body) > 2 * _DICTIONARY_EDGE:
        return b"".join((body[:_DICTIONARY_EDGE], body[-_DICTIONARY_EDGE:], _COMMON_BYTES))
    return body + _COMMON_BYTES


def is_lossless(stream: bytes) -> bool:
    """Whether the JSON answer beside an encoded stream says all that its events said."""
    return stream.startswith(LOSSLESS)


def decode_stream(stream: bytes, body: bytes, *, include_usage: bool, end: bytes) -> bytes:
    """The events of a stream as they came, then the usage event if it is wanted, and `end`. Raises NOT_A_STREAM."""
    inflate = zlib.decompressobj(_WINDOW, zdict=_dictionary(body))
    packed = inflate.decompress(a2b_base64(stream[1:]), MAX_DECODED)
    templates, parts, usage = _unpack(packed)
    positions: list[int] = []
    sources: list[bytes] = []
    for template in templates:
        source = template[4]
        positions.append(source if isinstance(source, int) else 0)
        sources.append(body if isinstance(source, int) else source)
    frames: list[bytes] = []
    for part in parts:
        if isinstance(part, bytes):
            frames.append(part)
        elif len(part) == 2:
            frames.append(body[part[0] : part[0] + part[1]])
        else:
            index: int = part[0]
            positions[index] = _decode_run(templates[index], part, sources[index], positions[index], frames)
    if include_usage and usage is not None:
        frames.append(usage)
    frames.append(end)
    return b"".join(frames)


def _decode_run(template: Any, part: Any, source: bytes, at: int, frames: list[bytes]) -> int:
    """Appends the events of a run; returns where its text ends in the source."""
    begin, begin_after, end, end_after, _ = template
    number: int = part[1]
    lengths: list[int] = part[2]
    if begin_after is None and end_after is None:
        between = end + begin
        frames.append(begin)
        for length in lengths:
            frames.append(source[at : at + length])
            frames.append(between)
            at += length
        frames[-1] = end
        return at
    for length in lengths:
        frames.append(begin if begin_after is None else b"%b%d%b" % (begin, number, begin_after))
        frames.append(source[at : at + length])
        frames.append(end if end_after is None else b"%b%d%b" % (end, number, end_after))
        at += length
        number += 1
    return at
