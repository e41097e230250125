"""Chats with tools that continue by token ids, at engines with a parser of tokens (vLLM's --enable-scale-out)."""

import asyncio
from typing import Any, Final
from unittest.mock import patch

import pytest

from router.core.routing.prefill import EnginePrefill, SentPrompt
from router.settings.tables import TimeoutSettings
from tests.support.scripted_engine import Response, json_response
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario
from tests.world.speakers import ARGUMENTS, BODY, CALL, PROMPT_IDS, Said, ScaledOutSpeaker, Speaker, said, start

PIECES: Final = [{"index": 0, "function": {"arguments": text}} for text in ('{"at"', ': "sea', "gulls", '"}')]
RESPONSE: Final[list[dict[str, Any]]] = [
    {"reasoning": "Hm, "},
    {"reasoning": "gulls."},
    {"content": "I "},
    {"content": "look."},
    {"tool_calls": [CALL]},
    *({"tool_calls": [piece]} for piece in PIECES),
]


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("says", range(3, len(RESPONSE)))  # before, it begins anew
@scenario
async def test_a_chat_continues_after_any_token(world: World, says: int, temperature: float) -> None:
    first, second = ScaledOutSpeaker("a", *RESPONSE, says=says), ScaledOutSpeaker("b", *RESPONSE)
    router = await start(world, first, second)
    answer = await router.post("/v1/chat/completions", BODY | {"temperature": temperature})
    whole = said(answer.content)
    arguments = "".join(call["function"]["arguments"] for call in whole.calls)
    assert (whole.reasoning, whole.text, arguments) == ("Hm, gulls.", "I look.", '{"at": "seagulls"}')
    assert [call["id"] for call in whole.calls if "id" in call] == ["call-1" if says > 4 else "new"]
    assert (whole.finish, whole.tokens) == (["tool_calls"], len(RESPONSE) + 1)
    (body,) = second.bodies
    assert (body["max_tokens"], body["return_token_ids"], "tools" in body) == (50 - says, True, False)
    (asked,) = second.derendered
    assert asked["chat_request"]["tools"] == BODY["tools"]
    metrics = await router.metrics()
    assert metrics['llm_continuations_total{model="llama",reason="broken-off",result="continued"}'] == 1
    assert metrics['llm_cache_writes_total{result="continued"}'] == 1  # it is not stored


@scenario
async def test_a_chat_whose_second_engine_dies_is_continued_by_a_third(world: World) -> None:
    first, second = (ScaledOutSpeaker(name, *RESPONSE, says=says) for name, says in (("a", 6), ("b", 8)))
    third = ScaledOutSpeaker("c", *RESPONSE, steps=(2,))
    router = await start(world, first, second, third)
    answer = await router.post("/v1/chat/completions", BODY)
    whole = said(answer.content)
    assert "".join(call["function"]["arguments"] for call in whole.calls) == '{"at": "seagulls"}'
    assert (whole.finish, whole.tokens) == (["tool_calls"], len(RESPONSE) + 1)
    assert not second.derendered
    assert len(third.bodies[0]["prompt"]) == len(PROMPT_IDS) + 6, "the client has nothing of the second engine"


@scenario
async def test_the_rest_may_take_longer_than_silence_may(world: World) -> None:
    response = [*RESPONSE[:-1], *({"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]} for _ in range(200))]
    first, second = ScaledOutSpeaker("a", *response, says=6), ScaledOutSpeaker("b", *response)
    second.token_seconds = 0.2
    router = await start(world, first, second)
    async with open_stream(router, "x", tools=BODY["tools"], max_tokens=400) as stream:
        content = await stream.read_to_end()
    assert b'"finish_reason":"tool_calls"' in content
    assert b"\n\n:" in content, "a comment, while the client waits"


@scenario
async def test_the_time_to_the_first_token_is_that_of_the_completion_and_not_of_the_rest(world: World) -> None:
    first, second = ScaledOutSpeaker("a", *RESPONSE, says=4), ScaledOutSpeaker("b", *RESPONSE)
    second.token_seconds = 1.0
    seconds = []
    original = EnginePrefill.on_first_token

    def on_first_token(prefill: EnginePrefill, sent: SentPrompt, now: float) -> None:
        seconds.append(now - sent.sent_at)
        original(prefill, sent, now)

    router = await start(world, first, second)
    with patch.object(EnginePrefill, "on_first_token", on_first_token):
        assert said((await router.post("/v1/chat/completions", BODY)).content).finish == ["tool_calls"]
    assert len(seconds) == 2
    assert seconds[1] < 2, "the rest took four times as long"


@scenario
async def test_an_engine_that_stalls_in_the_rest_is_left_as_soon_as_in_a_stream(world: World) -> None:
    first, second, third = (
        ScaledOutSpeaker(name, *RESPONSE, says=says) for name, says in (("a", 4), ("b", 6), ("c", None))
    )
    second.may_break.clear()
    router = await start(world, first, second, third)
    began_at = world.loop.time()
    assert said((await router.post("/v1/chat/completions", BODY)).content).finish == ["tool_calls"]
    assert world.loop.time() - began_at == pytest.approx(TimeoutSettings().between_tokens, abs=1)
    assert (len(second.bodies), len(third.bodies)) == (1, 1)


@scenario
async def test_engines_without_a_parser_are_asked_once_and_a_begun_call_ends(world: World) -> None:
    first, second = ScaledOutSpeaker("a", *RESPONSE, says=6), Speaker("b", {"content": "x"})
    router = await start(world, first, second)
    for _ in range(2):
        answer = await router.post("/v1/chat/completions", BODY)
        assert answer.content.count(b'"error"') == 1
    assert not second.bodies
    asked = [head for head in second.engine.heads if b"derender" in head]
    assert len(asked) == 1
    metrics = await router.metrics()
    assert metrics['llm_continuations_total{model="llama",reason="broken-off",result="tools"}'] == 2


async def is_idle(router: WorldRouter) -> bool:
    page = (await router.http.get("/healthz")).json()
    return not any(engine["in_flight"] for engine in page["engines"].values())


class FaultySpeaker(ScaledOutSpeaker):
    """One whose parser replies with this, if it is asked for tokens."""

    reply: Response | None = None

    def _derender(self, body: dict[str, Any]) -> Response:
        reply = super()._derender(body)
        return self.reply if self.reply is not None and body else reply


FAULTS: Final = {
    "500": json_response({"error": {"message": "oops"}}, 500),
    "400": json_response({"error": {"message": "choice 0 has empty token_ids"}}, 400),
    "no JSON": Response(b"<html>", content_type="text/html"),
    "no choice": json_response({"choices": []}),
    "other tokens": json_response({"choices": [{"message": {"content": "You look."}}]}),
    "too long": Response(b" " * (17 << 20)),
    "closed": Response([b"{"], end="close"),
    "silent": Response([b"{"], end="hold"),
}


@pytest.mark.parametrize("fault", FAULTS)
@scenario
async def test_an_engine_whose_parser_fails_is_left_for_another(world: World, fault: str) -> None:
    first, second, third = (
        ScaledOutSpeaker("a", *RESPONSE, says=6),
        FaultySpeaker("b", *RESPONSE),
        ScaledOutSpeaker("c", *RESPONSE),
    )
    second.reply = FAULTS[fault]
    router = await start(world, first, second, third)
    content = (await router.post("/v1/chat/completions", BODY)).content
    if fault == "other tokens":  # those of another engine would not mean anything else
        assert content.count(b'"error"') == 1
        assert b"You" not in content
    else:
        assert said(content).finish == ["tool_calls"]
    await eventually(lambda: is_idle(router))
    assert not any(each.engine.running for each in (first, second, third))


@pytest.mark.parametrize("phase", ["completion", "parser"])
@scenario
async def test_an_engine_is_free_once_the_client_has_left_in_the_rest(world: World, phase: str) -> None:
    first = ScaledOutSpeaker("a", *RESPONSE, says=4)
    second = FaultySpeaker("b", *RESPONSE, says=6 if phase == "completion" else None)
    second.reply = Response([b"{"], end="hold")
    if phase == "completion":
        second.may_break.clear()
    router = await start(world, first, second)
    async with open_stream(router, "x", tools=BODY["tools"], max_tokens=50) as stream:
        await stream.read_until(b"look.")
        await eventually(lambda: second.engine.running == 1 and second.bodies)
        await asyncio.sleep(5)
        assert second.engine.running == 1
    await eventually(lambda: is_idle(router))
    assert not second.engine.running


class BusySpeaker(ScaledOutSpeaker):
    """One whose parser answers with this status, unless it is 0."""

    status = 503

    def _derender(self, body: dict[str, Any]) -> Response:
        return json_response({"error": {"message": "busy"}}, self.status) if self.status else super()._derender(body)


@scenario
async def test_an_engine_that_is_too_busy_to_tell_whether_it_has_a_parser_is_asked_again(world: World) -> None:
    first, second = ScaledOutSpeaker("a", *RESPONSE, says=6), BusySpeaker("b", *RESPONSE)
    router = await start(world, first, second)
    for second.status in (503, 429, 401):
        assert b'"error"' in (await router.post("/v1/chat/completions", BODY)).content
        assert not second.bodies
    second.status = 0
    assert said((await router.post("/v1/chat/completions", BODY)).content).finish == ["tool_calls"]


@scenario
async def test_an_engine_that_was_started_anew_is_asked_again(world: World) -> None:
    first, second = ScaledOutSpeaker("a", *RESPONSE, says=6), ScaledOutSpeaker("b", *RESPONSE)
    second.has_parser = False
    router = await start(world, first, second)
    assert b'"error"' in (await router.post("/v1/chat/completions", BODY)).content
    port = int(second.engine.url.rpartition(":")[2])
    await second.engine.die()
    await asyncio.sleep(10)
    second.has_parser = True
    await second.engine.start(port)
    await asyncio.sleep(10)
    assert said((await router.post("/v1/chat/completions", BODY)).content).finish == ["tool_calls"]


@scenario
async def test_an_engine_whose_parser_is_gone_is_left_for_another(world: World) -> None:
    first, second, third = (ScaledOutSpeaker(name, *RESPONSE, says=6 if name == "a" else None) for name in "abc")
    router = await start(world, first, second, third)
    assert said((await router.post("/v1/chat/completions", BODY)).content).finish == ["tool_calls"]
    used = second if second.derendered else third
    used.has_parser = False
    used.derendered.clear()
    assert said((await router.post("/v1/chat/completions", BODY)).content).finish == ["tool_calls"]
    assert not used.derendered


@scenario
async def test_an_engine_with_a_parser_is_found_after_one_without(world: World) -> None:
    first, second, third = (
        ScaledOutSpeaker("a", *RESPONSE, says=6),
        Speaker("b", {"content": "x"}),
        ScaledOutSpeaker("c", *RESPONSE),
    )
    router = await start(world, first, second, third)
    answer = await router.post("/v1/chat/completions", BODY)
    assert said(answer.content).finish == ["tool_calls"]
    assert not second.bodies


@scenario
async def test_text_before_a_call_continues_by_text_at_an_engine_without_a_parser(world: World) -> None:
    first, second = (
        ScaledOutSpeaker("a", *RESPONSE[2:], says=2),
        Speaker("b", {"tool_calls": [CALL]}, {"tool_calls": [ARGUMENTS]}),
    )
    router = await start(world, first, second)
    answer = await router.post("/v1/chat/completions", BODY)
    assert said(answer.content) == Said("", "I look.", [CALL, ARGUMENTS], ["tool_calls"], 5)
    (body,) = second.bodies
    assert body["messages"][-1] == {"role": "assistant", "content": "I look."}


@scenario
async def test_a_stop_string_rules_the_parser_out(world: World) -> None:
    first, second = ScaledOutSpeaker("a", *RESPONSE, says=6), ScaledOutSpeaker("b", *RESPONSE)
    router = await start(world, first, second)
    answer = await router.post("/v1/chat/completions", BODY | {"stop": ["gull"]})
    assert answer.content.count(b'"error"') == 1
    assert not second.bodies
    assert not second.derendered
