"""Launchers of engines beside each other and one after the other, and how an engine starts."""

import asyncio
from pathlib import Path

from router.core.cache.redis_keys import ANNOUNCEMENTS_KEY, prompts_key
from tests.support.router_server import LLAMA, router_config
from tests.support.waiting import eventually
from tests.world.scenario import World, scenario


def config(world: World, address: str = "extra:8000") -> str:
    """The engine `extra` at this address."""
    text = router_config(world.redis.url, {"extra": ("llama", "any", f"http://{address}")})
    return f'{text}\n[engine.launch]\ntarget = "{LLAMA}"\n'


@scenario
async def test_an_engine_is_warmed_up_with_recent_requests_before_it_is_announced(world: World, tmp_path: Path) -> None:
    other = await world.engine()
    router = await world.router(router_config(world.redis.url, {"other": ("llama", "any", other.url)}))
    await router.chat("The sea?")
    await eventually(lambda: world.redis.client.exists(prompts_key("llama")))
    launcher = await world.launcher(config(world), tmp_path)
    samples = await launcher.running["extra"].metrics()
    done = [count for name, count in samples.items() if name.startswith("vllm:request_success_total{")]
    assert sum(done) == 1
    assert await world.redis.client.hget(ANNOUNCEMENTS_KEY, "engine/extra") is not None


@scenario
async def test_a_launcher_that_was_killed_is_followed_at_once_by_the_next_one(world: World, tmp_path: Path) -> None:
    launcher = await world.launcher(config(world), tmp_path)
    launcher.kill()
    await launcher.start(config(world, "extra:8001"))
    assert not any("another launcher" in line for line in launcher.output)
    assert "extra:8001" in await world.redis.client.hget(ANNOUNCEMENTS_KEY, "engine/extra")


@scenario
async def test_it_says_what_another_launcher_announces_already(world: World, tmp_path: Path) -> None:
    await world.launcher(config(world), tmp_path / "first")
    second = await world.launcher(config(world, "another:8000"), tmp_path / "second")
    assert any(line.startswith("another launcher announces extra; ") for line in second.output)
    assert "//extra:8000" in await world.redis.client.hget(ANNOUNCEMENTS_KEY, "engine/extra")


@scenario
async def test_engines_that_it_stops_are_not_started_again(world: World, tmp_path: Path) -> None:
    launcher = await world.launcher(config(world), tmp_path)
    await launcher.run_inside(launcher.fleet.stop())
    await asyncio.sleep(60)
    assert len(launcher.started) == 1
    assert not launcher.started[0].process.is_running
