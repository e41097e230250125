"""The KV events of the engines of the configuration: who publishes them, and the tasks that read them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from router.core.routing.prefill import Prefills
from router.core.routing.prefix_cache.kv_blocks import NO_BLOCKS, BlockPieces, KvBlocks
from router.core.routing.prefix_cache.kv_event_batches import KvEventBatches
from router.net.tasks import cancel_and_wait
from router.settings import Settings
from router.settings.replicas import kv_endpoint, replicas

log = logging.getLogger("roundhouse.engines")

_RESTART_DELAY: Final = 1.0  # seconds, after a task has failed


class KvFeed(msgspec.Struct, frozen=True):
    """What one engine publishes. `replica`: see Replica.id. `model`: as the engine calls it.

    `replay_endpoint`: where it sends batches again; None: nowhere.
    """

    name: str
    replica: str
    model: str
    endpoint: str
    replay_endpoint: str | None


Subscribe = Callable[[KvFeed, KvEventBatches], Awaitable[None]]
"""Reads the batches until it is cancelled."""


def configured_feeds(settings: Settings) -> Sequence[KvFeed]:
    return [
        KvFeed(
            replica.name,
            replica.id,
            engine.served_model or engine.model,
            kv_endpoint(engine.kv_events, replica),
            None if engine.kv_events_replay is None else kv_endpoint(engine.kv_events_replay, replica),
        )
        for engine in settings.engine
        if engine.kv_events is not None
        for replica in replicas(engine)
    ]


class KvFeeds:
    """Reads the feeds of the configuration in effect. What was learned from a feed stays as long as it is followed."""

    def __init__(self, prefills: Prefills, subscribe: Subscribe | None = None) -> None:
        """`subscribe`: None for ZMQ, which is imported only if there is a feed."""
        self._prefills = prefills
        self._subscribe = subscribe
        self._pieces: dict[str, BlockPieces] = {}  # by model
        self._tasks: dict[KvFeed, asyncio.Task[None]] = {}

    async def follow(self, feeds: Sequence[KvFeed]) -> None:
        """These feeds, and no others."""
        ended = [feed for feed in self._tasks if feed not in feeds]
        # Before others begin: the same endpoint may be among them.
        await cancel_and_wait(*(self._tasks.pop(feed) for feed in ended))
        for feed in ended:
            if (engine := self._prefills.known(feed.replica)) is not None:
                engine.blocks = NO_BLOCKS
        self._pieces = {feed.model: self._pieces.get(feed.model, BlockPieces()) for feed in feeds}
        for feed in feeds:
            if feed not in self._tasks:
                self._tasks[feed] = asyncio.get_running_loop().create_task(self._read(feed))

    async def aclose(self) -> None:
        await self.follow(())

    async def _read(self, feed: KvFeed) -> None:
        engine = self._prefills.of(feed.replica)
        engine.blocks = blocks = KvBlocks(engine.index, self._pieces[feed.model])
        batches = KvEventBatches(blocks)
        problem = ""
        while True:
            try:
                await self._subscription()(feed, batches)
            except Exception as error:
                # The last line of defence: without its events, an engine is routed to by what it was sent.
                if problem != repr(error):  # else it is logged already
                    problem = repr(error)
                    log.exception("the KV events of engine %s cannot be read; trying again", feed.name)
            await asyncio.sleep(_RESTART_DELAY)

    def _subscription(self) -> Subscribe:
        if self._subscribe is None:
            from router.upstream.kv_subscriber import subscribe  # pyzmq is an extra

            self._subscribe = subscribe
        return self._subscribe
