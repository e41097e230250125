"""The processes of the chaos: two routers, one of them with two workers, three engines, and a Redis with files."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

import httpx
from questions import ADMIN_KEY, STALE, TENANTS, key_of
from redis_process import RedisServer
from served import Served, http_client
from serving import LLAMA, MISTRAL, configuration
from simulated import SimulatedEngine
from waiting import eventually

from router.api.auth import hash_key

_WORKERS: Final = (1, 2)
_LIMITS: Final = f"""
[auth]
mode = "keys"
admin_keys = ["{hash_key(ADMIN_KEY.encode())}"]

[timeouts]
connect = "1s"
first_token = "1500ms"
between_tokens = "1s"
min_tokens_per_second = 100
"""
_COMPLAINTS: Final = ("Traceback", "never retrieved", "never awaited", "was destroyed", "CRITICAL")


Kind = Literal["killed", "stopped", "frozen"]


class Outages:
    """When a router, or Redis, was away, by the event loop's clock."""

    def __init__(self) -> None:
        self._times: list[tuple[Kind, float, float | None]] = []

    @contextmanager
    def outage(self, kind: Kind) -> Iterator[None]:
        began = asyncio.get_running_loop().time()
        self._times.append((kind, began, None))
        at = len(self._times) - 1
        try:
            yield
        finally:
            self._times[at] = (kind, began, asyncio.get_running_loop().time())

    def lasted(self, since: float, *kinds: Kind) -> float | None:
        """For how many seconds it was away since then, of these kinds or of any; None where it was not."""
        now = asyncio.get_running_loop().time()
        times = [(began, ended) for kind, began, ended in self._times if not kinds or kind in kinds]
        parts = [(max(began, since), now if ended is None else ended) for began, ended in times]
        away = [ended - began for began, ended in parts if ended >= began]
        return sum(away) if away else None


class House:
    """All that runs. What is done to it is counted in `deeds`, and what goes wrong by itself is noted in `defects`.

    `emptied`: when Redis last forgot all, by the event loop's clock.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` takes the configurations and the routers' logs."""
        self.deeds: Counter[str] = Counter()
        self.defects: list[str] = []
        self.generations = 0
        self.outages = [Outages() for _ in _WORKERS]
        self.redis_outages = Outages()
        self.emptied = -inf
        self.routers: list[Served] = []
        self.redis = RedisServer("--appendonly", "yes")
        options = {"max_model_len": 4096, "tokens_per_second": 120, "jitter": 0.5}
        self.engines = {
            "llama-chat": SimulatedEngine(LLAMA, draft="d", **options),
            "llama-code": SimulatedEngine(LLAMA, **options),
            "mistral": SimulatedEngine(MISTRAL, **options),
        }
        self._folder = folder
        self._workers: list[set[int]] = [set() for _ in _WORKERS]
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.callback(self.redis.remove)
            await self.redis.start()
            for engine in self.engines.values():
                stack.push_async_callback(engine.stop)
                stack.push_async_callback(engine.kill)  # first, so that a frozen one ends too
            await asyncio.gather(*(engine.start() for engine in self.engines.values()))
            for number, workers in enumerate(_WORKERS):
                router = Served(self._folder, self._configuration(workers), name=f"router-{number}")
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

    def _configuration(self, workers: int) -> str:
        tenants = "".join(
            f'[[tenant]]\nname = "{name}"\nkeys = ["{hash_key(key_of(name).encode())}"]\nttl = "{ttl}s"\n'
            for name, ttl in TENANTS.items()
        )
        table = {
            name: ("mistral" if name == "mistral" else "llama", "any", engine.url)
            for name, engine in self.engines.items()
        }
        return configuration(
            self.redis.url, table, cache=f'stale_if_error = "{STALE}s"', router=f"workers = {workers}",
            rest=_LIMITS + tenants,
        )  # fmt: skip

    def client(self, router: int) -> httpx.AsyncClient:
        return http_client(self.routers[router].url)

    # -- engines ----------------------------------------------------------------------------------------------------

    async def kill_engine(self, name: str, seconds: float) -> None:
        engine = self.engines[name]
        if not engine.runs:
            self.defects.append(f"engine {name} has ended by itself")
        else:
            self.generations += (await engine.stats())["started"]
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

    # -- Redis ------------------------------------------------------------------------------------------------------

    async def kill_redis(self, seconds: float, *, forget: bool) -> None:
        with self.redis_outages.outage("killed"):
            self.redis.kill()
            if forget:
                shutil.rmtree(self.redis.folder / "appendonlydir", ignore_errors=True)
                (self.redis.folder / "appendonly.aof").unlink(missing_ok=True)
            await asyncio.sleep(seconds)
            await self.redis.start()
        if forget:
            self._note_emptied()

    async def freeze_redis(self, seconds: float) -> None:
        with self.redis_outages.outage("frozen"):
            self.redis.freeze()
            try:
                await asyncio.sleep(seconds)
            finally:
                self.redis.thaw()

    async def flush_redis(self) -> None:
        await self.redis.command("FLUSHALL")
        self._note_emptied()

    def _note_emptied(self) -> None:
        self.emptied = asyncio.get_running_loop().time()

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
            code = await asyncio.to_thread(router.process.wait, 15)
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
        await self.routers[number].ready()
        await self._workers_there(number)

    async def _workers_there(self, number: int) -> None:
        router, count = self.routers[number], _WORKERS[number]
        if count > 1 and Path("/proc").exists():
            self._workers[number] = await eventually(lambda: len(found := router.workers()) == count and found)

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
