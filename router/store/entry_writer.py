"""Writes the cache's entries to Redis, and again later what Redis did not take because it was down.

Theory of operation. An engine may need minutes for a response, and Redis may be away for seconds just when it ends. So
an entry that could not be written waits in this process, with the purge position at which its generation began. That
position makes a late write as safe as one in time: the store refuses it if a later purge covers it. An entry at its key
that another process has stored meanwhile is younger, and stays.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from router.core.types import Entry
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.net.tasks import cancel_and_wait
from router.shared.cache.purges import PurgePosition
from router.store.entry_store import AttemptResult, EntryStore, WriteResult

MAX_WAITING: Final = 32 << 20
"""Bytes of entries that may wait until Redis is up; further ones are dropped."""

_MAX_ATTEMPTS: Final = 7  # while Redis is up; with the pauses between them, they last less than a minute
_MIN_PAUSE: Final = 1.0  # seconds after a repeated write that failed; twice as long after the next one
_MAX_PAUSE: Final = 16.0
_MAX_CLOSING: Final = 2.0  # seconds; a process that takes too long to end is killed, and has more to send


class EntryWriter:
    """Writes entries.

    - `put` never raises and never waits. Its result is passed to `on_written`, once, when it is final.
    - An entry that Redis does not take because it is down is written when it is up, for the rest of its lifetime. It
      replaces no younger entry.
    - At most `max_waiting` bytes wait, one entry for a key. What has expired makes room.
    - Late writes are sent one at a time, so that no lookup waits behind them.
    """

    def __init__(
        self, store: EntryStore, pipeline: RedisPipeline, clock: Callable[[], float], max_waiting: int = MAX_WAITING
    ) -> None:
        """`clock` gives seconds since the epoch, as Redis counts them."""
        self._store = store
        self._pipeline = pipeline
        self._clock = clock
        self._max_waiting = max_waiting
        self._waiting: dict[str, _Write] = {}  # by key, in the order in which they are repeated
        self._waiting_size = 0
        self._is_waiting = asyncio.Event()
        self._closed = False

    def put(
        self, key: str, entry: Entry, since: PurgePosition, on_written: Callable[[WriteResult], None],
        lifetime: float | None = None,
    ) -> None:  # fmt: skip
        """See EntryStore.put."""
        kept = entry.ttl + entry.stale if lifetime is None else lifetime
        older, write = self._waiting.get(key), _Write(self, key, entry, since, kept, on_written)
        self._write(write, kept)
        # One that is refused at once, such as one that was purged, takes no place.
        if older is not None and self._waiting.get(key) is older and not write.is_refused:
            self._take(key, "dropped")

    async def run(self) -> None:
        """Repeats writes until it is cancelled."""
        pause = _MIN_PAUSE
        while True:
            await self._is_waiting.wait()
            await self._pipeline.wait_until_up()
            # In a cluster, Redis can be up while one server is down. The writes to others do not wait for it.
            if await self._repeat_all():
                pause = _MIN_PAUSE
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE)

    async def aclose(self) -> None:
        """Writes what waits if Redis is up, for two seconds at most.

        Call it before the pipeline is closed; nothing waits from now on.
        """
        self._closed = True
        repeating = asyncio.get_running_loop().create_task(self._repeat_all())
        await asyncio.wait([repeating], timeout=_MAX_CLOSING)
        await cancel_and_wait(repeating)
        for key in list(self._waiting):
            self._take(key, "failed")

    # -- one write ----------------------------------------------------------------------------------------------------

    def _write(self, write: "_Write", lifetime: float) -> None:
        if self._pipeline.up:
            write.attempts += 1
        self._store.put(write.key, write.entry, write.since, write, lifetime, keeps_younger=write.is_late)

    def on_unavailable(self, write: "_Write") -> None:
        """Redis did not take it: it waits, if it may."""
        if self._closed or write.attempts >= _MAX_ATTEMPTS:
            write.finish("failed")
            return
        waiting = self._waiting.get(write.key)
        if waiting is not None and waiting.entry.created > write.entry.created:
            write.finish("dropped")
            return
        self._take(write.key, "dropped")
        if not self._make_room(write.size):
            write.finish("dropped")
            return
        self._waiting[write.key] = write
        self._waiting_size += write.size
        self._is_waiting.set()

    def _make_room(self, size: int) -> bool:
        """Drops the oldest ones as far as they have expired. Returns whether so many bytes fit."""
        while self._waiting_size + size > self._max_waiting:
            oldest = next(iter(self._waiting.values()), None)
            if oldest is None or self._remaining(oldest) > 0:
                return False
            self._take(oldest.key, "dropped")
        return True

    def _take(self, key: str, result: WriteResult | None = None) -> None:
        """The write for the key waits no more. `result`: it is final."""
        write = self._waiting.pop(key, None)
        if write is None:
            return
        self._waiting_size -= write.size
        if not self._waiting:
            self._is_waiting.clear()
        if result is not None:
            write.finish(result)

    # -- late ones ----------------------------------------------------------------------------------------------------

    async def _repeat_all(self) -> bool:
        """Writes what waits, the oldest first, while Redis is up. Returns whether it answered for each of them."""
        all_answered = True
        for write in list(self._waiting.values()):
            if not self._pipeline.up:
                return False
            if self._waiting.get(write.key) is write:  # else a younger one was put
                all_answered &= await self._repeat(write)
        return all_answered

    async def _repeat(self, write: "_Write") -> bool:
        """Writes the entry, if it must still be written. Returns whether Redis answered."""
        try:
            stored = await self._store.get(write.key)
        except RedisDownError:
            self._on_no_answer(write)
            return False
        if self._waiting.get(write.key) is not write:  # a younger one was put
            return True
        self._take(write.key)
        lifetime = self._remaining(write)
        if stored is not None and stored.created >= write.entry.created:
            write.finish("stored")  # this entry, whose reply was lost, or a younger one
        elif lifetime <= 0:
            write.finish("dropped")
        else:
            answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            write.answered, write.is_late = answered, True
            self._write(write, lifetime)
            await answered
        return self._waiting.get(write.key) is not write

    def _on_no_answer(self, write: "_Write") -> None:
        if self._waiting.get(write.key) is write:
            self._take(write.key)
            write.attempts += self._pipeline.up
            self.on_unavailable(write)  # behind the others: they may be on another server of a cluster

    def _remaining(self, write: "_Write") -> float:
        """The rest of its lifetime, in seconds."""
        return min(write.lifetime, write.lifetime - (self._clock() - write.entry.created))


class _Write:
    """`lifetime` in seconds; `attempts`: while Redis was up; `is_late`: whether it is repeated.

    `is_refused`: the result is final, and the entry is not stored.
    It is called with the result of each attempt.
    """

    def __init__(
        self, writer: EntryWriter, key: str, entry: Entry, since: PurgePosition, lifetime: float,
        on_written: Callable[[WriteResult], None],
    ) -> None:  # fmt: skip
        self._writer = writer
        self.key = key
        self.entry = entry
        self.since = since
        self.lifetime = lifetime
        self.on_written = on_written
        self.attempts = 0
        self.is_late = self.is_refused = False
        self.answered: asyncio.Future[None] | None = None  # of the last attempt, if somebody waits for it

    @property
    def size(self) -> int:
        """In bytes, with room for the key."""
        return self.entry.size + 1024

    def finish(self, result: WriteResult) -> None:
        """It is final."""
        self.is_refused = result != "stored"
        self.on_written(result)

    def __call__(self, result: AttemptResult) -> None:
        try:
            if result == "unavailable":
                self._writer.on_unavailable(self)
            else:
                self.finish(result)
        finally:
            if self.answered is not None and not self.answered.done():  # done: the process ends
                self.answered.set_result(None)
