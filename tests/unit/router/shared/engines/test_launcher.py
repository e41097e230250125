"""What `roundhouse up` reads in Redis, in every deployment, with the rights that the router has."""

import secrets
import time

import msgspec
import pytest

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.purge_index import PurgePosition
from router.core.cache.redis_keys import EMPTY_HASH, PURGE_LOG_KEY, entry_key
from router.shared.cache.purges import log_start_command, parse_position
from router.shared.connection.redis import open_backend, open_client, open_pipeline
from router.shared.engines.announcements import AnnouncedEngine, write_command
from router.shared.engines.launcher import LauncherRedis
from router.shared.prompts.recent_prompts import PromptSample, RecentPrompt, RecentPrompts, StoredPrompt
from tests.support.ports import free_port
from tests.support.redis_deployments import Deployment
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


def announced(name: str) -> AnnouncedEngine:
    return AnnouncedEngine(name=name, model="llama", task="any", url="http://127.0.0.1:1", served_model="served")


def sample(model: str, number: int, position: PurgePosition) -> PromptSample:
    prompt = RecentPrompt("/v1/completions", msgspec.Raw(b'{"prompt":"%d"}' % number))
    key = entry_key("default", model, EMPTY_HASH, EMPTY_HASH, f"{number:032x}")
    return PromptSample(model, StoredPrompt(prompt, key, (f"d{number}",), position), 60)


async def test_recent_requests_are_those_that_a_router_has_written(deployment: Deployment) -> None:
    model = secrets.token_hex(4)
    pipeline = open_pipeline(open_backend(deployment.url, timeout=2), timeout=2, retry=0.05)
    await pipeline.start()
    prompts = RecentPrompts(pipeline, kept=2, served_models={}, cache_salts={}, clock=time.monotonic)
    client = open_client(deployment.url, timeout=2)
    position = parse_position(await client.execute_command(*log_start_command()))
    for number in range(3):
        prompts.add(sample(model, number, position))
    async with LauncherRedis(deployment.url) as redis:

        async def newest_two_are_kept() -> bool:
            bodies = [bytes(prompt.body) for prompt in await redis.recent_prompts(model, 10)]
            return bodies == [b'{"prompt":"2"}', b'{"prompt":"1"}']

        await eventually(newest_two_are_kept)
        # As a purge that its writer did not hear of, since it was killed.
        scope = EntryFilter(document="d2").to_json()
        await client.execute_command("XADD", PURGE_LOG_KEY, "*", "scope", scope)
        assert [bytes(prompt.body) for prompt in await redis.recent_prompts(model, 10)] == [b'{"prompt":"1"}']
    await client.aclose()
    await pipeline.aclose()


async def test_foreign_engines_are_those_of_other_launchers_whose_leases_hold(deployment: Deployment) -> None:
    names = [secrets.token_hex(4) for _ in range(3)]
    client = open_client(deployment.url, timeout=2)
    await client.execute_command(*write_command("other", [announced(name) for name in names]))
    await client.execute_command(*write_command("other", withdrawn=[names[2]]))
    await client.aclose()
    async with LauncherRedis(deployment.url) as redis:
        foreign = {engine.name for engine in await redis.foreign_engines([names[0]])}
    assert foreign & set(names) == {names[1]}


async def test_without_redis_nothing_is_known() -> None:
    async with LauncherRedis(f"redis://127.0.0.1:{free_port()}") as redis:
        assert await redis.recent_prompts("llama", 10) == []
        assert await redis.foreign_engines([]) == []
