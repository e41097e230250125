"""A simulated answer is continued from any cut, by its text or by its token ids, as a greedy model continues it."""

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import pytest
import pytest_asyncio

from tests.support.simulated_engine import SimulatedEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROSE, CODE = "Tell me about Zürich. As for the rest: no. - “The", "def main():\n    # The function"


class Engines(NamedTuple):
    """Two processes of one engine, and one with a draft; `http` reaches all of them."""

    first: SimulatedEngine
    second: SimulatedEngine
    drafted: SimulatedEngine
    http: httpx.AsyncClient


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engines() -> AsyncIterator[Engines]:
    async with (
        SimulatedEngine(model="tiny") as first,
        SimulatedEngine(model="tiny") as second,
        SimulatedEngine(model="tiny", draft="d") as drafted,
        httpx.AsyncClient(timeout=15) as http,
    ):
        yield Engines(first, second, drafted, http)


def flat(ids: list[list[int]]) -> list[int]:
    return [number for event in ids for number in event]


class Answer(NamedTuple):
    """The text and the token ids of each event with a choice, the reason of the end, and the ids of the prompt."""

    texts: list[str]
    ids: list[list[int]]
    reason: str | None
    prompt_ids: list[int]

    def said(self, events: int) -> tuple[str, list[int]]:
        return "".join(self.texts[:events]), flat(self.ids[:events])


async def ask(engines: Engines, engine: SimulatedEngine, path: str, **body: Any) -> Answer:
    body = {"stream": True, "return_token_ids": True, "temperature": 0, **body}
    response = await engines.http.post(engine.url + path, json=body)
    assert response.status_code == 200, response.text
    events = [json.loads(event[6:]) for event in response.text.split("\n\n")[:-2]]
    (prompt_ids,) = [ids for event in events for ids in (_prompt_ids(event),) if ids is not None]
    choices = [choice for event in events for choice in event["choices"] if choice.get("token_ids") is not None]
    texts = [choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices]
    return Answer(texts, [choice["token_ids"] for choice in choices], choices[-1]["finish_reason"], prompt_ids)


def _prompt_ids(event: dict[str, Any]) -> list[int] | None:
    choices = event["choices"]
    ids: list[int] | None = event.get("prompt_token_ids") or (choices and choices[0].get("prompt_token_ids")) or None
    return ids


def question(path: str, text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}


def continued(path: str, text: str, said: str) -> dict[str, Any]:
    if path == COMPLETIONS:
        return {"prompt": text + said}
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": said}]
    return {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}


@pytest.mark.parametrize("text", [PROSE, CODE])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("drafted", [False, True])
async def test_another_engine_continues_from_every_cut(
    engines: Engines, path: str, text: str, *, drafted: bool
) -> None:
    engine = engines.drafted if drafted else engines.first
    whole = await ask(engines, engine, path, **question(path, text), max_tokens=200)
    assert whole.reason == "stop"
    assert any(len(ids) > 1 for ids in whole.ids) == drafted
    for cut in range(1, len(whole.ids)):
        said, ids = whole.said(cut)
        limit = 200 - len(ids)
        exact = await ask(engines, engines.second, COMPLETIONS, prompt=whole.prompt_ids + ids, max_tokens=limit)
        assert (said + "".join(exact.texts), ids + flat(exact.ids), exact.reason) == (
            "".join(whole.texts),
            flat(whole.ids),
            "stop",
        )
        by_text = await ask(engines, engines.second, path, **continued(path, text, said), max_tokens=limit)
        assert (said + "".join(by_text.texts), by_text.reason) == ("".join(whole.texts), "stop")


async def test_the_minimum_and_the_end_of_a_longer_answer_are_those_of_the_unbroken_one(engines: Engines) -> None:
    options = {"min_tokens": 150, "max_tokens": 400}
    whole = await ask(engines, engines.first, CHAT, **question(CHAT, PROSE), **options)
    _, all_ids = whole.said(len(whole.ids))
    assert len(all_ids) > 150
    for cut in (1, 60, 140, 149, len(whole.ids) - 1):
        _, ids = whole.said(cut)
        rest = {"min_tokens": max(0, 150 - len(ids)), "max_tokens": 400 - len(ids)}
        got = await ask(engines, engines.second, COMPLETIONS, prompt=whole.prompt_ids + ids, **rest)
        assert ids + flat(got.ids) == all_ids


async def test_text_lags_the_ids_by_the_longest_stop_string(engines: Engines) -> None:
    plain = await ask(engines, engines.first, COMPLETIONS, prompt=PROSE, max_tokens=30)
    held = await ask(engines, engines.first, COMPLETIONS, prompt=PROSE, max_tokens=30, stop=["§" * 8])
    assert held.ids == plain.ids
    for cut in range(5, 29):
        assert held.said(cut)[0] == plain.said(cut)[0][:-7]
    assert held.said(30) == plain.said(30)


async def test_an_answer_that_another_one_began_is_a_new_one(engines: Engines) -> None:
    got = await ask(engines, engines.first, CHAT, **continued(CHAT, PROSE, "Something else"), max_tokens=50)
    assert "".join(got.texts)
    again = await ask(engines, engines.second, CHAT, **continued(CHAT, PROSE, "Something else"), max_tokens=50)
    assert got.texts == again.texts


async def test_the_role_is_that_of_the_message_that_is_continued(engines: Engines) -> None:
    body = {**question(CHAT, PROSE), "continue_final_message": True, "add_generation_prompt": False}
    response = await engines.http.post(engines.first.url + CHAT, json=body)
    assert response.json()["choices"][0]["message"]["role"] == "user"
    response = await engines.http.post(engines.first.url + CHAT, json=continued(CHAT, PROSE, "The"))
    assert response.json()["choices"][0]["message"]["role"] == "assistant"
