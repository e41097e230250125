"""/rerank, which vLLM also has as /v1/rerank and /v2/rerank (Jina's and Cohere's paths): documents by their relevance.

A response is complete with a result for each document, or for `top_n` of them. It repeats the documents.

Source: vLLM's entrypoints/pooling/scoring; https://docs.cohere.com/reference/rerank.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from router.core.endpoints.endpoint import Endpoint, InferenceRequest, ScoredInput
from router.core.endpoints.recording.list_responses import Item, ListResponse, record_list
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.requests.request_fields import missing_field_error
from router.core.endpoints.requests.scored_fields import ScoredFields, ScoredTexts, scored_count
from router.errors import ApiError


class _RerankFields(ScoredFields):
    query: str | dict[str, Any] | None = None
    documents: ScoredTexts | None = None
    top_n: int | None = None

    def validate(self) -> ApiError | None:
        if self.query is None:
            return missing_field_error("query")
        return missing_field_error("documents") if self.documents in (None, []) else None


class _Result(msgspec.Struct):
    index: Any = None
    relevance_score: msgspec.Raw = msgspec.Raw()


class _RerankResponse(ListResponse, kw_only=True):
    results: list[_Result]


_decode_response = msgspec.json.Decoder(_RerankResponse).decode


def _items(response: _RerankResponse) -> Iterator[Item]:
    return ((result.index, result.relevance_score) for result in response.results)


def record_ranking(request: InferenceRequest, body: bytes, limit: int) -> RecordedResponse | NotStoredReason:
    count, top_n = scored_count(request.fields["documents"]), request.fields.get("top_n") or 0
    return record_list(
        request, body, limit, decode=_decode_response, items=_items, input_count=count,
        item_count=min(top_n, count) if top_n > 0 else count,
    )  # fmt: skip


RERANK: Final = Endpoint(
    path="/rerank",
    operation="rerank",
    fields_type=_RerankFields,
    input=ScoredInput(query_fields=("query",), document_fields=("documents",)),
    find_server_state=None,
    samples=False,
    applies_logit_fields=False,
    may_fall_back=False,  # scores of different models cannot be compared
    record_body=record_ranking,
)
RERANK_V1: Final = RERANK.at("/v1/rerank")
RERANK_V2: Final = RERANK.at("/v2/rerank")
