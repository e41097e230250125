"""A request now and then that ends the process of each engine that gets it, and its repetitions, as SDKs send them.

The router that gets them may lose two engines with it, and no more until it is answered. It can be: an engine that goes
on with its stream by the ids of tokens gets no text that would end it.
"""

import asyncio
from itertools import count
from random import Random
from typing import Final

from tests.chaos.clients import ChaosClients
from tests.chaos.oracle import ClientResponse
from tests.chaos.testbed import Testbed
from tests.chaos.workload import (
    CACHE_DIRECTIVES,
    CHAT,
    FIRST_POISON_QUESTION,
    UNLIMITED,
    ClientRequest,
    RequestOrigin,
    WorkloadQuestion,
)

MAX_LOSSES: Final = 2
_PAUSE: Final = (15.0, 35.0)  # seconds between two such requests: they leave no engine of the model for some seconds
_REPETITIONS: Final = (2, 5)
_INTERVAL: Final = (0.2, 4.0)  # seconds between two repetitions; in the longer ones, engines are started again
_ROUTER: Final = 0  # the one with a single process: each process counts for itself


class PoisonLoad:
    """Chosen by the seed. Defects go to the testbed's."""

    def __init__(self, clients: ChaosClients, testbed: Testbed, seed: int) -> None:
        self._clients = clients
        self._testbed = testbed
        self._rng = Random(f"{seed}:poison")

    async def run_until(self, stop: asyncio.Event) -> None:
        for number in count(FIRST_POISON_QUESTION):
            question = WorkloadQuestion(number)
            if question.path != CHAT or question.model != "llama":
                continue
            if await _is_set_within(stop, self._rng.uniform(*_PAUSE)):
                return
            await self._repeat(question, stop)

    async def _repeat(self, question: WorkloadQuestion, stop: asyncio.Event) -> None:
        rng, testbed = self._rng, self._testbed
        origin = RequestOrigin(rng.choice(UNLIMITED), question, CACHE_DIRECTIVES["none"], next(self._clients.serial))
        # The same each time, byte for byte.
        request = ClientRequest(origin, router=_ROUTER, stream=rng.random() < 0.5, usage=False, leaves_after=None)
        started, before = asyncio.get_running_loop().time(), testbed.poison_exits
        allowed = MAX_LOSSES
        async with testbed.client(_ROUTER) as http:
            for _ in range(rng.randint(*_REPETITIONS)):
                response = await self._clients.ask(http, request)
                allowed += response is not None and _is_answer(response)  # after one engine at most
                if await _is_set_within(stop, rng.uniform(*_INTERVAL)):
                    break
        ended = testbed.poison_exits - before
        if ended > allowed and testbed.outages[_ROUTER].duration_since(started) is None:
            testbed.defects.append(f"{ended} engines ended with {request}")


def _is_answer(response: ClientResponse) -> bool:
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    return response.status == 200 and (not is_stream or b"data: [DONE]" in response.body)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
