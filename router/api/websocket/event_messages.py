"""The events of a response as messages: the data of each event is one, and nothing else of the stream is left."""

import time
from typing import Final, NamedTuple

import msgspec

from router.core.endpoints.recording.sse import EventBuffer, payload, split_events
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS

HEADERS_EVENT: Final = "codex.response.metadata"
"""The type of the message with the headers of a response: OpenAI's servers send Codex some of theirs in such a one.

It has no sequence number, so the events of the response have the numbers that they have over HTTP.
"""

_DONE: Final = b"[DONE]"
_FINAL_EVENTS: Final = ("response.completed", "response.incomplete")
_FAILURES: Final = ("response.failed", "response.cancelled", "error")


class FinalResponse(msgspec.Struct):
    """`output`: a list in JSON."""

    id: str
    output: msgspec.Raw = msgspec.Raw(b"[]")


class _Event(msgspec.Struct):
    type: str = ""
    response: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_final = msgspec.json.Decoder(FinalResponse).decode


class EventMessages:
    """- Wherever the bytes of a stream are cut, the messages are the same.
    - Comments and `[DONE]` are no messages.
    - `has_ended`: an event has ended the response; `final`: the response, unless it has failed.
    """

    def __init__(self) -> None:
        self.has_ended = False
        self.final: FinalResponse | None = None
        self._buffer = EventBuffer()

    def feed(self, data: bytes) -> list[bytes]:
        texts = [payload(event) for event in split_events(self._buffer.feed(data))]
        messages = [text for text in texts if text and text != _DONE]
        for text in messages:
            self._look_at(text)
        return messages

    def _look_at(self, text: bytes) -> None:
        try:
            event = _decode_event(text)
            if event.type in _FINAL_EVENTS:
                self.has_ended = True
                self.final = _decode_final(event.response)
            elif event.type in _FAILURES or bytes(event.error) != b"null":
                self.has_ended = True
        except MALFORMED_RESPONSE_ERRORS:
            return  # the engine's; the client has it as it is


def headers_message(headers: dict[str, str]) -> bytes:
    return msgspec.json.encode({"type": HEADERS_EVENT, "headers": headers})


class Prepared(NamedTuple):
    """The answer to a `response.create` that generates nothing."""

    response_id: str
    messages: list[bytes]


def prepare_response(response_id: str, model: object) -> Prepared:
    response = {
        "id": response_id, "object": "response", "created_at": int(time.time()), "model": model,
        "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "temperature": None,
        "top_p": None, "instructions": None, "metadata": {}, "incomplete_details": None, "error": None,
    }  # fmt: skip
    usage = {
        "input_tokens": 0, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 0,
    }  # fmt: skip
    events = [
        {
            "type": "response.created",
            "sequence_number": 0,
            "response": {**response, "status": "in_progress", "usage": None},
        },
        {
            "type": "response.completed",
            "sequence_number": 1,
            "response": {**response, "status": "completed", "usage": usage},
        },
    ]
    return Prepared(response_id, [msgspec.json.encode(event) for event in events])
