"""Entries in Redis.

Theory of operation. All commands of a process go through one queue, and one batch of them is on its way at a time:
while Redis answers one, the next gathers. So a lookup costs a fraction of a round trip's work under load, the number
of connections does not grow with the number of requests, and whoever looks up what this process has stored before
finds it, since Redis sees the commands in the order in which they were given.

Redis is a help and not a need. The first command that fails or takes too long puts the store out of service: from
then on lookups fail at once, without waiting, until a probe in the background has had an answer again.
"""

import asyncio
import contextlib
import logging
from typing import Any, Final, Literal, cast

import redis.asyncio as aioredis
import redis.exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from router.core.types import Entry
from router.store.fields import to_entry, to_fields

log = logging.getLogger("roundhouse.store")

WriteResult = Literal["stored", "failed", "dropped"]

MAX_BACKLOG: Final = 64 << 20
"""Bytes of entries that may wait to be written; what comes beyond that is dropped."""

_MAX_BATCH: Final = 1 << 20  # bytes written before the lookups that wait behind them get their turn
_CONNECT: Final = 2.0  # seconds that the probe gives a connection, TLS handshake included
_FAULTS: Final = (redis.exceptions.RedisError, OSError, asyncio.TimeoutError)


class StoreDownError(Exception):
    """Redis cannot be asked at present."""


class RedisStore:
    """Where whole answers are kept, for every replica to find.

    - What was put is found by the next `get` of this process, and by other processes as soon as Redis has it.
    - Every entry has an expiry from the moment it exists, and no field of an entry that stood there before.
    - What is at a key and is no entry is a miss, not an error.
    - When Redis is gone, frozen or failing, a `get` costs at most `timeout` once, and nothing from then on until Redis
      answers again; it raises StoreDownError.
    - A `put` never raises and never waits; what it came to is told by its future.
    - Nothing is tried twice, and no queue grows without a bound.
    """

    def __init__(self, url: str, *, timeout: float, retry: float) -> None:
        """`url`: redis://, rediss:// or unix://; `timeout`, `retry` in seconds, see settings.Cache."""
        self._client = _client(url, timeout)
        self._prober = _client(url, max(timeout, _CONNECT))
        self._retry = retry
        self._lookups: list[tuple[str, asyncio.Future[Entry | None]]] = []
        self._writes: list[tuple[str, Entry, asyncio.Future[WriteResult]]] = []
        self._lookups_in_hand: list[tuple[str, asyncio.Future[Entry | None]]] = []
        self._writes_in_hand: list[tuple[str, Entry, asyncio.Future[WriteResult]]] = []
        self._backlog = 0
        self._worker: asyncio.Task[None] | None = None
        self._probe: asyncio.Task[None] | None = None
        self._up = asyncio.Event()

    @property
    def up(self) -> bool:
        """Whether Redis answered when it was last asked."""
        return self._up.is_set()

    async def start(self) -> None:
        """Begins to look for Redis; waits for it a moment, so that the first request need not."""
        self._go_down(None)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._up.wait(), _CONNECT)

    async def wait_until_up(self) -> None:
        """Returns once Redis answers."""
        await self._up.wait()

    async def aclose(self) -> None:
        """Writes what waits to be written, and closes the connections."""
        if self._worker is not None:
            await self._worker
        while self._probe is not None and not self._probe.done():
            self._probe.cancel()
            # redis-py loses a cancellation that comes while it gives up a connection, so it may have to be said again.
            await asyncio.wait([self._probe], timeout=0.1)
        await self._client.aclose()
        await self._prober.aclose()

    async def get(self, key: str) -> Entry | None:
        """The entry at a key, or None. Raises StoreDownError."""
        if not self._up.is_set():
            raise StoreDownError
        waiting: asyncio.Future[Entry | None] = asyncio.get_running_loop().create_future()
        self._lookups.append((key, waiting))
        self._work()
        return await waiting

    def put(self, key: str, entry: Entry) -> "asyncio.Future[WriteResult]":
        """Keeps an entry for `entry.ttl` seconds."""
        done: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        size = _size(entry)
        if not self._up.is_set() or self._backlog + size > MAX_BACKLOG:
            done.set_result("dropped")
            return done
        self._backlog += size
        self._writes.append((key, entry, done))
        self._work()
        return done

    # -- the one that talks to Redis --------------------------------------------------------------------------------

    def _work(self) -> None:
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._lookups or self._writes:
                self._writes_in_hand = self._take_writes()
                await self._write(self._writes_in_hand)
                self._lookups_in_hand, self._lookups = self._lookups, []
                await self._look_up(self._lookups_in_hand)
        except Exception:
            # A defect here must not leave requests waiting for ever.
            log.exception("the store's worker failed")
            self._give_up()
        finally:
            self._worker = None

    def _give_up(self) -> None:
        """Fails the batch in hand and all that waits behind it."""
        for waiting in self._lookups_in_hand + self._lookups:
            if not waiting[1].done():
                waiting[1].set_exception(StoreDownError("the store's worker failed"))
        for write in self._writes_in_hand + self._writes:
            if not write[2].done():
                write[2].set_result("failed")
        self._lookups, self._writes, self._backlog = [], [], 0

    def _take_writes(self) -> list[tuple[str, Entry, "asyncio.Future[WriteResult]"]]:
        size = count = 0
        for _, entry, _ in self._writes:
            size += _size(entry)
            count += 1
            if size >= _MAX_BATCH:
                break
        self._backlog -= size
        taken, self._writes = self._writes[:count], self._writes[count:]
        return taken

    async def _write(self, writes: list[tuple[str, Entry, "asyncio.Future[WriteResult]"]]) -> None:
        if not writes:
            return
        try:
            async with self._client.pipeline(transaction=True) as batch:
                for key, entry, _ in writes:
                    batch.delete(key)
                    batch.hset(key, mapping=to_fields(entry))
                    batch.pexpire(key, max(1, int(entry.ttl * 1000)))
                replies = await batch.execute(raise_on_error=False)
        except redis.exceptions.ResponseError as error:
            # It answers, so it is not down; out of memory or read-only, it still gives what it has.
            log.warning("%d entries could not be written: %s", len(writes), error)
            results: list[WriteResult] = ["failed"] * len(writes)
        except _FAULTS as error:
            self._go_down(error)
            results = ["failed"] * len(writes)
        else:
            results = [
                "failed" if any(isinstance(reply, Exception) for reply in replies[i : i + 3]) else "stored"
                for i in range(0, len(replies), 3)
            ]
            for reply in replies:
                if isinstance(reply, Exception):
                    log.warning("an entry could not be written: %s", reply)
        for (_, _, done), result in zip(writes, results, strict=True):
            if not done.done():
                done.set_result(result)

    async def _look_up(self, lookups: list[tuple[str, "asyncio.Future[Entry | None]"]]) -> None:
        if not lookups:
            return
        try:
            async with self._client.pipeline(transaction=False) as batch:
                for key, _ in lookups:
                    batch.hgetall(key)  # to name the fields would cost more here than to get them all
                replies: list[Any] = await batch.execute(raise_on_error=False)
        except _FAULTS as error:
            self._go_down(error)
            replies = [error] * len(lookups)
        for (_, waiting), reply in zip(lookups, replies, strict=True):
            if waiting.done():  # who asked has left
                continue
            if isinstance(reply, redis.exceptions.ResponseError) and str(reply).startswith("WRONGTYPE"):
                waiting.set_result(None)
            elif isinstance(reply, Exception):
                waiting.set_exception(StoreDownError(str(reply)))
            else:
                waiting.set_result(to_entry(reply))

    # -- out of service and back ------------------------------------------------------------------------------------

    def _go_down(self, error: Exception | None) -> None:
        if self._probe is None:
            if error is not None:
                log.warning("Redis does not answer (%s); requests go on without it", _told(error))
            self._up.clear()
            self._probe = asyncio.get_running_loop().create_task(self._look_for_it(was_up=error is not None))

    async def _look_for_it(self, *, was_up: bool) -> None:
        silent = not was_up  # nothing has been said of it being away, so nothing need be said of it being back
        while True:
            try:
                await cast("Any", self._prober).ping()  # typed for clients with and without asyncio at once
                break
            except _FAULTS as error:
                if silent:
                    log.warning("Redis cannot be reached (%s); trying again every %g s", _told(error), self._retry)
                silent = False
            except Exception:
                # A defect here, or an option in the address that redis-py does not know, must not end the looking.
                if silent:
                    log.exception("Redis cannot be asked")
                silent = False
            await asyncio.sleep(self._retry)
        self._probe = None
        self._up.set()
        if not silent:
            log.info("Redis answers again")


def _client(url: str, timeout: float) -> "aioredis.Redis":
    # redis-py tries again for seconds unless it is told not to.
    return aioredis.Redis.from_url(
        url,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
        decode_responses=False,
        client_name="roundhouse",
    )


def _told(error: Exception) -> str:
    # redis-py repeats the address, which may hold a password only in its URL form; class and errno are enough.
    return type(error).__name__ if not isinstance(error, redis.exceptions.ResponseError) else str(error)


def _size(entry: Entry) -> int:
    return len(entry.body or b"") + len(entry.frames or b"") + 1024
