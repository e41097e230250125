"""A large file on its way to an engine; tests/world has the other tests of audio."""

import asyncio

import pytest

from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, MakeRouter, router_config
from tests.support.simulated_engine import SimulatedEngine
from tests.support.speech_forms import form, speech

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_large_file_is_passed_on_while_others_are_answered(
    make_router: MakeRouter, redis_server: RedisServer
) -> None:
    path = "/v1/audio/transcriptions"
    async with SimulatedEngine(LLAMA, speech=True, max_model_len=448) as engine:
        router = await make_router(router_config(redis_server.url, {"one": ("llama", "any", engine.url)}))
        large = form(bytes(range(256)) * 90_000, model="llama")  # 23 MB
        answer, *others = await asyncio.gather(
            router.http.post(path, **large),
            *(router.http.post(path, **form(speech(level=n), model="llama")) for n in range(5)),
        )
    assert {answer.status_code, *(other.status_code for other in others)} == {200}
    assert answer.json()["usage"]["seconds"] == 720
