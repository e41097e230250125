"""The processes of a batch, and a client: routers with one Redis and one folder, and simulated engines of one model."""

import asyncio
import itertools
import json
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import eventually

PATH: Final = "/v1/chat/completions"
SERVED: Final = "simulated"
TIMEOUT: Final = 60.0
WAIT: Final = 4 * 3600.0
"""Seconds for a batch."""
ENDED: Final = ("completed", "failed", "expired", "cancelled")

# A busy machine can be silent for longer than the default timeout of Redis, and what is answered then is not stored.
CONFIGURATION: Final = """
[router]
[cache]
url = "{redis}"
timeout = "2500ms"
[batch]
folder = "{folder}"
{batch}
[[model]]
name = "llama"
"""
ENGINE: Final = """
[[engine]]
name = "engine-{number}"
model = "llama"
url = "{url}"
served_model = "{served}"
"""


def chat_body(messages: Sequence[tuple[str, str]], max_tokens: int) -> dict[str, Any]:
    """`messages`: the role and the text of each."""
    return {
        "model": "llama",
        "max_tokens": max_tokens,
        "messages": [{"role": role, "content": text} for role, text in messages],
    }


def write_requests(path: Path, bodies: Iterable[dict[str, Any]]) -> None:
    """A file for a batch, whose `custom_id` are the numbers of its lines."""
    with path.open("w") as file:
        for number, body in enumerate(bodies):
            file.write(json.dumps({"custom_id": str(number), "method": "POST", "url": PATH, "body": body}) + "\n")


class BatchTestbed:
    """Running processes; Redis keeps its data when it is killed. `generations` counts those that engines have begun."""

    def __init__(
        self, folder: Path, redis: RedisServer, engines: Sequence[SimulatedEngine], logs: Sequence[Path], batch: str
    ) -> None:
        """`logs`: of the engines. `batch`: further settings of [batch]."""
        text = CONFIGURATION.format(redis=redis.url, folder=folder / "files", batch=batch)
        text += "".join(
            ENGINE.format(number=number, url=engine.url, served=SERVED) for number, engine in enumerate(engines)
        )
        self.folder = folder
        self.redis = redis
        self.engines = engines
        self.routers: list[RouterProcess] = []
        self._text = text
        self._logs = logs
        self._http = httpx.AsyncClient(timeout=TIMEOUT, trust_env=False)

    async def start_routers(self, count: int) -> None:
        self.routers = [RouterProcess(self.folder, self._text, name=f"router-{number}") for number in range(count)]
        for router in self.routers:
            router.start()
        for router in self.routers:
            await router.wait_until_ready()

    async def aclose(self) -> None:
        await self._http.aclose()
        for router in self.routers:
            router.kill()

    @property
    def generations(self) -> int:
        return sum(log.read_bytes().count(b"\n") for log in self._logs if log.exists())

    async def begun(self, count: float) -> None:
        """Waits for so many generations."""
        await eventually(lambda: self.generations >= count, timeout=WAIT)

    # -- the client ---------------------------------------------------------------------------------------------------

    async def upload(self, path: Path) -> str:
        """The id of the file."""
        with path.open("rb") as content:
            answer = await self._http.post(
                f"{self.routers[0].url}/v1/files", data={"purpose": "batch"}, files={"file": content}
            )
        return _id(answer)

    async def create(self, file_id: str) -> str:
        """The id of the batch."""
        body = {"input_file_id": file_id, "endpoint": PATH, "completion_window": "24h"}

        async def created() -> httpx.Response | None:
            answer = await self._http.post(f"{self.routers[0].url}/v1/batches", json=body)
            # The router has not connected to Redis again.
            return None if answer.status_code == 503 else answer

        return _id(await eventually(created))

    async def status(self, batch_id: str) -> dict[str, Any]:
        """The batch, from whichever router answers."""
        for router in itertools.cycle(self.routers):
            try:
                answer = await self._http.get(f"{router.url}/v1/batches/{batch_id}")
            except httpx.TransportError:
                await asyncio.sleep(0.2)
                continue
            if answer.status_code < 500:
                batch: dict[str, Any] = answer.raise_for_status().json()
                return batch
            await asyncio.sleep(0.2)
        raise AssertionError("there is no router")

    async def wait(self, batch_id: str, until: Sequence[str] = ENDED) -> dict[str, Any]:
        """The batch, once it has one of these states."""

        async def reached() -> dict[str, Any] | None:
            batch = await self.status(batch_id)
            return batch if batch["status"] in until else None

        batch: dict[str, Any] = await eventually(reached, timeout=WAIT)
        return batch

    async def content(self, file_id: str | None) -> AsyncIterator[bytes]:
        """A file in pieces; nothing if there is none."""
        if file_id is None:
            return
        url = f"{self.routers[0].url}/v1/files/{file_id}/content"
        async with self._http.stream("GET", url) as answer:
            answer.raise_for_status()
            async for piece in answer.aiter_bytes():
                yield piece

    async def ask(self, body: dict[str, Any]) -> None:
        """One request that is no line of a batch."""
        (await self._http.post(f"{self.routers[0].url}{PATH}", json=body)).raise_for_status()


def _id(answer: httpx.Response) -> str:
    id_: str = answer.raise_for_status().json()["id"]
    return id_


@asynccontextmanager
async def batch_testbed(
    *, routers: int = 1, engines: int = 2, batch: str = "", **options: object
) -> AsyncIterator[BatchTestbed]:
    """All processes are ready. `options`: of each engine, see SimulatedEngine."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-batches-")))
        redis = RedisServer("--appendonly", "yes")
        stack.callback(redis.remove)
        await redis.start()
        logs = [folder / f"{number}.generations" for number in range(engines)]
        started = [await stack.enter_async_context(SimulatedEngine(SERVED, generations=log, **options)) for log in logs]
        testbed = BatchTestbed(folder, redis, started, logs, batch)
        stack.push_async_callback(testbed.aclose)
        await testbed.start_routers(routers)
        yield testbed
