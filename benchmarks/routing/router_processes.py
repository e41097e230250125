"""The processes of a run: routers with one configuration, and the Redis that they share."""

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.routing.delay_proxy import DelayProxy
from benchmarks.routing.engine_server import MODEL
from tests.support.redis_process import RedisServer
from tests.support.router_process import ROUNDHOUSE, RouterProcess

CONFIGURATION: Final = """
[router]
workers = {workers}
state = "{state}"
[timeouts]
first_token = "300s"
between_tokens = "300s"
[cache]
url = "{redis}"
timeout = "2s"
[[model]]
name = "{model}"
"""

TABLE: Final = """
[[engine]]
name = "{name}"
model = "{model}"
task = "{task}"
urls = [{urls}]
"""


Engines = Mapping[str, Sequence[str]]
"""The addresses of engines by the name of their draft, which is also the task that it is for."""


@dataclass(frozen=True)
class Deployment:
    """`record_delay`: the seconds by which what a router writes to Redis reaches another one later.

    `is_one_table`: the router takes replicas with different drafts for equal ones.
    `stated`: the size of their pools that engines state, relative to the true one.
    """

    workers: int = 1
    routers: int = 1
    has_redis: bool = True
    record_delay: float = 0.0
    stated: float = 1.0
    is_one_table: bool = False

    @property
    def name(self) -> str:
        parts = [
            f"{self.routers} routers" if self.routers > 1 else "router",
            f"{self.workers} workers" if self.workers > 1 else "",
            "" if self.has_redis else "no Redis",
            f"{self.record_delay * 1000:g} ms late" if self.record_delay else "",
            "drafts unknown" if self.is_one_table else "",
            f"pools stated x{self.stated:g}" if self.stated != 1 else "",
        ]
        return ", ".join(filter(None, parts))


class Routers:
    """Running routers. `urls` are their addresses."""

    def __init__(self, deployment: Deployment, folder: Path, redis: str, engines: Engines) -> None:
        self._deployment, self._folder, self._redis = deployment, folder, redis
        names = [f"router-{number + 1}" for number in range(deployment.routers)]
        self._processes = [RouterProcess(folder, self._configuration(name, engines), name=name) for name in names]
        self._names = names
        self.urls = [process.url for process in self._processes]

    async def start(self) -> None:
        for process in self._processes:
            process.start()
        for process in self._processes:
            await process.wait_until_ready()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()

    async def reload(self, engines: Engines) -> None:
        """Changes the addresses of the engines with `roundhouse reload`."""
        for name, process in zip(self._names, self._processes, strict=True):
            process.write_config(self._configuration(name, engines))
        await asyncio.gather(*(_reload(process.config) for process in self._processes))

    def _configuration(self, name: str, engines: Engines) -> str:
        settings = CONFIGURATION.format(
            workers=self._deployment.workers,
            state=self._folder / f"{name}-state",
            redis=self._redis,
            model=MODEL,
        )
        return settings + "".join(_table(draft, urls) for draft, urls in engines.items())


def _table(draft: str, urls: Sequence[str]) -> str:
    name = f"{MODEL}-{draft}" if draft else MODEL
    return TABLE.format(name=name, model=MODEL, task=draft or "any", urls=", ".join(f'"{url}"' for url in urls))


@contextlib.asynccontextmanager
async def running_routers(deployment: Deployment, engines: Engines) -> AsyncIterator[Routers]:
    with tempfile.TemporaryDirectory(prefix="rh-") as folder:
        async with _redis(deployment, Path(folder)) as redis:
            routers = Routers(deployment, Path(folder), redis, engines)
            try:
                await routers.start()
                yield routers
            finally:
                routers.kill()


@contextlib.asynccontextmanager
async def _redis(deployment: Deployment, folder: Path) -> AsyncIterator[str]:
    if not deployment.has_redis:
        yield f"unix://{folder}/none.sock"
        return
    redis = RedisServer()
    try:
        await redis.start()
        if not deployment.record_delay:
            yield redis.url
            return
        # On its way to Redis, and from there to the other router.
        async with DelayProxy(redis.socket, deployment.record_delay / 2) as proxy:
            yield proxy.url
    finally:
        redis.remove()


async def _reload(config: Path) -> None:
    argv = [*ROUNDHOUSE, "reload", "-c", str(config)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
    output, _ = await process.communicate()
    if process.returncode:
        sys.exit(f"roundhouse reload failed: {output.decode()}")
