"""References to items: which items are ones, and what takes their place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.conversations.item_references import (
    MAX_REFERENCES,
    find_references,
    referable_items,
    resolve_references,
    resolved_size,
)
from router.core.endpoints.conversations.items import extend_digest, list_of
from router.core.endpoints.conversations.turn import parse_turn
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS
from router.errors import ApiError

REFERENCE = b'{"type": "item_reference", "id": "msg_1"}'


@pytest.mark.parametrize(
    "item",
    [REFERENCE, b'{"id": "msg_1"}', b'{"id":\n"msg_1" }', b'{"id": "msg_1", "type": "item_reference", "x": 1}'],
)
def test_a_reference_is_an_item_of_its_type_or_of_an_id_alone(item: bytes) -> None:
    items = b'{"role": "user", "content": "A"},%b' % item
    assert find_references(items) == ["msg_1"]


@pytest.mark.parametrize(
    "item",
    [
        b'{"role": "user", "content": "item_reference"}',
        b'{"role": "user", "content": "{\\"id\\": \\"msg_1\\"}"}',
        b'{"type": "item_reference"}',
        b'{"type": "item_reference", "id": 7}',
        b'{"id": null}',
        b'{"type": "message", "id": "msg_1"}',
        b'{"type": "message", "role": "user", "content": [{"id": "msg_1"}]}',
        b'{"id": "msg_1", "role": "user", "content": "A"}',
        b"7",
        b'{"id": "msg_1"',
        b'{"type": "item_reference", "id": "msg_1"} {}',
    ],
)
def test_anything_else_is_none(item: bytes) -> None:
    assert find_references(item) == []


def test_a_request_refers_to_items_with_any_store_and_without_a_type_only_if_it_is_to_be_kept() -> None:
    def references(item: bytes, rest: bytes) -> tuple[str, ...]:
        turn = parse_turn(b'{"input": [{"role": "user", "content": "A"}, %b]%b}' % (item, rest))
        assert turn is not None
        return turn.references

    bare = b'{"id": "msg_1"}'
    for rest in (b"", b', "store": true', b', "previous_response_id": "resp_1"', b', "background": true'):
        assert references(REFERENCE, rest) == references(bare, rest) == ("msg_1",)
    assert references(REFERENCE, b', "store": false') == ("msg_1",)
    assert references(bare, b', "store": false') == ()
    said = b'{"role": "user", "content": "item_reference"}, {"id": "msg_1", "role": "assistant", "content": []}'
    assert references(said, b"") == references(said, b', "store": false') == ()


def test_items_take_the_place_of_their_references_and_all_other_bytes_stay() -> None:
    items = b'{"role":  "user"}, %b,{"a": 1.50},{"id": "rs_1"}, %b' % (REFERENCE, REFERENCE)
    found = {"msg_1": b'{"id":"msg_1"}', "rs_1": b'{"id":"rs_1", "x": 1e2}'}
    assert find_references(items) == ["msg_1", "rs_1", "msg_1"]
    whole = resolve_references(items, found)
    assert whole == b'{"role":  "user"},{"id":"msg_1"},{"a": 1.50},{"id":"rs_1", "x": 1e2},{"id":"msg_1"}'
    assert resolved_size(find_references(items), found) == 2 * 15 + 24


def test_an_input_has_at_most_so_many_references() -> None:
    assert len(find_references(b",".join([REFERENCE] * MAX_REFERENCES))) == MAX_REFERENCES
    with pytest.raises(ApiError) as refused:
        find_references(b",".join([REFERENCE] * (MAX_REFERENCES + 1)))
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "too_many_references", "input")


@pytest.mark.parametrize("id_", [b"", b"a b", b"a:b", b"x" * 129])
def test_an_id_that_no_kept_item_has_is_not_found(id_: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        find_references(b'{"type": "item_reference", "id": "%b"}' % id_)
    assert (refused.value.status, refused.value.code) == (404, "item_not_found")


def test_an_item_can_be_referred_to_by_an_id_of_the_usual_form() -> None:
    output = b'{"id": "rs_1", "type": "reasoning"}, {"id": "a b"},{"id": 7},{"type": "message"},{"id":"msg_1","n":1.0}'
    found = referable_items(output)
    assert [(item.id, item.text) for item in found] == [
        ("rs_1", b'{"id": "rs_1", "type": "reasoning"}'),
        ("msg_1", b'{"id":"msg_1","n":1.0}'),
    ]
    assert found[1].digest == extend_digest("", b'{"n": 1, "id": "msg_1"}')
    for malformed in (b"7", b'{"id": "a"} {}', b'"text"'):
        with pytest.raises(MALFORMED_RESPONSE_ERRORS):
            referable_items(malformed)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["msg_1", "rs_2", "fc-3"]), st.text(max_size=5))))
def test_what_is_resolved_is_the_list_with_the_items(written: list[tuple[bool, str, str]]) -> None:
    items, whole = [], []
    for is_reference, id_, text in written:
        whole.append({"id": id_, "role": "assistant", "content": text if not is_reference else "of " + id_})
        items.append({"type": "item_reference", "id": id_} if is_reference else whole[-1])
    body = json.dumps(items).encode()[1:-1]
    found = {
        id_: json.dumps(item).encode() for _, id_, _ in written for item in whole if item["content"] == "of " + id_
    }
    references = find_references(body)
    assert references == [id_ for is_reference, id_, _ in written if is_reference]
    assert json.loads(list_of(resolve_references(body, found) if references else body)) == whole
