"""Chains of hashes: equal beginnings of prompts have equal beginnings, and nothing else does."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.endpoint import InferenceRequest
from router.core.routing.prefix_cache.prompt_chain import (
    NO_PROMPT,
    PIECE,
    PromptChain,
    answered_chain,
    chain_seed,
    parse_answer,
    prompt_chain,
)
from tests.support.factories import chat, completion, embeddings, messages, responses

SEED = chain_seed("acme", "")
ROLES = st.sampled_from(["system", "user", "assistant"])
MESSAGES = st.lists(
    st.builds(lambda role, text: {"role": role, "content": text}, ROLES, st.text("ab", max_size=3) | st.text()),
    min_size=1, max_size=6,
)  # fmt: skip


def chain(request: InferenceRequest) -> PromptChain:
    return prompt_chain(request, SEED)


def of(*contents: Any, **fields: Any) -> PromptChain:
    """A chat whose first message is the system prompt."""
    roles = ["system", *(["user", "assistant"] * len(contents))]
    return chain(chat(messages=[{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)], **fields))


def common(one: PromptChain, other: PromptChain) -> int:
    """Bytes of the longest common prefix that the chains have."""
    count = 0
    while count < min(len(one.hashes), len(other.hashes)) and one.hashes[count] == other.hashes[count]:
        count += 1
    return one.ends[count - 1] if count else 0


@given(MESSAGES, MESSAGES)
def test_a_longer_conversation_begins_with_the_chain_of_a_shorter_one(first: Any, rest: Any) -> None:
    short, long = chain(chat(messages=first)), chain(chat(messages=first + rest))
    assert long.hashes[: len(short.hashes)] == short.hashes
    assert long.ends[: len(short.ends)] == short.ends


@given(MESSAGES, MESSAGES)
def test_conversations_share_a_chain_only_as_far_as_they_are_equal(one: Any, other: Any) -> None:
    first, second = chain(chat(messages=one)), chain(chat(messages=other))
    equal = 0
    while equal < min(len(one), len(other)) and one[equal] == other[equal]:
        equal += 1
    whole = chain(chat(messages=one[:equal])) if equal else NO_PROMPT
    # Two texts that differ only at their end may have whole pieces in common.
    assert common(first, second) // PIECE == whole.size // PIECE or common(first, second) >= whole.size
    assert (first.hashes == second.hashes) is (one == other)


def test_a_long_text_is_cut_into_pieces_and_a_change_leaves_the_pieces_before_it() -> None:
    text = "x" * (5 * PIECE)
    one, other = of(text), of(text[: 3 * PIECE] + "y" + text[3 * PIECE + 1 :])
    assert common(one, other) == 3 * PIECE
    assert one.size == 5 * PIECE + len("system\0")


def test_the_billing_header_of_claude_code_is_no_part_of_a_prompt_as_engines_leave_it_out() -> None:
    def turn(number: int, system: list[str]) -> PromptChain:
        blocks = [{"type": "text", "text": text} for text in system]
        return chain(messages(messages=[{"role": "user", "content": f"Turn {number}"}], system=blocks))

    header = "x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch={};"
    first, second = turn(1, [header.format("eb6c6"), "Be brief."]), turn(1, [header.format("7d01e"), "Be brief."])
    assert first == second == turn(1, ["Be brief."]) != turn(1, ["Be", "brief."])
    assert common(first, turn(2, [header.format("0"), "Be brief."])) == len("system\0Be brief.")


def test_two_branches_share_all_up_to_the_message_in_which_they_differ() -> None:
    trunk = of("Be brief.", "one", "two")
    assert common(of("Be brief.", "one", "two", "this"), of("Be brief.", "one", "two", "that")) == trunk.size


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        {"messages": [{"role": "user", "content": "Hi", "refusal": None, "annotations": []}]},
        {"temperature": 0.5, "seed": 4, "stream": True},
        {"tools": []},
    ],
)  # fmt: skip
def test_what_the_engine_does_not_see_changes_nothing(fields: dict[str, Any]) -> None:
    assert chain(chat(**fields)) == chain(chat())


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "assistant", "content": "Hi"}]},
        {"messages": [{"role": "user", "content": "Hi", "name": "Ann"}]},
        {"messages": [{"role": "user", "content": "Hi", "tool_calls": [{"id": "1"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,a"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,b"}}]}]},
        {"tools": [{"type": "function"}]},
        {"documents": [{"text": "a"}]},
    ],
)  # fmt: skip
def test_what_the_engine_sees_changes_the_chain(fields: dict[str, Any]) -> None:
    seen = [chain(chat(**fields)), chain(chat())]
    assert seen[0].hashes[-1] != seen[1].hashes[-1]


def test_an_image_counts_as_few_bytes() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:" + "a" * 100_000}}
    assert chain(chat(messages=[{"role": "user", "content": [image]}])).size < 100


def test_another_seed_shares_nothing() -> None:
    request = chat(messages=[{"role": "user", "content": "x" * 5000}])
    one, other = prompt_chain(request, chain_seed("acme", "")), prompt_chain(request, chain_seed("beta", ""))
    assert not set(one.hashes) & set(other.hashes)


def test_the_home_is_the_same_in_all_turns_and_differs_by_the_first_message() -> None:
    system = "x" * PIECE
    turns = [of(system, "one"), of(system, "one", "two"), of(system, "one", "two", "three")]
    assert len({turn.home for turn in turns}) == 1
    assert len({of(system, "one").home, of(system + "y", "one").home, of(system, "uno").home}) == 3
    assert of("Be brief.", system + "a").home == of("Be brief.", system + "b").home
    assert of(system).home != 0


def test_a_short_prompt_has_no_home() -> None:
    assert of("Be brief.", "x" * 900).home == 0


def test_each_api_has_its_texts_in_the_order_of_the_engine() -> None:
    turn = {"role": "user", "content": "Hi"}
    assert chain(messages(system="S")).hashes == of("S", "Hi").hashes
    assert chain(messages(system=[{"type": "text", "text": "S"}])).hashes == of("S", "Hi").hashes
    assert chain(responses()).hashes == chain(responses(input=[turn])).hashes == chain(chat()).hashes
    assert chain(responses(instructions="S")).hashes == of("S", "Hi").hashes
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    assert chain(responses(input=[turn, {**call, "id": "1", "status": "completed"}])) == chain(
        responses(input=[turn, call])
    )


def test_token_ids_have_a_chain_of_as_many_bytes_as_a_text_of_so_many_tokens() -> None:
    one, other = chain(completion(prompt=[1] * 1000)), chain(completion(prompt=[1] * 999 + [2]))
    assert one.size == 4000
    assert common(one, other) == 3 * PIECE
    assert chain(completion(prompt=[[1] * 1000, [5]])) == one
    assert chain(completion(prompt=["a", "b"])) == chain(completion(prompt="a"))


@pytest.mark.parametrize("prompt", [[-1], [2**40], [1, "a"], [None]])
def test_a_prompt_that_no_engine_accepts_has_no_chain(prompt: Any) -> None:
    assert chain(completion(prompt=prompt)).hashes in ([], ())


def test_an_endpoint_that_generates_nothing_has_no_chain() -> None:
    assert chain(embeddings()) is NO_PROMPT


# -- with the answer --------------------------------------------------------------------------------------------------

CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


@pytest.mark.parametrize(
    ("request_", "answer", "next_turn"),
    [
        (
            chat(),
            {"choices": [{"message": {"role": "assistant", "content": "Yes.", "refusal": None, "tool_calls": []}}]},
            chat(messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]),
        ),
        (
            chat(),
            {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": CALLS}}]},
            chat(messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": CALLS}]),
        ),
        (
            messages(),
            {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
            messages(messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]),
        ),
        (
            responses(),
            {"output": [{"role": "assistant", "content": [{"type": "output_text", "text": "Yes.", "logprobs": []}]}]},
            responses(input=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]),
        ),
        (completion(prompt="a" * 3000), {"choices": [{"text": "b" * 90}]}, completion(prompt="a" * 3000 + "b" * 90)),
    ],
    ids=["chat", "tool calls", "messages", "responses", "completions"],
)  # fmt: skip
def test_the_next_turn_begins_with_the_prompt_and_its_answer(
    request_: InferenceRequest, answer: dict[str, Any], next_turn: InferenceRequest
) -> None:
    parsed = parse_answer(json.dumps(answer).encode())
    assert parsed is not None
    answered = answered_chain(chain(request_), request_, SEED, parsed)
    assert (answered.hashes, answered.ends) == (chain(next_turn).hashes, chain(next_turn).ends)


@pytest.mark.parametrize("body", [b"{}", b'{"choices":[]}', b'{"output":5}', b'{"choices":[{"text":5}]}'])
def test_an_answer_without_a_text_adds_nothing(body: bytes) -> None:
    parsed = parse_answer(body)
    assert parsed is not None
    assert answered_chain(chain(chat()), chat(), SEED, parsed).hashes == chain(chat()).hashes
    assert answered_chain(chain(completion()), completion(), SEED, parsed).hashes == chain(completion()).hashes


def test_an_answer_that_is_nested_as_deep_as_can_be_read_is_no_failure() -> None:
    """Writing it takes a little more of the stack than reading it."""
    for depth in range(600, 1100):
        body = b'{"output":[{"a":' + b"[" * depth + b"]" * depth + b"}]}"
        parsed = parse_answer(body)
        if parsed is not None:
            answered_chain(chain(chat()), chat(), SEED, parsed)


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'{"choices":5}', b'{"choices":"\xff"}'])
def test_a_body_that_is_no_answer_is_not_read(body: bytes) -> None:
    assert parse_answer(body) is None


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 5}}, 5),
        ({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 5}}, 5),
        ({"input_tokens": 9, "cache_read_input_tokens": 5}, 5),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"prompt_tokens_details": {"cached_tokens": -4}}, 0),
        ({"prompt_tokens": 9}, None),
        ({"prompt_tokens_details": None}, None),
        ({"prompt_tokens_details": {"cached_tokens": "5"}}, None),
        ({"cache_read_input_tokens": None}, None),
        (None, None),
        ([], None),
    ],
)  # fmt: skip
def test_each_api_has_its_own_name_for_the_cached_tokens(usage: Any, cached: int | None) -> None:
    parsed = parse_answer(json.dumps({"usage": usage}).encode())
    assert parsed is not None
    assert parsed.cached_tokens == cached
