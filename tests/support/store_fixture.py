"""An entry store with its dependencies, wired as in the application."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from router.core.cache.entry_filter import EntryFilter
from router.core.types import Entry
from router.shared.cache.purges import PurgePosition, Purges
from router.shared.connection.redis import open_backend, open_pipeline
from router.store.entry_store import MAX_BACKLOG, AttemptResult, EntryStore
from router.store.local_cache import LocalCache


class StoreFixture:
    """A store on its own pipeline; without a local cache, unless it is given one that is kept coherent elsewhere."""

    def __init__(
        self, url: str, *, timeout: float = 2.5, retry: float = 0.02, local: LocalCache | None = None,
        max_backlog: int = MAX_BACKLOG, on_damaged: Callable[[], object] = lambda: None,
        on_purged: Callable[[EntryFilter], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """`timeout` and `retry` in seconds, see RedisPipeline; `max_backlog` in bytes."""
        self.backend = open_backend(url, timeout=timeout)
        self.pipeline = open_pipeline(self.backend, timeout=timeout, retry=retry)
        self.purges = Purges(self.pipeline, on_purged)
        self.local = local if local is not None else LocalCache(0)
        self.entries = EntryStore(
            self.pipeline, self.purges, self.local, on_damaged=on_damaged, max_backlog=max_backlog
        )

    async def start(self) -> None:
        await self.pipeline.start()
        # A store also starts without Redis; `wait_until_up` then catches up with the purges.
        if self.pipeline.up:
            await self.purges.load()

    async def aclose(self) -> None:
        await self.pipeline.aclose()

    @property
    def is_up(self) -> bool:
        return self.pipeline.up

    async def wait_until_up(self) -> None:
        """Returns once Redis replies and missed purges are applied."""
        await self.pipeline.wait_until_up()
        await self.purges.catch_up()

    async def get(self, key: str) -> Entry | None:
        """An entry as it was put, without the positions of the purges that the store has checked."""
        entry = await self.entries.get(key)
        return None if entry is None else msgspec.structs.replace(entry, purges=(0, 0))

    def put(
        self, key: str, entry: Entry, since: PurgePosition | None = None, **options: Any
    ) -> "asyncio.Future[AttemptResult]":
        written: asyncio.Future[AttemptResult] = asyncio.get_running_loop().create_future()
        position = self.purges.last_position if since is None else since
        self.entries.put(key, entry, position, written.set_result, **options)
        return written

    async def command(self, *words: Any) -> Any:
        (reply,) = await self.pipeline.execute(words)
        return reply
