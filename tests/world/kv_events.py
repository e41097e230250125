"""KV events of the simulator in a scenario, which has no ZMQ."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from engines.simulator.kv_cache.kv_events_config import KvEventsConfig
from router.core.routing.prefix_cache.kv_event_batches import KvEventBatches
from router.upstream.kv_feeds import KvFeed
from tests.simulation.clock import CLOCK
from tests.simulation.loop import VirtualLoop

EVENTS: Final = KvEventsConfig(enable_kv_cache_events=True)
"""The settings of an engine that publishes at tcp://NAME:5557."""


class WorldKvEvents:
    """Brings the batches of each engine to the routers that read them, before any response that follows."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._readers: defaultdict[str, list[Callable[[int, bytes], None]]] = defaultdict(list)

    def publisher(self, host: str, config: KvEventsConfig) -> Callable[[bytes], None]:
        endpoint, numbers = config.endpoint.replace("*", host), iter(range(10**9))

        def send(payload: bytes) -> None:
            number = next(numbers)
            for take in self._readers[endpoint]:
                take(number, payload)

        return send

    async def subscribe(self, feed: KvFeed, batches: KvEventBatches) -> None:
        """See router.upstream.kv_feeds.Subscribe; without replays."""
        process = self._loop.process

        def take(number: int, payload: bytes) -> None:
            def read() -> None:
                if batches.on_published(number, payload) is not None:
                    batches.on_replay_end(number, payload)

            self._loop.deliver(process, CLOCK.now, read)

        self._readers[feed.endpoint].append(take)
        try:
            await asyncio.Event().wait()
        finally:
            self._readers[feed.endpoint].remove(take)
