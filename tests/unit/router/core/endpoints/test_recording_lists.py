"""Scores, classes and vectors are stored if there is one for each input, exactly as the engine sent them."""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.replay import replay
from tests.support.endpoints import record_body
from tests.support.factories import classify, entry_from, load_capture, pooling, rerank, score
from tests.support.paths import CAPTURES

LIMIT: Final = 1 << 20
USAGE: Final = {"prompt_tokens": 3, "total_tokens": 3}
Make = Callable[..., InferenceRequest]
VALUES: Final = {rerank: "relevance_score", score: "score", classify: "probs", pooling: "data"}
"""By endpoint: the field of an item with its value."""
MAKES: Final = pytest.mark.parametrize("make", VALUES)


def answer(make: Make, *indexes: Any, value: Any = 0.5, **beside: Any) -> bytes:
    items = [{"index": index, VALUES[make]: value, "document": {"text": "é"}} for index in indexes]
    return json.dumps({"results" if make is rerank else "data": items, "usage": USAGE, **beside}).encode()


def inputs(make: Make, count: int) -> InferenceRequest:
    texts = [f"text {number}" for number in range(count)]
    return make(**{"documents" if make in (rerank, score) else "input": texts})


@MAKES
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_response_is_complete_with_an_item_for_each_input(make: Make, count: int) -> None:
    made = inputs(make, count)
    body = answer(make, *reversed(range(count)))
    recorded = record_body(made, body, LIMIT)
    assert recorded == RecordedResponse(body=body, stream=None, prompt_tokens=3, completion_tokens=0)
    assert replay(entry_from(recorded), made) == body
    for other in (range(count - 1), range(count + 1)):
        assert record_body(made, answer(make, *other), LIMIT) is NotStoredReason.INCOMPLETE


@MAKES
@pytest.mark.parametrize("indexes", [(0, 0), (0, 2), (-1, 0), (0, "1"), (0, None), (True, 0)])
def test_items_must_be_of_different_inputs(make: Make, indexes: Any) -> None:
    assert record_body(inputs(make, 2), answer(make, *indexes), LIMIT) is NotStoredReason.INCOMPLETE


@MAKES
@pytest.mark.parametrize("value", [None, [], ""])
def test_an_empty_item_is_not_stored(make: Make, value: Any) -> None:
    assert record_body(inputs(make, 1), answer(make, 0, value=value), LIMIT) is NotStoredReason.EMPTY
    without = answer(make, 0).replace(b'"%b": 0.5' % VALUES[make].encode(), b'"x": 0.5')
    assert record_body(inputs(make, 1), without, LIMIT) is NotStoredReason.EMPTY


@pytest.mark.parametrize(("top_n", "count"), [(0, 3), (None, 3), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_a_ranking_is_complete_with_the_best_documents(top_n: int | None, count: int) -> None:
    made = rerank(documents=["a", "b", "c"], top_n=top_n)
    for given_count in (1, 2, 3):
        recorded = record_body(made, answer(rerank, *range(3 - given_count, 3)), LIMIT)
        assert isinstance(recorded, RecordedResponse) == (given_count == count)


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"queries": "q", "documents": "d"}, 1), ({"queries": ["q"], "items": ["d", "e"], "documents": None}, 2),
        ({"queries": None, "data_1": ["a", "b"], "data_2": ["c", "d"]}, 2),
        ({"queries": None, "text_1": "a", "text_2": {"content": []}}, 1),
    ],
)  # fmt: skip
def test_each_document_has_a_score_whatever_its_field_is_called(fields: dict[str, Any], count: int) -> None:
    assert isinstance(record_body(score(**fields), answer(score, *range(count)), LIMIT), RecordedResponse)
    assert record_body(score(**fields), answer(score, *range(count + 1)), LIMIT) is NotStoredReason.INCOMPLETE


@pytest.mark.parametrize("make", [classify, pooling])
@pytest.mark.parametrize(
    ("fields", "count"),
    [({"input": "x"}, 1), ({"input": [1, 2]}, 1), ({"input": [[1], [2]]}, 2), ({"input": ["x", "y"]}, 2),
     ({"input": None, "messages": [{"role": "user", "content": "x"}] * 2}, 1)],
)  # fmt: skip
def test_a_text_token_ids_and_a_conversation_each_are_one_input(make: Make, fields: dict[str, Any], count: int) -> None:
    assert isinstance(record_body(make(**fields), answer(make, *range(count)), LIMIT), RecordedResponse)


def test_what_a_plugin_answers_is_passed_on_whatever_it_is() -> None:
    made = pooling(input=None, data={"image": "x"})
    assert isinstance(record_body(made, b'{"request_id":"r","data":{"x":1}}', LIMIT), RecordedResponse)
    assert record_body(made, b'{"error":{"message":"x"}}', LIMIT) is NotStoredReason.ERROR
    assert made.endpoint.find_server_state is not None
    assert made.endpoint.find_server_state(made.fields)
    assert made.endpoint.find_server_state(pooling().fields) is None


def test_usage_is_estimated_for_an_engine_that_reports_none() -> None:
    body = b'{"data":[{"index":0,"score":0.5}]}'
    recorded = record_body(score(documents="x" * 400), body, LIMIT)
    assert isinstance(recorded, RecordedResponse)
    assert recorded.prompt_tokens > 100


REQUESTS: Final = json.loads((CAPTURES / "requests.json").read_text())
MAKE_BY_PATH: Final = (
    {"/classify": classify, "/pooling": pooling}
    | dict.fromkeys(("/score", "/v1/score"), score)
    | dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), rerank)
)
CAPTURED: Final = [
    name for name, one in REQUESTS.items() if one["path"] in MAKE_BY_PATH and not name.startswith("error")
]


@pytest.mark.parametrize("name", CAPTURED)
def test_vllms_own_responses_are_complete(name: str) -> None:
    _, body = load_capture(name)
    fields = json.loads(REQUESTS[name]["body"])
    make = MAKE_BY_PATH[REQUESTS[name]["path"]]
    blank = dict.fromkeys(("queries", "documents") if make is score else ("input",) if make is not rerank else ())
    recorded = record_body(make(**{**blank, **fields}), body, LIMIT)
    assert isinstance(recorded, RecordedResponse)
    assert recorded.body == body
    assert recorded.prompt_tokens == json.loads(body)["usage"]["prompt_tokens"]
