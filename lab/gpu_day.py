"""A day of conversations at three models on one GPU: the routers themselves, on a virtual clock.

    python -m lab.gpu_day                          two routers, one of which is killed in each phase of a switch
    python -m lab.gpu_day --hours 2 --per-hour 200 --kills 0

The routers are those of the project; engines, Redis and the network are those of tests/world. A question is asked again
with probability `--again`, so that it is a hit. Who loses its router asks the other one, as OpenAI's clients do.
"""

import argparse
import asyncio
import json
import logging
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import httpx
import msgspec

from tests.simulation import clock

if __name__ == "__main__":
    clock.install(is_used=False)  # before the router is imported, which binds the functions of the clocks

from lab.gpu_turns import MODELS, Arrival, by_arrival, conversations
from router.core.cache.redis_keys import gpu_group_key
from router.net.tasks import cancel_and_wait
from tests.world.gpu_group import SLEEP, WAKE, Setting, start
from tests.world.http import open_client
from tests.world.scenario import World

PHASES: Final = ("draining", "sleeping", "waking")
_TOKENS_PER_SECOND: Final = 20.0
_TIMEOUT: Final = 900.0  # seconds of a client
_POLL: Final = 0.1  # seconds between two looks at the phase of a switch
_MAX_TASKS: Final = 1000
_DOWN: Final = 15.0  # seconds until a router that was killed is started again


class DayPlan(NamedTuple):
    hours: float
    per_hour: float
    again: float
    kills: int
    seed: int


class Day:
    """`answers`: requests by status and X-Cache. `waits`: of misses, the seconds beyond their generation.

    `longest_hit`: the seconds until the slowest hit was there.
    """

    def __init__(self, setting: Setting, plan: DayPlan) -> None:
        self.setting = setting
        self.answers: Counter[str] = Counter()
        self.waits: list[float] = []
        self.killed: Counter[str] = Counter()
        self.repeated = self.switches = 0
        self.longest_hit = 0.0
        self._plan = plan
        self._random = Random(plan.seed)
        self._clients = [open_client(router.url, _TIMEOUT) for router in setting.routers]
        self._asked: dict[str, list[tuple[str, int]]] = {model: [] for model in MODELS}

    async def play(self, arrivals: list[Arrival]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        background = [loop.create_task(self._kill()), loop.create_task(self._count_switches())]
        asking = []
        for number, arrival in enumerate(arrivals):
            await asyncio.sleep(max(0.0, began + arrival.at - loop.time()))
            asking.append(loop.create_task(self._ask(number, arrival)))
        await asyncio.gather(*asking)
        await cancel_and_wait(*background)
        for client in self._clients:
            await client.aclose()

    async def _ask(self, number: int, arrival: Arrival) -> None:
        loop, asked = asyncio.get_running_loop(), self._asked[arrival.model]
        question = f"Question {number}?", max(1, round(_TOKENS_PER_SECOND * arrival.seconds))
        if asked and self._random.random() < self._plan.again:
            question = self._random.choice(asked)
            self.repeated += 1
        prompt, tokens = question
        body = {
            "model": arrival.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens,
            "ignore_eos": True, "temperature": 0,
        }  # fmt: skip
        began, first = loop.time(), number
        while True:
            try:
                answer = await self._clients[first % len(self._clients)].post("/v1/chat/completions", json=body)
                break
            except httpx.TransportError:
                first += 1
                await asyncio.sleep(0.5)
        cache = answer.headers.get("x-cache", "none")
        self.answers[f"{answer.status_code} {cache}"] += 1
        if cache == "HIT":
            self.longest_hit = max(self.longest_hit, loop.time() - began)
        elif cache == "MISS":
            self.waits.append(max(0.0, loop.time() - began - tokens / _TOKENS_PER_SECOND))
        if answer.status_code == httpx.codes.OK and cache == "MISS":
            asked.append(question)

    async def _kill(self) -> None:
        """Kills a router in each phase by turns, and starts it again."""
        redis, hours = self.setting.world.redis.client, self._plan.hours
        for number in range(self._plan.kills):
            await asyncio.sleep(3600 * hours / (self._plan.kills + 1) - _DOWN)
            phase, router = PHASES[number % len(PHASES)], self.setting.routers[number // 3 % 2]
            while await self._phase(redis) != phase:  # noqa: ASYNC110 - the state of other processes
                await asyncio.sleep(_POLL)
            router.kill()
            self.killed[phase] += 1
            await asyncio.sleep(_DOWN)
            await router.start()

    async def _count_switches(self) -> None:
        """Each one passes through `waking`."""
        redis, before = self.setting.world.redis.client, ""
        while True:
            phase = await self._phase(redis)
            self.switches += before != "waking" == phase
            before = phase
            self._forget_ended_tasks()
            await asyncio.sleep(_POLL)

    def _forget_ended_tasks(self) -> None:
        """The world keeps all tasks, to look for lost errors at the end of a test; a day has too many."""
        for hosted in (*self.setting.engines.values(), *self.setting.routers):
            for process in hosted.processes:
                if len(process.tasks) > _MAX_TASKS:
                    process.tasks = [task for task in process.tasks if not task.done()]

    async def _phase(self, redis: Any) -> str:
        state = await redis.hget(gpu_group_key("gpu0"), "state")
        return str(msgspec.json.decode(state).get("phase", "steady")) if state else ""


def run(plan: DayPlan) -> dict[str, Any]:
    arrivals = conversations(3600 * plan.hours, plan.per_hour, Random(plan.seed))
    figures: dict[str, Any] = {}
    began = time.monotonic()

    async def day(world: World) -> None:
        setting = await start(world, routers=2, tokens_per_second=_TOKENS_PER_SECOND)
        played = Day(setting, plan)
        await played.play(arrivals)
        await asyncio.sleep(60)  # what nobody waits for any more ends
        awake = await setting.awake()
        switches = played.switches
        waits = sorted(played.waits)
        figures.update(
            requests=len(arrivals), repeated=played.repeated, answers=dict(sorted(played.answers.items())),
            switches=switches, killed=dict(played.killed), awake=awake,
            mean_wait=round(sum(waits) / len(waits), 2), longest_wait=round(waits[-1], 1),
            p95_wait=round(waits[int(0.95 * len(waits))], 1), longest_hit=round(played.longest_hit, 3),
        )  # fmt: skip

    with clock.virtual_time(plan.seed):
        world = World()
        world.play(day(world))
    first_come = by_arrival(arrivals, SLEEP + WAKE)
    waits = [wait for each in first_come.waits.values() for wait in each]
    figures |= {
        "seconds": round(time.monotonic() - began, 1),
        "first_come": {"switches": first_come.switches, "mean_wait": round(sum(waits) / len(waits), 2),
                       "longest_wait": round(max(waits), 1)},
    }  # fmt: skip
    return figures


def is_right(figures: dict[str, Any]) -> bool:
    """Every request has got its answer, and at the end one engine is awake."""
    return (
        sum(count for answer, count in figures["answers"].items() if answer.startswith("200 ")) == figures["requests"]
        and len(figures["awake"]) <= 1
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="lab.gpu_day", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=23.0)
    parser.add_argument("--per-hour", type=float, default=60.0, help="conversations that begin in an hour at noon")
    parser.add_argument("--again", type=float, default=0.3, help="the share of questions that were asked before")
    parser.add_argument("--kills", type=int, default=12, help="of routers, in the phases of switches by turns")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    figures = run(DayPlan(options.hours, options.per_hour, options.again, options.kills, options.seed))
    text = json.dumps(figures, indent=2) + "\n"
    sys.stdout.write(text)
    if options.json is not None:
        options.json.write_text(text, encoding="utf-8")
    return 0 if is_right(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
