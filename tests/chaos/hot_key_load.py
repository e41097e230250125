"""Many requests for the same key, at several processes, around purges: where one generation is taken for the next.

A storm is one question of one tenant for some seconds. Several clients ask it at random routers, again and again,
while it is purged through random routers. In some storms nobody may store the answer, so that all depends on which
generation in flight a request joins.
"""

import asyncio
from itertools import count
from random import Random
from typing import Final

from tests.chaos.clients import ChaosClients
from tests.chaos.workload import (
    CACHE_DIRECTIVES,
    FIRST_HOT_QUESTION,
    UNLIMITED,
    ClientRequest,
    RequestOrigin,
    WorkloadQuestion,
    expected_key,
)

_PARALLEL: Final = 2  # at the same time
_CLIENTS: Final = 6
_ROUND_SECONDS: Final = (2.0, 5.0)
_PURGE_INTERVAL: Final = (0.15, 0.9)  # seconds between two
_PAUSE: Final = (0.0, 0.25)
_ERROR_PAUSE: Final = (0.2, 0.6)  # after a request that came to nothing
_ROUNDS_PER_QUESTION: Final = 10  # with the same question
_ROUTERS: Final = 2


class HotKeyLoad:
    """Several at a time, as the seed has it."""

    def __init__(self, clients: ChaosClients, seed: int) -> None:
        self._clients = clients
        self._seed = seed

    async def run_until(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(_PARALLEL):
                group.create_task(self._run_rounds(number, stop))

    async def _run_rounds(self, number: int, stop: asyncio.Event) -> None:
        dice = Random(f"{self._seed}:storm {number}")
        for turn in count():
            if stop.is_set():
                return
            # The same key for half a minute and more, which is how long a stream in Redis may outlive its generation.
            question = WorkloadQuestion(FIRST_HOT_QUESTION + 1 + 1005 * number + 11 * (turn // _ROUNDS_PER_QUESTION))
            stored = turn % 2 == 0
            tenant = UNLIMITED[(number + turn // _ROUNDS_PER_QUESTION) % len(UNLIMITED)]
            origin = RequestOrigin(tenant, question, CACHE_DIRECTIVES["none" if stored else "ttl0"], 0)
            over = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for client in range(_CLIENTS):
                    own = Random(f"{self._seed}:storm {number}.{turn}.{client}")
                    group.create_task(self._ask(origin, own, stop, over))
                group.create_task(self._purge(origin, Random(f"{self._seed}:purges {number}.{turn}"), stop, over))
                await asyncio.sleep(dice.uniform(*_ROUND_SECONDS))
                over.set()

    async def _ask(self, origin: RequestOrigin, rng: Random, stop: asyncio.Event, over: asyncio.Event) -> None:
        async with self._clients.connections() as https:
            while not (stop.is_set() or over.is_set()):
                router = rng.randrange(_ROUTERS)
                asking = ClientRequest(
                    RequestOrigin(origin.tenant, origin.question, origin.directive, next(self._clients.serial)),
                    router=router,
                    stream=origin.question.streams and rng.random() < 0.6,
                    usage=rng.random() < 0.5,
                    leaves_after=rng.uniform(0.05, 0.6) if rng.random() < 0.15 else rng.uniform(4, 9),
                )
                got = await self._clients.ask(https[router], asking)
                await asyncio.sleep(rng.uniform(*(_PAUSE if got is not None else _ERROR_PAUSE)))

    async def _purge(self, origin: RequestOrigin, rng: Random, stop: asyncio.Event, over: asyncio.Event) -> None:
        scope = {"key": expected_key(origin.tenant, origin.question).text}
        while not (stop.is_set() or over.is_set()):
            await asyncio.sleep(rng.uniform(*_PURGE_INTERVAL))
            await self._clients.purger.purge(scope, rng.randrange(_ROUTERS))
