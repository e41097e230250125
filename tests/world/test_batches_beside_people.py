"""Batches at engines whose limit is not configured: people hardly ever find a queue there."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.support.router_server import router_config
from tests.world.batches import batch_lines, begin_batch
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

SLOTS: Final = 24
SPEED: Final = 20.0
"""Tokens per second."""

TOKENS: Final = 20
SECONDS: Final = TOKENS / SPEED
"""For which a request of a person runs."""

LATE: Final = 0.25
"""Seconds after which an answer must have met a queue."""


class People:
    """They ask at these routers by turns. Alone, they would not wait for one of the slots in an hour."""

    def __init__(self, routers: Sequence[WorldRouter]) -> None:
        self._routers = routers
        self._rate = 0.4 * SLOTS / SECONDS
        self._random = Random(7)
        self._asked = 0

    async def delays(self, seconds: float) -> list[float]:
        """How much later than at an idle engine the answers came."""
        loop = asyncio.get_running_loop()
        end, asking = loop.time() + seconds, []
        while loop.time() < end:
            asking.append(asyncio.ensure_future(self._ask()))
            await asyncio.sleep(self._random.expovariate(self._rate))
        return await asyncio.gather(*asking)

    async def _ask(self) -> float:
        self._asked += 1
        router = self._routers[self._asked % len(self._routers)]
        started = asyncio.get_running_loop().time()
        answer = await router.chat(f"How deep is sea {self._asked}?", max_tokens=TOKENS, ignore_eos=True)
        assert answer.status_code == 200
        return asyncio.get_running_loop().time() - started - SECONDS


def late(delays: Sequence[float]) -> float:
    """The share of those that met a queue."""
    return sum(delay > LATE for delay in delays) / len(delays)


@pytest.mark.parametrize("routers", [1, 2])
@scenario
async def test_people_hardly_ever_meet_a_queue_beside_a_batch(world: World, tmp_path: Path, routers: int) -> None:
    engine = await world.engine(max_num_seqs=SLOTS, tokens_per_second=SPEED)
    batch_table = f'[batch]\nfolder = "{tmp_path}"\nmax_in_flight = 64\n'
    text = router_config(world.redis.url, {"one": ("llama", "any", engine.url)}, rest=batch_table)
    started = [await world.router(text) for _ in range(routers)]
    people = People(started)
    prompts = [f"How high is hill {number}?" for number in range(2000)]
    batch = await begin_batch(started[0], batch_lines(prompts, max_tokens=2 * TOKENS, ignore_eos=True))
    assert late(await people.delays(70)) < 0.1, "the limit is unknown at first"
    before = (await batch.counts())["completed"]
    assert late(await people.delays(60)) < 0.02
    done = (await batch.counts())["completed"] - before
    spare = (0.75 - 0.4) * SLOTS / (2 * SECONDS)
    assert done / 60 > 0.7 * spare, "lines take what people leave, up to three quarters"
