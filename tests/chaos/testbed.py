"""The processes of the chaos test: two routers, one with two workers, four engines, and Redis behind a proxy."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx

from tests.chaos.generation_store import GenerationIndex
from tests.chaos.outages import Outages
from tests.chaos.redis_testbed import RedisTestbed
from tests.chaos.testbed_config import MODEL_OF, SERVED_MODELS, testbed_toml
from tests.chaos.workload import POISON_EXIT_CODE
from tests.support.router_process import RouterProcess, http_client
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import eventually

_WORKER_COUNTS: Final = (1, 2)
_RESTART_DELAY: Final = 3.0  # seconds from an engine's end by a request to its start; vLLM takes longer
_LOOK_INTERVAL: Final = 0.1
_EXIT_TIMEOUT: Final = 10.0  # seconds from the end of an engine's connections to its exit, on a busy machine
_STOP_TIMEOUT: Final = 60.0  # seconds; `drain` and `grace` are 5 s and 30 s by default
_START_TIMEOUT: Final = 45.0  # seconds; Redis may be unavailable and the machine busy
_ERROR_MARKERS: Final = ("Traceback", "never retrieved", "never awaited", "was destroyed", "CRITICAL")


class Testbed:
    """All processes. `fault_counts` counts the injected faults; `defects` are failures that no fault explains."""

    def __init__(self, folder: Path, redis: str = "server") -> None:
        """`folder` gets the configurations and the logs. `redis`: one of redis_testbed.DEPLOYMENTS."""
        self.fault_counts: Counter[str] = Counter()
        self.defects: list[str] = []
        self.outages = [Outages() for _ in _WORKER_COUNTS]
        self.redis = RedisTestbed(redis, self.defects.append)
        self.routers: list[RouterProcess] = []
        files = {name: folder / f"{name}.generations" for name in MODEL_OF}
        for path in files.values():
            path.unlink(missing_ok=True)  # it may be from an earlier run with the same folder
        self.generations = GenerationIndex(files)
        self.engines = {name: _engine(name, files[name]) for name in MODEL_OF}
        self.poison_exits = 0
        """How often a request has ended an engine."""
        self._engine_locks = {name: asyncio.Lock() for name in MODEL_OF}
        self._folder = folder
        self._workers: list[set[int]] = [set() for _ in _WORKER_COUNTS]
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for engine in self.engines.values():
                stack.push_async_callback(engine.stop)
                stack.push_async_callback(engine.kill)  # runs before `stop`, so that a frozen engine ends too
            await asyncio.gather(self.redis.start(stack), *(engine.start() for engine in self.engines.values()))
            urls = {name: engine.url for name, engine in self.engines.items()}
            for number, workers in enumerate(_WORKER_COUNTS):
                text = testbed_toml(self.redis.url, urls, workers=workers)
                router = RouterProcess(self._folder, text, name=f"router-{number}")
                self.routers.append(router)
                router.start()
                stack.callback(router.kill)
            await asyncio.gather(*map(self._wait_for_router, range(len(_WORKER_COUNTS))))
            keepers = [asyncio.create_task(self._keep_running(name)) for name in self.engines]
            stack.push_async_callback(_cancel, keepers)
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
        async with self._engine_locks[name]:
            self._note_exit(name)
            await engine.kill()
            await asyncio.sleep(seconds)
            await engine.start()

    async def freeze_engine(self, name: str, seconds: float) -> None:
        engine = self.engines[name]
        async with self._engine_locks[name]:
            if not engine.is_running:
                return
            # A request may end it at any time, and asyncio tells of an exit one turn of its loop late.
            with contextlib.suppress(ProcessLookupError):
                engine.freeze()
                try:
                    await asyncio.sleep(seconds)
                finally:
                    if engine.is_running:
                        engine.thaw()

    async def set_engine_fault(self, name: str, fault: dict[str, object]) -> None:
        engine = self.engines[name]
        async with self._engine_locks[name]:
            try:
                await engine.set_faults(fault)
            except httpx.TransportError:
                with contextlib.suppress(TimeoutError):  # it may be ending
                    await eventually(lambda: not engine.is_running, timeout=_EXIT_TIMEOUT)
                if engine.exit_code != POISON_EXIT_CODE:
                    raise

    async def wait_for_engines(self) -> None:
        """Until those that a request has ended run again."""
        await eventually(lambda: all(engine.is_running for engine in self.engines.values()), timeout=_START_TIMEOUT)

    async def _keep_running(self, name: str) -> None:
        """Starts an engine again that a request has ended."""
        engine = self.engines[name]
        while True:
            await asyncio.sleep(_LOOK_INTERVAL)
            if engine.is_running:
                continue
            async with self._engine_locks[name]:
                if not engine.is_running:  # else it was killed by a fault, and runs again
                    self._note_exit(name)
                    await asyncio.sleep(_RESTART_DELAY)
                    await engine.start()

    def _note_exit(self, name: str) -> None:
        code = self.engines[name].exit_code
        if code == POISON_EXIT_CODE:
            self.poison_exits += 1
            self.fault_counts[f"{name}: ended by a request"] += 1
        elif code is not None:
            self.defects.append(f"engine {name} has ended by itself, with {code}")

    # -- routers ----------------------------------------------------------------------------------------------------

    async def kill_router(self, number: int, seconds: float) -> None:
        router = self.routers[number]
        self.record_exits(number)
        with self.outages[number].record("killed"):
            router.kill()
            await self._start_router(number, seconds)

    async def stop_router(self, number: int, seconds: float) -> None:
        """SIGTERM, as an operator would; responses in progress are completed first."""
        self.record_exits(number)
        with self.outages[number].record("stopped"):
            await self.terminate_router(number)
            await self._start_router(number, seconds)

    async def terminate_router(self, number: int) -> None:
        router = self.routers[number]
        router.process.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.to_thread(router.process.wait, _STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            code = None
        if code not in (0, -signal.SIGTERM):
            self.defects.append(f"router {number} ended with {code} after SIGTERM")
        router.kill()

    async def _start_router(self, number: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.routers[number].start()
        await self._wait_for_router(number)

    async def _wait_for_router(self, number: int) -> None:
        async with asyncio.timeout(_START_TIMEOUT):
            while True:
                try:
                    await self.routers[number].wait_until_ready()
                    break
                except TimeoutError:
                    continue
        await self._wait_for_workers(number)

    async def _wait_for_workers(self, number: int) -> None:
        router, count = self.routers[number], _WORKER_COUNTS[number]
        if count > 1 and Path("/proc").exists():
            self._workers[number] = await eventually(
                lambda: len(found := router.worker_pids()) == count and found, timeout=_START_TIMEOUT
            )

    async def freeze_router(self, number: int, seconds: float) -> None:
        with self.outages[number].record("frozen"):
            self.routers[number].send_signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                self.routers[number].send_signal(signal.SIGCONT)

    async def kill_worker(self, number: int) -> None:
        """Kill one worker of a router with several; the router replaces it."""
        self.record_exits(number)
        for pid in sorted(self._workers[number])[:1]:
            with self.outages[number].record("killed"):
                os.kill(pid, signal.SIGKILL)
                await eventually(lambda: pid not in self.routers[number].worker_pids())  # noqa: B023 - awaited within the loop
                await self._wait_for_workers(number)

    async def freeze_worker(self, number: int, seconds: float) -> None:
        for pid in sorted(self._workers[number])[-1:]:
            with self.outages[number].record("frozen"):
                os.kill(pid, signal.SIGSTOP)
                try:
                    await asyncio.sleep(seconds)
                finally:
                    os.kill(pid, signal.SIGCONT)

    # -- unexpected exits and errors --------------------------------------------------------------------------------

    def record_exits(self, number: int) -> None:
        router = self.routers[number]
        if not router.is_running:
            self.defects.append(f"router {number} has ended by itself, with {router.process.returncode}")
        elif gone := self._workers[number] - router.worker_pids():
            self.defects.append(f"workers of router {number} have ended by themselves: {gone}")

    def record_all_exits(self) -> None:
        for number in range(len(self.routers)):
            self.record_exits(number)
        self.defects += [f"engine {name} has ended by itself" for name, e in self.engines.items() if not e.is_running]

    def logged_errors(self) -> list[str]:
        """The lines of the routers' logs that indicate defects, with the lines around them."""
        excerpts = []
        for router in self.routers:
            lines = router.log.read_text(errors="replace").splitlines()
            excerpts += [
                "\n".join([router.log.name, *lines[max(0, number - 3) : number + 40]])
                for number, line in enumerate(lines)
                if any(word in line for word in _ERROR_MARKERS)
            ]
        return excerpts


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _engine(name: str, generations: Path) -> SimulatedEngine:
    served = SERVED_MODELS[MODEL_OF[name]]
    if name == "embed":
        return SimulatedEngine(served, runner="pooling", generations=generations)
    draft = "d" if name == "llama-chat" else None
    return SimulatedEngine(
        served, draft=draft, max_model_len=4096, tokens_per_second=120, jitter=0.5, generations=generations
    )
