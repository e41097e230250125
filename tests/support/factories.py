"""Requests, events and streams for the tests of the core."""

import json
from typing import Any, Final

from hypothesis import strategies as st

from router.core.cache.cache_key import CacheKey
from router.core.cache.key import ContextMarkers, RequestParts
from router.core.cache.key_derivation import derive_cache_key, split_parts
from router.core.endpoints.chat import CHAT
from router.core.endpoints.classify import CLASSIFY
from router.core.endpoints.completions import COMPLETIONS
from router.core.endpoints.count_tokens import COUNT_TOKENS
from router.core.endpoints.detokenize import DETOKENIZE
from router.core.endpoints.embeddings import EMBEDDINGS
from router.core.endpoints.endpoint import Endpoint, InferenceRequest, Recorder
from router.core.endpoints.messages import MESSAGES
from router.core.endpoints.pooling import POOLING
from router.core.endpoints.recording.answer_shapes import AnswerShapes
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.sse import DONE, payload, split_events
from router.core.endpoints.recording.stream_encoding import decode_stream
from router.core.endpoints.requests.request import parse_request
from router.core.endpoints.rerank import RERANK
from router.core.endpoints.responses import RESPONSES
from router.core.endpoints.score import SCORE
from router.core.endpoints.table import ENDPOINT_BY_PATH
from router.core.endpoints.tokenize import TOKENIZE
from router.core.types import Entry
from tests.support.endpoints import choices_recorder
from tests.support.paths import CAPTURES, FULL_CAPTURES

JSON_VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcdeindex", max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
"""Any JSON."""

TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
"""Any text that JSON can carry."""


def chat(**fields: Any) -> InferenceRequest:
    """A chat request with one user message; `fields` are added or replaced."""
    return request(CHAT, {"model": "llama", "messages": [{"role": "user", "content": "Hi"}], **fields})


def completion(**fields: Any) -> InferenceRequest:
    return request(COMPLETIONS, {"model": "llama", "prompt": "def f", **fields})


def embeddings(**fields: Any) -> InferenceRequest:
    return request(EMBEDDINGS, {"model": "llama", "input": "Hi", **fields})


def responses(**fields: Any) -> InferenceRequest:
    return request(RESPONSES, {"model": "llama", "input": "Hi", **fields})


def messages(**fields: Any) -> InferenceRequest:
    user_messages = [{"role": "user", "content": "Hi"}]
    return request(MESSAGES, {"model": "llama", "max_tokens": 9, "messages": user_messages, **fields})


def rerank(**fields: Any) -> InferenceRequest:
    return request(RERANK, {"model": "llama", "query": "Hi", "documents": ["a", "b"], **fields})


def score(**fields: Any) -> InferenceRequest:
    return request(SCORE, {"model": "llama", "queries": "Hi", "documents": ["a", "b"], **fields})


def classify(**fields: Any) -> InferenceRequest:
    return request(CLASSIFY, {"model": "llama", "input": "Hi", **fields})


def pooling(**fields: Any) -> InferenceRequest:
    return request(POOLING, {"model": "llama", "input": "Hi", **fields})


def tokenize(**fields: Any) -> InferenceRequest:
    return request(TOKENIZE, {"model": "llama", "prompt": "Hi", **fields})


def detokenize(**fields: Any) -> InferenceRequest:
    return request(DETOKENIZE, {"model": "llama", "tokens": [1, 2], **fields})


def count_tokens(**fields: Any) -> InferenceRequest:
    return request(COUNT_TOKENS, {"model": "llama", "messages": [{"role": "user", "content": "Hi"}], **fields})


def conversation(*messages: tuple[str, Any], **fields: Any) -> InferenceRequest:
    return chat(messages=[{"role": role, "content": content} for role, content in messages], **fields)


def request(endpoint: Endpoint, fields: Any) -> InferenceRequest:
    return parse_request(endpoint, json.dumps(fields).encode())


def request_parts(inference_request: InferenceRequest, markers: ContextMarkers = ContextMarkers()) -> RequestParts:  # noqa: B008 - a frozen value
    return split_parts(inference_request, markers)


def derive_key(
    inference_request: InferenceRequest, *, tenant: str = "acme", model: str = "llama", revision: str = "1"
) -> CacheKey:
    return derive_cache_key(request_parts(inference_request), tenant=tenant, model=model, revision=revision)


def key_pieces(key: CacheKey) -> dict[str, str]:
    _, _, tenant, model, system, rag, query = key.text.split(":")
    return {"tenant": tenant, "model": model, "system": system, "rag": rag, "query": query}


def changed_parts(one: InferenceRequest, other: InferenceRequest) -> set[str]:
    """The names of the key parts that differ; the digest must differ if any part does."""
    first, second = derive_key(one), derive_key(other)
    assert (first.digest == second.digest) == (first.text == second.text)
    parts = key_pieces(second)
    return {name for name, value in key_pieces(first).items() if parts[name] != value}


def encode_event(event: Any) -> bytes:
    return b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def chat_event(*choices: Any, **beside: Any) -> dict[str, Any]:
    return {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [*choices], **beside}


def choice_delta(index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish}


ROLE_EVENT: Final = chat_event(choice_delta(role="assistant", content=""))
USAGE_EVENT: Final = chat_event(usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})
HELLO_EVENTS: Final = (
    ROLE_EVENT,
    chat_event(choice_delta(content="Hel")),
    chat_event(choice_delta(content="lo")),
    chat_event(choice_delta(finish="stop")),
)
"""The events of a complete, successful response, without usage and `[DONE]`."""


def sse_stream(*events: Any) -> bytes:
    """A successful stream of these events, with `[DONE]`."""
    return b"".join(map(encode_event, events)) + DONE


def typed_stream(*events: dict[str, Any]) -> bytes:
    return b"".join(b"event: %b\n%b" % (event["type"].encode(), encode_event(event)) for event in events)


def event_payloads(frames: bytes | None) -> list[Any]:
    assert frames is not None
    return [json.loads(payload(event) or b"") for event in split_events(frames)]


def record_stream(sent: bytes, limit: int = 1 << 20, *, endpoint: Endpoint = CHAT) -> ChoicesRecorder:
    """A recorder that has received the stream in one chunk."""
    recorder = choices_recorder(limit, AnswerShapes(), endpoint=endpoint)
    recorder.feed(sent)
    return recorder


def recorded_response(recorder: Recorder, inference_request: InferenceRequest) -> RecordedResponse:
    """What a recorder stores for a stream; fails if the stream is not stored."""
    recording = recorder.recorded_response(inference_request)
    assert isinstance(recording, RecordedResponse), recording
    return recording


def replayed_frames(recording: RecordedResponse) -> bytes:
    """The events of a replayed recording, without the usage event and `[DONE]`."""
    assert recording.stream is not None
    return decode_stream(recording.stream, recording.body, include_usage=False, end=b"")


def replayed_usage_frame(recording: RecordedResponse) -> bytes:
    """The usage event of a replayed recording; empty if it has none."""
    assert recording.stream is not None
    frames = decode_stream(recording.stream, recording.body, include_usage=True, end=b"")
    return frames.removeprefix(replayed_frames(recording))


def client_view(recording: RecordedResponse | NotStoredReason) -> Any:
    """What clients receive of a recorded stream, independent of how the stream was cut into chunks and encoded."""
    if isinstance(recording, NotStoredReason):
        return recording
    tokens = (recording.prompt_tokens, recording.completion_tokens)
    return recording.body, replayed_frames(recording), replayed_usage_frame(recording), tokens


def entry_from(recording: RecordedResponse) -> Entry:
    return Entry(
        digest="", body=recording.body, stream=recording.stream, model="m", engine="e", task="chat", created=0, ttl=60,
        prompt_tokens=0, completion_tokens=0, generation_ms=0,
    )  # fmt: skip


def load_capture(name: str) -> tuple[InferenceRequest, bytes]:
    """A captured request to a real vLLM server, and the body of the response."""
    captured_request = json.loads((CAPTURES / "requests.json").read_text())[name]
    full = FULL_CAPTURES / f"{name}.sse"
    body = full.read_bytes() if full.exists() else (CAPTURES / f"{name}.http").read_bytes().partition(b"\n\n")[2]
    return parse_request(ENDPOINT_BY_PATH[captured_request["path"]], captured_request["body"].encode()), body


NAMES: Final = st.sampled_from(
    ["index", "delta", "message", "finish_reason", "text", "content", "tool_calls", "logprobs"]
)
ODD_CHOICE: Final = st.dictionaries(NAMES, JSON_VALUES | st.dictionaries(NAMES, JSON_VALUES, max_size=3), max_size=4)
ODD_EVENT: Final = st.fixed_dictionaries(
    {"choices": st.lists(ODD_CHOICE | st.just(choice_delta(finish="stop", content="x")), max_size=3) | JSON_VALUES},
    optional={"usage": JSON_VALUES, "error": JSON_VALUES, "id": JSON_VALUES},
)
"""JSON that resembles an event or a response."""
