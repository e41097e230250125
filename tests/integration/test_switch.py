"""`roundhouse engines switch` and `rollback`: the model changes, and no request fails or gets an old answer."""

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import redis.asyncio as aioredis

from router.shared.announcements import AnnouncedEngine, write_command
from tests.support.process_tree import ProcessTree
from tests.support.waiting import eventually

BROKEN = "--broken"  # the simulator takes it for an option that it does not have
SEA = "The sea?"


@pytest_asyncio.fixture
async def tree(tmp_path: Path) -> AsyncIterator[ProcessTree]:
    started = ProcessTree(tmp_path)
    await started.start()
    yield started
    await started.stop()


async def switch(tree: ProcessTree, *options: str) -> dict[str, Any]:
    code, output, errors = await tree.run("engines", "switch", "e0", *options, "--json")
    assert code == 0, errors
    result: dict[str, Any] = json.loads(output)
    return result


async def cached(tree: ProcessTree, prompt: str = SEA) -> tuple[str, str]:
    """Whether the router had an answer, and the key."""
    answer = await tree.ask(prompt)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-cache"], answer.headers["x-cache-key"]


async def stored(tree: ProcessTree, prompt: str = SEA) -> str:
    """Asks until the answer comes from the cache; returns its key."""

    async def is_hit() -> bool:
        return (await cached(tree, prompt))[0] == "HIT"

    await eventually(is_hit)
    return (await cached(tree, prompt))[1]


def by_engine(responses: list[httpx.Response]) -> set[str]:
    return {response.headers["x-engine"] for response in responses}


async def redis_command(tree: ProcessTree, *command: Any) -> None:
    client: Any = aioredis.Redis.from_url(f"unix://{tree.folder / 'state' / 'redis.sock'}")
    await client.execute_command(*command)
    await client.aclose()


async def test_a_new_target_takes_over_at_all_engines_under_load_and_a_rollback_brings_back_the_old_answers(
    tree: ProcessTree,
) -> None:
    old_key = await stored(tree)
    async with tree.load() as responses:
        result = await switch(tree, "--target", "new", "--shadow", "1")
        seen = len(responses)
        await eventually(lambda: by_engine(responses[seen:]) == {"e0", "e1"})
    assert (result["model"], result["revision"], result["after"]) == ("llama", "new", False)
    engines = {engine["name"]: (engine["target"], engine["draft"]) for engine in result["engines"]}
    assert engines == {"e0": ("new", "draft-e0"), "e1": ("new", "draft-e1")}
    assert not any(engine["stopped_busy"] for engine in result["engines"])
    shadow = result["shadow"]
    assert (shadow["requests"], shadow["deterministic_different"], shadow["failed_new"]) == (1, 1, 0)
    status, new_key = await cached(tree)
    assert (status, new_key == old_key) == ("MISS", False)
    new_key = await stored(tree)

    async with tree.load():
        code, output, errors = await tree.run("engines", "rollback", "e1")
    assert code == 0, errors
    assert "model llama has the revision 'r1'" in output
    assert await cached(tree) == ("HIT", old_key)

    async with tree.load():
        await switch(tree, "--target", "new")
    assert await cached(tree) == ("HIT", new_key), "the same revision has the same answers"


async def test_a_new_draft_replaces_one_engine_and_keeps_the_answers(tree: ProcessTree) -> None:
    key = await stored(tree)
    result = await switch(tree, "--draft", "better")
    assert [(engine["name"], engine["draft"]) for engine in result["engines"]] == [("e0", "better")]
    assert result["revision"] == "r1"
    assert await cached(tree) == ("HIT", key)


async def test_an_engine_that_cannot_start_changes_nothing(tree: ProcessTree) -> None:
    key = await stored(tree)
    for more in ([], ["--after"]):
        async with tree.load(clients=0 if more else 4):
            code, output, errors = await tree.run("engines", "switch", "e0", f"--target={BROKEN}", *more)
        assert (code, output) == (1, "")
        assert "roundhouse: e0 was not switched: " in errors
        assert "before it was ready" in errors
        assert await cached(tree) == ("HIT", key)
        answer = await tree.ask(f"New{more}?")
        assert (answer.status_code, answer.headers["x-cache"]) == (200, "MISS")
    assert not (tree.folder / "state" / "switched.json").exists()


async def test_while_there_is_no_old_engine_and_no_new_one_the_fallback_answers(tmp_path: Path) -> None:
    tree = ProcessTree(tmp_path, fallback=True)
    await tree.start()
    try:
        async with tree.load() as responses:
            result = await switch(tree, "--target", "new", "--after")
            assert "m" in by_engine(responses)
            seen = len(responses)
            await eventually(lambda: by_engine(responses[seen:]) >= {"e0", "e1"})
    finally:
        await tree.stop()
    assert result["after"] is True
    assert [engine["name"] for engine in result["engines"]] == ["e0", "e1"]


async def test_a_switch_survives_a_restart_and_a_changed_configuration_ends_it(tree: ProcessTree) -> None:
    old_key = await stored(tree)
    await switch(tree, "--target", "new", "--no-draft", "--after")
    new_key = await stored(tree)
    assert new_key != old_key
    await tree.stop()
    await tree.start()
    assert "e0: new, as it was switched" in tree.output
    assert await cached(tree) == ("HIT", new_key)
    await tree.stop()
    tree.configure("newest")
    await tree.start()
    assert "model llama: its configuration has changed; earlier switches are ignored" in tree.output
    assert (await cached(tree))[1] == old_key, "the configured revision counts again"


async def test_a_switch_whose_record_is_lost_does_not_mix_the_answers_of_two_targets(tree: ProcessTree) -> None:
    old_key = await stored(tree)
    await switch(tree, "--target", "new")
    assert (await cached(tree))[1] != old_key
    await tree.stop()
    (tree.folder / "state" / "switched.json").unlink()  # as if `up` had been killed before it was written
    await tree.start()
    assert await cached(tree) == ("HIT", old_key)


async def test_a_redis_that_refuses_the_take_over_leaves_the_old_engines(tree: ProcessTree) -> None:
    await redis_command(tree, "CONFIG", "SET", "maxmemory", "1")  # it refuses writes
    code, _, errors = await tree.run("engines", "switch", "e0", "--target", "new")
    assert code == 1
    assert "roundhouse: e0 was not switched: cannot announce the engines in Redis" in errors
    assert (await tree.ask(SEA)).status_code == 200
    assert all(b"--model\0old\0" in command for command in tree.engines())
    assert len(tree.engines()) == 2


async def test_an_engine_of_another_launcher_prevents_a_new_target(tree: ProcessTree) -> None:
    remote = AnnouncedEngine(name="remote", model="llama", task="any", url="http://127.0.0.1:1", served_model="served")
    await redis_command(tree, *write_command("another", [remote]))
    code, _, errors = await tree.run("engines", "switch", "e0", "--target", "new")
    assert code == 1
    assert "engine remote of model llama was not started by this `roundhouse up`" in errors


async def test_a_switch_that_is_interrupted_before_the_take_over_is_undone(tree: ProcessTree) -> None:
    interrupted = await tree.start_command("engines", "switch", "e0", "--target", "new")
    assert interrupted.stderr is not None
    assert (await interrupted.stderr.readline()).startswith(b"start: e0 at ")
    interrupted.send_signal(signal.SIGINT)
    await interrupted.wait()
    await eventually(lambda: len(tree.engines()) == 2)
    assert all(b"--model\0old\0" in command for command in tree.engines())
    assert (await tree.ask(SEA)).status_code == 200
    await switch(tree, "--draft", "better")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
async def test_an_engine_is_not_left_drained_if_up_ends_during_a_switch(tree: ProcessTree, number: int) -> None:
    interrupted = await tree.start_command("engines", "switch", "e0", "--target", "new", "--after")
    assert interrupted.stderr is not None
    assert (await interrupted.stderr.readline()).startswith(b"drain: e0, e1")
    await tree.stop(number)
    await interrupted.wait()
    await tree.start()

    async def is_answered() -> bool:
        return (await tree.ask(SEA)).status_code == 200

    await eventually(is_answered)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["switch", "e0", "--target", "old"], "nothing to change; give --revision"),
        (["switch", "e0", "--target", "new", "--revision", "r1"], "revision 'r1' is in effect"),
        (["switch", "e9", "--target", "new"], "no engine 'e9' runs here; there is e0, e1"),
        (["rollback", "e0"], "e0 has no previous version"),
    ],
)
async def test_a_switch_that_makes_no_sense_is_refused(tree: ProcessTree, options: list[str], reason: str) -> None:
    code, _, errors = await tree.run("engines", *options)
    assert code == 1
    assert reason in errors
