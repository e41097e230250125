"""Cancels the in-flight requests that nobody uses any more.

Theory of operation. An in-flight request without subscribers gets a deadline. It may have followers in other processes,
which say so once per interval. When the deadline comes, the last such message may have extended it.
"""

import asyncio
from math import inf
from typing import Final

from router.flow.sharing.generation_rules import AbandonRules
from router.flow.sharing.inflight import InFlightRequest
from router.settings import Settings
from router.shared.inflight.claim import LEASE_DURATION
from router.shared.inflight.stream_reader import FOLLOW_INTERVAL

_FOLLOWER_TIMEOUT: Final = FOLLOW_INTERVAL + LEASE_DURATION + 0.5
"""Seconds without a message after which a follower counts as gone. A follower sends one message per interval, but while
Redis does not answer it, it waits up to a lease and can send nothing. The half second is slack."""


def abandon_limits(settings: Settings) -> dict[str, int]:
    """By tenant, how many in-flight requests may continue without subscribers: as many as it may have with them."""
    return {tenant.name: limit for tenant in settings.tenant if (limit := tenant.concurrent_requests) is not None}


class Abandonment:
    """Decides how long an in-flight request without subscribers continues.

    - It is cancelled after `timeout` seconds, in which its client may come back; at once if no other request can join
      it, or no engine has it yet.
    - With `on_abandon` = "finish", one that will be stored is not cancelled once an engine has it.
    - It is not cancelled while other processes follow it.
    - A tenant has at most its `limits` of them; beyond that, the oldest are cancelled.

    Timeout, `on_abandon` and `limits` are those of the request's AbandonRules.
    """

    def __init__(self) -> None:
        self._timers: dict[InFlightRequest, asyncio.TimerHandle] = {}
        self._followed_at: dict[str, float] = {}  # when a follower's last message came, by the in-flight request's id
        self._synced = False
        self._synced_since = -inf

    @property
    def has_followers(self) -> bool:
        return bool(self._followed_at)

    def on_no_subscribers(self, inflight: InFlightRequest, rules: AbandonRules, *, stores_response: bool) -> None:
        dispatched = inflight.dispatched_at is not None  # before the dispatch, a generation has cost nothing
        if inflight.is_leader and dispatched and stores_response and rules.on_abandon == "finish":
            return
        now = asyncio.get_running_loop().time()
        # The timeout gives a client whose connection broke time to come back; it has to join, so only if joinable.
        deadline = now + rules.timeout if inflight.joinable and dispatched else now
        followed_until = self._followed_until(inflight, rules.timeout, now)
        self._cancel_at(inflight, max(deadline, followed_until), rules.timeout, now)
        self._cancel_excess(inflight.origin.tenant, rules, now)

    def on_follower(self, inflight: InFlightRequest) -> None:
        """A follower in another process has said that it reads this one."""
        self._followed_at[inflight.id] = asyncio.get_running_loop().time()

    def on_synced(self) -> None:
        """Followers' messages arrive from now on."""
        self._synced, self._synced_since = True, asyncio.get_running_loop().time()

    def on_sync_lost(self) -> None:
        """Followers' messages may get lost from now on."""
        self._synced = False

    def forget(self, inflight: InFlightRequest) -> None:
        """It has ended."""
        self._followed_at.pop(inflight.id, None)
        timer = self._timers.pop(inflight, None)
        if timer is not None:
            timer.cancel()

    def _cancel_excess(self, tenant: str, rules: AbandonRules, now: float) -> None:
        """Cancels the tenant's oldest abandoned generations beyond its limit.

        Otherwise a client that sends requests and disconnects in a loop would exceed its tenant's concurrency limit.
        """
        limit = rules.limits.get(tenant)
        if limit is None:
            return
        # `_timers` has them in the order in which they were abandoned.
        unused = [
            inflight
            for inflight in self._timers
            if inflight.origin.tenant == tenant
            and not inflight.subscribers
            and inflight.id not in self._followed_at
        ]  # fmt: skip
        for inflight in unused[: max(0, len(unused) - limit)]:
            self._cancel_at(inflight, now, rules.timeout, now)

    def _followed_until(self, inflight: InFlightRequest, timeout: float, now: float) -> float:
        """The loop time until which other processes may follow it, as far as this process knows; -inf if none does."""
        followed_at = self._followed_at.get(inflight.id)
        if followed_at is None:
            return -inf
        # Followers' messages that come while this process does not listen are lost. So silence counts from the moment
        # at which it listens again, and not at all until then.
        last = max(followed_at, self._synced_since) if self._synced else now
        return last + max(_FOLLOWER_TIMEOUT, timeout if inflight.joinable else 0.0)

    def _cancel_at(self, inflight: InFlightRequest, deadline: float, timeout: float, now: float) -> None:
        timer = self._timers.pop(inflight, None)
        if timer is not None:
            timer.cancel()
        if deadline <= now:
            _cancel(inflight)
        else:
            loop = asyncio.get_running_loop()
            self._timers[inflight] = loop.call_at(deadline, self._cancel_if_unused, inflight, timeout)

    def _cancel_if_unused(self, inflight: InFlightRequest, timeout: float) -> None:
        del self._timers[inflight]
        if not inflight.subscribers:  # followers may have sent messages meanwhile, which extend the deadline
            now = asyncio.get_running_loop().time()
            self._cancel_at(inflight, self._followed_until(inflight, timeout, now), timeout, now)


def _cancel(inflight: InFlightRequest) -> None:
    assert inflight.task is not None
    inflight.stop_joining()  # first: the task ends only later, and a new request must not join it meanwhile
    inflight.task.cancel()
