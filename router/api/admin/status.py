"""The status of all routers, engines and Redis: /admin/status, /admin/history and /admin/requests."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from starlette.requests import Request

from router.api.admin.batches import BatchReader
from router.api.admin.query import query_count, query_flag
from router.errors import NOT_FOUND, ApiError, bad_request, unavailable
from router.net.redis.commands import Command
from router.net.redis.errors import RedisBackendError
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.net.redis.url import parse_redis_url
from router.shared.connection.redis_writes import RedisWrites
from router.shared.status import latest_requests, router_snapshots, traffic
from router.shared.status.latest_requests import RequestFilter
from router.shared.status.problems import WINDOW, DeploymentFacts, RedisFacts, find_problems
from router.shared.status.request_explanation import explain
from router.shared.status.router_snapshots import RouterSnapshot
from router.shared.status.status_documents import (
    ExplainedRequestsDocument,
    GpuRow,
    HistoryDocument,
    RedisRow,
    RequestRow,
    RequestsDocument,
    StatusDocument,
)
from router.store.admin.scan import RedisClient, execute_commands, read_server_info

HOUR: Final = 60
"""Minutes in `last_hour`, and in the history unless the request names another number."""

SHOWN_REQUESTS: Final = 200
"""Requests that the dashboard gets, and the most that a request for them can name."""

_DEFAULT_REQUESTS: Final = 50
# Seconds after which every process has seen that someone watches, and has published: it looks once a second.
_FIRST_SNAPSHOTS: Final = 1.2


class StatusReader:
    """Reads what the routers have published in Redis; the own process needs no Redis to be in the status.

    - While Redis is down, `status` and `latest_requests` show this process alone; `history` raises RedisBackendError.
    - Whoever reads the status or the requests watches: all processes publish theirs for LIFETIME seconds.
    """

    def __init__(
        self,
        *,
        redis: RedisClient,
        pipeline: RedisPipeline,
        redis_writes: RedisWrites,
        redis_url: str,
        clock: Callable[[], float],
        take_snapshot: Callable[[], RouterSnapshot],
        own_requests: Callable[[float], Sequence[RequestRow]],
        refuses_all: Callable[[], str | None],
        read_gpus: Callable[[], Awaitable[tuple[GpuRow, ...]]],
    ) -> None:
        """`clock`: seconds since the epoch by Redis' clock. `own_requests`: those of this process, the newest first.

        `refuses_all`: why every request is refused.
        """
        self._redis = redis
        self._pipeline = pipeline
        self._redis_writes = redis_writes
        self._address = parse_redis_url(redis_url)
        self._clock = clock
        self._take_snapshot = take_snapshot
        self._own_requests = own_requests
        self._refuses_all = refuses_all
        self._read_gpus = read_gpus

    async def status(self, *, complete: bool = False) -> StatusDocument:
        """`complete`: if nobody has watched, waits until all processes have published."""
        own, now = self._take_snapshot(), self._clock()
        try:
            if await self._mark_watched() and complete:
                await asyncio.sleep(_FIRST_SNAPSHOTS)
                own, now = self._take_snapshot(), self._clock()
            others, minutes = await self._read_others(own, now), await self._read_last_hour(now)
            redis = await self._redis_row()
        except RedisBackendError:
            others, minutes = [], []
            redis = RedisRow(up=False, url=self._address.public_url, since=self._redis_writes.since)
        snapshots = [own, *others]
        engines = router_snapshots.merge_engines(snapshots)
        models = router_snapshots.merge_models(snapshots, engines)
        facts = DeploymentFacts(
            now=time.time(),  # as the times since when something is wrong
            engines=engines,
            models=models,
            redis=RedisFacts(
                state="down" if not redis.up else redis.refuses_writes or "up",
                since=redis.since,
                is_replica=self._redis_writes.reaches_replica,
            ),
            traffic=traffic.recent_traffic(minutes[-WINDOW:]),
            refuses_all=self._refuses_all(),
        )
        return StatusDocument(
            now=round(now, 3),
            routers=router_snapshots.router_rows(snapshots, now),
            engines=engines,
            models=models,
            redis=redis,
            last_hour=traffic.last_hour(minutes) if minutes else None,
            problems=find_problems(facts),
            gpus=await self._read_gpus(),
            router_now=round(facts.now, 3),
        )

    async def history(self, minutes: int) -> HistoryDocument:
        """Raises RedisBackendError."""
        wanted = self._latest_minutes(minutes, self._clock())
        replies = await self._execute(traffic.read_commands(wanted))
        rows = (
            traffic.minute_row(minute, self._pipeline.decode(traffic.decode_counts, reply))
            for minute, reply in zip(wanted, replies, strict=True)
        )
        return HistoryDocument(minutes=tuple(rows))

    async def latest_requests(
        self, limit: int, shown: RequestFilter = latest_requests.ALL, *, complete: bool = False
    ) -> RequestsDocument:
        """`complete`: those of other processes, too, that have ended within the last second or before anyone watched.

        That takes a second if nobody has watched, or to find one by its id.
        """
        try:
            is_first = await self._mark_watched()
            if is_first and complete:
                await asyncio.sleep(_FIRST_SNAPSHOTS)
            rows = await self._read_requests(limit, shown)
            takes_writes = self._redis_writes.refusal is None
            if complete or not takes_writes:
                rows = latest_requests.merge(rows, self._own_requests(self._clock()), shown)
                if complete and not rows and shown.request_id is not None and not is_first:
                    await asyncio.sleep(_FIRST_SNAPSHOTS)
                    rows = await self._read_requests(limit, shown)
        except RedisBackendError:
            rows = latest_requests.merge([], self._own_requests(self._clock()), shown)
            return RequestsDocument(requests=tuple(rows[:limit]), all_routers=False)
        return RequestsDocument(requests=tuple(rows[:limit]), all_routers=takes_writes)

    async def _read_requests(self, limit: int, shown: RequestFilter) -> list[RequestRow]:
        # The dashboard asks every second, for the newest only.
        count = limit if shown == latest_requests.ALL else latest_requests.MAX_REQUESTS
        replies = await self._execute(latest_requests.read_commands(count))
        return self._pipeline.decode(partial(latest_requests.decode_requests, shown=shown, limit=limit), replies)

    async def _mark_watched(self) -> bool:
        """Whether nobody has watched until now. Raises RedisBackendError."""
        (watched,) = await self._execute([router_snapshots.is_watched_command()])
        self._send(router_snapshots.watch_command())
        return watched is None

    async def _read_others(self, own: RouterSnapshot, now: float) -> list[RouterSnapshot]:
        (reply,) = await self._execute([router_snapshots.read_command()])
        snapshots = self._pipeline.decode(router_snapshots.decode_snapshots, reply)
        for command in router_snapshots.prune_commands(snapshots, now):
            self._send(command)
        live = router_snapshots.live_snapshots(snapshots, now)
        return [each for each in live if each.router.id != own.router.id]

    async def _read_last_hour(self, now: float) -> list[traffic.TrafficCounts]:
        replies = await self._execute(traffic.read_commands(self._latest_minutes(HOUR, now)))
        return [self._pipeline.decode(traffic.decode_counts, reply) for reply in replies]

    def _latest_minutes(self, count: int, now: float) -> range:
        last = traffic.minute_of(now)
        return range(last - count + 1, last + 1)

    async def _redis_row(self) -> RedisRow:
        try:
            infos = await read_server_info(self._redis)
        except RedisBackendError:  # without the permission for INFO, it is still up
            return RedisRow(
                up=self._pipeline.up, url=self._address.public_url, refuses_writes=self._redis_writes.refusal,
                since=self._redis_writes.since,
            )  # fmt: skip
        keys = f"db{self._address.db}"
        return RedisRow(
            up=True,
            refuses_writes=self._redis_writes.refusal,
            since=self._redis_writes.since,
            url=self._address.public_url,
            version=next((info.get("redis_version") for info in infos), None),
            used_memory=_sum_of([info.get("used_memory") for info in infos]),
            maxmemory=_sum_of([info.get("maxmemory") or None for info in infos]),
            # A database without keys is not in the reply.
            keys=sum(info.get(keys, {}).get("keys", 0) for info in infos),
        )

    def _send(self, command: Command) -> None:
        """Writes, if Redis lets it: one that is full, or cannot save, refuses this and can still be read."""
        with contextlib.suppress(RedisDownError):  # the next read raises
            self._pipeline.send(command)

    async def _execute(self, commands: list[Command]) -> list[Any]:
        if not self._pipeline.up:
            raise RedisBackendError("it is down")  # known without waiting for its timeout
        return await execute_commands(self._redis, commands)


def _sum_of(values: list[int | None]) -> int | None:
    """None if one is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


class StatusAdmin:
    """The handlers; AdminRoutes authenticates their requests."""

    def __init__(self, reader: StatusReader, batches: BatchReader) -> None:
        self._reader = reader
        self._batches = batches

    async def status(self, _: Request) -> Any:
        return await self._reader.status(complete=True)

    async def batches(self, _: Request) -> Any:
        return await self._batches.read()

    async def history(self, request: Request) -> Any:
        """The parameter `minutes`: how many, up to now."""
        return await self._reader.history(query_count(request, "minutes", default=HOUR, largest=traffic.MAX_MINUTES))

    async def requests(self, request: Request) -> Any:
        """The parameter `limit`: how many at most. The others: see RequestFilter.

        `words=1`: each with an explanation.
        """
        limit = query_count(request, "limit", default=_DEFAULT_REQUESTS, largest=SHOWN_REQUESTS)
        query = request.query_params
        shown = RequestFilter(
            request_id=query.get("id"), tenant=query.get("tenant"), model=query.get("model"),
            key_id=query.get("key"),
            failed=query_flag(request, "failed"),
            refused=query_flag(request, "refused") if "refused" in query else None,
            slow=query_flag(request, "slow"),
            hits=query_flag(request, "hits", default="1"),
        )  # fmt: skip
        with_words = query_flag(request, "words")
        found = await self._reader.latest_requests(limit, shown, complete=True)
        if not with_words:
            return found
        rows = tuple(map(explain, found.requests))
        return ExplainedRequestsDocument(requests=rows, all_routers=found.all_routers)

    async def request_by_id(self, request: Request) -> RequestRow:
        """The parameter `id`. Raises ApiError: 404 if no router remembers the request."""
        request_id = request.query_params.get("id")
        if not request_id:
            raise bad_request("`id` must be the x-request-id of a request.", param="id", code="invalid_query")
        found = await self._reader.latest_requests(1, RequestFilter(request_id=request_id), complete=True)
        if not found.requests and not found.all_routers:
            raise unavailable(
                "Redis is down or takes no writes, and this process had no such request.", code="redis_down"
            )
        if not found.requests:
            raise ApiError(404, "No router remembers this request.", kind=NOT_FOUND, param="id", code="no_such_request")
        return found.requests[0]
