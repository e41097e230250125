"""A request waits until an engine is started for it: with processes, and with the client of OpenAI. See tests/world."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tests.support.on_demand import QUEUED, Launcher, queued, with_wake
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_process import ROUNDHOUSE, RouterProcess, http_client
from tests.support.router_server import LLAMA, MakeRouter, RouterServer, chat_body, router_config
from tests.support.simulated_engine import SimulatedEngine
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

AT_ONCE = '[timeouts]\nqueue = "100ms"'
"""The first comment comes after the time for which requests usually wait."""


@pytest_asyncio.fixture(loop_scope="session")
async def engine() -> AsyncIterator[SimulatedEngine]:
    """It has an address, and is not started."""
    engine = SimulatedEngine(LLAMA, max_model_len=4096, port=free_port())
    yield engine
    await engine.stop()


def sleeping_config(redis: RedisServer, engine: SimulatedEngine, wake: str = "60s", **tables: str) -> str:
    return with_wake(router_config(redis.url, {"llama-0": ("llama", "any", engine.url)}, **tables), wake)


def without_engine(redis: RedisServer, **tables: str) -> str:
    """A configuration whose model llama has only the engines that announce themselves."""
    text = router_config(redis.url, {"llama-0": ("llama", "any", "http://127.0.0.1:1")}, **tables)
    return with_wake(text[: text.index("[[engine]]")] + tables.get("rest", ""))


@asynccontextmanager
async def announcing(folder: Path, config: str) -> AsyncIterator[None]:
    """`roundhouse engines announce` of the engines of a configuration."""
    file = folder / "pod.toml"
    file.write_text(config)
    process = await asyncio.create_subprocess_exec(
        *ROUNDHOUSE, "engines", "announce", "-c", str(file), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def has_queued(count: int, *routers: RouterServer) -> None:
    async def are() -> bool:
        return await queued(*routers) == count

    await eventually(are)


async def ask_in_order(router: RouterServer, *prompts: str, **fields: Any) -> list[asyncio.Task[httpx.Response]]:
    """Sends requests, each once the one before it is in the queue."""
    before = int(await queued(router))
    asked = []
    for number, prompt in enumerate(prompts, 1):
        asked.append(asyncio.create_task(router.chat(prompt, **fields)))
        await has_queued(before + number, router)
    return asked


async def prompts_at(engine: SimulatedEngine) -> list[str]:
    bodies = [request["body"] for request in (await engine.stats())["requests"]]
    return [(json.loads(body) if isinstance(body, str) else body)["messages"][-1]["content"] for body in bodies]


async def test_a_request_for_a_model_without_any_engine_is_answered_by_the_one_that_announces_itself(
    redis_server: RedisServer, make_router: MakeRouter, engine: SimulatedEngine, tmp_path: Path
) -> None:
    router = await make_router(without_engine(redis_server))
    router.http.timeout = httpx.Timeout(60)  # as long as below: two processes start meanwhile
    assert (await router.http.get("/readyz")).status_code == 200
    prompts = ["The sea?", "The moon?"]
    asked = await ask_in_order(router, *prompts)
    config = router_config(redis_server.url, {"pod-3": ("llama", "any", engine.url)})
    async with Launcher(engine, router), announcing(tmp_path, config):
        answers = await asyncio.wait_for(asyncio.gather(*asked), 60)
        assert [(answer.status_code, answer.headers["x-engine"]) for answer in answers] == [(200, "pod-3")] * 2
        assert await prompts_at(engine) == prompts


async def test_a_stream_gets_comments_while_it_waits_which_the_client_of_openai_ignores(
    redis_server: RedisServer, make_router: MakeRouter, engine: SimulatedEngine
) -> None:
    router = await make_router(sleeping_config(redis_server, engine, rest=AT_ONCE))
    async with open_stream(router, "The sea?") as raw:
        assert raw.status == 200  # which is sent with the first comment
        assert "x-request-id" in raw.headers
        assert "x-engine" not in raw.headers
        http = DefaultAsyncHttpxClient(verify=False, trust_env=False)
        async with AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0, http_client=http) as openai:
            asked = asyncio.create_task(
                openai.chat.completions.create(
                    model="llama", messages=[{"role": "user", "content": "The moon?"}], stream=True
                )
            )
            stream = await asked  # with the status, so before there is an engine
            await has_queued(2, router)  # a comment may come before the claim in Redis is decided
            await engine.start()
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        received = await raw.read_to_end()
    assert text
    assert received.startswith(b": waiting for an engine of llama to start, ")
    assert received.endswith(b"data: [DONE]\n\n")


async def test_a_router_that_stops_sends_its_waiting_clients_elsewhere_at_once(
    redis_server: RedisServer, redis: Any, engine: SimulatedEngine, tmp_path: Path
) -> None:
    served = RouterProcess(tmp_path, sleeping_config(redis_server, engine, router='grace = "30s"'))
    served.start()
    try:
        await served.wait_until_ready()
        async with http_client(served.url) as http:
            asked = asyncio.create_task(http.post("/v1/chat/completions", json=chat_body("The sea?"), timeout=30))

            async def waits() -> bool:
                return f"{QUEUED} 1.0" in (await http.get("/metrics")).text

            await eventually(waits)
            os.kill(served.process.pid, signal.SIGTERM)
            answer = await asyncio.wait_for(asked, 15)  # half of the grace period
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
        assert answer.headers["retry-after"] == "1"
        assert await asyncio.to_thread(served.process.wait, 15) == 0
    finally:
        served.kill()
