"""What a connection remembers, and how the next turn is made whole."""

import json
from typing import Any

import pytest

from router.api.websocket.conversation import Conversation, encode_request
from router.api.websocket.create_message import CreateMessage, parse_message
from router.errors import ApiError
from router.flow.body_budget import BodyAllocation, BodyBudget

OUTPUT = b'[{"type": "message", "content": "Blue."}]'


def create(**fields: Any) -> CreateMessage:
    message = parse_message(json.dumps({"type": "response.create", **fields}).encode())
    assert message is not None
    return message


def conversation(limit: int = 1000, max_body: int = 1000) -> tuple[Conversation, BodyBudget]:
    budget = BodyBudget()
    return Conversation(lambda: BodyAllocation(budget, limit), max_body), budget


def whole(conversation: Conversation, **fields: Any) -> tuple[dict[str, Any], bytes | None]:
    fields, items = conversation.make_whole(create(**fields))
    return json.loads(encode_request(fields)), items


def user(text: str) -> dict[str, str]:
    return {"type": "message", "role": "user", "content": text}


def test_a_first_turn_stays_as_it_is() -> None:
    subject, _ = conversation()
    assert whole(subject, input="Sea?")[0] == {"input": "Sea?", "stream": True}
    assert whole(subject, input=[user("Sea?")])[0] == {"input": [user("Sea?")], "stream": True}
    assert whole(subject, model="m")[0] == {"model": "m", "stream": True}


@pytest.mark.parametrize("first", ["Sea?", [user("Sea?")]])
@pytest.mark.parametrize("second", ["Sky?", [user("Sky?")]])
def test_the_next_turn_has_what_was_said_before(first: Any, second: Any) -> None:
    subject, _ = conversation()
    _, items = whole(subject, input=first)
    subject.remember("resp_1", items, OUTPUT)
    body, items = whole(subject, input=second, previous_response_id="resp_1")
    assert body == {"input": [user("Sea?"), json.loads(OUTPUT)[0], user("Sky?")], "stream": True}
    subject.remember("resp_2", items, b"[]")
    body, _ = whole(subject, input=[], previous_response_id="resp_2")
    assert body["input"] == [user("Sea?"), json.loads(OUTPUT)[0], user("Sky?")]


def test_only_the_last_response_is_remembered_and_others_are_passed_on() -> None:
    subject, _ = conversation()
    subject.remember("resp_1", b"1", OUTPUT)
    subject.remember("resp_2", b"2", OUTPUT)
    body, items = whole(subject, input="x", previous_response_id="resp_1")
    assert body == {"input": "x", "previous_response_id": "resp_1", "stream": True}
    assert items is None, "what was said before is not known here"
    subject.remember("resp_3", items, OUTPUT)
    assert whole(subject, input="y", previous_response_id="resp_3")[1] is None


@pytest.mark.parametrize("bounds", [{"limit": 50}, {"max_body": 50}])
def test_what_does_not_fit_is_forgotten_and_said_so(bounds: dict[str, int]) -> None:
    subject, budget = conversation(**bounds)
    subject.remember("resp_1", b'"%b"' % (b"x" * 100))
    assert budget.allocated == 0
    with pytest.raises(ApiError) as caught:
        subject.make_whole(create(input="x", previous_response_id="resp_1"))
    assert (caught.value.status, caught.value.code) == (400, "previous_response_not_found")


def test_the_memory_is_freed() -> None:
    subject, budget = conversation()
    subject.remember("resp_1", b"12345", b"[]")
    assert budget.allocated == 5
    subject.remember("resp_2", b"123", b"[6]")
    assert budget.allocated == 5
    subject.forget()
    assert budget.allocated == 0
    subject.forget()
    assert budget.allocated == 0


@pytest.mark.parametrize("value", [7, True, {"role": "user"}])
def test_an_input_that_is_neither_text_nor_list_is_refused(value: Any) -> None:
    subject, _ = conversation()
    with pytest.raises(ApiError) as caught:
        subject.make_whole(create(input=value))
    assert (caught.value.status, caught.value.param) == (400, "input")
