"""/score and /rerank of a pooling engine; a score is a function of the model, the query and the document."""

from collections.abc import Sequence
from typing import Any

from engines.simulator.endpoints.apis import response_id
from engines.simulator.endpoints.json_endpoint import Headers, JsonApi, JsonRequest
from engines.simulator.endpoints.pooled import check_pooled_model, hashed_number, pooled_envelope
from engines.simulator.rejections import bad_request, prompt_too_long, validation_error
from engines.simulator.settings import SimulatorSettings
from engines.simulator.text.tokens import encode_text
from engines.simulator.validation import fields

_NAMES = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
_FIELDS = {
    "model": "text", "user": "text", "truncate_prompt_tokens": "integer", "max_tokens_per_query": "integer",
    "max_tokens_per_doc": "integer", "use_activation": "boolean", "instruction": "text",
    "chat_template_kwargs": "object", "top_n": "integer", "cache_salt": "text",
}  # fmt: skip


def score_request(body: fields.Body, settings: SimulatorSettings) -> JsonRequest:
    """Raises Rejection."""
    pair = next((names for names in _NAMES if all(name in body for name in names)), None)
    if pair is None:
        raise fields.missing_fields(body, *[name for names in _NAMES for name in names if name not in body])
    body = fields.coerce(body, _FIELDS)
    scores, sequences, texts = _score(body, settings, *pair)

    def make_body(headers: Headers, now: float) -> dict[str, Any]:
        data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
        return pooled_envelope("score", data, sequences, settings, headers, now)

    return JsonRequest("\n".join(texts), sequences, make_body)


def rerank_request(body: fields.Body, settings: SimulatorSettings) -> JsonRequest:
    """Raises Rejection."""
    if missing := [name for name in ("query", "documents") if name not in body]:
        raise fields.missing_fields(body, *missing)
    body = fields.coerce(body, _FIELDS)
    top_n = body.get("top_n") or 0
    if top_n < 0:
        message = "Input should be greater than or equal to 0"
        raise validation_error(
            {"type": "greater_than_equal", "loc": "body.top_n", "msg": message, "input": top_n, "ctx": {"ge": 0}}
        )
    scores, sequences, texts = _score(body, settings, "query", "documents")
    documents = body["documents"] if isinstance(body["documents"], list) else [body["documents"]]

    def make_body(headers: Headers, _: float) -> dict[str, Any]:
        results: list[dict[str, Any]] = [
            {"index": index, "document": {"text": document, "multi_modal": None}, "relevance_score": score}
            for index, (document, score) in enumerate(zip(documents, scores, strict=True))
        ]
        results.sort(key=lambda result: result["relevance_score"], reverse=True)
        return {
            "id": response_id("score", headers),
            "model": settings.model_names[0],
            "usage": {"prompt_tokens": sum(sequences), "total_tokens": sum(sequences)},
            "results": results[:top_n] if top_n else results,
        }

    return JsonRequest("\n".join(texts), sequences, make_body)


def _score(
    body: fields.Body, settings: SimulatorSettings, query_name: str, document_name: str
) -> tuple[list[float], tuple[int, ...], list[str]]:
    """The score of each document, the tokens of each sequence, and all texts."""
    queries, documents = (_texts(body, name, settings) for name in (query_name, document_name))
    check_pooled_model(body, settings)
    if len(queries) > 1 and len(queries) != len(documents):
        raise bad_request("Input lengths must be either 1:1, 1:N or N:N")
    if not queries:
        raise bad_request("At least one text element must be given")
    if not documents:
        raise bad_request("At least one text_pair element must be given")
    pairs = list(zip(queries if len(queries) > 1 else queries * len(documents), documents, strict=True))
    query_tokens = [_token_count(text, body.get("max_tokens_per_query")) for text in queries]
    document_tokens = [_token_count(text, body.get("max_tokens_per_doc")) for text in documents]
    if settings.pooling_task == "classify":  # a cross-encoder gets each pair as one sequence
        own = query_tokens if len(queries) > 1 else query_tokens * len(documents)
        sequences = tuple(map(sum, zip(own, document_tokens, strict=True)))
        low = 0.0
    else:
        sequences, low = (*query_tokens, *document_tokens), -1.0
    scores = [hashed_number(settings, f"{query}\n{document}", low) for query, document in pairs]
    return scores, _truncated(sequences, body.get("truncate_prompt_tokens"), settings), [*queries, *documents]


def _texts(body: fields.Body, name: str, settings: SimulatorSettings) -> list[str]:
    value = body[name]
    items = value if isinstance(value, list) else [value]
    problems = _problems(name, value, items)
    if problems:
        raise validation_error(*problems)
    if any(isinstance(item, dict) for item in items):
        raise bad_request(f"MultiModalParam is not supported for {settings.architecture}")
    return items


def _problems(name: str, value: object, items: list[Any]) -> list[dict[str, object]]:
    """What vLLM reports of each form that it tries: a text, a content, a list of both."""
    wrong = [
        problem
        for at, item in enumerate(items)
        for problem in _item_problems(f"body.{name}.{at}" if isinstance(value, list) else f"body.{name}", item)
    ]
    if not wrong or not isinstance(value, list):
        return wrong
    text, content = "Input should be a valid string", "Input should be a valid dictionary"
    return [
        {"type": "string_type", "loc": f"body.{name}", "msg": text, "input": value},
        {"type": "dict_type", "loc": f"body.{name}.ScoreMultiModalParam", "msg": content, "input": value},
        *wrong,
    ]


def _item_problems(where: str, item: object) -> list[dict[str, object]]:
    if isinstance(item, str) or (isinstance(item, dict) and "content" in item):
        return []
    problem = {"type": "string_type", "loc": where, "msg": "Input should be a valid string", "input": item}
    place = f"{where}.ScoreMultiModalParam"
    if isinstance(item, dict):
        return [problem, {"type": "missing", "loc": f"{place}.content", "msg": "Field required", "input": item}]
    return [problem, {"type": "dict_type", "loc": place, "msg": "Input should be a valid dictionary", "input": item}]


def _token_count(text: str, maximum: int | None) -> int:
    count = len(encode_text(text))
    return min(count, maximum) if maximum else count


def _truncated(sequences: Sequence[int], maximum: int | None, settings: SimulatorSettings) -> tuple[int, ...]:
    context = settings.context_length
    if maximum is None:
        if any(count > context for count in sequences):
            raise prompt_too_long(context)
        return tuple(sequences)
    if maximum > context:
        raise bad_request(
            "truncate_prompt_tokens value is greater than max_model_len. Please request a smaller truncation size."
        )
    return tuple(min(count, context if maximum < 0 else maximum) for count in sequences)


SCORING_APIS = (
    JsonApi("/score", score_request),
    JsonApi("/v1/score", score_request),
    JsonApi("/rerank", rerank_request),
    JsonApi("/v1/rerank", rerank_request),
    JsonApi("/v2/rerank", rerank_request),
)
