"""Many requests for the same key at several processes during purges, to find one generation taken for the next.

A round is one question of one tenant for some seconds. Several clients repeat it at random routers while it is purged
through random routers. In every other round the answer must not be stored, so that all depends on which in-flight
request a client's request joins.
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

_PARALLEL: Final = 2  # rounds at the same time
_CLIENTS: Final = 6
_ROUND_SECONDS: Final = (2.0, 5.0)
_PURGE_INTERVAL: Final = (0.15, 0.9)  # seconds between two purges
_PAUSE: Final = (0.0, 0.25)
_ERROR_PAUSE: Final = (0.2, 0.6)  # after a failed request
_ROUNDS_PER_QUESTION: Final = 10
_ROUTERS: Final = 2


class HotKeyLoad:
    """Several rounds at a time, chosen by the seed."""

    def __init__(self, clients: ChaosClients, seed: int) -> None:
        self._clients = clients
        self._seed = seed

    async def run_until(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(_PARALLEL):
                group.create_task(self._run_rounds(number, stop))

    async def _run_rounds(self, number: int, stop: asyncio.Event) -> None:
        rng = Random(f"{self._seed}:storm {number}")
        for index in count():
            if stop.is_set():
                return
            # The same key for over half a minute: so long may a stream in Redis outlive its generation.
            question = WorkloadQuestion(FIRST_HOT_QUESTION + 1 + 1005 * number + 11 * (index // _ROUNDS_PER_QUESTION))
            stored = index % 2 == 0
            tenant = UNLIMITED[(number + index // _ROUNDS_PER_QUESTION) % len(UNLIMITED)]
            origin = RequestOrigin(tenant, question, CACHE_DIRECTIVES["none" if stored else "ttl0"], 0)
            round_over = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for client in range(_CLIENTS):
                    client_rng = Random(f"{self._seed}:storm {number}.{index}.{client}")
                    group.create_task(self._ask(origin, client_rng, stop, round_over))
                group.create_task(
                    self._purge(origin, Random(f"{self._seed}:purges {number}.{index}"), stop, round_over)
                )
                await asyncio.sleep(rng.uniform(*_ROUND_SECONDS))
                round_over.set()

    async def _ask(self, origin: RequestOrigin, rng: Random, stop: asyncio.Event, round_over: asyncio.Event) -> None:
        async with self._clients.connections() as https:
            while not (stop.is_set() or round_over.is_set()):
                router = rng.randrange(_ROUTERS)
                request = ClientRequest(
                    RequestOrigin(origin.tenant, origin.question, origin.directive, next(self._clients.serial)),
                    router=router,
                    stream=origin.question.streams and rng.random() < 0.6,
                    usage=rng.random() < 0.5,
                    leaves_after=rng.uniform(0.05, 0.6) if rng.random() < 0.15 else rng.uniform(4, 9),
                )
                response = await self._clients.ask(https[router], request)
                await asyncio.sleep(rng.uniform(*(_PAUSE if response is not None else _ERROR_PAUSE)))

    async def _purge(self, origin: RequestOrigin, rng: Random, stop: asyncio.Event, round_over: asyncio.Event) -> None:
        scope = {"key": expected_key(origin.tenant, origin.question).text}
        while not (stop.is_set() or round_over.is_set()):
            await asyncio.sleep(rng.uniform(*_PURGE_INTERVAL))
            await self._clients.purger.purge(scope, rng.randrange(_ROUTERS))
