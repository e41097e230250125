"""Where each line of a batch's input file is, in the order in which they run.

Lines whose prompts begin alike come one after the other, so that engines find the beginning in their prefix caches. The
order compares digests of the bodies' beginnings, each twice as long as the one before.
"""

import heapq
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import xxhash

_ENTRY: Final = struct.Struct("<QIIB")
ENTRY_SIZE: Final = _ENTRY.size

_FIRST_PREFIX: Final = 256
_PREFIXES: Final = 8
_KEY_SIZE: Final = 8 * _PREFIXES
_PIECE: Final = 2000

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


class OrderedLines:
    """The entries of a file, to be had in the order of their keys.

    Each is kept as a few bytes. They are sorted in pieces, since sorting holds the interpreter until it is over.
    """

    def __init__(self) -> None:
        self._sorted: list[list[bytes]] = []
        self._piece: list[bytes] = []

    def __len__(self) -> int:
        return len(self._sorted) * _PIECE + len(self._piece)

    def add(self, key: bytes, entry: LineEntry) -> None:
        # Of equal keys, in the order of the file.
        self._piece.append(key.ljust(_KEY_SIZE, b"\0") + entry.number.to_bytes(4, "big") + _ENTRY.pack(*entry))
        if len(self._piece) == _PIECE:
            self._piece.sort()
            self._sorted.append(self._piece)
            self._piece = []

    def packed(self) -> Iterator[bytes]:
        """For `unpack_entries`."""
        self._piece.sort()
        return (line[-ENTRY_SIZE:] for line in heapq.merge(*self._sorted, self._piece))


def unpack_entries(data: bytes) -> Iterator[LineEntry]:
    return (LineEntry(*fields) for fields in _ENTRY.iter_unpack(data))
