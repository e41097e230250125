"""`roundhouse engines switch` and `rollback`: the model changes, and no request fails or gets an old answer."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from engines.switch.request import Step, SwitchFailedError, SwitchRefusedError
from router.core.cache.redis_keys import AUDIT_KEY
from router.shared.engines.announcements import AnnouncedEngine, write_command
from tests.support.router_server import chat_body
from tests.support.waiting import eventually
from tests.world.launcher import WHO, WorldLauncher
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

BROKEN = "--broken"  # the simulator takes it for an option that it does not have
SEA = "The sea?"

_ENGINE = """
[[engine]]
name = "{name}"
model = "{model}"
url = "http://{name}:8000"
served_model = "served"
max_in_flight = 3
[engine.launch]
target = "{target}"
draft = "draft-{name}"
"""


def config(world: World, target: str = "old", *, fallback: bool = False) -> str:
    """The engines e0 and e1 of the model llama, and m of the model mistral if it is its fallback."""
    text = f'[router]\nexplore = 0\n[cache]\nurl = "{world.redis.url}"\n[[model]]\nname = "llama"\nrevision = "r1"\n'
    text += 'fallback = "mistral"\n[[model]]\nname = "mistral"\n' if fallback else ""
    for name in ("e0", "e1", "m") if fallback else ("e0", "e1"):
        text += _ENGINE.format(name=name, model="mistral" if name == "m" else "llama", target=target)
    return text


async def start(world: World, folder: Path, *, fallback: bool = False) -> tuple[WorldLauncher, WorldRouter]:
    text = config(world, fallback=fallback)
    return await world.launcher(text, folder / "state"), await world.router(text)


async def ask(router: WorldRouter, prompt: str = SEA) -> httpx.Response:
    return await router.http.post("/v1/chat/completions", json=body(prompt))


async def is_answered(router: WorldRouter, prompt: str = SEA) -> bool:
    return (await ask(router, prompt)).status_code == 200


def body(prompt: str, **fields: Any) -> dict[str, Any]:
    return chat_body(prompt, max_tokens=8, temperature=0, **fields)


async def cached(router: WorldRouter, prompt: str = SEA) -> tuple[str, str]:
    """Whether the router had an answer, and the key."""
    answer = await ask(router, prompt)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-cache"], answer.headers["x-cache-key"]


async def stored(router: WorldRouter, prompt: str = SEA) -> str:
    """Asks until the answer comes from the cache; returns its key."""

    async def is_hit() -> bool:
        return (await cached(router, prompt))[0] == "HIT"

    await eventually(is_hit)
    return (await cached(router, prompt))[1]


@asynccontextmanager
async def load(router: WorldRouter, clients: int = 4) -> AsyncIterator[list[httpx.Response]]:
    """Sends new requests one after the other from each client; the responses so far, all complete.

    By default there are more clients than one engine takes, since all requests may prefer the same one.
    """
    responses: list[httpx.Response] = []
    ended = asyncio.Event()

    async def send_requests(client: int) -> None:
        for number in itertools.count():
            if ended.is_set():
                return
            request = body(f"client {client}, request {number}", stream=client % 2 == 0)
            response = await router.http.post("/v1/chat/completions", json=request)
            assert response.status_code == 200, response.text
            assert client % 2 or response.text.endswith("[DONE]\n\n")
            responses.append(response)

    async with asyncio.TaskGroup() as group:
        for client in range(clients):
            group.create_task(send_requests(client))
        try:
            yield responses
        finally:
            ended.set()


def by_engine(responses: list[httpx.Response]) -> set[str]:
    return {response.headers["x-engine"] for response in responses}


def targets(launcher: WorldLauncher) -> dict[str, str]:
    return {name: engine.model for name, engine in launcher.running.items()}


@scenario
async def test_a_new_target_takes_over_at_all_engines_under_load_and_a_rollback_brings_back_the_old_answers(
    world: World, tmp_path: Path
) -> None:
    launcher, router = await start(world, tmp_path)
    old_key = await stored(router)
    async with load(router) as responses:
        result = await launcher.switch(target="new", shadow=1)
        seen = len(responses)
        await eventually(lambda: by_engine(responses[seen:]) == {"e0", "e1"})
    assert (result.model, result.revision, result.after) == ("llama", "new", False)
    assert {engine.name: (engine.target, engine.draft) for engine in result.engines} == {
        "e0": ("new", "draft-e0"),
        "e1": ("new", "draft-e1"),
    }
    assert not any(engine.stopped_busy for engine in result.engines)
    shadow = result.shadow
    assert shadow is not None
    assert (shadow.requests, shadow.deterministic_different, shadow.failed_new) == (1, 1, 0)
    assert targets(launcher) == {"e0@2": "new", "e1@2": "new"}
    status, new_key = await cached(router)
    assert (status, new_key == old_key) == ("MISS", False)
    new_key = await stored(router)

    async with load(router):
        await launcher.rollback("e1")
    assert await cached(router) == ("HIT", old_key)

    async with load(router):
        await launcher.switch(target="new")
    assert await cached(router) == ("HIT", new_key), "the same revision has the same answers"


@scenario
async def test_a_switch_and_a_rollback_are_in_the_audit_and_one_that_fails_is_not(world: World, tmp_path: Path) -> None:
    launcher, _ = await start(world, tmp_path)
    with pytest.raises(SwitchFailedError):
        await launcher.switch(target=BROKEN)
    await launcher.switch(target="new")
    await launcher.rollback("e1")
    first, second = [fields for _, fields in await world.redis.client.xrange(AUDIT_KEY)]
    assert [(each["action"], each["subject"], each["actor"]) for each in (first, second)] == [
        ("switch", "e0", WHO), ("rollback", "e1", WHO),
    ]  # fmt: skip
    details = {"model": "llama", "revision": "new", "engines": ["e0: new", "e1: new"]}
    assert json.loads(first["details"]) == details
    assert any(line == f"audit: switch e0 by {WHO}, hash {first['hash']}" for line in launcher.output)


@scenario
async def test_a_new_draft_replaces_one_engine_and_keeps_the_answers(world: World, tmp_path: Path) -> None:
    launcher, router = await start(world, tmp_path)
    key = await stored(router)
    result = await launcher.switch(draft="better")
    assert [(engine.name, engine.draft) for engine in result.engines] == [("e0", "better")]
    assert result.revision == "r1"
    assert await cached(router) == ("HIT", key)


@scenario
async def test_an_engine_that_cannot_start_changes_nothing(world: World, tmp_path: Path) -> None:
    launcher, router = await start(world, tmp_path)
    key = await stored(router)
    for after in (False, True):
        async with load(router, clients=0 if after else 4):
            with pytest.raises(SwitchFailedError, match="ended with code 2 before it was ready; its last line: "):
                await launcher.switch(target=BROKEN, after=after)
        assert targets(launcher) == {"e0": "old", "e1": "old"}
        assert await cached(router) == ("HIT", key)
        await eventually(partial(is_answered, router, f"Up after {after}?"))  # with `after`, the old ones were gone
        answer = await ask(router, f"After {after}?")
        assert (answer.status_code, answer.headers["x-cache"]) == (200, "MISS")
    assert not (tmp_path / "state" / "switched.json").exists()


@scenario
async def test_while_there_is_no_old_engine_and_no_new_one_the_fallback_answers(world: World, tmp_path: Path) -> None:
    launcher, router = await start(world, tmp_path, fallback=True)
    async with load(router) as responses:
        result = await launcher.switch(target="new", after=True)
        assert "m" in by_engine(responses)
        seen = len(responses)
        await eventually(lambda: by_engine(responses[seen:]) >= {"e0", "e1"})
    assert result.after is True
    assert [engine.name for engine in result.engines] == ["e0", "e1"]


@scenario
async def test_a_switch_survives_a_restart_and_a_changed_configuration_ends_it(world: World, tmp_path: Path) -> None:
    launcher, router = await start(world, tmp_path)
    old_key = await stored(router)
    await launcher.switch(target="new", no_draft=True, after=True)
    await eventually(lambda: is_answered(router))  # the old engines are gone before the router knows the new ones
    new_key = await stored(router)
    assert new_key != old_key
    await launcher.stop()
    await launcher.start()
    assert "e0: new, as it was switched" in launcher.output
    assert await cached(router) == ("HIT", new_key)
    await launcher.stop()
    await launcher.start(config(world, "newest"))
    assert "model llama: its configuration has changed; earlier switches are ignored" in launcher.output
    assert targets(launcher) == {"e0": "newest", "e1": "newest"}
    await eventually(lambda: cached_is(router, old_key))


async def cached_is(router: WorldRouter, key: str) -> bool:
    return (await cached(router))[1] == key


@scenario
async def test_a_switch_whose_record_is_lost_does_not_mix_the_answers_of_two_targets(
    world: World, tmp_path: Path
) -> None:
    launcher, router = await start(world, tmp_path)
    old_key = await stored(router)
    await launcher.switch(target="new")
    assert (await cached(router))[1] != old_key
    await launcher.stop()
    (tmp_path / "state" / "switched.json").unlink()  # as if `up` had been killed before it was written
    await launcher.start()
    assert await cached(router) == ("HIT", old_key)


@scenario
async def test_a_redis_that_refuses_the_take_over_leaves_the_old_engines(world: World, tmp_path: Path) -> None:
    launcher, router = await start(world, tmp_path)
    world.redis.is_full = True
    with pytest.raises(SwitchFailedError, match="cannot announce the engines in Redis"):
        await launcher.switch(target="new")
    assert (await ask(router)).status_code == 200
    assert targets(launcher) == {"e0": "old", "e1": "old"}


@scenario
async def test_an_engine_of_another_launcher_prevents_a_new_target(world: World, tmp_path: Path) -> None:
    launcher, _ = await start(world, tmp_path)
    remote = AnnouncedEngine(name="remote", model="llama", task="any", url="http://127.0.0.1:1", served_model="served")
    await world.redis.client.execute_command(*write_command("another", [remote]))
    with pytest.raises(SwitchRefusedError, match="engine remote of model llama was not started by this"):
        await launcher.switch(target="new")


@pytest.mark.parametrize(("step", "after"), [("start", False), ("check", False), ("start", True)])
@scenario
async def test_a_switch_that_is_interrupted_before_the_take_over_is_undone(
    world: World, tmp_path: Path, step: Step, after: bool
) -> None:
    launcher, router = await start(world, tmp_path)
    with pytest.raises(asyncio.CancelledError):
        await launcher.switch(target="new", after=after, cancel_at=step)
    await eventually(lambda: targets(launcher) == {"e0": "old", "e1": "old"})
    await eventually(lambda: is_answered(router))
    await launcher.switch(draft="better")


@pytest.mark.parametrize("how", ["stop", "kill"])
@scenario
async def test_an_engine_is_not_left_drained_if_up_ends_during_a_switch(world: World, tmp_path: Path, how: str) -> None:
    launcher, router = await start(world, tmp_path)
    steps: list[str] = []
    switching = asyncio.create_task(
        launcher.switch(report=lambda progress: steps.append(progress.step), target="new", after=True)
    )
    await eventually(lambda: "drain" in steps)
    if how == "kill":
        launcher.kill()
    else:
        await launcher.stop()
    switching.cancel()
    await asyncio.wait([switching])
    await launcher.start()
    await eventually(lambda: is_answered(router))
