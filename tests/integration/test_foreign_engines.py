"""Engines that roundhouse did not start, and that are not vLLM."""

import logging
import re
from pathlib import Path

import pytest

from tests.support.certificate import certificate, needs_openssl
from tests.support.foreign_script import TEXT, ForeignScript
from tests.support.redis_process import RedisServer
from tests.support.router_server import MakeRouter, RouterServer, router_config
from tests.support.scripted_engine import ScriptedEngine, served

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "sk-secret-1234567890"


def config(redis_server: RedisServer, url: str, settings: str = "") -> str:
    return router_config(redis_server.url, {"foreign": ("llama", "any", url)}, rest=settings)


async def stream_twice(router: RouterServer, prompt: str) -> tuple[str, str]:
    """The responses to the same streamed request; the second must be a hit."""
    first = await router.chat(prompt, stream=True)
    second = await router.chat(prompt, stream=True)
    assert (first.status_code, first.headers["x-cache"]) == (200, "MISS"), first.text
    assert (second.status_code, second.headers["x-cache"]) == (200, "HIT"), second.text
    return first.text, second.text


async def test_every_request_to_an_engine_carries_its_key_and_its_headers(
    redis_server: RedisServer, make_router: MakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine = ForeignScript(api_key=SECRET, paths={"/health": "", "/metrics": ""})
    async with served(engine) as url:
        router = await make_router(
            config(redis_server, f"{url}/v1/", f'api_key = "{SECRET}"\nheaders = {{ X-Team = "ml-team-9" }}')
        )
        assert (await router.chat("The sea?")).json()["choices"][0]["message"]["content"] == TEXT
        assert (await router.http.get("/readyz")).status_code == 200
        pages = [(await router.http.get(path)).text for path in ("/metrics", "/healthz", "/v1/models")]
    assert {headers["x-team"] for headers in engine.headers} == {"ml-team-9"}
    assert not any(text in page for page in [*pages, caplog.text] for text in (SECRET, "ml-team-9"))


async def test_an_engine_that_refuses_its_key_is_down_and_the_log_says_why(
    redis_server: RedisServer, make_router: MakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(ForeignScript(api_key=SECRET)) as url:
        router = await make_router(config(redis_server, url, 'api_key = "wrong"'))
        assert "engine foreign refuses the router's key (status 401)" in caplog.text
        response = await router.chat("The sea?")
        assert response.status_code in (502, 503)
        assert "sk-" not in response.text
        health = (await router.http.get("/healthz")).json()
        assert health["engines"]["foreign"]["up"] is False
        words = [problem["words"] for problem in health["problems"]]
        assert words[0] == f"no engine of {health['engines']['foreign']['model']} is in service: only hits are served"
        assert re.fullmatch(r"engine foreign refuses the router's key since \S+ UTC: status 401", words[1])


async def test_a_message_that_repeats_the_key_reaches_the_client_without_it(
    redis_server: RedisServer, make_router: MakeRouter
) -> None:
    async with served(ForeignScript(api_key=SECRET)) as url:
        settings = f'api_key = "{SECRET}"\nheaders = {{ X-Team = "ml-team-9" }}'
        router = await make_router(config(redis_server, url, settings))
        response = await router.chat("The sea?", user="echo")
    assert response.status_code == 400
    assert "bad request with" in response.text
    assert SECRET not in response.text
    assert "ml-team-9" not in response.text


@pytest.mark.parametrize(
    "engine",
    [
        ForeignScript(owned_by="library", paths={"/": "Ollama is running"}),
        ForeignScript(owned_by="llamacpp", paths={"/health": "{}"}),
        ForeignScript(owned_by="system"),  # no /health, no /metrics
        ForeignScript(refuses_stream_options=True),
        ForeignScript(sends_done=False),
        ForeignScript(tells_usage=False, sends_done=False, refuses_stream_options=True),
    ],
    ids=["ollama", "llama.cpp", "only models", "refuses stream_options", "no [DONE]", "nothing of it"],
)
async def test_streams_of_servers_that_differ_from_vllm_are_served_and_stored(
    engine: ForeignScript, redis_server: RedisServer, make_router: MakeRouter
) -> None:
    async with served(engine) as url:
        router = await make_router(config(redis_server, url))
        first, second = await stream_twice(router, "The sea?")
        assert first == second
        assert first.endswith("data: [DONE]\n\n")
        assert len(engine.requests) == 1
        assert (await router.chat("The moon?", stream=True)).headers["x-cache"] == "MISS"
        samples = await router.metrics()
        assert samples['llm_tokens_total{kind="completion",model="llama",tenant="default"}'] > 0
        assert samples['llm_tokens_total{kind="saved",model="llama",tenant="default"}'] > 0


async def test_a_stream_that_ends_without_a_finish_reason_is_an_error_everywhere(
    redis_server: RedisServer, make_router: MakeRouter
) -> None:
    async with served(ForeignScript(sends_done=False, finish_reason=None)) as url:
        router = await make_router(config(redis_server, url))
        response = await router.chat("The sea?", stream=True)
        assert "engine_failed" in response.text
        assert "[DONE]" not in response.text
        assert (await router.chat("The sea?", stream=True)).headers["x-cache"] == "MISS"


async def test_a_stream_that_an_engine_said_to_be_vllm_does_not_end_is_completed_and_not_stored(
    redis_server: RedisServer, make_router: MakeRouter
) -> None:
    engine = ForeignScript(sends_done=False, paths={"/health": ""})
    async with served(engine) as url:
        router = await make_router(config(redis_server, url, 'kind = "vllm"'))
        for _ in range(2):
            response = await router.chat("The sea?", stream=True)
            assert response.headers["x-cache"] == "MISS"
            assert response.text.endswith("data: [DONE]\n\n")
            assert "error" not in response.text


async def test_what_the_client_asks_of_the_usage_is_left_out_where_an_engine_cannot_take_it(
    redis_server: RedisServer, make_router: MakeRouter
) -> None:
    engine = ForeignScript(refuses_stream_options=True)
    async with served(engine) as url:
        router = await make_router(config(redis_server, url, "stream_usage = false"))
        response = await router.chat("The sea?", stream=True, stream_options={"include_usage": True})
        assert response.text.endswith("data: [DONE]\n\n")
        assert "stream_options" not in engine.requests[0]


async def test_the_cache_salt_of_a_tenant_goes_only_to_servers_that_know_it(
    redis_server: RedisServer, make_router: MakeRouter
) -> None:
    tenants = '\n[[tenant]]\nname = "acme"\n[[tenant]]\nname = "globex"\n[auth]\nmode = "header"'
    seen = {}
    for owner in ("someone", "llamacpp"):
        engine = ForeignScript(owned_by=owner, paths={"/health": ""})
        async with served(engine) as url:
            router = await make_router(config(redis_server, url, tenants))
            await router.chat(f"The sea of {owner}?", headers={"x-tenant-id": "acme"})
            seen[owner] = "cache_salt" in engine.requests[0]
    assert seen == {"someone": True, "llamacpp": False}


async def test_an_engine_at_a_unix_socket_answers(redis_server: RedisServer, make_router: MakeRouter) -> None:
    # A path under tmp_path may be too long for a socket.
    async with served(ForeignScript(), unix_socket=str(redis_server.folder / "engine.sock")) as url:
        router = await make_router(config(redis_server, url))
        assert (await router.chat("The sea?")).status_code == 200


@needs_openssl
async def test_an_engine_with_a_certificate_of_a_private_authority_needs_its_ca_file(
    redis_server: RedisServer, make_router: MakeRouter, tmp_path: Path
) -> None:
    path = certificate(tmp_path)
    async with served(ForeignScript(), certificate=path) as url:
        trusting = await make_router(config(redis_server, url, f'ca_file = "{path}"'))
        assert (await trusting.chat("The sea?")).status_code == 200
        distrustful = await make_router(config(redis_server, url))
        assert (await distrustful.chat("The moon?")).json()["error"]["code"] == "no_engine"


FAILED = "Request failed during generation: Server error: out of memory"


@pytest.mark.parametrize(
    ("stream", "status", "reported"),
    [
        (False, 424, f'{{"error":"{FAILED}","error_type":"generation"}}'),
        (True, 424, f'{{"error":"{FAILED}","error_type":"generation"}}'),
        (True, 200, f'data: {{"error":{{"message":"{FAILED}","http_status_code":422}}}}\n\n'),
    ],
)
async def test_a_generation_that_has_failed_at_tgi_is_tried_again_and_is_no_fault_of_the_client(
    redis_server: RedisServer, make_router: MakeRouter, *, stream: bool, status: int, reported: str
) -> None:
    content_type = "application/json" if status == 424 else "text/event-stream"
    engine = ScriptedEngine(reported.encode(), status=status, content_type=content_type)
    await engine.start()
    router = await make_router(config(redis_server, engine.url))
    response = await router.chat("The sea?", stream=stream)
    assert (response.status_code, response.json()["error"]["code"]) == (502, "engine_failed"), response.text
    assert len(engine.bodies) > 1
    await engine.stop()


async def test_a_prompt_that_tgi_refuses_in_a_stream_is_the_clients_error_and_is_not_tried_again(
    redis_server: RedisServer, make_router: MakeRouter
) -> None:
    refusal = "Input validation error: `inputs` must have less than 1024 tokens"
    engine = ScriptedEngine(f'data: {{"error":{{"message":"{refusal}","http_status_code":422}}}}\n\n'.encode())
    await engine.start()
    router = await make_router(config(redis_server, engine.url))
    response = await router.chat("The sea?", stream=True)
    assert (response.status_code, response.json()["error"]["message"]) == (422, refusal)
    assert len(engine.bodies) == 1
    await engine.stop()
