"""/score, which vLLM also has as /v1/score: how similar texts are, or how well documents answer a query.

A response is complete with a score for each document. One query is scored against all documents, several against one
document each. vLLM has four pairs of names for queries and documents.

Source: vLLM's entrypoints/pooling/scoring.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from router.core.endpoints.endpoint import Endpoint, InferenceRequest, ScoredInput
from router.core.endpoints.recording.list_responses import Item, ListResponse, record_list
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.requests.request_fields import missing_field_error
from router.core.endpoints.requests.scored_fields import ScoredFields, ScoredTexts, scored_count
from router.errors import ApiError

_FIELD_PAIRS: Final = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
"""In vLLM's order: the first complete pair counts."""


def _is_complete(pair: tuple[str, str], value_of: Callable[[str], Any]) -> bool:
    return all(value_of(name) not in (None, []) for name in pair)  # an empty text is scored as any other


class _ScoreFields(ScoredFields):
    queries: ScoredTexts | None = None
    documents: ScoredTexts | None = None
    items: ScoredTexts | None = None
    data_1: ScoredTexts | None = None
    data_2: ScoredTexts | None = None
    text_1: ScoredTexts | None = None
    text_2: ScoredTexts | None = None

    def validate(self) -> ApiError | None:
        if any(_is_complete(pair, partial(getattr, self)) for pair in _FIELD_PAIRS):
            return None
        half = next((pair for pair in _FIELD_PAIRS if any(getattr(self, name) is not None for name in pair)), None)
        queries, documents = half or _FIELD_PAIRS[0]
        return missing_field_error(queries if getattr(self, queries) in (None, []) else documents)


class _Score(msgspec.Struct):
    index: Any = None
    score: msgspec.Raw = msgspec.Raw()


class _ScoreResponse(ListResponse, kw_only=True):
    data: list[_Score]


_decode_response = msgspec.json.Decoder(_ScoreResponse).decode


def _items(response: _ScoreResponse) -> Iterator[Item]:
    return ((score.index, score.score) for score in response.data)


def record_scores(request: InferenceRequest, body: bytes, limit: int) -> RecordedResponse | NotStoredReason:
    fields = request.fields
    documents = fields[next(pair for pair in _FIELD_PAIRS if _is_complete(pair, fields.get))[1]]
    return record_list(
        request, body, limit, decode=_decode_response, items=_items, input_count=scored_count(documents)
    )  # fmt: skip


SCORE: Final = Endpoint(
    path="/score",
    operation="score",
    fields_type=_ScoreFields,
    input=ScoredInput(
        query_fields=("queries", "data_1", "text_1"), document_fields=("documents", "items", "data_2", "text_2")
    ),
    find_server_state=None,
    samples=False,
    applies_logit_fields=False,
    may_fall_back=False,  # scores of different models cannot be compared
    record_body=record_scores,
)
SCORE_V1: Final = SCORE.at("/v1/score")
