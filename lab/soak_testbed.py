"""The processes of a soak: a router, a Redis and three simulated engines, and what is done to them meanwhile."""

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from redis.exceptions import ConnectionError as RedisConnectionError

from lab.soak_verdict import Death
from router.core.cache.redis_keys import KEY_PREFIX
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess
from tests.support.router_server import LLAMA
from tests.support.simulated_engine import SimulatedEngine

MODEL: Final = "llama"
ENGINES: Final = 3
DOWN_FOR: Final = 2.0  # seconds in which a killed engine stays down

# The local cache is small, so that it is full after the warm-up; a growing cache is no leak.
CONFIGURATION: Final = """
[router]
workers = {workers}
pid_file = "{folder}/router.pid"
{router}
[cache]
url = "{redis}"
local = "1MiB"
ttl = "{ttl}"
[[model]]
name = "llama"
aliases = [{aliases}]
"""
ENGINE: Final = """
[[engine]]
name = "engine-{number}"
model = "llama"
url = "{url}"
served_model = "{served}"
{rest}
"""


def configuration(variant: int, *, workers: int, folder: Path, redis: str, engines: list[str]) -> str:
    """One of three configurations, which a soak uses by turns: other engines, aliases, limits and times to live."""
    router, ttl, aliases, rest, count = [
        ("", "24h", '"soak"', "max_in_flight = 256", ENGINES),
        ('max_body = "2MiB"', "1h", '"soak", "another-alias"', "max_in_flight = 128", ENGINES - 1),
        ("", "12h", '"soak"', 'max_in_flight = 200\ntask = "any"', ENGINES),
    ][variant % 3]
    head = CONFIGURATION.format(workers=workers, folder=folder, router=router, redis=redis, ttl=ttl, aliases=aliases)
    tables = (
        ENGINE.format(number=number, url=url, served=LLAMA, rest=rest) for number, url in enumerate(engines[:count])
    )
    return head + "\n".join(tables)


class SoakTestbed:
    """Running processes. `events`: what was done to them, with seconds since `started`.

    Faults are injected until `end` is set; what was killed is running again when they return.
    """

    def __init__(self, folder: Path, redis: RedisServer, engines: list[SimulatedEngine], workers: int) -> None:
        self.folder, self.redis, self.engines, self.workers = folder, redis, engines, workers
        self.router = RouterProcess(folder, self._configuration(0))
        self.started = time.perf_counter()
        self.deaths: list[Death] = []
        self.end = asyncio.Event()
        self.events: list[tuple[float, str]] = []
        self.reloads = 0
        self.failed_reloads = 0

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    @property
    def router_pids(self) -> list[int]:
        return [self.router.process.pid, *sorted(self.router.worker_pids())]

    def _configuration(self, variant: int) -> str:
        urls = [engine.url for engine in self.engines]
        return configuration(variant, workers=self.workers, folder=self.folder, redis=self.redis.url, engines=urls)

    def note(self, event: str) -> None:
        self.events.append((round(self.elapsed, 1), event))

    async def kill_engines(self, every: float) -> None:
        """Kills one engine after the other (SIGKILL) and starts it again, until `end`."""
        for number in itertools.cycle(range(ENGINES)):
            if await self._has_ended(every):
                return
            self.deaths.append(Death(self.elapsed, "an engine"))
            await self.engines[number].kill()
            self.note(f"engine {number} was killed")
            await asyncio.sleep(DOWN_FOR)
            await self.engines[number].start()

    async def reload_router(self, every: float) -> None:
        """Reloads another configuration (`roundhouse reload` sends SIGHUP), until `end`."""
        for variant in itertools.count(1):
            if await self._has_ended(every):
                return
            self.router.write_config(self._configuration(variant))
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "router", "reload", "--config", str(self.router.config),
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C, which ends the load, does not interrupt it
            )  # fmt: skip
            output, _ = await process.communicate()
            self.reloads += 1
            self.failed_reloads += process.returncode != 0
            self.note(f"reload: {output.decode(errors='replace').strip()}")

    async def restart_redis(self, at: float) -> None:
        """Kills Redis once and starts it again, empty; not after `end`."""
        if await self._has_ended(at):
            return
        self.deaths.append(Death(self.elapsed, "Redis"))
        self.redis.kill()
        self.note("redis was killed")
        await self.redis.start()

    async def _has_ended(self, within: float) -> bool:
        """Waits for `end`, so many seconds."""
        try:
            await asyncio.wait_for(self.end.wait(), within)
        except TimeoutError:
            return False
        return True

    async def redis_state(self) -> tuple[int, float, int]:
        """Keys, MB of memory, and clients; zeros while it is down."""
        try:
            keys = await self.redis.command("DBSIZE")
            memory = await self.redis.command("INFO", "memory")
            clients = await self.redis.command("INFO", "clients")
        except (RedisConnectionError, OSError):
            return 0, 0.0, 0
        return int(keys), round(memory["used_memory"] / 1e6, 2), int(clients["connected_clients"])

    async def leases(self) -> list[str]:
        """The keys of claims, and of streams without an expiry; others stay for late followers for half a minute."""
        claims: list[str] = await self.redis.command("KEYS", f"{KEY_PREFIX}claim:*")
        streams: list[str] = await self.redis.command("KEYS", f"{KEY_PREFIX}flight:*")
        return claims + [key for key in streams if await self.redis.command("TTL", key) == -1]


@asynccontextmanager
async def soak_testbed(folder: Path, workers: int) -> AsyncIterator[SoakTestbed]:
    """All processes are ready."""
    async with AsyncExitStack() as stack:
        redis = RedisServer()
        stack.callback(redis.remove)
        await redis.start()
        engines = [
            SimulatedEngine(LLAMA, ttft_ms=50, tokens_per_second=50, max_num_seqs=512, seed=1) for _ in range(ENGINES)
        ]
        for engine in engines:
            await stack.enter_async_context(engine)
        testbed = SoakTestbed(folder, redis, engines, workers)
        testbed.router.start()
        stack.callback(testbed.router.kill)
        await testbed.router.wait_until_ready()
        testbed.started = time.perf_counter()
        yield testbed
