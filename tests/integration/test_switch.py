"""`roundhouse engines switch` and `rollback` as commands, while requests flow. What happens over time: tests/world."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio

from tests.support.process_tree import ProcessTree
from tests.support.waiting import TEST_TIMEOUT, eventually, next_line

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
    """Whether the router had an answer, and the key; a lookup that is too slow for `cache.timeout` has none."""

    async def answer() -> httpx.Response | None:
        response = await tree.ask(prompt)
        assert response.status_code == 200, response.text
        return response if "x-cache-key" in response.headers else None

    headers = (await eventually(answer)).headers
    return headers["x-cache"], headers["x-cache-key"]


async def stored(tree: ProcessTree, prompt: str = SEA) -> str:
    """Asks until the answer comes from the cache; returns its key."""

    async def is_hit() -> bool:
        return (await cached(tree, prompt))[0] == "HIT"

    await eventually(is_hit)
    return (await cached(tree, prompt))[1]


async def test_a_switch_under_load_survives_a_restart_and_a_rollback_brings_back_the_old_answers(
    tree: ProcessTree,
) -> None:
    old_key = await stored(tree)
    async with tree.load() as responses:
        result = await switch(tree, "--target", "new", "--shadow", "1")
        seen = len(responses)
        # Not from both: the engines have drafts of their own, and on a busy machine one can be measured as slower.
        await eventually(lambda: len(responses) >= seen + 8)
    assert (result["model"], result["revision"], result["after"]) == ("llama", "new", False)
    engines = {engine["name"]: (engine["target"], engine["draft"]) for engine in result["engines"]}
    assert engines == {"e0": ("new", "draft-e0"), "e1": ("new", "draft-e1")}
    assert not any(engine["stopped_busy"] for engine in result["engines"])
    shadow = result["shadow"]
    assert (shadow["requests"], shadow["deterministic_different"], shadow["failed_new"]) == (1, 1, 0)
    status, new_key = await cached(tree)
    assert (status, new_key == old_key) == ("MISS", False)
    new_key = await stored(tree)

    await tree.stop()
    await tree.start()
    assert "e0: new + draft-e0, as it was switched" in tree.output
    assert await cached(tree) == ("HIT", new_key)

    code, output, errors = await tree.run("engines", "rollback", "e1")
    assert code == 0, errors
    assert "model llama has the revision 'r1'" in output
    assert await cached(tree) == ("HIT", old_key)


async def test_a_switch_that_fails_or_is_interrupted_leaves_the_old_engines(tree: ProcessTree) -> None:
    code, output, errors = await tree.run("engines", "switch", "e0", f"--target={BROKEN}")
    assert (code, output) == (1, "")
    assert "roundhouse: e0 was not switched: " in errors
    assert "before it was ready" in errors

    interrupted = await tree.start_command("engines", "switch", "e0", "--target", "new")
    assert interrupted.stderr is not None
    assert (await next_line(interrupted.stderr)).startswith(b"start: e0 at ")
    interrupted.send_signal(signal.SIGINT)
    await asyncio.wait_for(interrupted.wait(), TEST_TIMEOUT)
    await eventually(lambda: len(tree.engines()) == 2 and all(b"--model\0old\0" in each for each in tree.engines()))
    assert (await tree.ask(SEA)).status_code == 200

    interrupted = await tree.start_command("engines", "switch", "e0", "--target", "new", "--after")
    assert interrupted.stderr is not None
    assert (await next_line(interrupted.stderr)).startswith(b"drain: e0, e1")
    await tree.stop()
    await asyncio.wait_for(interrupted.wait(), TEST_TIMEOUT)
    await tree.start()

    async def is_answered() -> bool:
        return (await tree.ask(SEA)).status_code == 200

    await eventually(is_answered)
