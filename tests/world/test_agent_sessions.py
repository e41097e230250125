"""Sessions that clients name without X-Session-ID: by the headers of coding agents, and in the body."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import pytest

from router.core.api_keys import hash_key
from tests.support.router_server import RouterClient, router_config
from tests.support.typed_answers import MESSAGES, RESPONSES, typed_body
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

CHAT: Final = "/v1/chat/completions"
SESSIONS: Final = [f"7f3a0000-1111-4222-8333-44445555666{digit}" for digit in range(8)]
LONG: Final = "The sea was calm, and the lamp of the harbour was lit. " * 20  # 1 KiB


class Source(NamedTuple):
    """Where a client names its session: a path, and a header or a field of the body."""

    path: str
    header: str = ""
    user_id: str = ""

    def name(self, session: str) -> tuple[dict[str, str], dict[str, Any]]:
        """The headers and the fields."""
        if self.header:
            return {self.header: session}, {}
        if self.user_id:
            return {}, {"metadata": {"user_id": self.user_id.replace("SESSION", session)}}
        return {}, {"prompt_cache_key": session}


SOURCES: Final = [
    pytest.param(Source(MESSAGES, header="x-claude-code-session-id"), id="Claude Code"),
    pytest.param(Source(MESSAGES, user_id="user_0f_account__session_SESSION"), id="Claude Code 1, in the body"),
    pytest.param(Source(MESSAGES, user_id='{"device_id": "0f", "session_id": "SESSION"}'), id="2, in the body"),
    pytest.param(Source(RESPONSES, header="thread-id"), id="Codex"),
    pytest.param(Source(RESPONSES, header="session_id"), id="an older Codex"),
    pytest.param(Source(RESPONSES), id="prompt_cache_key of a response"),
    pytest.param(Source(CHAT), id="prompt_cache_key of a chat"),
]


KEYS: Final = '[auth]\nmode = "keys"\n' + "".join(
    f'[[tenant]]\nname = "{name}"\nkeys = ["{hash_key(f"sk-{name}".encode())}"]\n' for name in ("acme", "beta")
)


async def start(world: World, rest: str = "", **engine: Any) -> WorldRouter:
    table = {name: ("llama", "any", (await world.engine(**engine)).url) for name in ("a", "b")}
    return await world.router(router_config(world.redis.url, table, rest=rest))


async def ask(
    router: RouterClient, source: Source, session: str, prompt: str, key: str = "", **fields: Any
) -> tuple[str, str]:
    """X-Engine and X-Cache."""
    headers, named = source.name(session)
    if key:
        headers["authorization"] = f"Bearer {key}"
    body = typed_body(source.path, prompt, **fields, **named)
    answer = await router.http.post(source.path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-engine"], answer.headers["x-cache"]


@pytest.mark.parametrize("source", SOURCES)
@scenario
async def test_requests_of_one_session_go_to_one_engine(world: World, source: Source) -> None:
    router = await start(world)
    used = {}
    for session in SESSIONS:
        answers = [await ask(router, source, session, f"Question {n} of {session}?") for n in range(4)]
        assert answers == [(answers[0][0], "MISS")] * 4
        used[session] = answers[0][0]
    assert set(used.values()) == {"a", "b"}


@pytest.mark.parametrize("source", SOURCES)
@scenario
async def test_two_tenants_with_one_session_have_places_of_their_own(world: World, source: Source) -> None:
    router = await start(world, KEYS)
    places = {
        name: [(await ask(router, source, session, f"Hello {session}", f"sk-{name}"))[0] for session in SESSIONS]
        for name in ("acme", "beta")
    }
    assert places["acme"] != places["beta"]


@pytest.mark.parametrize("source", SOURCES)
@scenario
async def test_the_session_is_in_no_line_of_the_log(
    world: World, caplog: pytest.LogCaptureFixture, source: Source
) -> None:
    with caplog.at_level(logging.DEBUG):
        router = await start(world)
        await ask(router, source, SESSIONS[0], "Hello")
        await ask(router, source, SESSIONS[0], "Hello")
    assert "roundhouse.access" in {record.name for record in caplog.records}
    assert SESSIONS[0] not in caplog.text


@scenario
async def test_sub_agents_with_their_parent_s_session_have_places_of_their_own(world: World) -> None:
    router = await start(world)
    source = Source(MESSAGES, header="x-claude-code-session-id")
    systems = [f"You are agent {number}. {LONG}" for number in range(8)]
    first = [await ask(router, source, SESSIONS[0], "Begin.", system=system) for system in systems]
    assert {engine for engine, _ in first} == {"a", "b"}
    second = [await ask(router, source, SESSIONS[0], "Go on.", system=system) for system in systems]
    assert [engine for engine, _ in second] == [engine for engine, _ in first]


@pytest.mark.parametrize("sessions", [SESSIONS[:1], SESSIONS], ids=["of the parent", "of their own"])
@scenario
async def test_sub_agents_go_by_their_parents_prefix_and_by_load_and_not_by_its_session(
    world: World, sessions: Sequence[str]
) -> None:
    pair = {name: await world.engine() for name in ("a", "b")}
    router = await world.router(
        router_config(world.redis.url, {name: ("llama", "any", engine.url) for name, engine in pair.items()})
    )
    source, numbers = Source(MESSAGES, header="x-claude-code-session-id"), count()

    async def sub_agent(task: str) -> str:
        number = next(numbers)
        session = sessions[number % len(sessions)]
        return (await ask(router, source, session, f"Task {number}. {task}", system=LONG * 4))[0]

    place, _ = await ask(router, source, SESSIONS[0], "Begin.", system=LONG * 4)
    assert {await sub_agent("Look.") for _ in range(8)} == {place}, "it holds the prefix"
    for engine in pair.values():
        await engine.set_faults({"fault": "ttft", "ms": 5000, "times": 20})
    used = Counter(await asyncio.gather(*(sub_agent(LONG * 4) for _ in range(20))))
    assert min(used["a"], used["b"]) >= 6, "each has as much to compute as the prefix has"


@scenario
async def test_a_session_in_the_body_changes_no_key(world: World) -> None:
    canary = (await world.engine()).url
    table = {"stable": ("llama", "any", (await world.engine()).url), "canary": ("llama", "any", canary)}
    router = await world.router(router_config(world.redis.url, table, rest='share = 50\nrevision = "2"'))
    for prompt in ("The sea?", "The lake?", "The river?", "The pond?"):
        answers = [await ask(router, Source(CHAT), session, prompt) for session in SESSIONS]
        assert answers == [(answers[0][0], "MISS")] + [(answers[0][0], "HIT")] * 7


@scenario
async def test_the_billing_header_of_claude_code_hides_no_prefix_from_the_router(world: World) -> None:
    router = await start(world, enable_prompt_tokens_details=True, max_model_len=65536, kv_blocks=16384)
    turns: list[dict[str, Any]] = []
    for number in range(4):
        header = f"x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch=eb6c{number};"
        turns.append({"role": "user", "content": f"Turn {number}. " + LONG * 4})
        body = {"model": "llama", "max_tokens": 40, "messages": turns}
        body["system"] = [{"type": "text", "text": text} for text in (header, LONG * 4)]
        answer = await router.post(MESSAGES, body)
        assert (answer.status_code, answer.headers["x-cache"]) == (200, "MISS")
        turns.append({"role": "assistant", "content": answer.json()["content"]})
        usage = answer.json()["usage"]
        held = int(answer.headers["x-engine-reason"].split()[1].replace(",", ""))
        assert (held > 0) is (usage.get("cache_read_input_tokens", 0) > 0) is (number > 0)
        assert held == pytest.approx(usage.get("cache_read_input_tokens", 0), rel=0.2)


# -- the end of a session ---------------------------------------------------------------------------------------------


@scenario
async def test_a_tenant_ends_a_session_and_ending_it_again_is_no_error(world: World) -> None:
    router = await start(world, KEYS)
    headers = {"authorization": "Bearer sk-acme"}
    for session in (SESSIONS[0], SESSIONS[0], "chat/42", "s" * 128):
        answer = await router.http.delete(f"/v1/sessions/{session}", headers=headers)
        assert (answer.status_code, answer.json()) == (200, {"id": session, "object": "session", "deleted": True})


@pytest.mark.parametrize(
    ("path", "key", "status", "code"),
    [
        ("s1", "sk-other", 401, "invalid_api_key"),
        ("s1", "", 401, "invalid_api_key"),
        ("s" * 129, "sk-acme", 404, "not_found"),
        ("a%20b", "sk-acme", 404, "not_found"),
        ("", "sk-acme", 404, "not_found"),
    ],
)
@scenario
async def test_a_session_is_ended_by_a_key_and_called_what_a_session_can_be(
    world: World, path: str, key: str, status: int, code: str
) -> None:
    router = await start(world, KEYS)
    answer = await router.http.delete(f"/v1/sessions/{path}", headers={"authorization": f"Bearer {key}"} if key else {})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@scenario
async def test_a_session_can_only_be_ended(world: World) -> None:
    router = await start(world)
    for method in ("GET", "POST", "PUT"):
        answer = await router.http.request(method, "/v1/sessions/s1")
        assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, OPTIONS")
        assert answer.json()["error"]["code"] == "method_not_allowed"
