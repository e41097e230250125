"""An entry store with all that it stands on, as the application puts it together."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from router.core.cache.entry_filter import Scope
from router.core.types import Entry
from router.shared.purges import Mark, Purges
from router.shared.redis import open_line, open_link
from router.store.entry_store import MAX_BACKLOG, EntryStore, WriteResult
from router.store.local_cache import LocalCopy


class Store:
    """A store on a line of its own; without a local copy, unless it is given one that somebody keeps coherent."""

    def __init__(
        self, url: str, *, timeout: float = 0.5, retry: float = 0.02, local: LocalCopy | None = None,
        max_backlog: int = MAX_BACKLOG, damaged: Callable[[], object] = lambda: None,
        purged: Callable[[Scope], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """`timeout` and `retry` in seconds, see Line; `max_backlog` in bytes."""
        self.link = open_link(url, timeout=timeout)
        self.line = open_line(self.link, timeout=timeout, retry=retry)
        self.purges = Purges(self.line, purged)
        self.local = local if local is not None else LocalCopy(0)
        self.entries = EntryStore(self.line, self.purges, self.local, damaged=damaged, max_backlog=max_backlog)

    async def start(self) -> None:
        await self.line.start()
        if self.line.up:
            await self.purges.learn()

    async def aclose(self) -> None:
        await self.line.aclose()

    @property
    def up(self) -> bool:
        return self.line.up

    async def wait_until_up(self) -> None:
        """Returns once Redis answers, and the purges are known that were missed."""
        await self.line.wait_until_up()
        await self.purges.catch_up()

    async def get(self, key: str) -> Entry | None:
        """An entry as it was put: without the purges that the store had checked."""
        entry = await self.entries.get(key)
        return None if entry is None else msgspec.structs.replace(entry, purges=(0, 0))

    def put(self, key: str, entry: Entry, since: Mark | None = None) -> "asyncio.Future[WriteResult]":
        written: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        self.entries.put(key, entry, self.purges.last if since is None else since, written.set_result)
        return written

    async def command(self, *words: Any) -> Any:
        """What Redis answers to a command of one key."""
        (reply,) = await self.line.ask(words)
        return reply
