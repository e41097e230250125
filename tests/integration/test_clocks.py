"""Routers with wrong wall clocks: an entry has the same age for all of them."""

import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import chat_body
from tests.support.time_travel import backdate_entry

pytestmark = pytest.mark.asyncio(loop_scope="session")

AN_HOUR = 3600
PROMPT = "The sea?"
WITH_ANOTHER_CLOCK = """
import sys, time
real, skew = time.time, float(sys.argv.pop(1))
time.time = lambda: real() + skew
from router.serve import main
raise SystemExit(main(["roundhouse", "serve", f"--config={sys.argv[1]}"]))
"""


class Routers:
    """Router processes whose wall clocks are an hour slow, right, and an hour fast."""

    def __init__(self, folder: Path, config: str) -> None:
        text = config.replace("[cache]", '[cache]\nttl = "10m"\nstale_if_error = 0')
        self.served = {skew: RouterProcess(folder, text, name=f"skew{skew}") for skew in (-AN_HOUR, 0, AN_HOUR)}

    async def start(self) -> None:
        for skew, served in self.served.items():
            argv = [sys.executable, "-c", WITH_ANOTHER_CLOCK, str(skew), str(served.config)]
            served.start(argv=argv)
        for served in self.served.values():
            await served.wait_until_ready()

    async def ask(self, skew: int, prompt: str = PROMPT, **headers: str) -> httpx.Response:
        async with http_client(self.served[skew].url) as http:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return await http.post("/v1/chat/completions", json=chat_body(prompt), headers=named)


@pytest_asyncio.fixture(loop_scope="session")
async def routers(tmp_path: Path, config: str, redis: Any) -> AsyncIterator[Routers]:
    routers = Routers(tmp_path, config)
    try:
        await routers.start()
        yield routers
    finally:
        for served in routers.served.values():
            served.kill()


async def test_an_entry_has_the_same_age_whichever_router_stored_or_serves_it(routers: Routers, redis: Any) -> None:
    for number, writer in enumerate(routers.served):
        prompt = f"{PROMPT} {number}"
        stored = await routers.ask(writer, prompt)
        assert stored.headers["x-cache"] == "MISS"
        key = stored.headers["x-cache-key"]
        await backdate_entry(redis, key, 100)
        assert abs(float(await redis.hget(key, "created")) + 100 - time.time()) < 20, "as Redis counts the time"
        for reader in routers.served:
            response = await routers.ask(reader, prompt)
            assert response.headers["x-cache"] == "HIT", (writer, reader)
            assert 99 <= int(response.headers["age"]) < 120, (writer, reader)
            too_old = await routers.ask(reader, prompt, cache_control="max-age=60, only-if-cached")
            assert too_old.status_code == 504, (writer, reader)


async def test_an_entry_expires_for_all_routers_at_the_same_time(routers: Routers, redis: Any) -> None:
    stored = await routers.ask(AN_HOUR)
    await backdate_entry(redis, stored.headers["x-cache-key"], 601)
    for reader in routers.served:
        assert (await routers.ask(reader, cache_control="only-if-cached")).status_code == 504
