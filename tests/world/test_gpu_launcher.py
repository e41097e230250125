"""Engines of one GPU that a launcher has started: their processes, and vLLM's sleep."""

import asyncio
from pathlib import Path
from typing import Final

import httpx

from tests.world.launcher import WorldLauncher
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

BROKEN: Final = "--broken"  # the simulator takes it for an option that it does not have
MODELS: Final = ("chat", "code", "mistral")

_ENGINE: Final = """
[[engine]]
name = "{name}"
model = "{name}"
url = "http://127.0.0.{number}:8000"
sleep = "{sleep}"
[engine.launch]
target = "{target}"
"""


def config(world: World, sleep: str, target: str = "weights") -> str:
    text = f'[router]\nexplore = 0\n[cache]\nurl = "{world.redis.url}"\n[watchdog]\ninterval = "1s"\n'
    text += "".join(f'[[model]]\nname = "{name}"\n' for name in MODELS)
    for number, name in enumerate(MODELS, 1):
        text += _ENGINE.format(name=name, number=number, sleep=sleep, target=target if name == "code" else "weights")
    return text + '[[gpu]]\nname = "gpu0"\nengines = ["chat", "code", "mistral"]\n'


async def start(world: World, folder: Path, sleep: str) -> tuple[WorldLauncher, WorldRouter]:
    text = config(world, sleep)
    return await world.launcher(text, folder / "state"), await world.router(text)


async def asleep(launcher: WorldLauncher) -> list[str]:
    """Engines whose processes run, and which sleep."""
    found = []
    for name, engine in list(launcher.running.items()):
        try:
            answer = await engine._client.get(f"{engine.url}/is_sleeping")
        except httpx.TransportError:  # it is not ready
            continue
        if answer.status_code == 200 and answer.json()["is_sleeping"]:
            found.append(name)
    return sorted(found)


@scenario
async def test_only_the_first_engine_is_started_and_a_request_stops_it_and_starts_another(
    world: World, tmp_path: Path
) -> None:
    launcher, router = await start(world, tmp_path, "process")
    assert list(launcher.running) == ["chat"]
    assert (await router.chat("The sea?", model="chat")).status_code == 200
    assert (await router.chat("A function?", model="code")).status_code == 200
    assert list(launcher.running) == ["code"]
    assert (await router.chat("The sea?", model="chat")).headers["x-cache"] == "HIT"
    assert list(launcher.running) == ["code"]


@scenario
async def test_an_engine_that_exits_while_it_is_awake_is_started_again(world: World, tmp_path: Path) -> None:
    launcher, router = await start(world, tmp_path, "process")
    assert (await router.chat("A function?", model="code")).status_code == 200
    launcher.fleet.engines["code"].process.kill()
    answer = await router.chat("Another function?", model="code")
    assert answer.status_code == 200
    assert list(launcher.running) == ["code"]


@scenario
async def test_an_engine_that_cannot_be_started_gives_the_gpu_back_and_the_reason_is_shown(
    world: World, tmp_path: Path
) -> None:
    text = config(world, "process", BROKEN)
    launcher, router = await world.launcher(text, tmp_path / "state"), await world.router(text)
    asking = asyncio.ensure_future(router.chat("A function?", model="code"))
    await asyncio.sleep(15)
    assert (await router.chat("The sea?", model="chat")).status_code == 200
    assert list(launcher.running) == ["chat"]
    assert any("code does not wake up" in line for line in launcher.output)
    asking.cancel()


@scenario
async def test_all_engines_start_one_after_another_and_all_but_the_first_sleep(world: World, tmp_path: Path) -> None:
    launcher, router = await start(world, tmp_path, "vllm")
    assert sorted(launcher.running) == sorted(MODELS)
    assert await asleep(launcher) == ["code", "mistral"]
    assert (await router.chat("A function?", model="code")).status_code == 200
    assert await asleep(launcher) == ["chat", "mistral"]


@scenario
async def test_one_that_exits_while_it_sleeps_is_started_only_when_it_is_to_wake_up(
    world: World, tmp_path: Path
) -> None:
    launcher, router = await start(world, tmp_path, "vllm")
    launcher.fleet.engines["code"].process.kill()
    await asyncio.sleep(120)
    assert sorted(launcher.running) == ["chat", "mistral"]
    assert (await router.chat("A function?", model="code")).status_code == 200
    assert await asleep(launcher) == ["chat", "mistral"]


@scenario
async def test_a_launcher_that_is_killed_and_started_again_wakes_the_engine_that_was_awake(
    world: World, tmp_path: Path
) -> None:
    launcher, router = await start(world, tmp_path, "process")
    assert (await router.chat("A function?", model="code")).status_code == 200
    launcher.kill()
    await asyncio.sleep(3)
    asking = asyncio.ensure_future(router.chat("A class?", model="mistral"))
    await asyncio.sleep(20)
    await launcher.start()
    assert (await asyncio.wait_for(asking, 120)).status_code == 200
    assert list(launcher.running) == ["mistral"]


@scenario
async def test_an_engine_that_is_being_started_again_makes_way_for_one_that_is_wanted(
    world: World, tmp_path: Path
) -> None:
    launcher, router = await start(world, tmp_path, "vllm")
    loop = asyncio.get_running_loop()
    launcher.loading = 30.0
    launcher.fleet.engines["chat"].process.kill()
    await asyncio.sleep(3)
    began = loop.time()
    asking = asyncio.ensure_future(router.chat("A function?", model="code"))
    while not asking.done():
        assert len(launcher.running) - len(await asleep(launcher)) <= 1, "awake, or about to be"
        await asyncio.sleep(0.5)
    assert (await asking).status_code == 200
    assert loop.time() - began < 10
    await asyncio.sleep(60)
    assert await asleep(launcher) == ["mistral"]
    assert "chat" not in launcher.running
