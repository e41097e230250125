"""/v1/chat/completions."""

from functools import partial
from typing import Any, Final

import msgspec

from router.core.endpoints.chat_convert import frames_from_body
from router.core.endpoints.continuation.anew_chat import begin_anew
from router.core.endpoints.endpoint import Conversation, Endpoint, Streaming
from router.core.endpoints.recording.choices import ChoicesFormat
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder, record_choices
from router.core.endpoints.recording.sse import DONE
from router.core.endpoints.requests.request_fields import InputMessage, RequestFields, no_messages_error
from router.errors import ApiError


class _ChatFields(RequestFields):
    messages: list[InputMessage] = msgspec.field(default_factory=list)
    max_completion_tokens: int | None = None
    documents: list[dict[str, Any]] | None = None

    def validate(self) -> ApiError | None:
        return None if self.messages else no_messages_error()

    def max_answer_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


CHAT_CHOICES: Final = ChoicesFormat(
    body_object="chat.completion",
    event_object="chat.completion.chunk",
    has_messages=True,
    takes_prompt_list=False,
)

CHAT: Final = Endpoint(
    path="/v1/chat/completions",
    operation="chat",
    fields_type=_ChatFields,
    input=Conversation("messages", system_field=None),
    find_server_state=None,
    samples=True,
    applies_logit_fields=True,
    may_fall_back=True,
    record_body=partial(record_choices, CHAT_CHOICES),
    streaming=Streaming(
        needs_usage_option=True,
        make_recorder=partial(ChoicesRecorder, CHAT_CHOICES),
        replay_end=DONE,
        frames_from_body=partial(frames_from_body, CHAT_CHOICES),
        choices_format=CHAT_CHOICES,
        begin_anew=begin_anew,
    ),
)
