"""`roundhouse why`: what happened to a request, asked after it is over."""

import pytest

from router.api.access.auth import hash_key
from router.commands.admin_access import KEY_VARIABLE
from tests.support.cli_helpers import CommandResult, run_cli
from tests.support.redis_process import RedisServer
from tests.support.router_server import MakeRouter, RouterServer, router_config
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN_KEY = "the-admin-key"


async def asked(router: RouterServer, prompt: str) -> str:
    answer = await router.http.post(
        "/v1/chat/completions", json={"model": "llama", "messages": [{"role": "user", "content": prompt}]}
    )
    return answer.headers["x-request-id"]


async def start(make_router: MakeRouter, redis_server: RedisServer, engine: SimulatedEngine) -> RouterServer:
    auth = f'[auth]\nadmin_keys = ["{hash_key(ADMIN_KEY.encode())}"]\n'
    return await make_router(router_config(redis_server.url, {"e1": ("llama", "any", engine.url)}, rest=auth))


async def test_a_missed_and_a_failed_request_are_explained_after_they_are_over(
    make_router: MakeRouter, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, ADMIN_KEY)
    async with SimulatedEngine(model="meta-llama/Llama-Simulated") as engine:
        router = await start(make_router, redis_server, engine)
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
        undecodable = await run_cli("why", "\udcff", "--url", router.url)  # an argument that is not UTF-8
        assert (undecodable.code, "no router remembers" in undecodable.stderr) == (1, True)
        # A client may send any id, and one that it has sent before.
        for tenant in ("first", "second"):
            body = {"model": "llama", "messages": [{"role": "user", "content": tenant}]}
            await router.http.post("/v1/chat/completions", json=body, headers={"x-request-id": "twice"})
        twice = await run_cli("why", "twice", "--url", router.url)
        assert "2 requests had this id, of default; this is the newest" in twice.stderr


async def test_the_cache_explains_a_request_that_was_sent_by_its_id(
    make_router: MakeRouter, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, ADMIN_KEY)
    async with SimulatedEngine(model="meta-llama/Llama-Simulated") as engine:
        router = await start(make_router, redis_server, engine)
        await asked(router, "Why is the sea salty?")
        other = await router.chat("Why is the sea salty?", temperature=1)

        async def explained(request_id: str) -> CommandResult:
            return await run_cli("cache", "explain", "--id", request_id, "--url", router.url)

        async def is_stored() -> bool:
            return "is stored at the key now" in (await explained(other.headers["x-request-id"])).stdout

        await eventually(is_stored)
        found = await explained(other.headers["x-request-id"])
        first, key, *rest = found.stdout.splitlines()
        assert first.startswith(f"{other.headers['x-request-id']} of tenant default, model llama: MISS (")
        assert key == other.headers["x-cache-key"]
        assert "  differs in params: the other fields, such as temperature" in found.stdout
        assert rest[-1] == "1 entry of the tenant compared"
        no_lookup = await router.chat("Why?", headers={"cache-control": "no-store"})
        found = await explained(no_lookup.headers["x-request-id"])
        assert found.stdout.splitlines()[0].endswith("BYPASS (no-store)")
        unknown = await explained("no-such-request")
        assert unknown.code == 1
        assert unknown.stderr.endswith("No router remembers this request.\n")
