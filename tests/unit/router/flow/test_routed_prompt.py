"""What is said of a choice, and what is learned of an answer."""

import json
from typing import Any

import pytest

from router.core.endpoints.recording.recorded_response import RecordedResponse
from router.core.routing.prefill import (
    AWAY_TOKENS,
    DEFAULT_SECONDS_PER_TOKEN,
    IN_FLIGHT_TOKENS,
    SESSION_AWAY_TOKENS,
    PrefillEstimate,
    Prefills,
)
from router.core.routing.prefix_cache.prompt_chain import PIECE
from router.core.routing.ranking import EngineSnapshot
from router.core.routing.session import Session
from router.core.types import BYTES_PER_TOKEN
from router.flow.attempts.routed_prompt import ChainedPrompt, explain_choice
from router.shared.prompts.prompt_records import PromptRecords
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from tests.support.factories import chat, completion

A = PrefillEstimate("a", 12_100, 11_264, 0.02, 0.0001, 0.2)
B = PrefillEstimate("b", 12_100, 0, 0.0, 0.0001, 1.3)
C = PrefillEstimate("c", 12_100, 12_000, 2.5, 0.0001, 2.6)
CHOSEN, AGENTS = Session("s1"), Session("s1", 1)


@pytest.mark.parametrize(
    ("url", "known", "text"),
    [
        ("a", [A, B, C], "prefix 11,264 of 12,100; queue 0.02 s; first token 0.10 s, 2 others 1.21 s"),
        ("a", [A, B], "prefix 11,264 of 12,100; queue 0.02 s; first token 0.10 s, 1 other 1.21 s"),
        ("a", [A], "prefix 11,264 of 12,100; queue 0.02 s"),
        ("a", [B, C], ""),
        ("a", [], ""),
    ],
)
def test_a_choice_is_explained_by_what_was_compared(url: str, known: list[PrefillEstimate], text: str) -> None:
    assert explain_choice(url, {estimate.url: estimate for estimate in known}) == text


def test_the_time_of_the_answer_is_part_of_it_where_engines_differ_in_it() -> None:
    estimates = {"a": A, "b": B}
    text = "prefix 0 of 12,100; queue 0.00 s; first token 1.21 s, 1 other 0.10 s"
    assert explain_choice("b", estimates, {"a": 4.21, "b": 1.84}) == f"{text}; answer 1.8 s, elsewhere 4.2 s"
    assert explain_choice("b", estimates, {"a": 1.84, "b": 1.84}) == text


@pytest.mark.parametrize(
    ("waiting", "external", "queue"), [(8.0, 0.0, 0), (8.0, 2.0, 2), (8.0, 20.0, 8), (None, 9.0, 0)]
)
def test_requests_that_wait_are_a_queue_only_as_far_as_others_have_sent_them(
    waiting: float | None, external: float, queue: int
) -> None:
    prefills = Prefills()
    prompt = ChainedPrompt(prefills, PromptRecords(prefills, "p"), chat(), 1, "acme", None)  # too short for a home
    engines = [EngineSnapshot("a", "any", True, 8, external_load=external, waiting=waiting, url="a")]
    engines.append(EngineSnapshot("b", "any", True, 0, external_load=0.0, url="b"))
    crowded, idle = prompt.costs(engines, now=0.0)
    seconds = 256 * queue + IN_FLIGHT_TOKENS * max(8, 8 + external)
    assert crowded.own - idle.own == pytest.approx(seconds * DEFAULT_SECONDS_PER_TOKEN)


def test_a_chosen_session_has_one_home_and_a_session_of_an_agent_one_for_each_of_its_conversations() -> None:
    prefills = Prefills()
    engines = [EngineSnapshot(url, "any", True, 0, url=url) for url in ("a", "b")]

    def advantage(text: str, *, session: Session) -> float:
        """How many tokens less `a` costs than `b`."""
        request = chat(messages=[{"role": "system", "content": text}, {"role": "user", "content": "Hi"}])
        prompt = ChainedPrompt(prefills, PromptRecords(prefills, "p"), request, 1, "acme", session)
        a, b = prompt.costs(engines, now=0.0)
        return round((b.own - a.own) / DEFAULT_SECONDS_PER_TOKEN)

    agents = [f"Agent {number}. " + "x" * PIECE for number in range(8)]
    assert len({advantage(text, session=CHOSEN) for text in agents}) == 1
    assert abs(advantage(agents[0], session=CHOSEN)) == SESSION_AWAY_TOKENS
    assert {advantage(text, session=AGENTS) for text in agents} == {-AWAY_TOKENS, AWAY_TOKENS}
    assert len({advantage(f"Short {number}", session=AGENTS) for number in range(8)}) == 1


def test_while_no_other_router_can_be_heard_a_prompt_too_short_for_a_home_is_not_kept_at_its_session_s() -> None:
    prefills = Prefills()
    records = PromptRecords(prefills, "p")
    records.away_tokens = lambda if_heard: 1000.0  # type: ignore[method-assign]
    engines = [EngineSnapshot(url, "any", True, 0, url=url) for url in ("a", "b")]
    for text, tokens in (("x" * PIECE, 1000), ("short", AWAY_TOKENS)):
        request = chat(messages=[{"role": "user", "content": text}])
        a, b = ChainedPrompt(prefills, records, request, 1, "acme", AGENTS).costs(engines, now=0.0)
        assert round(abs(b.own - a.own) / DEFAULT_SECONDS_PER_TOKEN) == tokens


@pytest.mark.parametrize(
    ("prompt", "token_bytes"),
    [
        ("x" * 4096, 2),
        (["x" * 4096], 2),
        ([7] * 1024, 2),
        (["x" * 4096, "y" * 4096], BYTES_PER_TOKEN),
        ([[7] * 1024, [8] * 1024], BYTES_PER_TOKEN),
    ],
    ids=["text", "one text", "token ids", "texts", "lists of token ids"],
)
def test_the_usage_says_how_many_bytes_a_token_has_unless_it_is_of_several_prompts(
    prompt: Any, token_bytes: float
) -> None:
    prefills = Prefills()
    routed = ChainedPrompt(prefills, PromptRecords(prefills, "p"), completion(prompt=prompt), 1, "acme", None)
    engine = Engine(EngineConfig(name="a", model="llama", task="any", url="http://a", served_model="m"))
    routed.on_sent(engine, 0.0)
    usage = {"prompt_tokens": 2048, "prompt_tokens_details": {"cached_tokens": 2048}}
    body = json.dumps({"choices": [{"text": ""}], "usage": usage}).encode()
    routed.on_answered(RecordedResponse(body=body, stream=None, prompt_tokens=2048, completion_tokens=1), 1.0)
    prefill, capacity = prefills.of("http://a"), Prefills().of("http://a").capacity_tokens
    assert prefill.token_bytes == token_bytes
    assert (prefill.capacity_tokens > capacity) == (token_bytes == 2), "more was cached than had been sent"
