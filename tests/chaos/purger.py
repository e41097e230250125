"""Purges in the middle of the chaos, and what must not be given any more after each of them."""

import asyncio
from random import Random
from typing import Any, Final, NamedTuple

import httpx

from tests.chaos.generation_store import Generation
from tests.chaos.testbed import House
from tests.chaos.workload import ADMIN_KEY, TENANTS, WISHES, Asking, Origin, Question, expected_key

REACHES: Final = 1.5
"""Seconds after which a purge has reached all; a copy in a process may be up to one second old."""

_GIVEN_AGAIN: Final = ("HIT", "STALE", "COALESCED")
_PATIENCE: Final = 60.0  # seconds, more than a router is ever away


class Purge(NamedTuple):
    """One that a router said it had done.

    `scope`: as it was sent; `since`, `ended`: when it was sent and answered, by the event loop's clock.
    """

    scope: dict[str, Any]
    since: float
    ended: float

    def means(self, origin: Origin) -> bool:
        own: dict[str, object] = {
            "all": True,
            "tenant": origin.tenant,
            "model": origin.question.model,
            "key": expected_key(origin.tenant, origin.question).text,
        }
        return all(own[name] == value for name, value in self.scope.items())

    def covers(self, generation: Generation) -> bool:
        """Whether it means an answer, and was sent after its generation had begun."""
        return generation.at < self.since and self.means(generation.origin)


class Purger:
    """Purges now and then, and knows which answers that leaves. `asked_last`: what a client asked for last."""

    def __init__(self, house: House, seed: int) -> None:
        self.done = 0
        self.asked_last = Origin(next(iter(TENANTS)), Question(1), WISHES["none"], 0)
        self._house = house
        self._dice = Random(f"{seed}:purges")
        self._purges: list[Purge] = []

    async def purge_until(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.sleep(self._dice.uniform(0.1, 1.0))
            await self.purge(self._scope(), self._dice.randrange(len(self._house.routers)))

    def _scope(self) -> dict[str, Any]:
        """Mostly what was asked for just now, so that it is still in flight."""
        tenant, question = self.asked_last.tenant, self.asked_last.question
        scopes: list[tuple[dict[str, Any], int]] = [
            ({"key": expected_key(tenant, question).text}, 8),
            ({"tenant": tenant, "model": question.model}, 2),
            ({"tenant": tenant}, 2),
            ({"model": question.model}, 1),
            ({"all": True}, 1),
        ]
        (scope,) = self._dice.choices([scope for scope, _ in scopes], [weight for _, weight in scopes])
        return scope

    async def purge(self, scope: dict[str, Any], router: int) -> None:
        """Asks a router for it; what comes of that is noted."""
        since = asyncio.get_running_loop().time()
        defects, outages = self._house.defects, self._house.outages[router]
        try:
            async with self._house.client(router) as http, asyncio.timeout(_PATIENCE):
                headers = {"authorization": f"Bearer {ADMIN_KEY}"}
                told = await http.post("/admin/cache/purge", json=scope, headers=headers, timeout=None)
        except httpx.TransportError as error:
            if outages.lasted(since, "killed", "stopped") is None:
                defects.append(f"the purge of {scope}: {error!r}, and router {router} was there")
        except TimeoutError:
            defects.append(f"the purge of {scope} has not ended after {_PATIENCE} s")
        else:
            if told.status_code == 200:
                self.done += 1
                self._purges.append(Purge(scope, since, asyncio.get_running_loop().time()))
            elif told.status_code != 503:
                defects.append(f"the purge of {scope} was answered with {told.status_code}: {told.text}")

    def _remembered(self) -> list[Purge]:
        """Those that all routers must know."""
        lost = self._house.redis.may_have_lost
        return [purge for purge in self._purges if not lost(purge.since, purge.ended)]

    def defects_of(self, asking: Asking, generation: Generation, cache: str | None, since: float) -> list[str]:
        """What is wrong with the answer to a request that began at `since`, by the event loop's clock."""
        if cache not in _GIVEN_AGAIN or self._house.outages[asking.router].lasted(since - REACHES) is not None:
            return []
        return [
            f"{cache} gave {generation.name}, begun {purge.since - generation.at:.2f} s before a purge "
            f"that was done {since - purge.ended:.2f} s before the request, of {purge.scope}"
            for purge in self._remembered()
            if purge.ended + REACHES <= since and purge.covers(generation)
        ][-1:]

    def flaws_of_entry(self, generation: Generation) -> list[str]:
        """What is wrong with an answer that is still stored."""
        return [f"it was purged, with {purge.scope}" for purge in self._remembered() if purge.covers(generation)]
