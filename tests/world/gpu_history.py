"""Histories of a GPU whose engines take turns: requests of people, operators, and the faults of one seed.

    python -m tests.world.gpu_history --seeds 200 --first 1

In each, two routers serve three models, whose engines are those of gpu_group.py. Whatever happens: every request is
answered, no engine gets a request or falls asleep at a wrong time, at most one is awake at any instant, and in the end
all routers agree about which one that is.
"""

import argparse
import asyncio
import itertools
import logging
import sys
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final, NamedTuple

import httpx
import msgspec

from tests.simulation import clock

if __name__ == "__main__":
    clock.install(is_used=False)  # before the router is imported, which binds the functions of the clocks

from router.core.cache.redis_keys import gpu_group_key
from tests.world.gpu_group import ADMIN, MODELS, Setting, start
from tests.world.http import open_client
from tests.world.processes import WorldRouter
from tests.world.scenario import World

SECONDS: Final = 90.0
"""For which requests arrive and faults happen."""

KINDS: Final = (
    "kill",
    "freeze",
    "redis-down",
    "redis-frozen",
    "redis-empty",
    "engine-exit",
    "stray",
    "order",
    "reload",
)

_SETTLE: Final = 400.0  # seconds until every request must have its answer
_QUIET: Final = 60.0  # seconds after the last one in which the routers put everything right
_TIMEOUT: Final = 900.0  # seconds of a client
_LOOK: Final = 0.25  # seconds between two looks at the engines
_MAY_OVERLAP: Final = {"redis-empty", "engine-exit", "stray"}
"""Faults after which two engines may be awake until the routers have looked: an engine that is started is awake, and
without its data Redis does not know who decides."""


_MAY_BREAK: Final = {"engine-exit", "freeze"}
"""Faults that may end an answer, which is asked for again: without another engine of its model, nothing can go on."""


class Question(NamedTuple):
    at: float
    model: str
    tokens: int
    leaves_after: float | None


class GpuHistory:
    """One seed. `wrong`: what must not happen, a line each."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self._random = Random(f"gpu {seed}")
        self._setting = setting
        self._clients = [open_client(router.url, _TIMEOUT) for router in setting.routers]
        self._busy: set[str] = set()  # what has a fault now
        self._log: list[str] = []
        count = self._random.choice((0, 1, 1, 2, 3))
        self.kinds = tuple(self._random.sample(KINDS, count))
        self.wrong: list[str] = []
        self.answered = 0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        watching = loop.create_task(self._watch())
        asking = [loop.create_task(self._ask(number, question)) for number, question in enumerate(self._questions())]
        faults = [loop.create_task(self._fault(kind)) for kind in self._faults()]
        try:
            await asyncio.gather(*faults)
            async with asyncio.timeout(_SETTLE):
                await asyncio.gather(*asking)
        except TimeoutError:
            waiting = sum(not task.done() for task in asking)
            self.wrong.append(f"{waiting} requests have no answer {loop.time() - began:.0f} s after the beginning")
        else:
            await asyncio.sleep(_QUIET)
            await self._check_end()
        watching.cancel()
        for client in self._clients:
            await client.aclose()

    def _note(self, text: str) -> None:
        self._log.append(f"{asyncio.get_running_loop().time():8.2f} {text}")

    # -- requests -----------------------------------------------------------------------------------------------------

    def _questions(self) -> list[Question]:
        random, at, found = self._random, 0.0, []
        rate = random.choice((0.1, 0.3, 1.0))
        shares = random.choice(((1, 1, 1), (6, 3, 1), (10, 1, 0)))
        while (at := at + random.expovariate(rate)) < SECONDS:
            (model,) = random.choices(MODELS, shares)
            leaves = random.choice((0.2, 2.0, 20.0)) if random.random() < 0.1 else None
            found.append(Question(at, model, random.choice((1, 10, 60, 200)), leaves))
        return found

    async def _ask(self, number: int, question: Question) -> None:
        await asyncio.sleep(question.at)
        body = {
            "model": question.model, "messages": [{"role": "user", "content": f"Question {number}?"}],
            "max_tokens": question.tokens, "ignore_eos": True, "stream": number % 2 == 0,
        }  # fmt: skip
        for router in itertools.count(number):
            client = self._clients[router % len(self._clients)]
            posting = client.post("/v1/chat/completions", json=body)
            try:
                async with asyncio.timeout(question.leaves_after):
                    answer = await posting
            except TimeoutError:
                return
            except httpx.TransportError:  # its router has died
                await asyncio.sleep(0.5)
                continue
            if answer.status_code != httpx.codes.OK or (body["stream"] and b"[DONE]" not in answer.content):
                if _MAY_BREAK & {*self.kinds}:
                    await asyncio.sleep(1)
                    continue
                self.wrong.append(f"request {number} for {question.model}: {answer.status_code} {answer.text[-200:]}")
            self.answered += 1
            return

    # -- faults -------------------------------------------------------------------------------------------------------

    def _faults(self) -> list[str]:
        return [kind for kind in self.kinds for _ in range(self._random.randint(1, 3))]

    async def _fault(self, kind: str) -> None:
        await asyncio.sleep(self._random.random() * SECONDS)
        self._note(kind)
        faults: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": self._kill, "freeze": self._freeze, "redis-down": self._redis_down,
            "redis-frozen": self._redis_frozen, "redis-empty": self._redis_empty, "engine-exit": self._engine_exit,
            "stray": self._stray, "order": self._order, "reload": self._reload,
        }  # fmt: skip
        await faults[kind]()

    def _some_router(self) -> WorldRouter | None:
        """One without a fault, which has one from now on."""
        free = [router for router in self._setting.routers if router.name not in self._busy]
        if not free:
            return None
        router = self._random.choice(free)
        self._busy.add(router.name)
        return router

    async def _kill(self) -> None:
        if (router := self._some_router()) is None:
            return
        router.kill()
        await asyncio.sleep(self._random.choice((1, 8, 20)))
        await router.start()
        self._busy.discard(router.name)

    async def _freeze(self) -> None:
        if (router := self._some_router()) is None:
            return
        router.freeze()
        await asyncio.sleep(self._random.choice((2, 6, 15)))
        router.thaw()
        self._busy.discard(router.name)

    async def _redis_down(self) -> None:
        if "redis" in self._busy:
            return
        self._busy.add("redis")
        self._setting.world.redis.stop(loses_data=False)
        await asyncio.sleep(self._random.choice((0.5, 5, 30)))
        self._setting.world.redis.start()
        self._busy.discard("redis")

    async def _redis_frozen(self) -> None:
        if "redis" in self._busy:
            return
        self._busy.add("redis")
        self._setting.world.redis.freeze()
        await asyncio.sleep(self._random.choice((0.5, 5, 30)))
        self._setting.world.redis.thaw()
        self._busy.discard("redis")

    async def _redis_empty(self) -> None:
        if "redis" in self._busy:
            return
        self._setting.world.redis.stop()
        self._setting.world.redis.start()

    async def _engine_exit(self) -> None:
        name = self._random.choice(MODELS)
        if name in self._busy:
            return
        self._busy.add(name)
        engine = self._setting.engines[name]
        engine.kill()
        await asyncio.sleep(self._random.choice((1, 5, 20)))
        await engine.start()
        self._busy.discard(name)

    async def _stray(self) -> None:
        """Somebody else wakes an engine up, or puts it to sleep."""
        name, path = self._random.choice(MODELS), self._random.choice(("/wake_up", "/sleep?level=1&mode=wait"))
        await self._call(name, path)

    async def _call(self, name: str, path: str) -> None:
        engine = self._setting.engines[name]
        try:
            await engine._client.post(f"{engine.url}{path}")
        except httpx.TransportError:
            self._note(f"{name} does not answer to {path}")

    async def _order(self) -> None:
        name, order = self._random.choice(MODELS), self._random.choice(("sleep", "wake"))
        client = self._random.choice(self._clients)
        try:
            await client.post(f"/admin/engines/{name}/{order}", headers=ADMIN, timeout=10)
        except httpx.TransportError:
            self._note("its router does not answer")

    async def _reload(self) -> None:
        if (router := self._some_router()) is None:
            return
        await router.reload(self._setting.config(f'max_wait = "{self._random.randint(5, 120)}s"'))
        self._busy.discard(router.name)

    # -- what must hold -----------------------------------------------------------------------------------------------

    async def _awake(self) -> list[str]:
        found = []
        for name, engine in self._setting.engines.items():
            try:
                answer = await engine._client.get(f"{engine.url}/is_sleeping")
            except httpx.TransportError:
                continue
            if not answer.json()["is_sleeping"]:
                found.append(name)
        return found

    async def _watch(self) -> None:
        may_overlap = bool(_MAY_OVERLAP & {*self.kinds})
        before: list[str] = []
        while not self.wrong:
            awake = await self._awake()
            if awake != before:
                self._note(f"awake: {awake}")
                before = awake
            if len(awake) > 1 and not may_overlap:
                self.wrong.append(f"{' and '.join(awake)} are awake together")
            # A router that stands still sends what has come meanwhile before it learns what the others have done.
            if not (_MAY_OVERLAP | {"freeze"}) & {*self.kinds}:
                self._look_for_lost_requests()
            await asyncio.sleep(_LOOK)

    def _look_for_lost_requests(self) -> None:
        """A request that is sent to an engine that sleeps stands still there."""
        for router in self._setting.routers:
            if not router.process.is_running:
                continue
            for engine in router.application._runtime.catalog.engines.values():
                if engine.rest == "asleep" and engine.in_flight:
                    self.wrong.append(f"{router.name} has {engine.in_flight} requests at {engine.name}, which sleeps")

    async def _check_end(self) -> None:
        awake = await self._awake()
        if len(awake) > 1:
            self.wrong.append(f"{' and '.join(awake)} are awake in the end")
        text = await self._setting.world.redis.client.hget(gpu_group_key("gpu0"), "state")
        state: dict[str, Any] = msgspec.json.decode(text or "{}")
        if state.get("phase", "steady") != "steady" or sorted(state.get("awake", {})) != awake:
            self.wrong.append(f"the state is {text}, and awake: {awake}")
        for router in self._setting.routers:
            page = (await router.http.get("/admin/status", headers=ADMIN)).json()
            shown = [each["engine"] for each in page["gpus"][0]["engines"] if each["state"] == "awake"]
            if shown != awake:
                self.wrong.append(f"{router.name} says that {shown} are awake, and {awake} are")

    @property
    def log(self) -> str:
        return "\n".join([f"kinds: {', '.join(self.kinds) or 'none'}", *self._log])


def run_seed(seed: int) -> GpuHistory:
    histories = []

    async def play(world: World) -> None:
        world.expected_errors.append("")  # a router that meets a fault may say so
        setting = await start(world, routers=2, tokens_per_second=20)
        history = GpuHistory(setting, seed)
        histories.append(history)
        await history.run()

    with clock.virtual_time(seed):
        world = World()
        try:
            world.play(play(world))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a fault of this seed
            (*histories,) = histories or [GpuHistory(Setting(world, [], []), seed)]
            histories[0].wrong.append(repr(error))
    return histories[0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.world.gpu_history", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--log", action="store_true", help="of the switches and faults, also where nothing is wrong")
    options = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    wrong = answered = 0
    for seed in range(options.first, options.first + options.seeds):
        history = run_seed(seed)
        answered += history.answered
        if history.wrong:
            wrong += 1
            sys.stdout.write(f"seed {seed}: {'; '.join(history.wrong)}\n")
        if history.wrong or options.log:
            sys.stdout.write(f"{history.log}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{options.seeds} seeds, {answered} requests, {wrong} wrong\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
