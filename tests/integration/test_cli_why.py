"""`roundhouse why`: what happened to a request, asked after it is over."""

import pytest

from router.api.access.auth import hash_key
from router.commands.admin_access import KEY_VARIABLE
from tests.support.cli_helpers import run_cli
from tests.support.redis_process import RedisServer
from tests.support.router_server import MakeRouter, RouterServer, router_config
from tests.support.simulated_engine import SimulatedEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN_KEY = "the-admin-key"


async def asked(router: RouterServer, prompt: str) -> str:
    answer = await router.http.post(
        "/v1/chat/completions", json={"model": "llama", "messages": [{"role": "user", "content": prompt}]}
    )
    return answer.headers["x-request-id"]


async def test_a_missed_and_a_failed_request_are_explained_after_they_are_over(
    make_router: MakeRouter, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, ADMIN_KEY)
    async with SimulatedEngine(model="meta-llama/Llama-Simulated") as engine:
        auth = f'[auth]\nadmin_keys = ["{hash_key(ADMIN_KEY.encode())}"]\n'
        router = await make_router(router_config(redis_server.url, {"e1": ("llama", "any", engine.url)}, rest=auth))
        missed = await asked(router, "Why is the sea salty?")
        await engine.set_faults({"fault": "status", "code": 500})
        failed = await asked(router, "Why is the sky blue?")
        found = await run_cli("why", missed, "--url", router.url)
        assert (found.code, found.stdout.splitlines()[0].split()[0]) == (0, missed)
        assert "MISS, new: no similar request was known" in found.stdout
        assert "e1: ok" in found.stdout
        # Without an id, the newest failure.
        failure = await run_cli("why", "--url", router.url)
        assert failure.stdout.splitlines()[0].split()[0] == failed
        assert "502 engine_failed" in failure.stdout
        assert "e1: status-500 after" in failure.stdout
        assert "the engine returned status 500" in failure.stdout
        as_json = (await run_cli("why", failed, "--url", router.url, "--json")).json()
        assert (as_json["request_id"], as_json["error"]) == (failed, "engine_failed")
        unknown = await run_cli("why", "no-such-request", "--url", router.url)
        assert unknown.code == 1
        assert "no router remembers the request no-such-request" in unknown.stderr
        assert "sea" not in found.stdout + failure.stdout
