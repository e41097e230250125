"""Prompts and answers in the log, where the configuration asks for them."""

import logging
from typing import Any, Final

import pytest

from router.api.access.auth import hash_key
from router.api.inference.prompt_log import PROMPT_LOGGER, prompt_log_warning, with_prompt_log
from router.settings import parse
from router.telemetry.log_output import TextFormatter
from tests.support.configurations import MINIMAL
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config
from tests.support.streaming_client import open_stream
from tests.support.typed_answers import TYPED_PATHS, typed_body
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ALL: Final = "log_prompts = 1.0\nlog_prompt_chars = 12"
TENANTS: Final = f"""[auth]
mode = "keys"

[[tenant]]
name = "open"
keys = ["{hash_key(b"open-key")}"]

[[tenant]]
name = "silent"
keys = ["{hash_key(b"silent-key")}"]
log_prompts = false
"""


@pytest.fixture
def logged(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet, caplog: pytest.LogCaptureFixture
) -> Any:
    """Starts a router and returns it with the list of the facts that it logs."""
    caplog.set_level(logging.INFO, PROMPT_LOGGER)

    async def start(router: str = ALL, rest: str = "") -> tuple[RouterServer, Any]:
        served = await make_router(router_config(redis_server.url, engines.as_config(), router=router, rest=rest))

        async def facts(count: int) -> list[dict[str, Any]]:
            await eventually(lambda: len(records()) >= count)
            assert len(records()) == count
            return [record.__dict__["facts"] for record in records()]

        return served, facts

    def records() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == PROMPT_LOGGER]

    return start


async def test_a_sampled_request_is_logged_with_its_prompt_and_its_answer_cut(logged: Any) -> None:
    router, facts = await logged()
    answers = [await router.chat("Tell me about the sea.", headers={"x-request-id": "mine"}) for _ in range(2)]
    content = answers[0].json()["choices"][0]["message"]["content"]
    common = {"request": "mine", "tenant": "default", "path": "/v1/chat/completions", "status": 200}
    texts = {"prompt": "Tell me abou…", "answer": f"{content[:12]}…"}
    assert await facts(2) == [{**common, "cache": cache, **texts} for cache in ("MISS", "HIT")]


@pytest.mark.parametrize("cached", [False, True])
async def test_the_answer_of_a_stream_is_logged_as_its_text(logged: Any, *, cached: bool) -> None:
    router, facts = await logged()
    if cached:
        await router.chat("The sea?")
    streamed = await router.chat("The sea?", stream=True)
    content = (await router.chat("The sea?")).json()["choices"][0]["message"]["content"]
    assert streamed.headers["x-cache"] == ("HIT" if cached else "MISS")
    logged_ = (await facts(3 if cached else 2))[-2]
    assert (logged_["prompt"], logged_["answer"]) == ("The sea?", f"{content[:12]}…")


@pytest.mark.parametrize("path", TYPED_PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_typed_endpoints_are_logged_too(logged: Any, path: str, *, stream: bool) -> None:
    router, facts = await logged("log_prompts = 1.0\nlog_prompt_chars = 10000")
    await router.post(path, typed_body(path, "The sea?", stream=stream))
    await router.post(path, typed_body(path, "The sea?"))
    first, second = await facts(2)
    assert first["path"] == path
    assert first["prompt"] == "The sea?"
    assert first["answer"] == second["answer"] != ""


async def test_a_refused_request_has_no_answer_and_one_that_is_no_request_no_prompt(logged: Any) -> None:
    router, facts = await logged()
    await router.chat("The sea?", model="nobody's")
    await router.post("/v1/chat/completions", b'{"model": "llama", "messages": "')
    assert [(line["status"], line["prompt"], line["answer"]) for line in await facts(2)] == [
        (404, "The sea?", ""), (400, "", ""),
    ]  # fmt: skip


async def test_a_stream_that_its_client_leaves_is_logged_as_far_as_it_was_sent(logged: Any, engines: EngineSet) -> None:
    router, facts = await logged("log_prompts = 1.0")
    await engines.chat.set_faults({"fault": "tps", "rate": 20})
    async with open_stream(router, "The sea?") as stream:
        await stream.read_until_text(" ")
    (line,) = await facts(1)
    assert line["status"] == 200
    assert line["answer"].startswith(stream.text)


async def test_tenants_can_opt_out_and_strangers_are_not_logged(logged: Any) -> None:
    router, facts = await logged(rest=TENANTS)
    for key in ("silent-key", "open-key", "wrong"):
        await router.chat("The sea?", headers={"authorization": f"Bearer {key}"})
    assert [line["tenant"] for line in await facts(1)] == ["open"]


async def test_without_the_setting_nothing_is_logged_and_nothing_is_between_server_and_endpoint(logged: Any) -> None:
    router, facts = await logged("")
    await router.chat("The sea?")
    assert await facts(0) == []
    settings, endpoints = parse(MINIMAL, {}), {"/v1/chat/completions": object()}
    assert with_prompt_log(settings, None, endpoints) is endpoints  # type: ignore[arg-type] # it needs neither


async def test_only_the_configured_share_is_logged(logged: Any) -> None:
    router, facts = await logged("log_prompts = 0.000000001")
    for _ in range(10):
        await router.chat("The sea?")
    assert await facts(0) == []


async def test_a_prompt_cannot_forge_a_line_of_text(logged: Any, caplog: pytest.LogCaptureFixture) -> None:
    router, facts = await logged("log_prompts = 1.0")
    forged = 'x" request=forged\n2026-11-21 05:17:44,252 INFO roundhouse.access request=forged \x1b[2J'
    await router.chat(forged)
    assert (await facts(1))[0]["prompt"] == forged
    (record,) = [record for record in caplog.records if record.name == PROMPT_LOGGER]
    line = TextFormatter().format(record)
    assert line.isprintable()
    assert r'prompt="x\" request=forged\n2026-11-21' in line


async def test_the_warning_names_what_is_logged_and_who_is_left_out() -> None:
    settings = parse(f"[router]\nlog_prompts = 0.01\n{TENANTS}\n{MINIMAL}", {})
    warning = prompt_log_warning(settings)
    assert warning is not None
    assert "of 1 % of all requests, up to 500 characters of each, but none of the tenants silent" in warning
    assert prompt_log_warning(parse(MINIMAL, {})) is None
