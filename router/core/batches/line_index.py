"""Where each line of a batch's input file is, in the order in which they run.

Lines whose prompts begin alike come one after the other, so that engines find the beginning in their prefix caches. The
order compares digests of the bodies' beginnings, each twice as long as the one before.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import xxhash

_ENTRY: Final = struct.Struct("<QIIB")
ENTRY_SIZE: Final = _ENTRY.size

_FIRST_PREFIX: Final = 256
_PREFIXES: Final = 8

DUPLICATE: Final = 1


class LineEntry(NamedTuple):
    """`offset`, `length`: its bytes in the file. `number`: from 1 on. `flags`: DUPLICATE or 0."""

    offset: int
    length: int
    number: int
    flags: int


def order_key(body: bytes) -> bytes:
    """Bodies with a common beginning have a common beginning of their keys. The order has no other meaning."""
    parts = []
    length = _FIRST_PREFIX
    for _ in range(_PREFIXES):
        if length > len(body):
            break
        parts.append(xxhash.xxh3_64_digest(body[:length]))
        length *= 2
    return b"".join(parts)


def pack_entries(entries: Iterable[LineEntry]) -> bytes:
    return b"".join([_ENTRY.pack(*entry) for entry in entries])


def unpack_entries(data: bytes) -> Iterator[LineEntry]:
    return (LineEntry(*fields) for fields in _ENTRY.iter_unpack(data))
