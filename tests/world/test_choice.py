"""Engine selection, from outside: session and prompt affinity, contexts, drafts."""

import asyncio
import json
import logging
import re
from collections import Counter
from itertools import count
from math import isnan, nan
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from benchmarks.affinity import compare
from router.core.api_keys import hash_key
from router.core.routing.prefill import EnginePrefill
from tests.support.router_server import LLAMA, chat_body, router_config
from tests.support.waiting import eventually
from tests.world.http import open_client
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import PROBED, World, scenario

LARGE: dict[str, Any] = {"max_model_len": 65536, "kv_blocks": 16384}
CODE = "Write a Python function that sorts a list"
CHAT = "Tell me a story about the sea"


async def start(world: World, **engines: dict[str, Any]) -> tuple[WorldRouter, dict[str, WorldEngine]]:
    """A router with these engines of llama, by their names."""
    started = {name: await world.engine(**options) for name, options in engines.items()}
    table = {name: ("llama", "any", engine.url) for name, engine in started.items()}
    return await world.router(router_config(world.redis.url, table)), started


async def start_two(world: World) -> tuple[WorldRouter, WorldRouter, dict[str, WorldEngine]]:
    """Two routers that have heard of each other, with two engines."""
    first, pair = await start(world, a=LARGE, b=LARGE)
    table = {name: ("llama", "any", engine.url) for name, engine in pair.items()}
    second = await world.router(router_config(world.redis.url, table))
    await asyncio.sleep(3)
    return first, second, pair


def prefills(router: WorldRouter) -> list[EnginePrefill]:
    return [prefill for _, prefill in router.application._process_state.prefills.items()]


def in_flight_of_others(router: WorldRouter) -> list[int]:
    return [prefill.remote for prefill in prefills(router)]


async def engine_of(router: WorldRouter, system: str, question: str, **headers: str) -> str:
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    answer = await router.chat("", messages=messages, headers=headers, max_tokens=4)
    assert answer.headers["x-cache"] == "MISS"
    return answer.headers["x-engine"]


@scenario
async def test_requests_with_one_system_prompt_go_to_one_replica_and_prompts_spread(world: World) -> None:
    router, _ = await start(world, a={}, b={})
    engines_used = {
        system: {await engine_of(router, f"You are {system}. " * 200, f"Question {number}") for number in range(3)}
        for system in range(12)
    }
    assert all(len(engines) == 1 for engines in engines_used.values())
    assert {name for engines in engines_used.values() for name in engines} == {"a", "b"}


@scenario
async def test_requests_of_one_session_go_to_one_replica_whatever_their_prompts_are(world: World) -> None:
    router, _ = await start(world, a={}, b={})
    for session in ("s1", "s2", "s3"):
        headers = {"x-session-id": session}
        engines_used = {await engine_of(router, f"Prompt {n}", f"{session} {n}", **headers) for n in range(6)}
        assert len(engines_used) == 1


@scenario
async def test_an_invalid_session_is_ignored(world: World) -> None:
    router, _ = await start(world, a={}, b={})
    headers = {"x-session-id": "s" * 129}
    engines_used = {await engine_of(router, "", f"{n} " * 3000, **headers) for n in range(8)}
    assert engines_used == {"a", "b"}


@scenario
async def test_concurrent_requests_are_spread_between_two_probes(world: World) -> None:
    router, pair = await start(world, a={}, b={})
    for engine in pair.values():
        await engine.set_faults({"fault": "ttft", "ms": 500, "times": 20})
    answers = await asyncio.gather(*(router.chat(f"Burst {number}?", max_tokens=4) for number in range(20)))
    assert sorted(Counter(answer.headers["x-engine"] for answer in answers).values())[0] >= 7


@scenario
async def test_one_system_prompt_of_all_requests_uses_both_replicas(world: World) -> None:
    router, pair = await start(world, a={}, b={})
    for engine in pair.values():
        await engine.set_faults({"fault": "ttft", "ms": 500, "times": 40})
    engines_used = await asyncio.gather(*(engine_of(router, "Be brief.", f"Hot {number}?") for number in range(40)))
    assert sorted(Counter(engines_used).values())[0] >= 12


@scenario
async def test_the_prefix_cache_hits_more_often_than_with_round_robin(world: World) -> None:
    router, pair = await start(world, a={}, b={})
    # The benchmark opens a client of its own.
    with patch("benchmarks.affinity.httpx", SimpleNamespace(AsyncClient=lambda **_: open_client(""))):
        shares = await compare(router.url, [engine.url for engine in pair.values()], model="llama", served=LLAMA)
    assert shares.routed > shares.round_robin + 0.1


# -- what engines hold ------------------------------------------------------------------------------------------------

TEXT = "The sea was calm, and the lamp of the harbour was lit. " * 60  # 3 KiB


class Chat:
    """A conversation that repeats all turns before."""

    def __init__(self, name: str) -> None:
        self.messages = [{"role": "system", "content": TEXT}]
        self.name = name
        self.model = "llama"

    async def turn(self, router: WorldRouter, **headers: str) -> str:
        """The engine that answered."""
        self.messages.append({"role": "user", "content": f"{self.name} {len(self.messages)}: {TEXT}"})
        answer = await router.chat("", messages=list(self.messages), headers=headers, max_tokens=40, model=self.model)
        assert (answer.status_code, answer.headers["x-cache"]) == (200, "MISS")
        self.messages.append(answer.json()["choices"][0]["message"])
        self.reason = answer.headers["x-engine-reason"]
        return answer.headers["x-engine"]

    @property
    def held(self) -> float:
        """The share of the prompt that the engine was believed to hold."""
        found = re.match(r"prefix ([0-9,]+) of ([0-9,]+); queue [0-9.]+ s; first token ", self.reason)
        assert found is not None, self.reason
        held, of = (int(number.replace(",", "")) for number in found.groups())
        return held / of


@scenario
async def test_each_conversation_stays_at_the_engine_that_holds_it_and_conversations_spread(world: World) -> None:
    router, pair = await start(world, a=LARGE, b=LARGE)
    chats = [Chat(f"chat {number}") for number in range(8)]
    used: dict[str, list[str]] = {chat.name: [] for chat in chats}
    for turn in range(4):
        for chat in chats:
            used[chat.name].append(await chat.turn(router))
            assert turn == 0 or chat.held > 0.4
    assert all(len(set(engines)) == 1 for engines in used.values()), used
    assert 2 <= Counter(engines[0] for engines in used.values())["a"] <= 6
    pages = [await engine.metrics() for engine in pair.values()]
    hits, queries = (
        sum(
            value
            for page in pages
            for name, value in page.items()
            if name.startswith(f"vllm:prefix_cache_{kind}_total")
        )
        for kind in ("hits", "queries")
    )
    assert hits / queries > 0.6


@scenario
async def test_two_routers_send_the_turns_of_a_conversation_to_one_engine(world: World) -> None:
    first, second, _ = await start_two(world)
    for number in range(6):
        chat = Chat(f"chat {number}")
        engines_used = set()
        for router in (first, second, second, first):
            engines_used.add(await chat.turn(router))
            await asyncio.sleep(0.1)
        assert len(engines_used) == 1
        assert chat.held > 0.5


@scenario
async def test_a_router_that_starts_knows_what_the_engines_hold_from_another(world: World) -> None:
    _, second, _ = await start_two(world)
    chats = [Chat(f"chat {number}") for number in range(6)]
    used = [{await chat.turn(second), await chat.turn(second)} for chat in chats]
    await asyncio.sleep(1)
    second.kill()
    await second.start()
    await asyncio.sleep(1)
    for chat, engines in zip(chats, used, strict=True):
        assert {await chat.turn(second)} == engines
        assert chat.held > 0.6


@pytest.mark.parametrize("outage", [1.0, 30.0])
@scenario
async def test_of_a_prompt_that_was_sent_before_redis_restarted_nothing_is_left_at_the_other_router(
    world: World, outage: float
) -> None:
    """`outage` in seconds, while the engine takes 10: the record of the answer comes, or is lost."""
    first, second, pair = await start_two(world)
    chat = Chat("chat")
    for engine in pair.values():
        await engine.set_faults({"fault": "ttft", "ms": 10_000, "times": 1})
    asked = asyncio.ensure_future(chat.turn(first))
    await asyncio.sleep(1)
    assert sum(in_flight_of_others(second)) == 1
    world.redis.stop()
    await asyncio.sleep(outage)
    world.redis.start()
    name = await asked
    await asyncio.sleep(30)
    assert in_flight_of_others(second) == [0, 0]
    assert all(prefill.pending == 0 for prefill in prefills(second))
    for engine in pair.values():
        await engine.clear_faults()
    assert await chat.turn(second) == name
    assert chat.held > (0.6 if outage < 10 else 0.3)


@scenario
async def test_a_prompt_that_is_in_flight_during_a_reload_is_known_and_ends_at_both_routers(world: World) -> None:
    first, second, pair = await start_two(world)
    for engine in pair.values():
        await engine.set_faults({"fault": "ttft", "ms": 5000, "times": 1})
    chat = Chat("chat")
    asked = asyncio.ensure_future(chat.turn(first))
    await asyncio.sleep(1)
    text = router_config(world.redis.url, {name: ("llama", "any", engine.url) for name, engine in pair.items()})
    await first.reload(text)
    await second.reload(text)
    await asyncio.sleep(1)
    assert sum(prefill.pending for prefill in prefills(first)) == sum(in_flight_of_others(second)) == 1
    name = await asked
    await asyncio.sleep(1)
    assert in_flight_of_others(second) == [0, 0]
    assert not any(prefill.pending for router in (first, second) for prefill in prefills(router))
    assert await chat.turn(second) == name
    assert chat.held > 0.6


@scenario
async def test_adapters_of_one_model_share_no_prefix_in_the_choice(world: World) -> None:
    lora = {"enable_lora": True, "lora_modules": (("sql", "/sql"), ("poems", "/poems"))}
    router, _ = await start(world, a=LARGE | lora, b=LARGE | lora)
    await asyncio.sleep(PROBED)
    chats = [Chat("the same") for _ in range(3)]
    for chat, model in zip(chats, ("sql", "poems", "llama"), strict=True):
        chat.model = model
        await chat.turn(router)
        assert chat.held == 0
    for chat in chats:
        await chat.turn(router)
        assert chat.held > 0.4


@scenario
async def test_an_engine_that_was_down_holds_nothing(world: World) -> None:
    router, pair = await start(world, a=LARGE, b=LARGE)
    chat = Chat("chat")
    name = await chat.turn(router)
    await chat.turn(router)
    assert chat.held > 0.4
    engine = pair[name]
    engine.kill()
    await eventually(lambda: _state_is(router, name, "down"))
    await engine.start()
    await eventually(lambda: _state_is(router, name, "up"))
    await chat.turn(router)
    assert chat.held < 0.1


async def _state_is(router: WorldRouter, name: str, state: str) -> bool:
    return bool((await router.http.get("/healthz")).json()["engines"][name]["state"] == state)


@scenario
async def test_what_was_expected_of_the_engine_is_logged_and_counted_beside_what_it_found(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**LARGE, "enable_prompt_tokens_details": True}
    router, _ = await start(world, a=options, b=options)
    chat = Chat("chat")
    with caplog.at_level(logging.INFO, "roundhouse.access"):
        name = await chat.turn(router)
        assert await chat.turn(router) == name
        await eventually(lambda: len(caplog.messages) == 2)
    first, second = (dict(word.partition("=")[::2] for word in line.split()) for line in caplog.messages)
    assert float(first["prefix"]) == 0
    assert float(second["prefix"]) == pytest.approx(chat.held, abs=0.01)
    assert float(first["expected_ttft_ms"]) > float(second["expected_ttft_ms"]) > 0
    page = (await router.http.get("/metrics")).text
    tokens = {
        result: float(value)
        for result, value in re.findall(
            rf'^roundhouse_prefix_tokens_total{{engine="{name}",result="(\w+)"}} (.*)$', page, re.MULTILINE
        )
    }
    assert tokens["found"] == pytest.approx(tokens["expected"], rel=0.2)
    assert tokens["new"] > tokens["expected"] > 0


@scenario
async def test_the_status_shows_how_much_of_each_engine_s_cache_is_believed_to_be_used_and_for_how_long(
    world: World,
) -> None:
    admin = {"authorization": "Bearer admin-key"}
    table = {name: ("llama", "any", (await world.engine(**LARGE)).url) for name in ("a", "b")}
    keys = f'[auth]\nmode = "open"\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'
    router = await world.router(router_config(world.redis.url, table, rest=keys))
    chat = Chat("chat")
    name = await chat.turn(router)
    await asyncio.sleep(100)

    async def row() -> Any:
        status = (await router.http.get("/admin/status", headers=admin)).json()
        return next(row for row in status["engines"] if row["name"] == name)

    first = await row()
    assert first["prefix_tokens"] == pytest.approx(2 * len(TEXT) / 4, rel=0.2)
    assert first["prefix_capacity_tokens"] == 16384 * 16
    assert first["prefix_entries"] > 4
    assert first["prefix_unused_seconds"] == pytest.approx(100, abs=5)
    listed = (await router.http.get("/admin/engines", headers=admin)).json()["engines"]
    prefixes = next(each["prefixes"] for each in listed if each["name"] == name)
    assert prefixes["tokens"] == first["prefix_tokens"]
    await chat.turn(router)  # all of it is used again
    await asyncio.sleep(10)
    second = await row()
    assert second["prefix_entries"] > first["prefix_entries"]
    assert second["prefix_unused_seconds"] < 15


@scenario
async def test_a_model_with_one_engine_needs_no_reason(world: World) -> None:
    router, _ = await start(world, a={})
    answer = await router.chat(TEXT)
    assert (answer.status_code, "x-engine-reason" in answer.headers) == (200, False)


# -- contexts ---------------------------------------------------------------------------------------------------------


@scenario
async def test_the_router_discovers_context_lengths_and_sends_long_prompts_to_engines_that_accept_them(
    world: World,
) -> None:
    router, _ = await start(world, a={"max_model_len": 1024}, b={"max_model_len": 16384})
    listed = (await router.http.get("/v1/models/llama")).json()
    assert listed["max_model_len"] == 16384
    assert (await router.chat("Short?")).headers["x-engine"] == "a"
    long = await router.chat("A long story. " * 400)
    assert (long.status_code, long.headers["x-engine"]) == (200, "b")
    many = await router.chat("Short again?", max_tokens=2000)
    assert (many.status_code, many.headers["x-engine"]) == (200, "b")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", chat_body("Hi", max_tokens=4097), "messages"),
        ("/v1/chat/completions", chat_body("Hi", max_completion_tokens=5000, stream=True), "messages"),
        ("/v1/completions", {"model": "llama", "prompt": [5] * 4097}, "prompt"),
    ],
)
@scenario
async def test_a_prompt_too_long_for_every_engine_is_refused_without_contacting_one(
    world: World, path: str, body: dict[str, Any], param: str
) -> None:
    router, pair = await start(world, a={}, b={})
    answer = await router.post(path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", param)
    assert "maximum context length is 4096 tokens" in error["message"]
    assert [(await engine.stats())["received"] for engine in pair.values()] == [0, 0]


@scenario
async def test_a_prompt_that_may_fit_is_left_to_the_engine_to_refuse(world: World) -> None:
    router, _ = await start(world, a={}, b={})
    answer = await router.chat("word " * 5000)
    assert answer.status_code == 400
    assert "maximum context length" in answer.json()["error"]["message"]
    assert answer.headers["x-engine"] in ("a", "b")


# -- drafts -----------------------------------------------------------------------------------------------------------

BIASED: dict[str, Any] = {"logit_bias": {"42": -100.0}}


@scenario
async def test_a_request_that_speculation_cannot_serve_goes_to_an_engine_without_a_draft(world: World) -> None:
    router, _ = await start(world, a={"draft": "d"}, b={})
    assert (await router.chat("Why?")).headers["x-engine"] == "a"
    field_sets: list[dict[str, Any]] = [BIASED, {"min_p": 0.1}]
    for fields in field_sets:
        answer = await router.chat("Why?", **fields)
        assert (answer.status_code, answer.headers["x-engine"]) == (200, "b")
        assert "x-adjusted" not in answer.headers
        assert (await router.chat("Why?", **fields)).headers["x-cache"] == "HIT"


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_where_every_engine_speculates_the_field_is_removed_and_named_and_the_response_not_stored(
    world: World, stream: bool
) -> None:
    router, engines = await start(world, a={"draft": "d"})
    async with open_client("") as http:
        body = {**chat_body("Hi"), **BIASED, "model": LLAMA}
        refused = await http.post(f"{engines['a'].url}/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert "not yet supported with speculative decoding" in refused.json()["error"]["message"]
    for _ in range(2):
        answer = await router.chat("Why?", **BIASED, min_p=0.2, stream=stream, top_p=0.9)
        assert answer.status_code == 200
        assert answer.headers["x-adjusted"] == "min_p, logit_bias"
        assert answer.headers["x-cache"] == "MISS"
    sent = json.loads((await engines["a"].stats())["requests"][-1]["body"])
    assert sent["top_p"] == 0.9
    assert not {"logit_bias", "min_p"} & sent.keys()


async def engines_used_for(router: WorldRouter, prompt: str, numbers: range) -> Counter[str]:
    """Sends different streaming requests; returns how often each engine answered."""
    few = asyncio.Semaphore(3)

    async def ask(number: int) -> str:
        async with few:
            answer = await router.chat(f"{prompt}, number {number}.", stream=True, max_tokens=40, min_tokens=40)
        assert answer.status_code == 200
        return answer.headers["x-engine"]

    return Counter(await asyncio.gather(*map(ask, numbers)))


@scenario
async def test_the_router_learns_which_draft_is_best_for_which_prompt_and_logs_one_that_does_not_pay(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    draft: dict[str, Any] = {"draft": "d", "per_request_spec_decode_metrics": "summary"}
    good_at: dict[str, dict[str, Any]] = {
        "chatty": {**draft, "acceptance": 0.9, "code_acceptance": 0.0},
        "coder": {**draft, "acceptance": 0.0, "code_acceptance": 0.9},
    }
    engines = {name: await world.engine(**options) for name, options in good_at.items()}
    # The configured tasks are swapped: the measured performance counts, not the configuration.
    wrong = {
        "chatty": ("llama", "code", engines["chatty"].url),
        "coder": ("llama", "chat", engines["coder"].url),
    }
    config = router_config(world.redis.url, wrong, router="explore = 0.2")
    router = await world.router(config, random=Random(7).random)
    with caplog.at_level(logging.INFO, "roundhouse.engines"):
        for prompt in (CODE, CHAT):
            await engines_used_for(router, prompt, range(20))
        assert (await engines_used_for(router, CODE, range(20, 50)))["coder"] >= 20
        assert (await engines_used_for(router, CHAT, range(20, 50)))["chatty"] >= 20
        more = count(50)

        async def verdicts_after_more_requests() -> dict[str, dict[str, dict[str, Any]]] | None:
            number = next(more)
            for prompt in (CODE, CHAT):
                await engines_used_for(router, prompt, range(number, number + 1))
            return await draft_verdicts(router)

        await asyncio.sleep(PROBED)  # until a check, the verdicts are of fewer requests, perhaps all of one task
        drafts = await eventually(verdicts_after_more_requests)
    assert drafts["coder"]["code"]["tokens_per_step"] > 3 > 1.1 > drafts["chatty"]["code"]["tokens_per_step"]
    assert drafts["coder"]["code"]["pays"] is drafts["chatty"]["chat"]["pays"] is None
    metrics = await router.metrics()
    assert metrics['roundhouse_draft_pays{engine="chatty",task="code"}'] == 0
    assert metrics['roundhouse_engine_tokens_per_second{engine="coder",task="code"}'] > 0
    unknown = metrics.get('roundhouse_draft_pays{engine="coder",task="code"}', nan)
    assert isnan(unknown), "no engine is the same without its draft"

    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([text for text in warnings if re.match("engine chatty: its draft model slows code down: ", text)]) == 1


async def draft_verdicts(router: WorldRouter) -> dict[str, dict[str, dict[str, Any]]] | None:
    """The drafts in /healthz, once each is found not to pay off at the task for which the other one is good."""
    engines = (await router.http.get("/healthz")).json()["engines"]
    drafts = {name: engine["drafts"] for name, engine in engines.items()}
    unpaid = {(name, task) for name, tasks in drafts.items() for task, draft in tasks.items() if draft["pays"] is False}
    return drafts if unpaid == {("chatty", "code"), ("coder", "chat")} else None


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_client_gets_the_metrics_of_its_request_and_a_hit_has_none(world: World, stream: bool) -> None:
    router, _ = await start(world, a={"draft": "d", "per_request_spec_decode_metrics": "summary"})
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    miss, hit = [await router.chat("Why?", **options) for _ in range(2)]

    assert [answer.headers["x-cache"] for answer in (miss, hit)] == ["MISS", "HIT"]
    reported = re.compile(r',"metrics":\{.*"speculative_decoding":\{"mean_acceptance_length".*?\}\}')
    assert reported.search(miss.text) is not None
    assert reported.sub("" if stream else ',"metrics":null', miss.text) == hit.text
