"""Which KV events are read, and what an engine's blocks are while they are."""

import asyncio
import logging

import pytest

from router.core.routing.prefill import Prefills
from router.core.routing.prefix_cache.kv_blocks import NO_BLOCKS, KvBlocks
from router.core.routing.prefix_cache.kv_event_batches import KvEventBatches
from router.upstream import kv_feeds
from router.upstream.kv_feeds import KvFeed, KvFeeds
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


def feed(name: str, endpoint: str = "tcp://h:1") -> KvFeed:
    return KvFeed(name, f"http://{name}", "m", endpoint, None)


class Subscriptions:
    """What is read now, by the names of the feeds; it may fail."""

    def __init__(self, *errors: Exception) -> None:
        self.open: list[tuple[str, str]] = []
        self.prefills = Prefills()
        self.feeds = KvFeeds(self.prefills, self.subscribe)
        self.tries = 0
        self._errors = list(errors)

    async def subscribe(self, feed: KvFeed, batches: KvEventBatches) -> None:
        self.tries += 1
        if self._errors:
            raise self._errors.pop(0)
        self.open.append((feed.name, feed.endpoint))
        try:
            await asyncio.Event().wait()
        finally:
            self.open.remove((feed.name, feed.endpoint))


async def test_feeds_of_the_configuration_are_read_and_no_others() -> None:
    subscriptions = Subscriptions()
    await subscriptions.feeds.follow([feed("a"), feed("b")])
    await eventually(lambda: len(subscriptions.open) == 2)
    of_a = subscriptions.prefills.of("http://a").blocks
    await subscriptions.feeds.follow([feed("a"), feed("b", "tcp://h:2")])
    await eventually(lambda: subscriptions.open == [("a", "tcp://h:1"), ("b", "tcp://h:2")])
    assert isinstance(of_a, KvBlocks)
    assert subscriptions.prefills.of("http://a").blocks is of_a
    await subscriptions.feeds.aclose()
    assert subscriptions.open == []
    assert subscriptions.prefills.of("http://a").blocks is subscriptions.prefills.of("http://b").blocks is NO_BLOCKS


async def test_a_subscription_that_fails_is_tried_again_and_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_feeds, "_RESTART_DELAY", 0.0)
    subscriptions = Subscriptions(OSError("x"), OSError("x"), OSError("x"), OSError("y"))
    with caplog.at_level(logging.ERROR, "roundhouse.engines"):
        await subscriptions.feeds.follow([feed("a")])
        await eventually(lambda: subscriptions.open)
    assert (subscriptions.tries, len(caplog.records)) == (5, 2)
    await subscriptions.feeds.aclose()
