"""KV events of real vLLM engines: what the router makes of them."""

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from router.core.routing.prefix_cache.kv_blocks import BlockPieces, KvBlocks
from router.core.routing.prefix_cache.kv_event_batches import KvEventBatches
from router.core.routing.prefix_cache.prefix_index import PrefixIndex
from router.core.routing.prefix_cache.prompt_chain import PIECE, PromptChain
from router.upstream.kv_feeds import KvFeed
from tests.e2e.vllm_process_tree import Events, VllmProcessTree
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import eventually

pytestmark = [pytest.mark.vllm, pytest.mark.real]

SERVED = "tiny"
SENTENCE = "The sea was calm, and the lamp of the harbour was lit. "
numbers = itertools.count()


def new_prompt(sentences: int = 60) -> str:
    return f"Number {next(numbers)}. " + SENTENCE * sentences


class Subscriber:
    """What a router would know of one engine."""

    def __init__(self) -> None:
        self.index = PrefixIndex(1 << 30)
        self.blocks = KvBlocks(self.index, BlockPieces())
        self.batches = KvEventBatches(self.blocks)

    def chain(self, text: str) -> PromptChain:
        ends = [*range(PIECE, len(text), PIECE), len(text)]
        return PromptChain([hash((text, end)) & (2**64 - 1) for end in ends], ends)

    def believed(self, text: str) -> int:
        return self.index.match(self.chain(text).hashes)


@asynccontextmanager
async def subscribed(port: int, replay: int | None) -> AsyncIterator[Subscriber]:
    from router.upstream.kv_subscriber import subscribe

    subscriber = Subscriber()
    feed = KvFeed("one", "", SERVED, f"tcp://127.0.0.1:{port}", (replay and f"tcp://127.0.0.1:{replay}") or None)
    task = asyncio.get_running_loop().create_task(subscribe(feed, subscriber.batches))
    try:
        yield subscriber
    finally:
        task.cancel()
        await asyncio.wait([task])


class VllmEngine:
    def __init__(self, http: httpx.AsyncClient, port: int) -> None:
        self._http = http
        self._url = f"http://127.0.0.1:{port}"

    async def complete(self, prompt: str) -> bytes:
        """The ids of the prompt's tokens, as in JSON."""
        body = {"model": SERVED, "prompt": prompt, "max_tokens": 4, "return_token_ids": True}
        answer = (await self._http.post(f"{self._url}/v1/completions", json=body)).raise_for_status()
        return json.dumps(answer.json()["choices"][0]["prompt_token_ids"], separators=(",", ":"))[1:-1].encode()

    async def route(self, subscriber: Subscriber, prompt: str) -> None:
        """As the router does."""
        subscriber.index.add(subscriber.chain(prompt))
        subscriber.blocks.learn(subscriber.chain(prompt), await self.complete(prompt))
        await eventually(lambda: subscriber.blocks.waiting == 0)

    async def reset(self) -> None:
        (await self._http.post(f"{self._url}/reset_prefix_cache")).raise_for_status()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Publishes until it is true."""

        async def is_true() -> bool:
            await self.complete(new_prompt(20))
            return condition()

        await eventually(is_true)


async def check_events(tree: VllmProcessTree, events: dict[str, Events]) -> None:
    port, replay = events["one"]
    async with (
        httpx.AsyncClient(timeout=120) as http,
        TcpProxy(port) as proxy,
        subscribed(int(proxy.url.rpartition(":")[2]), replay) as subscriber,
        subscribed(int(proxy.url.rpartition(":")[2]), None) as deaf,
    ):
        engine, batches = VllmEngine(http, tree.ports["one"]), subscriber.batches
        await engine.until(lambda: batches.received > 0 and deaf.batches.received > 0)
        # The blocks of a prompt are found by its token ids.
        first = new_prompt()
        await engine.route(subscriber, first)
        assert subscriber.blocks.learned == 1
        assert subscriber.believed(first) > 2
        # Others fill the cache.
        for _ in range(200):
            if not subscriber.believed(first):
                break
            await engine.complete(new_prompt())
        assert subscriber.believed(first) == 0
        assert (await cached_tokens(http, tree.ports["one"], first)) < 200
        # A reset empties it; the event comes with the next step.
        second = new_prompt()
        await engine.route(subscriber, second)
        assert subscriber.believed(second) > 2
        await engine.reset()
        await engine.complete(new_prompt(3))
        await eventually(lambda: subscriber.believed(second) == 0)
        # What is published while the connection is lost comes with a replay.
        third = new_prompt()
        await engine.route(subscriber, third)
        proxy.refuse("commands")
        await engine.reset()
        await engine.complete(new_prompt(20))
        proxy.release()
        await engine.until(lambda: subscriber.believed(third) == 0)
        assert (batches.lost, batches.restarts, batches.unreadable) == (0, 0, 0)
        await engine.until(lambda: deaf.batches.lost > 0)


async def cached_tokens(http: httpx.AsyncClient, port: int, prompt: str) -> float:
    async def hits() -> float:
        page = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
        return sum(map(float, re.findall(r"^vllm:prefix_cache_hits_total\{.*\} (\S+)$", page, re.MULTILINE)))

    before = await hits()
    body = {"model": SERVED, "prompt": prompt, "max_tokens": 1}
    (await http.post(f"http://127.0.0.1:{port}/v1/completions", json=body)).raise_for_status()
    return await hits() - before


def test_what_an_engine_holds_follows_its_events_through_others_use_resets_and_lost_connections(
    replicas: VllmProcessTree, events: dict[str, Events]
) -> None:
    asyncio.run(check_events(replicas, events))


def ask(tree: VllmProcessTree, prompt: str) -> tuple[str, int]:
    """The engine, and how many of the prompt's tokens it was believed to hold."""
    messages = [{"role": "user", "content": prompt}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 4, "stream": True}
    answer = httpx.post(
        f"{tree.url}/v1/chat/completions", json=body, timeout=120, headers={"cache-control": "no-store"}
    ).raise_for_status()
    found = answer.headers["x-engine-reason"].removeprefix("prefix ").partition(" of ")[0]
    return answer.headers["x-engine"], int(found.replace(",", ""))


def test_the_router_learns_from_an_engine_that_it_was_reset(replicas: VllmProcessTree) -> None:
    for _ in range(5):  # it may not have read the event when it gets the next request
        prompt = new_prompt()
        engine, _ = ask(replicas, prompt)
        same, found = ask(replicas, prompt)
        assert same == engine
        assert found > 300
        url = f"http://127.0.0.1:{replicas.ports[engine]}"
        httpx.post(f"{url}/reset_prefix_cache", timeout=30).raise_for_status()
        body = {"model": SERVED, "prompt": "Hello?", "max_tokens": 4}
        httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status()
        if ask(replicas, prompt)[1] == 0:
            return
    pytest.fail("the engine still counts as holding what it has forgotten")
