"""What differs between the generating endpoints: how requests are parsed and the formats of responses."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from engines.simulator.formats.bodies import ChoiceAccumulator, Json, chat_body, completion_body
from engines.simulator.formats.frames import DONE, ChatFrames, CompletionFrames, Envelope, StreamFrames, error_frame
from engines.simulator.formats.messages import MessagesFrames, anthropic_error, anthropic_error_frame, message_body
from engines.simulator.formats.responses import ResponsesFrames, response_body
from engines.simulator.rejections import Rejection
from engines.simulator.settings import SimulatorSettings
from engines.simulator.validation.fields import Body
from engines.simulator.validation.requests import GenerationRequest, chat_request, completion_request
from engines.simulator.validation.translations import messages_request, responses_request


class MakeFrames(Protocol):
    def __call__(self, request: GenerationRequest, envelope: Envelope, *, finish: bool) -> StreamFrames:
        """The events of a stream; `finish` False leaves out the finish reasons."""


class MakeBody(Protocol):
    def __call__(
        self, request: GenerationRequest, envelope: Envelope, choices: list[ChoiceAccumulator], *, finish: bool
    ) -> Json:
        """A JSON response; `finish` False leaves out the finish reasons."""


@dataclass(frozen=True, slots=True)
class GenerationApi:
    """One generating endpoint.

    - `make_id`: the id of a response, from the request and its headers.
    - `stream_error`: the event for an error in a stream, followed by `after_stream_error`; None if vLLM breaks off the
      stream.
    - `error_body`: the JSON body of an error.
    """

    path: str
    parse_request: Callable[[Body, SimulatorSettings], GenerationRequest]
    make_frames: MakeFrames
    make_body: MakeBody
    make_id: Callable[[GenerationRequest, dict[str, str]], str]
    stream_error: Callable[[Rejection], bytes | None] = error_frame
    after_stream_error: bytes = DONE
    error_body: Callable[[Rejection], object] = lambda rejection: rejection.body


def response_id(prefix: str, headers: dict[str, str]) -> str:
    """An id that contains the client's X-Request-Id, if there is one."""
    return f"{prefix}-{headers.get('x-request-id') or secrets.token_hex(8)}"


APIS: Final = (
    GenerationApi(
        "/v1/chat/completions", chat_request, ChatFrames, chat_body,
        make_id=lambda _, headers: response_id("chatcmpl", headers),
    ),
    GenerationApi(
        "/v1/completions", completion_request, CompletionFrames, completion_body,
        make_id=lambda _, headers: response_id("cmpl", headers),
    ),
    GenerationApi(
        "/v1/responses", responses_request, ResponsesFrames, response_body,
        make_id=lambda request, _: str(request.original.get("request_id") or f"resp_{secrets.token_hex(8)}"),
        stream_error=lambda _: None,
    ),
    GenerationApi(
        "/v1/messages", messages_request, MessagesFrames, message_body,
        make_id=lambda _, headers: response_id("chatcmpl", headers),
        stream_error=anthropic_error_frame, after_stream_error=b"", error_body=anthropic_error,
    ),
)  # fmt: skip
