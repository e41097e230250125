"""How streams of servers that are not vLLM may end, and which of them refuse what the router adds to a request."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.foreign_script import ForeignScript
from tests.support.router_server import router_config
from tests.support.scripted_engine import Request, Response, json_response, served
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario
from tests.world.scripted import scripted_router


async def start(world: World, url: str) -> WorldRouter:
    return await world.router(router_config(world.redis.url, {"foreign": ("llama", "any", url)}))


def event(content: str = "", finish_reason: str | None = None, *, index: int = 0, end: str = "\n\n") -> bytes:
    choice = {"index": index, "delta": {"content": content} if content else {}, "finish_reason": finish_reason}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice]}
    return f"data: {json.dumps(chunk, ensure_ascii=False)}{end}".encode()


USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}'


@pytest.mark.parametrize(
    "pieces",
    [
        [event("Sea"), event(finish_reason="stop"), b"data: [DONE]"],
        [event("Sea"), event(finish_reason="stop"), b"data: [DONE]\n"],
        [event("Sea"), event(finish_reason="stop"), b"data: [DONE]\r\n"],
        [event("Sea"), event(finish_reason="stop", end="")],
        [event("Sea"), event(finish_reason="stop", end="\n")],
        [event("Sea"), event(finish_reason="stop"), USAGE],
        [event("Sea") + event(finish_reason="stop")],
        [event("Sea"), event(finish_reason="stop"), b": the end\n\n"],
    ],
    ids=["[DONE]", "[DONE] LF", "[DONE] CR LF", "finish", "finish LF", "usage", "one chunk", "comment"],
)
@scenario
async def test_a_last_event_without_its_empty_line_counts(world: World, pieces: list[bytes]) -> None:
    router, _ = await scripted_router(world, *pieces)
    first = await router.chat("The sea?", stream=True)
    second = await router.chat("The sea?", stream=True)
    assert [first.headers["x-cache"], second.headers["x-cache"]] == ["MISS", "HIT"]
    assert first.text.replace(": the end\n\n", "") == second.text  # a comment is not stored
    assert first.text.count("Sea") == first.text.count('"stop"') == first.text.count("[DONE]") == 1
    as_json = await router.chat("The sea?")
    assert as_json.headers["x-cache"] == "HIT"
    assert as_json.json()["choices"][0]["message"]["content"] == "Sea"


@pytest.mark.parametrize(
    "pieces",
    [
        [event("Sea"), event("Möwe", end="").partition("ö".encode())[0] + b"\xc3"],
        [event("Sea"), event(finish_reason="stop")[:-10]],
        [event("Sea"), event("Sun", index=1), event(finish_reason="stop", index=1)],
    ],
    ids=["in a character", "in the finish", "one of two choices"],
)
@scenario
async def test_a_stream_that_is_cut_off_is_an_error_and_is_not_stored(world: World, pieces: list[bytes]) -> None:
    router, _ = await scripted_router(world, *pieces)
    for _ in range(2):
        response = await router.chat("The sea?", stream=True)
        assert response.headers["x-cache"] == "MISS"
        assert "engine_failed" in response.text
        assert "[DONE]" not in response.text


@scenario
async def test_a_stream_that_is_cut_off_in_its_usage_is_completed_without_it_and_not_stored(world: World) -> None:
    router, _ = await scripted_router(world, event("Sea"), event(finish_reason="stop"), USAGE[:-9])
    for _ in range(2):
        response = await router.chat("The sea?", stream=True)
        assert response.headers["x-cache"] == "MISS"
        assert response.text.endswith("data: [DONE]\n\n")
        assert "error" not in response.text
        assert "prompt_tokens" not in response.text


@scenario
async def test_a_stream_without_any_token_and_without_done_is_complete(world: World) -> None:
    router, _ = await scripted_router(world, event(finish_reason="content_filter"))
    response = await router.chat("The sea?", stream=True)
    assert response.status_code == 200, response.text
    assert "content_filter" in response.text
    assert response.text.endswith("data: [DONE]\n\n")


class Refusing(ForeignScript):
    """Refuses `stream_options` only after `together` requests with them have come."""

    def __init__(self, together: int) -> None:
        super().__init__()
        self._waiting = asyncio.Barrier(together)

    async def chat(self, request: Request, body: dict[str, Any]) -> Response:
        if "stream_options" in body:
            await self._waiting.wait()
            problem = {"loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}
            return json_response({"detail": [problem]}, 422)
        return await super().chat(request, body)


@scenario
async def test_of_requests_at_the_same_time_none_fails_for_the_refused_option(world: World) -> None:
    async with served(Refusing(3)) as url:
        router = await start(world, url)
        asked: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        responses = await asyncio.gather(
            router.chat("The sea?", stream=True),
            router.chat("The moon?", stream=True),
            router.chat("The sun?", **asked),
        )
        assert [response.status_code for response in responses] == [200] * 3
        assert (await router.chat("The sky?", stream=True)).status_code == 200
        samples = await router.metrics()
        assert not any("llm_engine_failures" in name and value for name, value in samples.items())


class Echoing(ForeignScript):
    """Shows what it has refused, as FastAPI's servers do."""

    async def chat(self, request: Request, body: dict[str, Any]) -> Response:
        if body.get("seed") == 13:
            return json_response({"detail": [{"loc": ["body", "seed"], "msg": "no", "input": body}]}, 422)
        return await super().chat(request, body)


@scenario
async def test_a_refusal_of_something_else_does_not_end_the_usage_of_streams(world: World) -> None:
    engine = Echoing()
    async with served(engine) as url:
        router = await start(world, url)
        assert (await router.chat("stream_options", seed=13, stream=True)).status_code == 422
        assert (await router.chat("The sea?", stream=True)).status_code == 200
        assert engine.requests[-1]["stream_options"] == {"include_usage": True}
