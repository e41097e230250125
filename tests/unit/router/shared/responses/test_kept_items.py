"""Items that are read: as the index says, or not at all."""

import pytest

from router.core.endpoints.conversations.item_references import referable_items
from router.shared.responses.item_index import ItemPlace, decode_places
from router.shared.responses.kept_items import ItemNotFoundError, check_all_found, decode_outputs, read_items

OUTPUT = b'{"id": "rs_1", "type": "reasoning"},{"id": "msg_1", "role": "assistant"}'
DIGESTS = {item.id: item.digest for item in referable_items(OUTPUT)}


def places(**response_ids: str) -> dict[str, ItemPlace]:
    return {id_: ItemPlace(response_id, 70, DIGESTS[id_]) for id_, response_id in response_ids.items()}


def test_items_are_found_in_the_output_of_their_response() -> None:
    found = read_items(places(rs_1="resp_1", msg_1="resp_2"), {"resp_1": OUTPUT, "resp_2": OUTPUT})
    assert found == {"rs_1": b'{"id": "rs_1", "type": "reasoning"}', "msg_1": b'{"id": "msg_1", "role": "assistant"}'}


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        {"resp_2": OUTPUT},
        {"resp_1": b'{"id": "msg_1", "role": "assistant", "content": "of another conversation"}'},
        {"resp_1": b'{"id": "msg_2", "role": "assistant"}'},
        {"resp_1": b""},
        {"resp_1": b"7"},
    ],
)
def test_an_item_that_is_not_as_the_index_says_is_not_found(outputs: dict[str, bytes]) -> None:
    known = places(msg_1="resp_1")
    found = read_items(known, outputs)
    assert found == {}
    with pytest.raises(ItemNotFoundError, match="msg_1"):
        check_all_found(known, found)


def test_the_index_may_have_nothing_or_an_id_that_two_items_have() -> None:
    digest = b"0f" * 16
    reply = [
        None, b"2 resp_1 70 ?", b"1 resp_1 70 " + digest, b"12 ? 70 " + digest, b"resp_1 70 " + digest, b"resp_1", b""
    ]  # fmt: skip
    assert decode_places(list("abcdefg"), reply) == {"c": ItemPlace("resp_1", 70, digest.decode())}


def test_an_output_may_be_gone() -> None:
    assert decode_outputs(["resp_1", "resp_2"], [None, b"[7]"]) == {"resp_2": b"7"}
