"""Many requests for the same key, at several processes, around purges: where one generation is taken for the next.

A storm is one question of one tenant for some seconds. Several clients ask it at random routers, again and again,
while it is purged through random routers. In some storms nobody may store the answer, so that all depends on which
generation in flight a request joins.
"""

import asyncio
from itertools import count
from random import Random
from typing import Final

from tests.chaos.clients import Clients
from tests.chaos.workload import HOT, UNLIMITED, WISHES, Asking, Origin, Question, expected_key

_STORMS: Final = 2  # at the same time
_CLIENTS: Final = 6
_LASTS: Final = (2.0, 5.0)
_PURGES: Final = (0.15, 0.9)  # seconds between two
_PAUSES: Final = (0.0, 0.25)
_SULKS: Final = (0.2, 0.6)  # after a request that came to nothing
_TURNS: Final = 10  # with the same question
_ROUTERS: Final = 2


class Storms:
    """Several at a time, as the seed has it."""

    def __init__(self, clients: Clients, seed: int) -> None:
        self._clients = clients
        self._seed = seed

    async def rage_until(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(_STORMS):
                group.create_task(self._one_after_the_other(number, stop))

    async def _one_after_the_other(self, number: int, stop: asyncio.Event) -> None:
        dice = Random(f"{self._seed}:storm {number}")
        for turn in count():
            if stop.is_set():
                return
            # The same key for half a minute and more, which is how long a stream in Redis may outlive its generation.
            question = Question(HOT + 1 + 1005 * number + 11 * (turn // _TURNS))
            stored = turn % 2 == 0
            tenant = UNLIMITED[(number + turn // _TURNS) % len(UNLIMITED)]
            origin = Origin(tenant, question, WISHES["none" if stored else "ttl0"], 0)
            over = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for client in range(_CLIENTS):
                    own = Random(f"{self._seed}:storm {number}.{turn}.{client}")
                    group.create_task(self._ask(origin, own, stop, over))
                group.create_task(self._purge(origin, Random(f"{self._seed}:purges {number}.{turn}"), stop, over))
                await asyncio.sleep(dice.uniform(*_LASTS))
                over.set()

    async def _ask(self, origin: Origin, dice: Random, stop: asyncio.Event, over: asyncio.Event) -> None:
        async with self._clients.connections() as https:
            while not (stop.is_set() or over.is_set()):
                router = dice.randrange(_ROUTERS)
                asking = Asking(
                    Origin(origin.tenant, origin.question, origin.wish, next(self._clients.serial)),
                    router=router,
                    stream=origin.question.streams and dice.random() < 0.6,
                    usage=dice.random() < 0.5,
                    leaves=dice.uniform(0.05, 0.6) if dice.random() < 0.15 else dice.uniform(4, 9),
                )
                got = await self._clients.ask(https[router], asking)
                await asyncio.sleep(dice.uniform(*(_PAUSES if got is not None else _SULKS)))

    async def _purge(self, origin: Origin, dice: Random, stop: asyncio.Event, over: asyncio.Event) -> None:
        scope = {"key": expected_key(origin.tenant, origin.question).text}
        while not (stop.is_set() or over.is_set()):
            await asyncio.sleep(dice.uniform(*_PURGES))
            await self._clients.purger.purge(scope, dice.randrange(_ROUTERS))
