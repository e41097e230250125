"""Publishes in Redis what this process did, and, while someone watches, what it sees."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from router.flow.replicas.latest_requests import LatestRequests
from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.shared.status import latest_requests, router_snapshots, traffic
from router.shared.status.router_snapshots import RouterSnapshot

log = logging.getLogger("roundhouse.admin")

INTERVAL: Final = 1.0
"""Seconds between two looks whether someone watches, and between two snapshots while someone does."""

# Looks between two additions to the traffic. Who watches is to see a flood within seconds.
_TRAFFIC_INTERVAL: Final = 10
_WATCHED_TRAFFIC_INTERVAL: Final = 3


class PendingTraffic:
    """The traffic of this process that is not in Redis yet, by minute.

    - While Redis is down, it is kept for MAX_MINUTES.
    - It may be lost if Redis goes down while it is sent; it is never added twice.
    """

    def __init__(self, take_counts: Callable[[], Mapping[str, int]]) -> None:
        self._take_counts = take_counts
        self._minutes: dict[int, dict[str, int]] = {}

    def collect(self, minute: int) -> None:
        for name, count in self._take_counts().items():
            counts = self._minutes.setdefault(minute, {})
            counts[name] = counts.get(name, 0) + count
        for old in [each for each in self._minutes if each <= minute - traffic.MAX_MINUTES]:
            del self._minutes[old]

    def send(self, pipeline: RedisPipeline) -> None:
        """Raises RedisDownError, and then keeps everything."""
        commands = [
            command for minute in self._minutes for command in traffic.add_commands(minute, self._minutes[minute])
        ]
        if commands:
            pipeline.send(*commands)
            self._minutes.clear()


class StatusPublisher:
    """`run` publishes every second at most; `flush` sends the rest of the traffic when the process ends.

    - Nobody watches: one command a second, and the traffic every 10 seconds.
    - Someone watches: a snapshot and the requests that have ended since the last one, every second; at first, the last
      requests before. The traffic every 3 seconds.
    """

    def __init__(
        self,
        *,
        pipeline: RedisPipeline,
        clock: Callable[[], float],
        take_snapshot: Callable[[], RouterSnapshot],
        pending_traffic: PendingTraffic,
        requests: LatestRequests,
    ) -> None:
        """`clock`: seconds since the epoch by Redis' clock."""
        self._pipeline = pipeline
        self._clock = clock
        self._take_snapshot = take_snapshot
        self._pending_traffic = pending_traffic
        self._requests = requests
        self._looks = 0
        self._withdrawn = False
        self._was_watched = False

    async def run(self) -> None:
        while True:
            try:
                await self.publish()
            except RedisDownError:
                log.debug("Redis is down: the status of this process is not published")
            except Exception:
                # The last line of defence: a defect in the status must not end it for good.
                log.exception("the status of this process cannot be published")
            await asyncio.sleep(INTERVAL)

    async def publish(self) -> None:
        """One look, and what follows from it; nothing more after `withdraw`. Raises RedisDownError."""
        # At the first look, too: the configuration may be replaced before the second.
        is_traffic_due = self._looks % (_WATCHED_TRAFFIC_INTERVAL if self._was_watched else _TRAFFIC_INTERVAL) == 0
        self._looks += 1
        if is_traffic_due:
            self.flush()
        (watched,) = await self._pipeline.execute(router_snapshots.is_watched_command())
        if self._withdrawn:  # meanwhile: what is published now would outlive the process
            return
        if not isinstance(watched, bytes):
            self._was_watched = False
            return
        commands: list[Command] = router_snapshots.publish_commands(self._take_snapshot())
        # What Redis had may be gone when a watch begins.
        everything, self._was_watched = not self._was_watched, True
        taken = self._requests.take(self._clock(), everything=everything)
        commands += latest_requests.add_commands(*taken, again=everything)
        # The first requests can be hundreds of kilobytes, for which Redis has more time than for a small command.
        size = sum(len(word) for command in commands for word in command if isinstance(word, bytes))
        self._pipeline.send(*commands, size=size)

    def flush(self) -> None:
        """Counts the traffic until now and sends it. Raises RedisDownError."""
        self._pending_traffic.collect(traffic.minute_of(self._clock()))
        self._pending_traffic.send(self._pipeline)

    def withdraw(self) -> None:
        """The process ends: sends the rest, and vanishes from the status at once."""
        self._withdrawn = True
        try:
            self.flush()
            self._pipeline.send(router_snapshots.withdraw_command(self._take_snapshot().router.id))
        except RedisDownError:
            log.debug("Redis is down: the last traffic of this process is lost")
