"""The running requests that Redis counts for a process are right again after lost replies, under constant load too."""

import asyncio
from collections import deque
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.quota.rate_limit import Quota, RateLimitStatus, TenantUsage, UsageUpdate
from router.net.redis.commands import Command
from router.net.redis.pipeline import OnReply, RedisDownError, RedisPipeline
from router.shared.quota.rate_limit_script import RUNNING_LEASE_MS
from router.shared.quota.rate_limits import Reservation, TenantLimits

LIMIT = 5
KINDS = {None: 0, "concurrent requests": 3}


class FlappingRedis:
    """A Redis, and the pipeline of one process to it: replies are lost, and commands are executed after the loss."""

    def __init__(self) -> None:
        self.up = True
        self._usage = TenantUsage()
        self._replies = 0
        self.releases: set[int] = set()  # how many requests ended, of all updates
        self._sent: deque[tuple[Command, OnReply]] = deque()
        self._delayed: list[Command] = []  # of connections that were lost

    def send(self, command: Command, *, on_reply: OnReply) -> None:
        if not self.up:
            raise RedisDownError
        self._sent.append((command, on_reply))

    @staticmethod
    def decode(decode: Any, reply: Any) -> Any:
        return decode(reply)

    def reply_to_one(self) -> None:
        self._replies += 1
        assert self._replies < 1000, "the process sends corrections without end"
        if self._sent:
            command, on_reply = self._sent.popleft()
            status = self._execute(command)
            on_reply([[KINDS[status.exceeded], status.retry_after_ms, 0, 0, 0, 0, status.running]])

    def reply_to_all(self) -> None:
        while self._sent:
            self.reply_to_one()

    def lose_replies(self, executed: int) -> None:
        """`executed`: how many commands Redis executes at once; it gets the others later."""
        self.up = False
        lost, self._sent = self._sent, deque()
        for number, (command, on_reply) in enumerate(lost):
            if number < executed:
                self._execute(command)
            else:
                self._delayed.append(command)
            on_reply(None)

    def execute_delayed(self) -> None:
        while self._delayed:
            self._execute(self._delayed.pop(0))

    def _execute(self, command: Command) -> RateLimitStatus:
        process, acquire, released, running, tokens_used = command[4:9]
        self.releases.add(int(released))
        update = UsageUpdate(
            process=str(process),
            acquire=bool(acquire),
            released=int(released),
            running=None if running == "" else int(running),
            tokens_used=int(tokens_used),
        )
        return self._usage.apply(Quota(concurrent_requests=LIMIT), update, 0, RUNNING_LEASE_MS)

    def free_slots(self) -> int:
        """How many requests another process may have."""
        request, release = (UsageUpdate(process="another", acquire=True), UsageUpdate(process="another", running=0))
        quota = Quota(concurrent_requests=LIMIT)
        statuses = [self._usage.apply(quota, request, 0, RUNNING_LEASE_MS) for _ in range(LIMIT)]
        self._usage.apply(quota, release, 0, RUNNING_LEASE_MS)
        return sum(status.exceeded is None for status in statuses)


class Process:
    """A process whose requests of one tenant wait for Redis, run and end."""

    def __init__(self, redis: FlappingRedis) -> None:
        self.redis = redis
        self.limits = TenantLimits()
        self.limits.configure(cast(RedisPipeline, redis), {"acme": Quota(concurrent_requests=LIMIT)})
        self.waiting: list[asyncio.Task[Reservation]] = []
        self.held: list[Reservation] = []

    async def request(self) -> None:
        self.waiting.append(asyncio.create_task(self.limits.reserve("acme")))
        await self.settle()

    async def settle(self) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in [task for task in self.waiting if task.done()]:
            self.waiting.remove(task)
            if not task.cancelled():
                self.held.append(task.result())

    async def handle(self, event: Any) -> None:
        match event:
            case "request":
                await self.request()
            case "end" if self.held:
                self.held.pop(0).release()
            case "reply":
                self.redis.reply_to_one()
            case "up":
                self.redis.up = True
            case "delayed":
                self.redis.execute_delayed()
            case "report":
                self.limits._all_tenants["acme"].report()
            case "cancel" if self.waiting:
                self.waiting[-1].cancel()
            case ("lose", executed):
                self.redis.lose_replies(executed)
        await self.settle()

    async def reply_to_all(self) -> None:
        self.redis.reply_to_all()
        await self.settle()

    @property
    def running(self) -> int:
        return sum(reservation.status.exceeded is None for reservation in self.held)


EVENTS = st.sampled_from(("request", "end", "reply", "report", "cancel"))
LOSSES = st.sampled_from(("up", "delayed")) | st.tuples(st.just("lose"), st.integers(0, 3))


@given(events=st.lists(EVENTS | LOSSES, max_size=40))
@pytest.mark.asyncio(loop_scope="session")
async def test_after_lost_replies_the_running_requests_are_counted_while_others_wait(
    events: list[Any],
) -> None:
    redis = FlappingRedis()
    process = Process(redis)
    for event in [*events, "up", "delayed"]:
        await process.handle(event)
    for _ in range(3):  # a request waits for its reply at any time
        await process.request()
        while len(process.waiting) > 1:
            await process.handle("reply")
    await process.reply_to_all()
    assert redis.free_slots() == max(0, LIMIT - process.running)


@given(events=st.lists(EVENTS, max_size=40))
@pytest.mark.asyncio(loop_scope="session")
async def test_without_lost_replies_nothing_is_corrected(events: list[Any]) -> None:
    redis = FlappingRedis()
    process = Process(redis)
    for event in events:
        await process.handle(event)
    await process.reply_to_all()
    assert redis.free_slots() == LIMIT - process.running
    assert redis.releases <= {0, 1}


@pytest.mark.asyncio(loop_scope="session")
async def test_the_first_request_after_an_outage_is_not_refused_for_requests_that_ended_in_it() -> None:
    redis = FlappingRedis()
    process = Process(redis)
    for _ in range(LIMIT):
        await process.request()
    await process.reply_to_all()
    for reservation in process.held:
        reservation.release()
    redis.lose_replies(0)
    redis.up = True
    await process.request()
    await process.reply_to_all()
    assert process.held[-1].status.exceeded is None
