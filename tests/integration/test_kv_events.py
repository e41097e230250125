"""KV events of engines over ZMQ: what a process, its sockets and a lost connection show."""

import itertools
import json
from pathlib import Path

import httpx
import pytest

pytest.importorskip("zmq", reason="pip install 'roundhouse-router[kv-events]'")

from router.core.routing.prefix_cache.kv_blocks import KvBlocks, PromptBlocks
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, MakeRouter, RouterServer, router_config
from tests.support.simulated_engine import SimulatedEngine
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT = "The sea was calm, and the lamp of the harbour was lit. " * 120  # 6.5 KiB


def engine(endpoint: str, replay: str | None = None, **options: object) -> SimulatedEngine:
    events = {"enable_kv_cache_events": True, "endpoint": endpoint, "replay_endpoint": replay}
    return SimulatedEngine(
        LLAMA, max_model_len=8192, kv_events_config=json.dumps(events), server_dev_mode=True, **options
    )


async def make(
    make_router: MakeRouter, redis_url: str, one: SimulatedEngine, other: SimulatedEngine, settings: str
) -> RouterServer:
    """A router with two engines; `settings` are those of `one`."""
    text = router_config(redis_url, {"one": ("llama", "any", one.url), "other": ("llama", "any", other.url)})
    return await make_router(text.replace('name = "one"', f'name = "one"\n{settings}'))


async def ask(router: RouterServer, prompt: str) -> str:
    """The engine that has answered. It is a stream, since only these have the ids of the prompt's tokens."""
    answer = await router.chat(prompt, stream=True, max_tokens=20, headers={"cache-control": "no-store"})
    assert answer.status_code == 200
    return answer.headers["x-engine"]


async def ask_one(router: RouterServer, other: SimulatedEngine) -> None:
    """A prompt that the engine `one` has answered; `other` is kept from it."""
    await other.set_faults({"fault": "status", "code": 500})
    assert await ask(router, TEXT) == "one"


def blocks_of(router: RouterServer) -> PromptBlocks:
    engine = router.application._runtime.catalog.engines["one"]
    return router.application._process_state.prefills.of(engine.url).blocks


def pieces(router: RouterServer) -> int:
    """How many pieces of prompts `one` is believed to hold."""
    engine = router.application._runtime.catalog.engines["one"]
    return len(router.application._process_state.prefills.of(engine.url).index)


numbers = itertools.count()


async def use(engine: SimulatedEngine, prompt: str = "Hello?") -> None:
    """As others do, who do not go through the router; a prompt that is new to the engine."""
    body = {"model": LLAMA, "prompt": f"{next(numbers)} {prompt}", "max_tokens": 20}
    async with httpx.AsyncClient(timeout=TEST_TIMEOUT) as client:
        (await client.post(f"{engine.url}/v1/completions", json=body)).raise_for_status()


async def reset(engine: SimulatedEngine) -> None:
    async with httpx.AsyncClient(timeout=TEST_TIMEOUT) as client:
        assert (await client.post(f"{engine.url}/reset_prefix_cache")).json() == {"success": True}


@pytest.mark.parametrize("form", ["the router connects", "the engine connects", "ipc"])
async def test_an_engine_whose_cache_is_reset_holds_nothing(
    redis_server: RedisServer, make_router: MakeRouter, tmp_path: Path, form: str
) -> None:
    port = free_port()
    of_engine, of_router = {
        "the router connects": (f"tcp://*:{port}", f"tcp://127.0.0.1:{port}"),
        "the engine connects": (f"tcp://127.0.0.1:{port}", f"tcp://*:{port}"),
        "ipc": (f"ipc://{tmp_path}/kv", f"ipc://{tmp_path}/kv"),
    }[form]
    async with engine(of_engine) as one, SimulatedEngine(LLAMA, max_model_len=8192) as other:
        router = await make(make_router, redis_server.url, one, other, f'kv_events = "{of_router}"')
        # Its first batches are lost: a subscriber is known to the engine a moment after the start only.
        await eventually(lambda: is_heard_after_use(router, one))
        await ask_one(router, other)
        assert pieces(router) > 5
        await reset(one)
        # The event comes with the next step.
        await eventually(lambda: nothing_after_use(router, one))


async def nothing_after_use(router: RouterServer, one: SimulatedEngine) -> bool:
    await use(one)
    return pieces(router) == 0


async def test_what_others_send_pushes_prompts_out(redis_server: RedisServer, make_router: MakeRouter) -> None:
    port = free_port()
    async with (
        engine(f"tcp://*:{port}", kv_blocks=600) as one,
        SimulatedEngine(LLAMA, max_model_len=8192) as other,
    ):
        router = await make(make_router, redis_server.url, one, other, f'kv_events = "tcp://127.0.0.1:{port}"')
        await eventually(lambda: is_heard_after_use(router, one))
        await ask_one(router, other)
        assert pieces(router) > 5
        for _ in range(8):
            await use(one, TEXT)
        await eventually(lambda: pieces(router) == 0)


async def is_heard_after_use(router: RouterServer, one: SimulatedEngine) -> bool:
    await use(one)
    blocks = blocks_of(router)
    return isinstance(blocks, KvBlocks) and len(blocks) > 0


@pytest.mark.parametrize("has_replay", [True, False])
async def test_events_that_a_lost_connection_has_cost_come_with_a_replay(
    redis_server: RedisServer, make_router: MakeRouter, has_replay: bool
) -> None:
    port, replay = free_port(), free_port()
    async with (
        TcpProxy(port) as proxy,
        engine(f"tcp://*:{port}", f"tcp://*:{replay}") as one,
        SimulatedEngine(LLAMA, max_model_len=8192) as other,
    ):
        settings = f'kv_events = "{proxy.url.replace("redis", "tcp")}"\n'
        settings += f'kv_events_replay = "tcp://127.0.0.1:{replay}"\n' if has_replay else ""
        router = await make(make_router, redis_server.url, one, other, settings)
        await eventually(lambda: is_heard_after_use(router, one))
        await ask_one(router, other)
        known = pieces(router)
        proxy.refuse("commands")
        await reset(one)
        await use(one, "This is what the router does not hear. " * 20)
        proxy.release()
        if has_replay:
            await eventually(lambda: nothing_after_use(router, one))
        else:
            await eventually(lambda: is_lost_after_use(router, one))
            assert pieces(router) == known


async def is_lost_after_use(router: RouterServer, one: SimulatedEngine) -> bool:
    """After lost events, nothing is known of the blocks but those of the last prompts."""
    await use(one, "After that. " * 20)
    blocks = blocks_of(router)
    return isinstance(blocks, KvBlocks) and len(blocks) < 100
