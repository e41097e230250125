"""Requests, events and streams for the tests of the core."""

import json
from typing import Any, Final

from hypothesis import strategies as st

from router.core.cache.key import CacheKey, ContextMarkers, RequestParts
from router.core.cache.key_derivation import derive_cache_key, split_parts
from router.core.endpoints.answer_shapes import AnswerShapes
from router.core.endpoints.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording import Recorder, StreamRecorder
from router.core.endpoints.request import InferenceRequest, parse_request
from router.core.endpoints.sse import DONE, payload, split_events
from router.core.endpoints.stream_encoding import decode_stream
from router.core.types import Endpoint, Entry
from tests.support.paths import CAPTURES, FULL_CAPTURES

"""What a real vLLM server sent; its README says how they came about."""

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
    """A chat request with one user message, and these fields besides or instead."""
    return request(Endpoint.CHAT, {"model": "llama", "messages": [{"role": "user", "content": "Hi"}], **fields})


def completion(**fields: Any) -> InferenceRequest:
    return request(Endpoint.COMPLETIONS, {"model": "llama", "prompt": "def f", **fields})


def embeddings(**fields: Any) -> InferenceRequest:
    return request(Endpoint.EMBEDDINGS, {"model": "llama", "input": "Hi", **fields})


def responses(**fields: Any) -> InferenceRequest:
    return request(Endpoint.RESPONSES, {"model": "llama", "input": "Hi", **fields})


def messages(**fields: Any) -> InferenceRequest:
    """A request of /v1/messages with one user message."""
    said = [{"role": "user", "content": "Hi"}]
    return request(Endpoint.MESSAGES, {"model": "llama", "max_tokens": 9, "messages": said, **fields})


def conversation(*messages: tuple[str, Any], **fields: Any) -> InferenceRequest:
    """A chat request with these messages, each a role and a content."""
    return chat(messages=[{"role": role, "content": content} for role, content in messages], **fields)


def request(endpoint: Endpoint, fields: Any) -> InferenceRequest:
    return parse_request(endpoint, json.dumps(fields).encode())


def request_parts(asked: InferenceRequest, markers: ContextMarkers = ContextMarkers()) -> RequestParts:  # noqa: B008 - a frozen value
    return split_parts(asked, markers)


def derive_key(asked: InferenceRequest, *, tenant: str = "acme", model: str = "llama", revision: str = "1") -> CacheKey:
    return derive_cache_key(request_parts(asked), tenant=tenant, model=model, revision=revision)


def key_pieces(key: CacheKey) -> dict[str, str]:
    """The parts of a key by name."""
    _, _, tenant, model, system, rag, query = key.text.split(":")
    return {"tenant": tenant, "model": model, "system": system, "rag": rag, "query": query}


def changed_parts(one: InferenceRequest, other: InferenceRequest) -> set[str]:
    """Which parts of the key are not the same; the digest must differ whenever any of them does."""
    first, second = derive_key(one), derive_key(other)
    assert (first.digest == second.digest) == (first.text == second.text)
    parts = key_pieces(second)
    return {name for name, value in key_pieces(first).items() if parts[name] != value}


def encode_event(event: Any) -> bytes:
    """An event, written as vLLM writes it."""
    return b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def chat_event(*choices: Any, **beside: Any) -> dict[str, Any]:
    """One event of a chat."""
    return {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [*choices], **beside}


def choice_delta(index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """One choice's part in an event of a chat."""
    return {"index": index, "delta": delta, "finish_reason": finish}


ROLE_EVENT: Final = chat_event(choice_delta(role="assistant", content=""))
USAGE_EVENT: Final = chat_event(usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})
HELLO_EVENTS: Final = (
    ROLE_EVENT,
    chat_event(choice_delta(content="Hel")),
    chat_event(choice_delta(content="lo")),
    chat_event(choice_delta(finish="stop")),
)
"""The events of a whole, well-ended answer, but for its usage and its end."""


def sse_stream(*events: Any) -> bytes:
    """Events and the end of a stream that ends well."""
    return b"".join(map(encode_event, events)) + DONE


def typed_stream(*events: dict[str, Any]) -> bytes:
    """A stream whose events say what they are, as vLLM writes it."""
    return b"".join(b"event: %b\n%b" % (event["type"].encode(), encode_event(event)) for event in events)


def event_payloads(frames: bytes | None) -> list[Any]:
    """What the events of a stream say."""
    assert frames is not None
    return [json.loads(payload(one) or b"") for one in split_events(frames)]


def record_stream(sent: bytes, limit: int = 1 << 20) -> StreamRecorder:
    """A recorder that has been fed all at once."""
    recorder = StreamRecorder(limit, AnswerShapes())
    recorder.feed(sent)
    return recorder


def recorded_response(recorder: Recorder, asked: InferenceRequest) -> RecordedResponse:
    """What is stored of a stream that must be worth it."""
    recording = recorder.recorded_response(asked)
    assert isinstance(recording, RecordedResponse), recording
    return recording


def replayed_frames(recording: RecordedResponse) -> bytes:
    """The events that a recording of a stream gives again, without the usage event and `[DONE]`."""
    assert recording.stream is not None
    return decode_stream(recording.stream, recording.body, include_usage=False, end=b"")


def replayed_usage_frame(recording: RecordedResponse) -> bytes:
    """The usage event that is kept beside the others; nothing where there is none."""
    assert recording.stream is not None
    every = decode_stream(recording.stream, recording.body, include_usage=True, end=b"")
    return every.removeprefix(replayed_frames(recording))


def client_view(recording: RecordedResponse | NotStoredReason) -> Any:
    """What clients get of a recording of a stream. How it is encoded depends on how the network cut the stream."""
    if isinstance(recording, NotStoredReason):
        return recording
    tokens = (recording.prompt_tokens, recording.completion_tokens)
    return recording.body, replayed_frames(recording), replayed_usage_frame(recording), tokens


def entry_from(recording: RecordedResponse) -> Entry:
    """A recording as it is kept."""
    return Entry(
        digest="", body=recording.body, stream=recording.stream, model="m", engine="e", task="chat", created=0, ttl=60,
        prompt_tokens=0, completion_tokens=0, generation_ms=0,
    )  # fmt: skip


def load_capture(name: str) -> tuple[InferenceRequest, bytes]:
    """What a real vLLM server was asked, and the body of its answer."""
    asked = json.loads((CAPTURES / "requests.json").read_text())[name]
    full = FULL_CAPTURES / f"{name}.sse"
    body = full.read_bytes() if full.exists() else (CAPTURES / f"{name}.http").read_bytes().partition(b"\n\n")[2]
    return parse_request(Endpoint(asked["path"]), asked["body"].encode()), body


NAMES: Final = st.sampled_from(
    ["index", "delta", "message", "finish_reason", "text", "content", "tool_calls", "logprobs"]
)
ODD_CHOICE: Final = st.dictionaries(NAMES, JSON_VALUES | st.dictionaries(NAMES, JSON_VALUES, max_size=3), max_size=4)
ODD_EVENT: Final = st.fixed_dictionaries(
    {"choices": st.lists(ODD_CHOICE | st.just(choice_delta(finish="stop", content="x")), max_size=3) | JSON_VALUES},
    optional={"usage": JSON_VALUES, "error": JSON_VALUES, "id": JSON_VALUES},
)
"""JSON that looks somewhat like an event or an answer."""
