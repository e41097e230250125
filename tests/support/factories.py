"""Requests, events and streams for the tests of the core."""

import json
from typing import Any, Final

from hypothesis import strategies as st

from router.core.cache.key import Key, Markers, Parts
from router.core.cache.key_derivation import derive, take_apart
from router.core.endpoints.answer_shapes import AnswerShapes
from router.core.endpoints.recorded_response import NotKept, Recording
from router.core.endpoints.recording import Recorder, StreamRecorder
from router.core.endpoints.request import Request, parse
from router.core.endpoints.sse import DONE, payload, split
from router.core.endpoints.stream_encoding import decode_stream
from router.core.types import Endpoint, Entry
from tests.support.paths import CAPTURES, FULL_CAPTURES

"""What a real vLLM server sent; its README says how they came about."""

JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcdeindex", max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
"""Any JSON."""

TEXT: Final = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
"""Any text that JSON can carry."""


def chat(**fields: Any) -> Request:
    """A chat request with one user message, and these fields besides or instead."""
    return request(Endpoint.CHAT, {"model": "llama", "messages": [{"role": "user", "content": "Hi"}], **fields})


def completion(**fields: Any) -> Request:
    return request(Endpoint.COMPLETIONS, {"model": "llama", "prompt": "def f", **fields})


def embeddings(**fields: Any) -> Request:
    return request(Endpoint.EMBEDDINGS, {"model": "llama", "input": "Hi", **fields})


def responses(**fields: Any) -> Request:
    return request(Endpoint.RESPONSES, {"model": "llama", "input": "Hi", **fields})


def messages(**fields: Any) -> Request:
    """A request of /v1/messages with one user message."""
    said = [{"role": "user", "content": "Hi"}]
    return request(Endpoint.MESSAGES, {"model": "llama", "max_tokens": 9, "messages": said, **fields})


def talk(*messages: tuple[str, Any], **fields: Any) -> Request:
    """A chat request with these messages, each a role and a content."""
    return chat(messages=[{"role": role, "content": content} for role, content in messages], **fields)


def request(endpoint: Endpoint, fields: Any) -> Request:
    return parse(endpoint, json.dumps(fields).encode())


def parts_of(asked: Request, markers: Markers = Markers()) -> Parts:  # noqa: B008 - a frozen value
    return take_apart(asked, markers)


def key_of(asked: Request, *, tenant: str = "acme", model: str = "llama", revision: str = "1") -> Key:
    return derive(parts_of(asked), tenant=tenant, model=model, revision=revision)


def pieces_of(key: Key) -> dict[str, str]:
    """The parts of a key by name."""
    _, _, tenant, model, system, rag, query = key.text.split(":")
    return {"tenant": tenant, "model": model, "system": system, "rag": rag, "query": query}


def changed(one: Request, other: Request) -> set[str]:
    """Which parts of the key are not the same; the digest must differ whenever any of them does."""
    first, second = key_of(one), key_of(other)
    assert (first.digest == second.digest) == (first.text == second.text)
    parts = pieces_of(second)
    return {name for name, value in pieces_of(first).items() if parts[name] != value}


def frame(event: Any) -> bytes:
    """An event, written as vLLM writes it."""
    return b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def chunk(*choices: Any, **beside: Any) -> dict[str, Any]:
    """One event of a chat."""
    return {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [*choices], **beside}


def piece(index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """One choice's part in an event of a chat."""
    return {"index": index, "delta": delta, "finish_reason": finish}


ROLE: Final = chunk(piece(role="assistant", content=""))
USAGE: Final = chunk(usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})
HELLO: Final = (ROLE, chunk(piece(content="Hel")), chunk(piece(content="lo")), chunk(piece(finish="stop")))
"""The events of a whole, well-ended answer, but for its usage and its end."""


def stream(*events: Any) -> bytes:
    """Events and the end of a stream that ends well."""
    return b"".join(map(frame, events)) + DONE


def typed(*events: dict[str, Any]) -> bytes:
    """A stream whose events say what they are, as vLLM writes it."""
    return b"".join(b"event: %b\n%b" % (event["type"].encode(), frame(event)) for event in events)


def told(frames: bytes | None) -> list[Any]:
    """What the events of a stream say."""
    assert frames is not None
    return [json.loads(payload(one) or b"") for one in split(frames)]


def recorded(sent: bytes, limit: int = 1 << 20) -> StreamRecorder:
    """A recorder that has been fed all at once."""
    recorder = StreamRecorder(limit, AnswerShapes())
    recorder.feed(sent)
    return recorder


def whole(recorder: Recorder, asked: Request) -> Recording:
    """What is stored of a stream that must be worth it."""
    recording = recorder.recording(asked)
    assert isinstance(recording, Recording), recording
    return recording


def frames_of(recording: Recording) -> bytes:
    """The events that a recording of a stream gives again, without the usage event and `[DONE]`."""
    assert recording.stream is not None
    return decode_stream(recording.stream, recording.body, include_usage=False, end=b"")


def usage_frame_of(recording: Recording) -> bytes:
    """The usage event that is kept beside the others; nothing where there is none."""
    assert recording.stream is not None
    every = decode_stream(recording.stream, recording.body, include_usage=True, end=b"")
    return every.removeprefix(frames_of(recording))


def given_by(recording: Recording | NotKept) -> Any:
    """What clients get of a recording of a stream. How it is encoded depends on how the network cut the stream."""
    if isinstance(recording, NotKept):
        return recording
    tokens = (recording.prompt_tokens, recording.completion_tokens)
    return recording.body, frames_of(recording), usage_frame_of(recording), tokens


def entry(recording: Recording) -> Entry:
    """A recording as it is kept."""
    return Entry(
        digest="", body=recording.body, stream=recording.stream, model="m", engine="e", task="chat", created=0, ttl=60,
        prompt_tokens=0, completion_tokens=0, generation_ms=0,
    )  # fmt: skip


def captured(name: str) -> tuple[Request, bytes]:
    """What a real vLLM server was asked, and the body of its answer."""
    asked = json.loads((CAPTURES / "requests.json").read_text())[name]
    full = FULL_CAPTURES / f"{name}.sse"
    body = full.read_bytes() if full.exists() else (CAPTURES / f"{name}.http").read_bytes().partition(b"\n\n")[2]
    return parse(Endpoint(asked["path"]), asked["body"].encode()), body


NAMES: Final = st.sampled_from(
    ["index", "delta", "message", "finish_reason", "text", "content", "tool_calls", "logprobs"]
)
ODD_CHOICE: Final = st.dictionaries(NAMES, JSON | st.dictionaries(NAMES, JSON, max_size=3), max_size=4)
ODD_EVENT: Final = st.fixed_dictionaries(
    {"choices": st.lists(ODD_CHOICE | st.just(piece(finish="stop", content="x")), max_size=3) | JSON},
    optional={"usage": JSON, "error": JSON, "id": JSON},
)
"""JSON that looks somewhat like an event or an answer."""
