"""Tenants' rate limits, counted in Redis for all routers; TenantLimits also applies budgets (see quota.budgets).

    rh:1:limit:{tenant}    the tenant's recent usage, as JSON

Theory of operation. One script checks and counts a request atomically, by Redis' own clock; the rules are in
router.core.quota.rate_limit. So no more requests are admitted than the limits allow, however many arrive at once at
however many routers. A request costs one command before it is admitted. Its end and its tokens, where the tenant has
such limits, are sent when it ends, and their replies are not awaited.

A process reports its number of running requests with a lease, and again before the lease expires. Each reply has the
number that Redis counts for the process. If it differs from what the process knows, the process sends the difference:
Redis may have missed the end of a request, may have counted one whose reply was lost, or may have been emptied.
Commands without a reply yet are taken into account, so this is exact at any load.

While Redis is down, each process counts its own requests, with the full limits.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from router.core.cache.redis_keys import limit_key
from router.core.quota.budget import Budget, BudgetUse, budget_error
from router.core.quota.rate_limit import RESERVE, Quota, RateLimitStatus, TenantUsage, UsageUpdate, rate_limit_error
from router.errors import ApiError
from router.net.redis.pipeline import RedisDownError, RedisPipeline, Replies
from router.net.repeated_warning import RepeatedWarning
from router.settings import Settings
from router.shared.quota.budgets import BudgetCounter
from router.shared.quota.rate_limit_script import RUNNING_LEASE_MS, decode_status, update_command

log = logging.getLogger("roundhouse.limits")

_REPORT_INTERVAL: Final = RUNNING_LEASE_MS / 3000  # seconds: a third of the lease, so that one report may fail
_UNLIMITED: Final = RateLimitStatus()


def tenant_quotas(settings: Settings) -> dict[str, Quota]:
    return {
        tenant.name: Quota(
            requests_per_minute=tenant.requests_per_minute,
            tokens_per_minute=tenant.tokens_per_minute,
            concurrent_requests=tenant.concurrent_requests,
        )
        for tenant in settings.tenant
    }


def tenant_budgets(settings: Settings) -> dict[str, Budget]:
    return {
        tenant.name: Budget(
            tokens_per_day=tenant.tokens_per_day,
            tokens_per_month=tenant.tokens_per_month,
            gpu_seconds_per_day=tenant.gpu_seconds_per_day,
            gpu_seconds_per_month=tenant.gpu_seconds_per_month,
        )
        for tenant in settings.tenant
    }


class RequestLimits(Protocol):
    """The limits of all tenants for one kind of request; see TenantLimits."""

    def has_limits(self, tenant: str) -> bool: ...

    async def reserve(self, tenant: str) -> "Reservation": ...


class TenantLimits:
    """The limits of all tenants that have some: rates, and budgets (router.shared.quota.budgets).

    - No more requests are admitted than the limits allow, over all processes.
    - A tenant without limits costs nothing.
    - The running requests of a dead process are released after RUNNING_LEASE_MS, even if Redis' clock is set back
      meanwhile.
    - Without Redis, requests are admitted with the same limits in each process.
    - What is counted survives `configure`: of running requests, also if their tenant has no limits for some time.
    """

    def __init__(self) -> None:
        self._process_id = secrets.token_hex(6)
        self._tenants: dict[str, _TenantCounter] = {}
        self._budgets: dict[str, BudgetCounter] = {}
        self._all_tenants: dict[str, _TenantCounter] = {}  # with those that had limits and have none now
        self._all_budgets: dict[str, BudgetCounter] = {}

    def configure(
        self,
        pipeline: RedisPipeline,
        quotas: Mapping[str, Quota],
        budgets: Mapping[str, Budget] = MappingProxyType({}),
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """For the requests that come from now on; before, no tenant has limits.

        `clock`: seconds since the epoch, for budgets while Redis is down.
        """
        self._tenants, self._budgets = {}, {}
        for name, quota in quotas.items():
            if quota.is_limited:
                counter = self._all_tenants.setdefault(name, _TenantCounter(pipeline, name, quota, self._process_id))
                counter.configure(pipeline, quota)
                self._tenants[name] = counter
        for name, budget in budgets.items():
            if budget.is_limited:
                use = self._all_budgets.setdefault(name, BudgetCounter(pipeline, name, budget, clock))
                use.configure(pipeline, budget, clock)
                self._budgets[name] = use

    def has_limits(self, tenant: str) -> bool:
        return tenant in self._tenants or tenant in self._budgets

    async def reserve_read(self, tenant: str) -> "Reservation":
        """As `reserve`, for a request that no engine works for: of the limits, `requests_per_minute` alone holds."""
        counter = self._tenants.get(tenant)
        if counter is None:
            return Reservation(None, _UNLIMITED)
        reservation = await counter.reserve(counter.quota.without_concurrency(), needs_tokens=False)
        reservation.release()
        return reservation

    async def reserve(self, tenant: str) -> "Reservation":
        """Asks for the admission of a request. The tenant must have limits."""
        return await self._reserve(tenant, _TenantCounter.reserve_one)

    async def reserve_spare(self, tenant: str) -> "Reservation":
        """As `reserve`, for a request that nobody waits for: it leaves a share of each limit and budget to others."""
        return await self._reserve(tenant, _TenantCounter.reserve_spare, RESERVE)

    async def _reserve(
        self, tenant: str, reserve: "Callable[[_TenantCounter], Awaitable[Reservation]]", of_budget: float = 0.0
    ) -> "Reservation":
        """`of_budget`: the share of each budget that is left to others."""
        counter, budget = self._tenants.get(tenant), self._budgets.get(tenant)
        # Both commands are sent before either reply is awaited.
        reading = budget.read() if budget is not None else None
        reservation = await reserve(counter) if counter is not None else Reservation(None, _UNLIMITED)
        if budget is not None and reading is not None:
            try:
                reservation.over_budget = budget_error(budget.budget, await reading, of_budget)
            except BaseException:
                reservation.release()
                raise
        return reservation

    async def budget_use(self, tenant: str) -> tuple[Budget, BudgetUse] | None:
        """What the tenant has used of its budgets; None if it has none."""
        counter = self._budgets.get(tenant)
        return (counter.budget, await counter.read()) if counter is not None else None

    def spend(self, tenant: str, tokens: int, gpu_seconds: float) -> None:
        """What a generation has used that has ended."""
        self.subtract_tokens(tenant, tokens)
        budget = self._budgets.get(tenant)
        if budget is not None:
            budget.spend(tokens, gpu_seconds)

    def subtract_tokens(self, tenant: str, tokens: int) -> None:
        counter = self._tenants.get(tenant)
        if counter is not None:
            counter.subtract_tokens(tokens)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_INTERVAL)
            for tenant in self._all_tenants.values():
                tenant.report()
            for budget in self._all_budgets.values():
                budget.flush()


class ReadLimits:
    """See TenantLimits.reserve_read."""

    def __init__(self, limits: TenantLimits) -> None:
        self._limits = limits

    def has_limits(self, tenant: str) -> bool:
        return self._limits.has_limits(tenant)

    async def reserve(self, tenant: str) -> "Reservation":
        return await self._limits.reserve_read(tenant)


class SpareLimits:
    """See TenantLimits.reserve_spare."""

    def __init__(self, limits: TenantLimits) -> None:
        self._limits = limits

    def has_limits(self, tenant: str) -> bool:
        return self._limits.has_limits(tenant)

    async def reserve(self, tenant: str) -> "Reservation":
        return await self._limits.reserve_spare(tenant)


class Reservation:
    """Whether a request is admitted. `release` is to be called when it ends, admitted or not."""

    __slots__ = ("_tenant", "over_budget", "quota", "status")

    def __init__(self, tenant: "_TenantCounter | None", status: RateLimitStatus) -> None:
        """`tenant`: None if it has no rate limits."""
        self.quota = tenant.quota if tenant is not None else Quota()
        self.status = status
        self.over_budget: ApiError | None = None
        self._tenant: _TenantCounter | None = tenant if status.exceeded is None else None

    def raise_if_exceeded(self) -> None:
        """Raises ApiError if the request is not admitted."""
        if self.over_budget is not None:
            raise self.over_budget
        if self.status.exceeded is not None:
            raise rate_limit_error(self.quota, self.status)

    def release(self) -> None:
        tenant, self._tenant = self._tenant, None
        if tenant is not None:
            tenant.release()


_OnStatus = Callable[[RateLimitStatus | None], object]


class _Unanswered:
    """The updates that were sent to one Redis and have no reply yet."""

    __slots__ = ("count", "released")

    def __init__(self) -> None:
        self.count = 0
        self.released = 0  # the running requests that they subtract


class _TenantCounter:
    """This process' part in the limits of one tenant."""

    def __init__(self, pipeline: RedisPipeline, name: str, quota: Quota, process_id: str) -> None:
        self.quota = quota
        self._pipeline = pipeline
        self._key = limit_key(name)
        self._process_id = process_id
        self._refusals = RepeatedWarning(log)
        self._local_usage = TenantUsage()
        self._running_requests = 0
        self._unanswered = _Unanswered()
        self._reported = True  # False: Redis' count may differ, and no reply that would correct it is pending

    def configure(self, pipeline: RedisPipeline, quota: Quota) -> None:
        if pipeline is self._pipeline and quota == self.quota:
            return
        if pipeline is not self._pipeline:
            self._unanswered = _Unanswered()
        self._pipeline, self.quota = pipeline, quota
        self._reported = False  # another Redis knows no running request; this one none that ended without the limit
        self.report()

    async def reserve_one(self) -> Reservation:
        return await self.reserve(self.quota)

    async def reserve_spare(self) -> Reservation:
        reservation = await self.reserve(self.quota.without_reserve())
        status = self.quota.refuse_reserved_tokens(reservation.status)
        if status is reservation.status:
            return reservation
        reservation.release()
        return Reservation(self, status)

    async def reserve(self, quota: Quota, *, needs_tokens: bool = True) -> Reservation:
        future: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        if not self._reported and not self._unanswered.count:
            self.report()  # first, so that this request is not refused for requests that do not run
        update = UsageUpdate(process=self._process_id, acquire=True, needs_tokens=needs_tokens)
        try:
            self._send(update, partial(self._on_reserve_reply, future, quota, update), quota)
        except RedisDownError:
            return self._reserve_locally(quota, update)
        try:
            return await future
        except asyncio.CancelledError:
            # Cancelled after the reply, before this task resumed: the reservation is released here. If the reply is yet
            # to come, the future is cancelled, and `_on_reserve_reply` releases the reservation.
            if future.done() and not future.cancelled():
                future.result().release()
            raise

    def _on_reserve_reply(
        self, future: "asyncio.Future[Reservation]", quota: Quota, update: UsageUpdate, status: RateLimitStatus | None
    ) -> None:
        if status is None:
            reservation = self._reserve_locally(quota, update)
        else:
            self._running_requests += status.exceeded is None
            reservation = Reservation(self, status)
        if future.done():  # the caller was cancelled before the reply
            reservation.release()
        else:
            future.set_result(reservation)

    def _reserve_locally(self, quota: Quota, update: UsageUpdate) -> Reservation:
        status = self._update_locally(msgspec.structs.replace(update, running=self._running_requests), quota)
        self._running_requests += status.exceeded is None
        return Reservation(self, status)

    def subtract_tokens(self, tokens: int) -> None:
        if self.quota.tokens_per_minute is None or tokens <= 0:
            return
        update = UsageUpdate(process=self._process_id, tokens_used=tokens)
        try:
            self._send(update)
        except RedisDownError:
            self._update_locally(update)

    def release(self) -> None:
        self._running_requests -= 1
        if self.quota.concurrent_requests is not None:
            self._send_report(released=1)

    def report(self) -> None:
        """Reports the number of running requests, and so renews its lease."""
        if self.quota.concurrent_requests is None or (self._reported and not self._running_requests):
            return
        # With an unanswered command, it is not known what Redis counts: the update only renews the lease, and a reply
        # corrects the number.
        self._send_report(running=None if self._unanswered.count else self._running_requests)

    def _send_report(self, *, released: int = 0, running: int | None = None) -> None:
        try:
            self._send(UsageUpdate(process=self._process_id, released=released, running=running))
        except RedisDownError:
            self._reported = False

    # -- Redis, and its local replacement ---------------------------------------------------------------------------

    def _send(self, update: UsageUpdate, on_status: _OnStatus | None = None, quota: Quota | None = None) -> None:
        """`on_status` is called with None if Redis did not count; the update may have been applied nevertheless."""
        unanswered = self._unanswered
        on_reply = partial(self._on_reply, unanswered, update.released, on_status)
        self._pipeline.send(update_command(self._key, quota or self.quota, update), on_reply=on_reply)
        unanswered.count += 1
        unanswered.released += update.released

    def _on_reply(
        self, unanswered: _Unanswered, released: int, on_status: _OnStatus | None, replies: Replies | None
    ) -> None:
        status = self._decode_reply(replies)  # before all else: if it raises, this is called again, with None
        unanswered.count -= 1
        unanswered.released -= released
        if on_status is not None:
            on_status(status)
        if unanswered is not self._unanswered:  # the reply is from the Redis before
            return
        self._reported = status is not None
        if status is not None and self.quota.concurrent_requests is not None:
            excess = status.running - unanswered.released - self._running_requests
            if excess:
                self._send_report(released=excess)

    def _update_locally(self, update: UsageUpdate, quota: Quota | None = None) -> RateLimitStatus:
        now = int(asyncio.get_running_loop().time() * 1000)
        return self._local_usage.apply(quota or self.quota, update, now, RUNNING_LEASE_MS)

    def _decode_reply(self, replies: Replies | None) -> RateLimitStatus | None:
        """None if there is none. Raises UnexpectedReplyError."""
        if replies is None:
            return None
        (reply,) = replies
        if isinstance(reply, Exception):
            self._refusals.log("cannot update a rate limit in Redis: %s", reply)
            return None
        return self._pipeline.decode(decode_status, reply)
