"""Scenarios for tests: `@scenario`, and the world that it gives to a test.

@scenario
async def test_without_another_engine_the_same_one_is_retried(world: World) -> None:
    engine = await world.engine()
    router = await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}))
    await engine.set_faults({"fault": "status", "code": 500, "times": 1})
    assert (await router.chat("The sea?")).status_code == 200

The test runs on the loop of the world, so its time is virtual: `asyncio.sleep(3600)` returns at once, and everything
that an hour brings has happened. Time passes only while all processes wait.
"""

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Concatenate, Final, ParamSpec
from unittest.mock import patch
from weakref import WeakSet

from engines.simulator.settings import SimulatorSettings
from tests.simulation.clock import CLOCK, virtual_time
from tests.simulation.loop import new_loop
from tests.simulation.network import SimulatedNetwork
from tests.support.router_server import LLAMA, MISTRAL
from tests.support.scripted_engine import ScriptedEngine
from tests.support.tcp_proxy import TcpProxy
from tests.world.kv_events import WorldKvEvents
from tests.world.launcher import WorldLauncher
from tests.world.processes import HostedProcess, WorldEngine, WorldEngines, WorldRouter
from tests.world.redis import WorldRedis

P = ParamSpec("P")

SEED: Final = int(os.environ.get("WORLD_SEED", "0"))
"""Decides the delay of each message, and the order of what is due at the same instant."""

PROBED: Final = 2.5
"""Seconds after which each router has read the metrics of its engines again."""

_LIMIT: Final = 24 * 3600.0  # seconds of virtual time after which a test has failed
_STOP_LIMIT: Final = 300.0  # seconds of virtual time for the end of all processes
_STEP: Final = 0.1  # seconds of virtual time between two checks whether it has ended


class World:
    """What a scenario has: `redis`, and the routers and engines that it starts."""

    def __init__(self) -> None:
        random = Random(SEED)
        self.loop = new_loop(Random(random.random()))
        self.network = SimulatedNetwork(self.loop, Random(random.random()))
        self.loop.network = self.network
        self.network.resets_lose = False
        self.redis = WorldRedis(self.loop, self.network, Random(random.random()))
        self.kv_events = WorldKvEvents(self.loop)
        self.expected_errors: list[str] = []
        """Texts of the errors that the test lets a router log; any other fails it."""
        self._engines: list[WorldEngine] = []
        self._scripted: list[ScriptedEngine] = []
        self._proxies: list[TcpProxy] = []
        self._routers: list[WorldRouter] = []
        self._launchers: list[WorldLauncher] = []
        self._generators: WeakSet[AsyncGenerator[Any, Any]] = WeakSet()

    async def engine(self, model: str = LLAMA, *, running: bool = True, **settings: Any) -> WorldEngine:
        """An engine, which is started if it is to be `running`; `settings` are those of the simulator."""
        chosen = SimulatorSettings(model=model, **{"max_model_len": 4096, **settings})
        engine = WorldEngine(
            self.loop, self.network, f"engine-{len(self._engines) + 1}", chosen, kv_events=self.kv_events
        )
        self._engines.append(engine)
        if running:
            await engine.start()
        return engine

    async def engines(self) -> WorldEngines:
        """Starts the engines of the default configuration."""
        # Drafts of one token that is always accepted, as in router_fixtures: the configured task decides between them.
        draft: dict[str, Any] = {"draft": "d", "acceptance": 1.0, "num_speculative_tokens": 1}
        return WorldEngines(
            await self.engine(LLAMA, **draft), await self.engine(LLAMA, **draft), await self.engine(MISTRAL)
        )

    async def scripted_engine(self, *pieces: bytes, **options: Any) -> ScriptedEngine:
        """Starts an engine that sends these bytes."""
        engine = ScriptedEngine(*pieces, **options)
        await engine.start()
        self._scripted.append(engine)
        return engine

    async def proxy(self) -> TcpProxy:
        """Starts a proxy before Redis, for faults of single connections."""
        proxy = TcpProxy(self.redis.socket)
        await proxy.start()
        self._proxies.append(proxy)
        return proxy

    async def router(self, text: str, **options: Any) -> WorldRouter:
        """Starts a router with this configuration, in TOML."""
        name = f"router-{len(self._routers) + 1}"
        router = WorldRouter(self.loop, self.network, name, text, kv_events=self.kv_events, **options)
        self._routers.append(router)
        await router.start()
        return router

    async def launcher(self, text: str, state: Path) -> WorldLauncher:
        """Starts the engines of this configuration as `roundhouse up` does; `state` is a folder."""
        launcher = WorldLauncher(self.loop, self.network, f"launcher-{len(self._launchers) + 1}", text, state)
        self._launchers.append(launcher)
        await launcher.start()
        return launcher

    # -- for `scenario` -----------------------------------------------------------------------------------------------

    def play(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a test, and stops everything. What failed in a process fails the test."""
        errors, hooks, handled = _ErrorLog(), sys.get_asyncgen_hooks(), sys.exception()
        logging.getLogger().addHandler(errors)
        # As asyncio's loops: a generator that is left before its end is closed on the loop.
        sys.set_asyncgen_hooks(self._generators.add, self._close_generator)
        try:
            with patch.object(os, "_exit", self._exit):
                try:
                    self._run(coroutine, _LIMIT)
                finally:
                    self._run(self._stop(), _STOP_LIMIT)
        finally:
            logging.getLogger().removeHandler(errors)
            wrong = [*self.loop.defects, *errors.unlike(self.expected_errors)]
            self._end_all_tasks()
            sys.set_asyncgen_hooks(*hooks)
        assert not wrong, "\n".join(wrong)
        # A compiled coroutine that waits in `except` leaves one: see test_compiled_modules.
        assert sys.exception() is handled, "an exception is still being handled"

    def _run(self, coroutine: Coroutine[Any, Any, None], limit: float) -> None:
        task, end = self.loop.spawn(self.loop.world, coroutine), CLOCK.now + limit
        while not task.done():
            if end < CLOCK.now:
                raise TimeoutError(f"{coroutine!r} has not ended within {limit:g} s of virtual time")
            self.loop.run(CLOCK.now + _STEP)
        task.result()

    def _exit(self, _: int) -> None:
        """os._exit: only the process that calls it ends. What it does until it waits reaches no other process."""
        next(each for each in self._hosted if each.process is self.loop.process).kill()

    async def _stop(self) -> None:
        self.redis.thaw()
        for proxy in self._proxies:
            proxy.release()
        for each in self._hosted:
            if not each.process.dead:
                each.thaw()
        for engine in [*self._engines, *self._launched]:
            await engine.close_client()
        for router in self._routers:
            await router.http.aclose()
            await router.stop()
        for launcher in self._launchers:
            await launcher.stop()
        for scripted in self._scripted:
            await scripted.stop()
        for proxy in self._proxies:
            await proxy.stop()
        await self.redis.client.aclose()

    @property
    def _hosted(self) -> list[HostedProcess]:
        return [*self._engines, *self._routers, *self._launchers, *self._launched]

    @property
    def _launched(self) -> list[WorldEngine]:
        return [engine for launcher in self._launchers for engine in launcher.started]

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators.discard(generator)
        self.loop.spawn(self.loop.world, _close(generator))

    def _end_all_tasks(self) -> None:
        """Also those of processes that were killed: a task that is garbage collected would log an error."""
        processes = [self.loop.world, self.redis.model.process]
        processes += [process for each in self._hosted for process in each.processes]
        self.network.servers.clear()
        for generator in list(self._generators):
            self._close_generator(generator)
        self.loop.run(CLOCK.now + 1.0)
        for _ in range(3):  # the `finally` block of a task may wait once more
            for process in processes:
                process.dead = False
                self.loop.thaw(process)
                for task in process.tasks:
                    task.cancel()
            self.loop.run(CLOCK.now + 1.0)
        for wire in list(self.network.wires.values()):
            for end in wire.ends:
                end.close()
        self.loop.run(CLOCK.now + 1.0)
        self.loop.close()


def scenario(test: Callable[Concatenate[World, P], Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Makes a test of a coroutine whose first argument is a world of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with virtual_time(SEED):
            world = World()
            world.play(test(world, *args, **kwargs))

    signature = inspect.signature(test)
    # pytest takes the world for a fixture otherwise.
    run.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    return run


async def _close(generator: AsyncGenerator[Any, Any]) -> None:
    with contextlib.suppress(Exception, asyncio.CancelledError):  # its process has ended
        await generator.aclose()


class _ErrorLog(logging.Handler):
    """What is logged as an error: a task or a request that raised."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._seen.append(self.format(record))

    def unlike(self, expected: list[str]) -> list[str]:
        return [line for line in self._seen if not any(text in line for text in expected)]
