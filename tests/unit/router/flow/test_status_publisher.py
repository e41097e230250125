"""The traffic and the status of a process on their way to Redis."""

import asyncio
from typing import Any, cast

import pytest

from router.core.endpoints.chat import CHAT
from router.core.resilience.breaker import BreakerState
from router.core.routing.prefill import Prefills
from router.flow.exchange import Exchange
from router.flow.replicas.latest_requests import MAX_KEPT, LatestRequests
from router.flow.replicas.router_snapshot import ProcessLoad, identify_process, take_snapshot
from router.flow.replicas.status_publisher import PendingTraffic, StatusPublisher
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.shared.status.router_snapshots import RouterSnapshot
from router.shared.status.traffic import MAX_MINUTES
from router.upstream.catalog import Catalog


class Pipeline:
    """Records what is sent; while `down`, nothing is."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.size = 0
        self.down = False
        self.replies: asyncio.Future[list[Any]] | None = None

    def execute(self, *_: Any) -> "asyncio.Future[list[Any]]":
        self.replies = asyncio.get_running_loop().create_future()
        return self.replies

    def send(self, *commands: Any, size: int = 0) -> None:
        if self.down:
            raise RedisDownError
        self.sent += commands
        self.size = size


def test_what_cannot_be_sent_is_sent_later_to_the_minute_in_which_it_was_counted() -> None:
    pipeline, counts = Pipeline(), [{"hits": 1}, {"hits": 2}, {"hits": 4}]
    pending = PendingTraffic(lambda: counts.pop(0))
    pipeline.down = True
    for minute in (5, 5, 6):
        pending.collect(minute)
        with pytest.raises(RedisDownError):
            pending.send(cast("RedisPipeline", pipeline))
    pipeline.down = False
    for _ in range(2):  # once only
        pending.send(cast("RedisPipeline", pipeline))
    assert [command for command in pipeline.sent if command[0] == "HINCRBY"] == [
        ("HINCRBY", "rh:1:traffic:5", "hits", 3), ("HINCRBY", "rh:1:traffic:6", "hits", 4),
    ]  # fmt: skip


def test_a_long_outage_keeps_no_more_minutes_than_the_history_has() -> None:
    pending = PendingTraffic(lambda: {"hits": 1})
    for minute in range(MAX_MINUTES + 50):
        pending.collect(minute)
    pipeline = Pipeline()
    pending.send(cast("RedisPipeline", pipeline))
    assert len({command[1] for command in pipeline.sent}) == MAX_MINUTES


def publisher_on(pipeline: Pipeline) -> StatusPublisher:
    identity = identify_process(0.0, is_worker=False)

    def snapshot() -> RouterSnapshot:
        load = ProcessLoad(in_flight=0, queued=0, draining=False)
        prefixes = Prefills()
        return take_snapshot(
            identity, load, Catalog((), ()), lambda _: BreakerState.CLOSED, {},
            lambda url: prefixes.of(url).status(100.0), 100.0,
        )  # fmt: skip

    return StatusPublisher(
        pipeline=cast("RedisPipeline", pipeline),
        clock=lambda: 600.0,
        take_snapshot=snapshot,
        pending_traffic=PendingTraffic(lambda: {"hits": 1}),
        requests=LatestRequests(identity.id, lambda: 5.0),
    )


async def test_a_process_that_ends_during_a_look_publishes_nothing_after_it() -> None:
    pipeline = Pipeline()
    publisher = publisher_on(pipeline)
    look = asyncio.create_task(publisher.publish())
    await asyncio.sleep(0)
    publisher.withdraw()
    assert pipeline.replies is not None
    pipeline.replies.set_result([b"1"])
    await look
    assert pipeline.sent[-1][0] == "HDEL"


async def test_the_traffic_before_a_reload_is_sent_without_waiting_for_the_timer() -> None:
    pipeline = Pipeline()
    look = asyncio.create_task(publisher_on(pipeline).publish())
    await asyncio.sleep(0)
    assert pipeline.sent[0] == ("HINCRBY", "rh:1:traffic:10", "hits", 1)
    look.cancel()


async def test_redis_gets_the_time_that_the_first_requests_take() -> None:
    pipeline = Pipeline()
    publisher = publisher_on(pipeline)
    for number in range(MAX_KEPT):
        exchange = Exchange(endpoint=CHAT, request_id=f"r{number}", started_at=0.0)
        publisher._requests.record(exchange, 1.0, False)
    look = asyncio.create_task(publisher.publish())
    await asyncio.sleep(0)
    assert pipeline.replies is not None
    pipeline.replies.set_result([b"1"])
    await look
    rows = [command[3] for command in pipeline.sent if command[0] == "ZINCRBY"]
    assert len(rows) == MAX_KEPT
    assert pipeline.size > sum(map(len, rows))
