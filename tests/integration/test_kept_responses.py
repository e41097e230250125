"""Kept responses with a real Redis and real processes: 50 turns over two routers, a restart, and an emptied Redis."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from router.core.cache.redis_keys import response_key, response_sizes_key, responses_key
from tests.support.conversations import PREVIOUS_NOT_FOUND, RepeatingEngine, ask, id_of, texts_of, user
from tests.support.deployed_redis import FOLDERS, DeployedRedis
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import RouterClient, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

TURNS = 50


@asynccontextmanager
async def started(url: str, folder: Path, script: RepeatingEngine | None = None) -> AsyncIterator[list[RouterClient]]:
    """Two routers in processes of their own."""
    engine = ScriptedEngine(script=script or RepeatingEngine())
    await engine.start()
    text = router_config(url, {"one": ("llama", "any", engine.url)})
    processes = [RouterProcess(folder, text, name=name) for name in ("one", "other")]
    try:
        for process in processes:
            process.start()
        for process in processes:
            await process.wait_until_ready()
        async with http_client(processes[0].url) as one, http_client(processes[1].url) as other:
            yield [RouterClient(one), RouterClient(other)]
    finally:
        for process in processes:
            process.kill()
        await engine.stop()


class TestKeptResponses:
    async def test_turns_over_two_routers_and_a_restart_of_redis(self, tmp_path: Path) -> None:
        redis = DeployedRedis(next(iter(FOLDERS)))
        await redis.start()
        try:
            async with started(redis.url, tmp_path) as routers:
                last = None
                for number in range(TURNS):
                    if number == TURNS // 2:
                        await redis.restart()
                    answer = await self.ask_once_up(routers[number % 2], f"{number}?", last)
                    last = id_of(answer)
                listed = await routers[0].http.get(f"/v1/responses/{last}/input_items?order=asc&limit=100")
                texts = texts_of(listed.json()["data"])
                assert texts[::2] == [f"{number}?" for number in range(TURNS)]
                assert texts[1::2] == [f"{number}? Yes." for number in range(TURNS - 1)]
        finally:
            redis.remove()

    async def test_an_emptied_redis_is_a_clear_404(self, own_redis: RedisServer, tmp_path: Path) -> None:
        await own_redis.start()
        async with started(own_redis.url, tmp_path) as routers:
            last = id_of(await ask(routers[0], "The sea?"))
            last = id_of(await ask(routers[1], "The sky?", last))
            fields = await own_redis.command("HGETALL", response_key("default", last))
            assert (fields["parent"], fields["ancestors"], fields["root"]) == ("resp_1", "resp_1", "resp_1")
            assert fields["input"] == '[{"type":"message","role":"user","content":"The sky?"}]'
            assert await own_redis.command("ZREVRANGE", responses_key("default"), 0, -1) == [last, "resp_1"]
            await own_redis.command("FLUSHALL")
            for router in routers:
                answer = await ask(router, "And?", last)
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, PREVIOUS_NOT_FOUND)

    async def test_openais_client_continues_reads_and_deletes(self, own_redis: RedisServer, tmp_path: Path) -> None:
        await own_redis.start()
        async with started(own_redis.url, tmp_path) as routers:
            addresses = [f"{router.http.base_url}/v1" for router in routers]
            async with (
                AsyncOpenAI(base_url=addresses[0], api_key="none", max_retries=0) as one,
                AsyncOpenAI(base_url=addresses[1], api_key="none", max_retries=0) as other,
            ):
                first = await one.responses.create(model="llama", input="The sea?")
                async with other.responses.stream(
                    model="llama", input="The sky?", previous_response_id=first.id
                ) as events:
                    second: Any = await events.get_final_response()
                assert second.output_text == "The sky? Yes."
                found = await one.responses.retrieve(second.id)
                assert (found.output_text, found.previous_response_id) == ("The sky? Yes.", first.id)
                listed = [item async for item in one.responses.input_items.list(second.id, order="asc", limit=1)]
                assert [item.type for item in listed] == ["message"] * 3
                held = await own_redis.command("HGET", response_sizes_key("default"), "item:msg_3")
                assert held.split()[1] == second.id
                referring: Any = [{"type": "item_reference", "id": "msg_3"}, user("And?")]
                third = await one.responses.create(model="llama", input=referring)
                assert third.output_text == "And? Yes."
                await other.responses.delete(second.id)
                with pytest.raises(openai.NotFoundError, match="Item with id 'msg_3' not found"):
                    await one.responses.create(model="llama", input=referring)
                await other.responses.delete(first.id)
                with pytest.raises(openai.NotFoundError, match="Previous response with id"):
                    await one.responses.create(model="llama", input="And?", previous_response_id=first.id)

    async def test_openais_client_polls_resumes_and_cancels_what_runs_in_the_background(
        self, own_redis: RedisServer, tmp_path: Path
    ) -> None:
        await own_redis.start()
        script = RepeatingEngine()
        script.may_end.clear()
        async with started(own_redis.url, tmp_path, script) as routers:
            addresses = [f"{router.http.base_url}/v1" for router in routers]
            async with (
                AsyncOpenAI(base_url=addresses[0], api_key="none", max_retries=0) as one,
                AsyncOpenAI(base_url=addresses[1], api_key="none", max_retries=0) as other,
            ):
                polled = await one.responses.create(model="llama", input="The sea?", background=True)
                assert (polled.status, polled.background) == ("queued", True)
                seen: list[Any] = []
                async for event in await one.responses.create(
                    model="llama", input="The sky?", background=True, stream=True
                ):
                    seen.append(event)
                    if len(seen) == 2:
                        break
                streamed = seen[0].response.id
                resumed = await other.responses.retrieve(streamed, stream=True, starting_after=1)
                cancelled = await one.responses.create(model="llama", input="The land?", background=True)
                for client in (other, one):
                    assert (await client.responses.cancel(cancelled.id)).status == "cancelled"
                script.may_end.set()
                seen += [event async for event in resumed]
                assert [event.sequence_number for event in seen] == list(range(5))
                assert (seen[-1].type, seen[-1].response.id) == ("response.completed", streamed)
                assert seen[-1].response.output_text == "The sky? Yes."
                done = await eventually(lambda: self.completed(other, polled.id))
                assert done.output_text == "The sea? Yes."
                following = await one.responses.create(
                    model="llama", input="And?", background=True, previous_response_id=polled.id
                )
                done = await eventually(lambda: self.completed(other, following.id))
                assert (done.output_text, done.previous_response_id) == ("And? Yes.", polled.id)
                assert (await one.responses.retrieve(cancelled.id)).status == "cancelled"
                with pytest.raises(openai.BadRequestError, match="`background` needs a response that is kept"):
                    await one.responses.create(model="llama", input="x", background=True, store=False)

    async def completed(self, client: AsyncOpenAI, id_: str) -> Any:
        response = await client.responses.retrieve(id_)
        return response if response.status == "completed" else None

    async def ask_once_up(self, router: RouterClient, text: str, previous: str | None) -> Any:
        """Asks again while Redis is loading its data, and what is answered could not be kept."""

        async def kept_answer() -> httpx.Response | None:
            answer = await ask(router, text, previous)
            assert answer.status_code in (200, 503), answer.text
            is_kept = answer.status_code == 200 and await self.is_kept(router, id_of(answer))
            return answer if is_kept else None

        return await eventually(kept_answer)

    async def is_kept(self, router: RouterClient, id_: str) -> bool:
        return bool((await router.http.get(f"/v1/responses/{id_}")).status_code == 200)
