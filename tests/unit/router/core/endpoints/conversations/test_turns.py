"""Turns of a conversation: what is read of a request and of a response, and how items are joined and compared."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.conversations.final_response import find_final_response
from router.core.endpoints.conversations.ids import is_storable_id
from router.core.endpoints.conversations.input_list import PageQuery, list_page, parse_page_query
from router.core.endpoints.conversations.items import extend_digest, items_of, join_items, list_of, split_items
from router.core.endpoints.conversations.turn import Turn, parse_turn, whole_body, with_previous_id
from router.core.endpoints.conversations.turn_at_engine import TurnAtEngine, is_best_kept
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS
from router.core.endpoints.requests.request import parse_request
from router.core.endpoints.responses import RESPONSES
from router.errors import ApiError

RESPONSE = {"id": "resp_1", "status": "completed", "output": [{"type": "message", "content": "Blue."}]}


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


# -- items ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "items"),
    [
        (b'"Sea?"', b'{"type":"message","role":"user","content":"Sea?"}'),
        (b' [ {"a": 1}, {"b": 2} ] ', b'{"a": 1}, {"b": 2}'),
        (b"[]", b""),
        (b"null", b""),
    ],
)
def test_a_text_is_an_item_and_a_list_is_its_items(value: bytes, items: bytes) -> None:
    assert items_of(msgspec.Raw(value)) == items


@pytest.mark.parametrize("value", [b"7", b"true", b'{"role": "user"}'])
def test_anything_else_has_no_items(value: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        items_of(msgspec.Raw(value))
    assert (caught.value.status, caught.value.param) == (400, "input")


item_texts = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
items = st.lists(st.dictionaries(st.text(max_size=4), item_texts, max_size=3), max_size=6)


@given(items, st.integers(0, 6))
def test_joined_items_are_the_list_of_both(all_items: list[Any], cut: int) -> None:
    parts = [items_of(msgspec.Raw(json.dumps(part).encode())) for part in (all_items[:cut], all_items[cut:])]
    joined = join_items(*parts)
    assert json.loads(list_of(joined)) == all_items
    assert [json.loads(bytes(item)) for item in split_items(joined)] == all_items


@given(items, st.integers(0, 6), st.integers(0, 6))
def test_the_digest_does_not_depend_on_turns_spaces_and_the_order_of_fields(
    all_items: list[Any], first: int, second: int
) -> None:
    whole = extend_digest("", json.dumps(all_items)[1:-1].encode())
    reordered = [dict(reversed(item.items())) for item in all_items]
    digest = ""
    for part in (reordered[: min(first, second)], reordered[min(first, second) : max(first, second)],
                 reordered[max(first, second) :]):  # fmt: skip
        digest = extend_digest(digest, json.dumps(part, separators=(",", ":"))[1:-1].encode())
    assert digest == whole


@given(items, items)
def test_other_items_have_another_digest(one: list[Any], other: list[Any]) -> None:
    digests = [extend_digest("", json.dumps(each)[1:-1].encode()) for each in (one, other)]
    assert (digests[0] == digests[1]) is (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


@pytest.mark.parametrize("form", [b"1", b"1.0", b"1e0", b"10e-1"])
def test_a_digest_does_not_depend_on_the_form_of_a_number(form: bytes) -> None:
    assert extend_digest("", b'{"a": [%b]}' % form) == extend_digest("", b'{"a": [1]}')


def test_a_digest_of_what_is_no_json_is_refused() -> None:
    with pytest.raises(MALFORMED_RESPONSE_ERRORS):
        extend_digest("", b'{"a": 1} {"b": 2}')


# -- a request --------------------------------------------------------------------------------------------------------


def test_a_turn_has_its_items_and_says_whether_it_is_stored() -> None:
    turn = parse_turn(b'{"model": "m", "input": [{"a": 1}], "previous_response_id": "resp_1", "store": false}')
    assert turn == Turn(b'{"a": 1}', "resp_1", "nothing", is_background=False)
    for store in (b"", b', "store": true', b', "store": null'):
        turn = parse_turn(b'{"input": [], "previous_response_id": null%b}' % store)
        assert turn == Turn(b"", None, "turn", is_background=False)


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (b"null", False),
        (b"[]", False),
        (b'[{"type": "function", "name": "f"}, {"type": "custom"}, {"type": "namespace"}, {}]', False),
        (b'[{"type": "function", "name": "f"}, {"type": "web_search"}]', True),
        (b'[{"type": "mcp", "server_label": "x"}]', True),
        (b'[{"type": 7}]', True),
        (b'{"type": "web_search"}', False),
        (b"[7]", False),
    ],
)
def test_a_turn_says_whether_its_engine_runs_tools(tools: bytes, expected: bool) -> None:
    turn = parse_turn(b'{"input": "x", "tools": %b}' % tools)
    assert turn is not None
    assert turn.has_server_tools is expected


def test_a_turn_says_whether_its_client_has_chosen_the_id() -> None:
    assert parse_turn(b'{"input": "x", "request_id": "resp_mine"}') == Turn(
        b'{"type":"message","role":"user","content":"x"}', None, "turn", is_background=False, has_own_id=True
    )


@pytest.mark.parametrize(
    ("before", "last", "expected"),
    [
        ("message", "message", True),
        ("message", "reasoning", True),
        ("function_call", "message", True),
        ("message", "function_call", False),
        ("message", "custom_tool_call", False),
        ("message", "web_search_call", True),
        ("mcp_call", "function_call", True),
        ("mcp_call", "message", True),
    ],
)
def test_a_turn_after_a_call_of_the_clients_tools_is_whole_unless_that_has_calls_of_an_engines(
    before: str, last: str, expected: bool
) -> None:
    output = b'{"type":"message"},{"type":"%b"}' % last.encode()
    items = b'{"role":"user","content":"x"},{"type":"%b"},%b' % (before.encode(), output)
    assert is_best_kept(items, output) is expected


@pytest.mark.parametrize("output", [b"7", b"{", b'{"type":7},{"type":["web_search_call"]}'])
def test_an_output_without_calls_is_best_kept_by_its_engine(output: bytes) -> None:
    assert is_best_kept(output, output)


def test_the_engine_that_keeps_what_was_said_gets_the_id_and_the_new_items_alone() -> None:
    body = b'{"model":"m","input":[{"a":1},{"b":2},{"c":3}],"temperature":1.50}'
    whole = parse_request(RESPONSES, body.replace(b'{"a":1},{"b":2},{"c":3}', b'{"role":"user","content":"x"}'))
    sent = TurnAtEngine("one", "resp_1", b'{"c":3}').request(whole)
    assert sent.body == b'{"model":"m","input":[{"c":3}],"temperature":1.50,"previous_response_id":"resp_1"}'
    assert sent.fields == whole.fields


@pytest.mark.parametrize(
    "item",
    [
        b'{"role": "assistant", "content": "The sea."}',
        b'{"type": "function_call", "name": "f"}',
        b'{"type": "reasoning"}',
        b'{"type": "item_reference", "id": "msg_1"}',
    ],
)
def test_a_client_that_sends_what_was_said_before_keeps_it_itself_unless_it_says_otherwise(item: bytes) -> None:
    items = b'{"role": "user", "content": "The sea?"}, %b' % item

    def kept(rest: bytes) -> str:
        turn = parse_turn(b'{"input": [%b]%b}' % (items, rest))
        assert turn is not None
        return turn.kept

    assert kept(b"") == "output"
    assert kept(b', "store": null') == "output"
    assert kept(b', "store": true') == "turn"
    assert kept(b', "store": false') == "nothing"
    assert kept(b', "previous_response_id": "resp_1"') == "turn"
    assert kept(b', "background": true') == "turn"


def test_only_true_is_in_the_background() -> None:
    for value, expected in ((b"true", True), (b"false", False), (b"null", False), (b"1", False), (b'"yes"', False)):
        turn = parse_turn(b'{"input": "x", "background": %b}' % value)
        assert turn is not None
        assert turn.is_background is expected


def test_results_of_tools_are_no_output_of_a_model() -> None:
    turn = parse_turn(b'{"input": [{"type": "function_call_output", "output": "4"}, 5]}')
    assert turn is not None
    assert turn.kept == "turn"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"input": 7}',
        b'{"input": "x", "previous_response_id": 7}',
        b'{"input": "x", "conversation": "conv_1"}',
        b'{"input": "x", "conversation": {"id": "conv_1"}}',
        b'{"input": ' + b"[" * 100_000,
    ],
)
def test_what_is_invalid_or_the_engines_is_no_turn(body: bytes) -> None:
    assert parse_turn(body) is None


def test_a_conversation_of_an_engine_and_a_kept_response_are_not_for_one_turn() -> None:
    with pytest.raises(ApiError, match="cannot be used with `conversation`") as refused:
        parse_turn(b'{"input": "x", "conversation": "conv_1", "previous_response_id": "resp_1"}')
    assert (refused.value.status, refused.value.param) == (400, "previous_response_id")


def test_a_whole_body_names_no_other_response_and_keeps_all_other_bytes() -> None:
    body = b'{"input": "And?", "previous_response_id": "resp_1", "model": "m", "temperature": 1.50, "x": {"y": [1e2]}}'
    whole = whole_body(body, b'{"a": 1},{"b": 2}')
    assert whole == b'{"input":[{"a": 1},{"b": 2}],"model":"m","temperature":1.50,"x":{"y": [1e2]}}'


@pytest.mark.parametrize("id_", ["", "a b", "a:b", "*", "a/b", "é", "x" * 129, "resp_1\n"])
def test_an_id_is_a_part_of_a_key(id_: str) -> None:
    assert not is_storable_id(id_)
    assert is_storable_id("resp_0aB-" + "x" * 119)


# -- a response -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["response.completed", "response.incomplete"])
def test_the_last_event_of_a_stream_has_the_response(kind: str) -> None:
    body = json.dumps({**RESPONSE, "status": kind.partition(".")[2]})
    stream = b": a comment\n\n" + event("response.created", response={}) + event(kind, response=json.loads(body))
    for rest in (b"", b": a comment\n\n"):
        found = find_final_response(stream + rest, is_stream=True)
        assert found is not None
        assert (found.id, json.loads(found.body)) == ("resp_1", json.loads(body))
    json_found = find_final_response(body.encode(), is_stream=False)
    assert json_found is not None
    assert json_found == ("resp_1", b'{"type": "message", "content": "Blue."}', body.encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        event("response.created", response=RESPONSE),
        event("response.failed", response={**RESPONSE, "status": "failed"}),
        event("error", error={"message": "x"}),
        event("response.completed", response=RESPONSE) + event("error", message="x"),
        b"event: response.completed\ndata: {\n\n",
        event("response.completed"),
    ],
)
def test_a_stream_that_failed_has_none(data: bytes) -> None:
    assert find_final_response(data, is_stream=True) is None


@pytest.mark.parametrize(
    "fields", [{"status": "failed"}, {"status": "queued"}, {"error": {"code": "x"}}, {"output": 7}, {"id": 7}]
)
def test_a_json_response_that_failed_has_none(fields: dict[str, Any]) -> None:
    assert find_final_response(json.dumps({**RESPONSE, **fields}).encode(), is_stream=False) is None


def test_a_response_names_the_one_before_it() -> None:
    body = b'{"id": "resp_2", "previous_response_id": null, "x": 1.50}'
    assert with_previous_id(body, "") == body
    assert with_previous_id(body, "resp_1") == b'{"id":"resp_2","previous_response_id":"resp_1","x":1.50}'


# -- a list of items --------------------------------------------------------------------------------------------------


def page(items: list[Any], *, cuts: Sequence[int] = (), **query: Any) -> dict[str, Any]:
    """`cuts`: where the list is cut into parts."""
    bounds = [0, *sorted(cuts), len(items)]
    parts = [list_text(items[first:last]) for first, last in pairwise(bounds)]
    found: dict[str, Any] = json.loads(page_text(parts, PageQuery(**{"order": "asc", **query})))
    return found


def page_text(parts: list[bytes], query: PageQuery) -> bytes:
    steps = list_page(parts, query)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            text: bytes = end.value
            return text


def list_text(items: list[Any]) -> bytes:
    return json.dumps(items).encode()[1:-1]


def test_items_are_listed_as_openai_does() -> None:
    call = {"type": "function_call", "name": "look", "call_id": "c", "arguments": "{}"}
    given: list[dict[str, Any]] = [
        {"role": "user", "content": "Sea?"},
        {"role": "assistant", "content": "Blue."},
        call,
        {"id": "i", "type": 7},
    ]
    data = page(given)["data"]
    assert [each["type"] for each in data] == ["message", "message", "function_call", 7]
    assert data[0]["content"] == [{"type": "input_text", "text": "Sea?"}]
    assert data[1]["content"] == [{"type": "output_text", "text": "Blue.", "annotations": []}]
    assert [each["id"].partition("_")[0] for each in data] == ["msg", "msg", "fc", "i"]
    assert {**data[2], "id": ""} == {**call, "id": ""}
    assert [each["id"] for each in page([*given, {"role": "user"}])["data"]][:4] == [each["id"] for each in data]


def test_pages_end_if_items_have_the_same_id() -> None:
    items = [{"type": "message", "role": "user", "content": str(number), "id": "msg_0"} for number in range(5)]
    contents, after, has_more = [], None, True
    while has_more:
        found = page(items, limit=2, after=after, cuts=[3])
        contents += [item["content"][0]["text"] for item in found["data"]]
        after, has_more = found["last_id"], found["has_more"]
    assert contents == ["0", "1", "2", "3", "4"]
    assert page(items)["data"][0]["id"] == "msg_0"


def test_what_is_no_item_is_not_listed_and_an_id_that_is_no_text_is_replaced() -> None:
    odd: list[Any] = [{"content": "a", "id": ["x"]}, 7, {"content": "b", "id": ""}, "text", {"content": "c", "id": "x"}]
    data = page(odd)["data"]
    assert [each["content"][0]["text"] for each in data] == ["a", "b", "c"]
    assert len({each["id"] for each in data}) == 3
    assert all(isinstance(each["id"], str) and each["id"] for each in data)


def test_an_item_is_listed_as_it_was_sent() -> None:
    text = page_text([b'{"id":"a","type":"x","n":1.50, "more":{"z":1, "a":2}}'], PageQuery())
    assert b'"n":1.50,"more":{"z":1, "a":2}' in text


@pytest.mark.parametrize(
    "after", ["", "msg_1", "msg_" + "0" * 24, "msg_" + "0" * 16 + "ffffffff", "msg_" + "0" * 16 + "00000001"]
)
def test_after_what_is_no_item_there_is_no_page(after: str) -> None:
    with pytest.raises(ApiError) as caught:
        page([{"role": "user", "content": "Sea?", "id": "msg_0"}, {"role": "user", "content": "Sky?"}], after=after)
    assert (caught.value.status, caught.value.param) == (400, "after")


def test_an_empty_list_has_no_first_item() -> None:
    assert page([]) == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


@given(
    st.integers(0, 12), st.integers(1, 5), st.sampled_from(["asc", "desc"]), st.sets(st.integers(0, 12)),
    st.lists(st.integers(0, 12), max_size=3),
)  # fmt: skip
def test_the_pages_are_the_list(count: int, limit: int, order: str, named: set[int], cuts: list[int]) -> None:
    texts = [
        {"role": "user", "content": f"{number}", **({"id": f"id_{number}"} if number in named else {})}
        for number in range(count)
    ]
    seen: list[str] = []
    after = None
    while True:
        found = page(texts, cuts=[min(cut, count) for cut in cuts], limit=limit, order=order, after=after)
        seen += [each["content"][0]["text"] for each in found["data"]]
        after = found["last_id"]
        if not found["has_more"]:
            break
    expected = [f"{number}" for number in range(count)]
    assert seen == (expected if order == "asc" else expected[::-1])


def test_a_query_has_bounds() -> None:
    assert parse_page_query({}) == (20, "desc", None)
    assert parse_page_query({"limit": "100", "order": "asc", "after": "x", "include": "y"}) == (100, "asc", "x")
    for wrong in ({"limit": "0"}, {"limit": "101"}, {"limit": "٣"}, {"limit": "1000"}, {"order": ""}):
        with pytest.raises(ApiError):
            parse_page_query(wrong)
