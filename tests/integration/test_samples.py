"""Several kept answers to one request, with a real Redis and the commands that show them."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_helpers import run_cli
from tests.support.router_server import EngineSet, MakeRouter, chat_body, router_config

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_two_routers_hand_out_the_samples_that_the_commands_show(
    redis_server: Any, client: Any, engines: EngineSet, make_router: MakeRouter, tmp_path: Path
) -> None:
    text = router_config(redis_server.url, engines.as_config(), cache="samples = 3")
    file = tmp_path / "roundhouse.toml"
    file.write_text(text)
    routers = [await make_router(text), await make_router(text)]

    async def ask(count: int, **headers: str) -> list[Any]:
        body = chat_body("The sea?")
        return [await routers[n % 2].post("/v1/chat/completions", body, **headers) for n in range(count)]

    first = await ask(3)
    assert [answer.headers["x-cache-reason"] for answer in first] == ["new", "sample", "sample"]
    keys = [answer.headers["x-cache-key"] for answer in first]
    again = await ask(3, x_session_id="s")
    assert [answer.headers["x-cache"] for answer in again] == ["HIT"] * 3
    assert [answer.json()["id"] for answer in again] == [answer.json()["id"] for answer in first]
    assert [answer.headers["x-cache-reason"] for answer in await ask(2, x_session_id="s")] == ["session"] * 2

    shown = (await run_cli("cache", "show", keys[1], "--json", "--config", file)).json()
    assert [sample["key"] for sample in shown["samples"]] == keys
    body = tmp_path / "request.json"
    body.write_text('{"model": "llama", "messages": [{"role": "user", "content": "The sea?"}]}')
    explained = (await run_cli("cache", "explain", body, "--json", "--config", file)).json()
    assert (explained["result"], explained["why"]) == ("HIT", "All 3 samples are stored, and handed out in turn.")
    stats = (await run_cli("cache", "stats", "--json", "--config", file)).json()
    assert stats["total"]["entries"] == 3
    purged = (await run_cli("cache", "purge", "--key", keys[2], "--json", "--config", file)).json()
    assert purged["entries"] == 1
    assert [answer.headers.get("x-cache-reason") for answer in await ask(3)].count("purged") == 1
    assert (await run_cli("cache", "ls", "--json", "--config", file)).stdout.count(keys[0]) == 3
