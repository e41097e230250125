"""What has been purged, as every router process comes to know it.

Theory of operation. Whoever purges first adds the purge's scope to a stream in Redis, and then deletes what is stored.
An answer that was begun before a purge may be stored after it; so every generation notes how far its process knew the
stream when it began, and its answer is not stored once the stream has a later purge that means it. Who stores reads
the stream again after the write: if it has no new purge, then a purge that comes later finds the entry by itself; if
it has one, the entry is deleted again. So no order of events leaves a purged answer behind.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from router.core.names import PURGES
from router.core.scope import Scope
from router.shared.line import Line, RedisDownError
from router.shared.link import Packed, pack

log = logging.getLogger("roundhouse.purges")

REMEMBERED: Final = 10_000
"""Purges that the stream and each process remember."""

_PAGE: Final = 1000

Mark = tuple[int, int]
"""How far the stream is known: the id of its last purge, as Redis counts it."""

BEGINNING: Final[Mark] = (0, 0)


class Purges:
    """The purges that this process knows of.

    - `last`: the last of them; what begins now was begun after it.
    - `purged` is called with each that becomes known, once.
    """

    def __init__(self, line: Line, purged: Callable[[Scope], None] = lambda _: None) -> None:
        self._line = line
        self._purged = purged
        self._known: deque[tuple[Mark, Scope]] = deque(maxlen=REMEMBERED)
        self._forgotten = BEGINNING  # of the purges up to here, only that there were some is known
        self.last = BEGINNING
        self.learned = False
        self._news: tuple[Mark | None, Packed] = (None, b"")  # `news`, and what was the last when it was made

    async def learn(self) -> None:
        """Finds the last: what was purged before this process began means nothing to it. Raises RedisDownError."""
        (found,) = await self._line.ask(("XREVRANGE", PURGES, "+", "-", "COUNT", 1))
        if not isinstance(found, Exception):
            for id_, _ in found:
                self.last = self._forgotten = max(self.last, _mark(id_))
        self.learned = True

    async def catch_up(self) -> None:
        """Learns of the purges since the last. Raises RedisDownError."""
        while True:
            (found,) = await self._line.ask(self.news())
            if len(self.note(found)) < _PAGE:
                return

    def news(self) -> Packed:
        """The command that asks for the purges since the last."""
        known, command = self._news
        if known != self.last:
            after = "(%d-%d" % self.last  # noqa: UP031 - shorter so
            command = pack(("XRANGE", PURGES, after, "+", "COUNT", _PAGE))
            self._news = (self.last, command)
        return command

    def note(self, found: Any) -> Sequence[Scope]:
        """Takes over the reply to `news`; the purges in it that were not known."""
        if isinstance(found, Exception):  # a wrong type at our key
            log.warning("the purges cannot be read: %s", found)
            return []
        new = []
        for id_, fields in found:
            mark = _mark(id_)
            if mark <= self.last:
                continue
            self.last = mark
            scope = _scope(fields)
            if scope is not None:
                if len(self._known) == REMEMBERED:
                    self._forgotten = self._known[0][0]
                self._known.append((mark, scope))
                new.append(scope)
                self._purged(scope)
        return new

    def cover(self, key: str, documents: tuple[str, ...], since: Mark) -> bool:
        """Whether an entry whose generation began after `since` has been purged meanwhile, or may have been."""
        for mark, scope in reversed(self._known):
            if mark <= since:
                break
            if scope.matches(key, documents):
                return True
        return since < self._forgotten

    async def changed(self) -> bool:
        """The stream has changed: catches up with it. Whether that could be done."""
        try:
            await self.catch_up()
        except RedisDownError:
            log.debug("the purges cannot be read while Redis is away; they will be before anything is stored")
            return False
        return True


def _mark(id_: bytes) -> Mark:
    milliseconds, _, number = id_.partition(b"-")
    return int(milliseconds), int(number)


def _scope(fields: Any) -> Scope | None:
    pairs = dict(fields) if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=False))
    try:
        return msgspec.json.decode(pairs[b"scope"], type=Scope)
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        log.warning("a purge is not understood, and passed over: %s", error)
        return None
