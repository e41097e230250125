"""What a process that starts learns of the engines' prefix caches from another one: a snapshot of its indexes.

Theory of operation. A process asks when it first hears of others: the one whose indexes have the most entries. That
one sends them engine by engine, the oldest first, in pieces of MAX_ENTRIES, one every INTERVAL: so both event loops do
other things in between, and the bytes a second are bounded. Pieces go to all processes, as all messages do; one that
has not asked ignores them.

An engine's entries are added once all of them are there, unless the engine has lost its cache meanwhile. They count as
older than what was added meanwhile: so the prefixes are forgotten in the order in which the sender forgets them. Of
more entries than the index has room for, the newest are kept. Pieces are numbered: one that comes again is
ignored, and after one that is lost, the rest. If nothing comes for TIMEOUT, another process is asked, or the same one
if there is no other, until ASK_PERIOD has passed.
"""

import asyncio
from array import array
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Final

import msgspec

from router.core.routing.prefill import EnginePrefill, Prefills

MAX_ENTRIES: Final = 2048
"""Of a piece: 20 KB."""

INTERVAL: Final = 0.02
"""Seconds between two pieces: 1 MB in a second."""

TIMEOUT: Final = 3.0
"""Seconds without a piece after which another process is asked."""

ASK_PERIOD: Final = 10.0
"""Seconds, since others were first heard, in which a process asks."""

_LOST: Final = -1


class SnapshotRequest(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """`process`: the one that is to send a snapshot."""

    process: str


class SnapshotPiece(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Entries of an engine's index, packed: 8 and 2 bytes each, in the order of the machine. The last one is empty."""

    number: int
    url: str = ""
    hashes: bytes = b""
    weights: bytes = b""
    is_last: bool = False


class SnapshotSender:
    """Sends one snapshot at a time; if it is asked for another meanwhile, it sends that after this one."""

    def __init__(self, prefills: Prefills, send: Callable[[SnapshotPiece], None]) -> None:
        self._prefills = prefills
        self._send = send
        self._pieces: Iterator[SnapshotPiece] | None = None
        self._is_asked_again = False

    def start(self) -> None:
        if self._pieces is not None:
            self._is_asked_again = True
            return
        self._pieces = snapshot_pieces(self._prefills)
        self._send_next()

    def _send_next(self) -> None:
        assert self._pieces is not None
        piece = next(self._pieces)
        self._send(piece)
        if not piece.is_last:
            asyncio.get_running_loop().call_later(INTERVAL, self._send_next)
            return
        self._pieces = None
        if self._is_asked_again:
            self._is_asked_again = False
            self.start()


def snapshot_pieces(prefills: Prefills, size: int = MAX_ENTRIES) -> Iterator[SnapshotPiece]:
    """The indexes of all engines; each is read when its first piece is taken."""
    number = 0
    for url, engine in prefills.items():
        hashes, weights = engine.index.entries()
        for start in range(0, len(hashes), size):
            end = start + size
            packed = array("Q", hashes[start:end]).tobytes(), array("H", weights[start:end]).tobytes()
            yield SnapshotPiece(number, url, *packed)
            number += 1
    yield SnapshotPiece(number, is_last=True)


class SnapshotReceiver:
    """Asks for a snapshot until one has come, and adds it to the indexes."""

    def __init__(self, prefills: Prefills, ask: Callable[[str], None]) -> None:
        """`ask` sends a SnapshotRequest to this process."""
        self._prefills = prefills
        self._ask = ask
        self._asks_until: float | None = None  # None until others are heard
        self._asked: set[str] = set()
        self._sender = ""  # the process that was asked
        self._last_at = 0.0  # when it was asked or sent a piece
        self._next = 0  # the number of the next piece; _LOST: it did not come
        self._engine: EnginePrefill | None = None  # that of the pieces that come now; None: it is not known here
        self._clears = 0  # of its index, when its first piece came
        self._clear()

    def on_others(self, held: Mapping[str, int], now: float) -> None:
        """`held`: by process, how many entries its indexes have. To be called every few seconds."""
        if self._asks_until is None:
            self._asks_until = now + ASK_PERIOD
        if self._sender and now - self._last_at < TIMEOUT:
            return
        self._end()
        if now > self._asks_until:
            return
        own = entry_count(self._prefills)
        richer = {process: count for process, count in held.items() if count > own}
        if richer:
            # One that was asked already only if there is no other: its pieces may have been lost.
            others = {process: count for process, count in richer.items() if process not in self._asked} or richer
            self._sender = max(others, key=lambda process: (others[process], process))
            self._asked.add(self._sender)
            self._last_at, self._next = now, 0
            self._ask(self._sender)

    def on_piece(self, process: str, piece: SnapshotPiece, now: float) -> None:
        if process != self._sender or piece.number < self._next:
            return
        if piece.number == 0:  # the sender begins again for another process
            self._clear()
        elif piece.number != self._next:
            self._next = _LOST
            return
        self._last_at, self._next = now, piece.number + 1
        if piece.url != self._url:
            self._add_engine()
            self._begin_engine(piece.url)
        count = len(piece.hashes) // 8
        if count > MAX_ENTRIES or len(piece.hashes) != 8 * count or len(piece.weights) != 2 * count:
            self._next = _LOST
        elif self._engine is not None:
            self._hashes.frombytes(piece.hashes)
            self._weights.frombytes(piece.weights)
            excess = len(self._hashes) - self._engine.index.max_entries
            if excess > 0:
                del self._hashes[:excess], self._weights[:excess]
        if piece.is_last:
            self._end()
            self._asks_until = -inf

    def _begin_engine(self, url: str) -> None:
        self._url = url
        self._engine = self._prefills.known(url)
        self._clears = 0 if self._engine is None else self._engine.index.clears

    def _add_engine(self) -> None:
        if self._engine is not None and self._engine.index.clears == self._clears:
            self._engine.index.add_older(self._hashes, self._weights)
        self._clear()

    def _end(self) -> None:
        self._sender = ""
        self._clear()

    def _clear(self) -> None:
        self._url = ""
        self._engine = None
        self._hashes, self._weights = array("Q"), array("H")


def entry_count(prefills: Prefills) -> int:
    return sum(len(engine.index) for _, engine in prefills.items())
