"""What differs between the generating endpoints: how they are asked, and the shapes of what they say."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from engines.simulator.bodies import ChoiceAccumulator, Json, chat_body, completion_body
from engines.simulator.fields import Body
from engines.simulator.frames import DONE, ChatFrames, CompletionFrames, Envelope, StreamFrames, error_frame
from engines.simulator.messages import MessagesFrames, anthropic_error, anthropic_error_frame, message_body
from engines.simulator.rejections import Rejection
from engines.simulator.requests import GenerationRequest, chat_request, completion_request
from engines.simulator.responses import ResponsesFrames, response_body
from engines.simulator.settings import SimulatorSettings
from engines.simulator.translations import messages_request, responses_request


class MakeFrames(Protocol):
    def __call__(self, request: GenerationRequest, envelope: Envelope, *, finish: bool) -> StreamFrames:
        """The events of a stream; `finish` False leaves out how it ended."""


class MakeBody(Protocol):
    def __call__(
        self, request: GenerationRequest, envelope: Envelope, choices: list[ChoiceAccumulator], *, finish: bool
    ) -> Json:
        """A JSON answer; `finish` False leaves out how it ended."""


@dataclass(frozen=True, slots=True)
class GenerationApi:
    """One generating endpoint.

    - `id`: the name of an answer, from the request and its headers.
    - `failed`: the event of an error in a stream, which `after_error` follows; None where vLLM breaks the stream off.
    - `refusal`: the body of an error.
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
    """A name with the client's request id in it, if it has one."""
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
        make_id=lambda request, _: str(request.asked.get("request_id") or f"resp_{secrets.token_hex(8)}"),
        stream_error=lambda _: None,
    ),
    GenerationApi(
        "/v1/messages", messages_request, MessagesFrames, message_body,
        make_id=lambda _, headers: response_id("chatcmpl", headers),
        stream_error=anthropic_error_frame, after_stream_error=b"", error_body=anthropic_error,
    ),
)  # fmt: skip
