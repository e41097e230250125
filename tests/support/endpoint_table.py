"""What each endpoint is, for tests of what all of them have in common: a request, and what its response consists of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tests.support.router_server import RouterClient, chat_body
from tests.support.sse_answers import DONE_FRAME, chat_text
from tests.support.typed_answers import MESSAGES, RESPONSES, typed_body, typed_text

_GENERATES: Final[Mapping[str, Any]] = {}
_EMBEDS: Final[Mapping[str, Any]] = {"pooling": True}
_CLASSIFIES: Final[Mapping[str, Any]] = {"pooling": True, "pooling_task": "classify"}
_TRANSCRIBES: Final[Mapping[str, Any]] = {"speech": True, "max_model_len": 448}

_DOCUMENTS: Final = ["The sea is deep.", "The sky is blue today.", "Ships"]
_QUERY: Final = "What is deep?"


def _json_of(answer: httpx.Response) -> Any:
    return answer.json()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointCase:
    """One endpoint.

    - `body`: a request for the model llama.
    - `engine`: what an engine needs to serve it, as settings of the simulator.
    - `content`: what is the same in a response and in the response that another form of it was made from.
    - `first_event`, `last_event`: what a stream has once, at its start and at its end; empty if there is no such event.
    - `wrong`: fields that make the request invalid, and the one that the error names.
    - `is_counted`: tokens of the prompt are counted.
    """

    path: str
    body: dict[str, Any]
    engine: Mapping[str, Any] = field(default_factory=lambda: _GENERATES)
    content: Callable[[httpx.Response], Any] = _json_of
    first_event: bytes = b""
    last_event: bytes = b""
    wrong: tuple[dict[str, Any], str]
    is_counted: bool = True

    @property
    def streams(self) -> bool:
        return self.last_event != b""

    @property
    def has_anthropics_errors(self) -> bool:
        return self.path.startswith(MESSAGES)

    async def ask(
        self, router: RouterClient, *, headers: Mapping[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        return await router.http.post(self.path, json={**self.body, **fields}, headers=headers)

    def error_of(self, answer: httpx.Response, status: int) -> dict[str, Any]:
        """The error of a response with this status; it must have the form of the endpoint."""
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/json"
        body = answer.json()
        error: dict[str, Any] = body["error"]
        if self.has_anthropics_errors:
            assert body == {"type": "error", "error": error, "request_id": answer.headers["x-request-id"]}
            assert error.keys() == {"message", "type"}
        else:
            assert list(body) == ["error"]
            assert error.keys() == {"message", "type", "param", "code"}
        assert error["message"].isprintable()
        return error


ENDPOINT_CASES: Final = (
    EndpointCase(
        path="/v1/chat/completions", body=chat_body("The sea?"), content=chat_text,
        first_event=b'"role":"assistant"', last_event=DONE_FRAME, wrong=({"messages": []}, "messages"),
    ),
    EndpointCase(
        path="/v1/completions", body={"model": "llama", "prompt": "The sea?", "max_tokens": 100},
        content=chat_text, last_event=DONE_FRAME, wrong=({"prompt": {}}, "prompt"),
    ),
    EndpointCase(
        path=RESPONSES, body=typed_body(RESPONSES, "The sea?"), content=typed_text,
        first_event=b"event: response.created\n", last_event=b"event: response.completed\n",
        wrong=({"input": []}, "input"),
    ),
    EndpointCase(
        path=MESSAGES, body=typed_body(MESSAGES, "The sea?"), content=typed_text,
        first_event=b"event: message_start\n", last_event=b"event: message_stop\n",
        wrong=({"messages": []}, "messages"),
    ),
    EndpointCase(
        path="/v1/messages/count_tokens",
        body={"model": "llama", "system": "Be brief.", "messages": [{"role": "user", "content": "The sea?"}]},
        wrong=({"messages": []}, "messages"), is_counted=False,
    ),
    EndpointCase(
        path="/tokenize", body={"model": "llama", "prompt": "Hello there", "return_token_strs": True},
        wrong=({"prompt": 3}, "prompt"), is_counted=False,
    ),
    EndpointCase(
        path="/detokenize", body={"model": "llama", "tokens": [20, 30, 40]},
        wrong=({"tokens": "x"}, "tokens"), is_counted=False,
    ),
    EndpointCase(
        path="/v1/embeddings", body={"model": "llama", "input": ["The sea", "The sky"]},
        engine=_EMBEDS, wrong=({"input": []}, "input"),
    ),
    EndpointCase(
        path="/pooling", body={"model": "llama", "input": "The sea"}, engine=_CLASSIFIES,
        wrong=({"encoding_format": "bytes"}, "encoding_format"),
    ),
    EndpointCase(
        path="/classify", body={"model": "llama", "input": ["The sea", "The sky"]},
        engine=_CLASSIFIES, wrong=({"input": None}, "input"),
    ),
    EndpointCase(
        path="/score", body={"model": "llama", "queries": _QUERY, "documents": _DOCUMENTS},
        engine=_CLASSIFIES, wrong=({"queries": None}, "queries"),
    ),
    EndpointCase(
        path="/v1/score", body={"model": "llama", "text_1": ["a", "b"], "text_2": ["c", "d"]},
        engine=_CLASSIFIES, wrong=({"text_2": None}, "text_2"),
    ),
    EndpointCase(
        path="/rerank", body={"model": "llama", "query": _QUERY, "documents": _DOCUMENTS},
        engine=_CLASSIFIES, wrong=({"documents": []}, "documents"),
    ),
    EndpointCase(
        path="/v1/rerank", body={"model": "llama", "query": _QUERY, "documents": _DOCUMENTS, "top_n": 2},
        engine=_CLASSIFIES, wrong=({"top_n": "two"}, "top_n"),
    ),
    EndpointCase(
        path="/v2/rerank", body={"model": "llama", "query": _QUERY, "documents": "One text"},
        engine=_CLASSIFIES, wrong=({"query": None}, "query"),
    ),
)  # fmt: skip
"""The endpoints whose responses are cached."""

STREAMING_CASES: Final = tuple(case for case in ENDPOINT_CASES if case.streams)
