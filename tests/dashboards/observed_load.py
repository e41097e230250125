"""Runs the load until every panel shows something, or for a number of rounds."""

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import httpx

from tests.dashboards.load import Load
from tests.dashboards.panel_figures import Figure, panel_figures
from tests.dashboards.testbed import Testbed
from tools.dashboards.description import Dashboard
from tools.dashboards.generated_files import DASHBOARDS

MAX_ROUNDS: Final = 40
MIN_ROUNDS: Final = 6


class Observation(NamedTuple):
    """`since`: when the load began, of time.time."""

    figures: list[Figure]
    since: float

    @property
    def without_data(self) -> list[str]:
        return [figure.name for figure in self.figures if not figure.values]


async def observe(testbed: Testbed, dashboards: Sequence[Dashboard] = tuple(DASHBOARDS.values())) -> Observation:
    since = time.time()
    async with httpx.AsyncClient(base_url=testbed.router.url, timeout=15, trust_env=False) as http:
        load = Load(testbed, http)
        await load.prepare()
        await load.run_a_batch()
        for number in range(1, MAX_ROUNDS + 1):
            await load.round()
            await testbed.announce()
            if number == MIN_ROUNDS - 1:
                await load.damage_an_entry()
            await testbed.prometheus.wait_for_scrape()
            if number < MIN_ROUNDS:
                continue
            observation = Observation(await panel_figures(testbed.prometheus, dashboards, since), since)
            if not observation.without_data:
                break
    return observation
