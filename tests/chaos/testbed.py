"""The processes of the chaos: two routers, one of them with two workers, four engines, and Redis behind a proxy."""

import asyncio
import os
import signal
import subprocess
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx

from tests.chaos.generation_store import GenerationStore
from tests.chaos.outages import Outages
from tests.chaos.redis_testbed import RedisHouse
from tests.chaos.testbed_config import MODEL_OF, SERVED, configuration
from tests.support.router_process import Served, http_client
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import eventually

_WORKERS: Final = (1, 2)
_ENDS: Final = 60.0  # seconds; `drain` and `grace` are 5 s and 30 s by default
_STARTS: Final = 45.0  # seconds, while Redis may be away and others use the machine
_COMPLAINTS: Final = ("Traceback", "never retrieved", "never awaited", "was destroyed", "CRITICAL")


class House:
    """All that runs. What is done to it is counted in `deeds`, and what goes wrong by itself is noted in `defects`."""

    def __init__(self, folder: Path, redis: str = "server") -> None:
        """`folder` takes the configurations and the logs. `redis`: one of redis_house.DEPLOYMENTS."""
        self.deeds: Counter[str] = Counter()
        self.defects: list[str] = []
        self.outages = [Outages() for _ in _WORKERS]
        self.redis = RedisHouse(redis, self.defects.append)
        self.routers: list[Served] = []
        files = {name: folder / f"{name}.generations" for name in MODEL_OF}
        for path in files.values():
            path.unlink(missing_ok=True)  # of an earlier run with the same folder
        self.generations = GenerationStore(files)
        self.engines = {name: _engine(name, files[name]) for name in MODEL_OF}
        self._folder = folder
        self._workers: list[set[int]] = [set() for _ in _WORKERS]
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for engine in self.engines.values():
                stack.push_async_callback(engine.stop)
                stack.push_async_callback(engine.kill)  # first, so that a frozen one ends too
            await asyncio.gather(self.redis.start(stack), *(engine.start() for engine in self.engines.values()))
            urls = {name: engine.url for name, engine in self.engines.items()}
            for number, workers in enumerate(_WORKERS):
                text = configuration(self.redis.url, urls, workers=workers)
                router = Served(self._folder, text, name=f"router-{number}")
                self.routers.append(router)
                router.start()
                stack.callback(router.kill)
            await asyncio.gather(*map(self._router_there, range(len(_WORKERS))))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def client(self, router: int) -> httpx.AsyncClient:
        return http_client(self.routers[router].url)

    # -- engines ----------------------------------------------------------------------------------------------------

    async def kill_engine(self, name: str, seconds: float) -> None:
        engine = self.engines[name]
        if not engine.runs:
            self.defects.append(f"engine {name} has ended by itself")
        await engine.kill()
        await asyncio.sleep(seconds)
        await engine.start()

    async def freeze_engine(self, name: str, seconds: float) -> None:
        self.engines[name].freeze()
        try:
            await asyncio.sleep(seconds)
        finally:
            self.engines[name].thaw()

    async def mar_engine(self, name: str, fault: dict[str, object]) -> None:
        await self.engines[name].faults(fault)

    # -- routers ----------------------------------------------------------------------------------------------------

    async def kill_router(self, number: int, seconds: float) -> None:
        router = self.routers[number]
        self.note_deaths(number)
        with self.outages[number].outage("killed"):
            router.kill()
            await self._start_router(number, seconds)

    async def stop_router(self, number: int, seconds: float) -> None:
        """As an operator would; answers under way are ended first."""
        self.note_deaths(number)
        with self.outages[number].outage("stopped"):
            await self.end_router(number)
            await self._start_router(number, seconds)

    async def end_router(self, number: int) -> None:
        """SIGTERM, and the wait for the end of it."""
        router = self.routers[number]
        router.process.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.to_thread(router.process.wait, _ENDS)
        except subprocess.TimeoutExpired:
            code = None
        if code not in (0, -signal.SIGTERM):
            self.defects.append(f"router {number} ended with {code} after SIGTERM")
        router.kill()

    async def _start_router(self, number: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.routers[number].start()
        await self._router_there(number)

    async def _router_there(self, number: int) -> None:
        async with asyncio.timeout(_STARTS):
            while True:
                try:
                    await self.routers[number].ready()
                    break
                except TimeoutError:
                    continue
        await self._workers_there(number)

    async def _workers_there(self, number: int) -> None:
        router, count = self.routers[number], _WORKERS[number]
        if count > 1 and Path("/proc").exists():
            self._workers[number] = await eventually(
                lambda: len(found := router.workers()) == count and found, within=_STARTS
            )

    async def freeze_router(self, number: int, seconds: float) -> None:
        with self.outages[number].outage("frozen"):
            self.routers[number].send(signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                self.routers[number].send(signal.SIGCONT)

    async def kill_worker(self, number: int) -> None:
        """One of those of a router that has several, which then starts another."""
        self.note_deaths(number)
        for pid in sorted(self._workers[number])[:1]:
            with self.outages[number].outage("killed"):
                os.kill(pid, signal.SIGKILL)
                await eventually(lambda: pid not in self.routers[number].workers())  # noqa: B023 - it is only one
                await self._workers_there(number)

    async def freeze_worker(self, number: int, seconds: float) -> None:
        for pid in sorted(self._workers[number])[-1:]:
            with self.outages[number].outage("frozen"):
                os.kill(pid, signal.SIGSTOP)
                try:
                    await asyncio.sleep(seconds)
                finally:
                    os.kill(pid, signal.SIGCONT)

    # -- what happens by itself -------------------------------------------------------------------------------------

    def note_deaths(self, number: int) -> None:
        """Notes a router, or a worker of it, that is gone and was not killed."""
        router = self.routers[number]
        if not router.runs:
            self.defects.append(f"router {number} has ended by itself, with {router.process.returncode}")
        elif gone := self._workers[number] - router.workers():
            self.defects.append(f"workers of router {number} have ended by themselves: {gone}")

    def note_all_deaths(self) -> None:
        for number in range(len(self.routers)):
            self.note_deaths(number)
        self.defects += [f"engine {name} has ended by itself" for name, e in self.engines.items() if not e.runs]

    def complaints(self) -> list[str]:
        """The lines of the routers' logs that tell of defects, with what stands around them."""
        found = []
        for router in self.routers:
            lines = router.log.read_text(errors="replace").splitlines()
            found += [
                "\n".join([router.log.name, *lines[max(0, at - 3) : at + 40]])
                for at, line in enumerate(lines)
                if any(word in line for word in _COMPLAINTS)
            ]
        return found


def _engine(name: str, generations: Path) -> SimulatedEngine:
    served = SERVED[MODEL_OF[name]]
    if name == "embed":
        return SimulatedEngine(served, runner="pooling", generations=generations)
    draft = "d" if name == "llama-chat" else None
    return SimulatedEngine(
        served, draft=draft, max_model_len=4096, tokens_per_second=120, jitter=0.5, generations=generations
    )
