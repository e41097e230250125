"""Purges during the chaos test, and checks which answers may not be used after them."""

import asyncio
from random import Random
from typing import Any, Final, NamedTuple

import httpx

from tests.chaos.generation_store import LoggedGeneration
from tests.chaos.testbed import Testbed
from tests.chaos.workload import (
    ADMIN_KEY,
    CACHE_DIRECTIVES,
    TENANTS,
    ClientRequest,
    RequestOrigin,
    WorkloadQuestion,
    expected_key,
)

PURGE_DELAY: Final = 1.5
"""Seconds after which a purge is known everywhere; a process' local copy may be up to one second old."""

_REUSED: Final = ("HIT", "STALE", "COALESCED")
_PURGE_TIMEOUT: Final = 60.0  # seconds, longer than any outage of a router


class CompletedPurge(NamedTuple):
    """A purge that a router confirmed.

    `scope`: as it was sent; `since`, `ended`: when it was sent and confirmed, by the event loop's clock.
    """

    scope: dict[str, Any]
    since: float
    ended: float

    def matches(self, origin: RequestOrigin) -> bool:
        attributes: dict[str, object] = {
            "all": True,
            "tenant": origin.tenant,
            "model": origin.question.model,
            "key": expected_key(origin.tenant, origin.question).text,
        }
        return all(attributes[name] == value for name, value in self.scope.items())

    def covers(self, generation: LoggedGeneration) -> bool:
        """Whether it matches an answer whose generation began before the purge was sent."""
        return generation.at < self.since and self.matches(generation.origin)


class Purger:
    """Purges repeatedly, and knows which answers remain valid. `last_origin`: the last request of a client."""

    def __init__(self, testbed: Testbed, seed: int) -> None:
        self.completed = 0
        self.last_origin = RequestOrigin(next(iter(TENANTS)), WorkloadQuestion(1), CACHE_DIRECTIVES["none"], 0)
        self._testbed = testbed
        self._rng = Random(f"{seed}:purges")
        self._purges: list[CompletedPurge] = []

    async def run_until(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.sleep(self._rng.uniform(0.1, 1.0))
            await self.purge(self._scope(), self._rng.randrange(len(self._testbed.routers)))

    def _scope(self) -> dict[str, Any]:
        """Mostly the key of the last request, so that it is still in flight."""
        tenant, question = self.last_origin.tenant, self.last_origin.question
        scopes: list[tuple[dict[str, Any], int]] = [
            ({"key": expected_key(tenant, question).text}, 8),
            ({"tenant": tenant, "model": question.model}, 2),
            ({"tenant": tenant}, 2),
            ({"model": question.model}, 1),
            ({"all": True}, 1),
        ]
        (scope,) = self._rng.choices([scope for scope, _ in scopes], [weight for _, weight in scopes])
        return scope

    async def purge(self, scope: dict[str, Any], router: int) -> None:
        since = asyncio.get_running_loop().time()
        defects, outages = self._testbed.defects, self._testbed.outages[router]
        try:
            async with self._testbed.client(router) as http, asyncio.timeout(_PURGE_TIMEOUT):
                headers = {"authorization": f"Bearer {ADMIN_KEY}"}
                response = await http.post("/admin/cache/purge", json=scope, headers=headers, timeout=None)
        except httpx.TransportError as error:
            if outages.duration_since(since, "killed", "stopped") is None:
                defects.append(f"the purge of {scope}: {error!r}, and router {router} was there")
        except TimeoutError:
            defects.append(f"the purge of {scope} has not ended after {_PURGE_TIMEOUT} s")
        else:
            if response.status_code == 200:
                self.completed += 1
                if response.json()["recorded"]:  # else Redis is full, and promises nothing for generations in progress
                    self._purges.append(CompletedPurge(scope, since, asyncio.get_running_loop().time()))
            elif response.status_code != 503:  # 503: Redis is unavailable
                defects.append(f"the purge of {scope} was answered with {response.status_code}: {response.text}")

    def _durable_purges(self) -> list[CompletedPurge]:
        # Routers may never learn of the others.
        lost = self._testbed.redis.may_have_lost
        return [purge for purge in self._purges if not lost(purge.since, purge.ended)]

    def check_answer(
        self, request: ClientRequest, generation: LoggedGeneration, cache: str | None, since: float
    ) -> list[str]:
        """What is wrong with the answer to a request that began at `since`, by the event loop's clock."""
        # A router that was unavailable may not know the purge yet.
        if (
            cache not in _REUSED
            or self._testbed.outages[request.router].duration_since(since - PURGE_DELAY) is not None
        ):
            return []
        return [
            f"{cache} gave {generation.name}, started {purge.since - generation.at:.2f} s before a purge "
            f"that was done {since - purge.ended:.2f} s before the request, of {purge.scope}"
            for purge in self._durable_purges()
            if purge.ended + PURGE_DELAY <= since and purge.covers(generation)
        ][-1:]

    def check_entry(self, generation: LoggedGeneration) -> list[str]:
        return [f"it was purged, with {purge.scope}" for purge in self._durable_purges() if purge.covers(generation)]
