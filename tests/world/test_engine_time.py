"""Simulated engines with a time model: what their prefix caches hold is not computed again."""

import asyncio

from tests.support.router_server import router_config
from tests.world.processes import WorldEngine
from tests.world.scenario import World, scenario

SPEED = 1000.0  # prompt tokens per second
SYSTEM = "You answer from this text. " + " ".join(f"Sentence {number} says little." for number in range(200))


@scenario
async def test_a_prompt_with_the_same_beginning_has_its_first_token_sooner_by_the_time_of_the_shared_blocks(
    world: World,
) -> None:
    engine = await world.engine(prefill_tokens_per_second=SPEED)
    router = await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}))

    async def ask(question: str) -> tuple[int, int, float]:
        """The prompt's tokens, those of them that were cached, and the seconds to the first token in the engine."""
        names = ("prompt_tokens_total", "prefix_cache_hits_total", "time_to_first_token_seconds_sum")
        before = [await engine.metric(name) for name in names]
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        answer = await router.chat("", messages=messages, max_tokens=4)
        assert answer.headers["x-cache"] == "MISS"
        prompt, cached, seconds = [await engine.metric(name) - count for name, count in zip(names, before, strict=True)]
        return round(prompt), round(cached), round(seconds, 6)

    prompt, cached, cold = await ask("Which sea is the deepest?")
    assert cached == 0
    assert cold == prompt / SPEED
    prompt, cached, warm = await ask("Which river is the longest?")
    assert cached >= 1000
    assert warm == round((prompt - cached) / SPEED, 6)


@scenario
async def test_requests_at_one_engine_wait_for_the_prompts_before_theirs(world: World) -> None:
    engine = await world.engine(prefill_tokens_per_second=SPEED)
    router = await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}))
    words = [" ".join(f"{name}{number}" for number in range(300)) for name in ("sea", "river")]
    asked = [asyncio.create_task(router.chat(text, max_tokens=4)) for text in words]
    await asyncio.sleep(0.1)
    assert await _requests(engine) == (1.0, 1.0)
    await asyncio.gather(*asked)
    prompts = await engine.metric("prompt_tokens_total")
    # Both have waited for the first prompt, which is as long as the second.
    seconds = await engine.metric("time_to_first_token_seconds_sum")
    assert abs(seconds - 1.5 * prompts / SPEED) < 0.05


async def _requests(engine: WorldEngine) -> tuple[float, float]:
    return await engine.metric("num_requests_running"), await engine.metric("num_requests_waiting")
