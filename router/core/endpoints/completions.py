"""/v1/completions."""

from functools import partial
from typing import Any, Final

from router.core.endpoints.chat_convert import frames_from_body
from router.core.endpoints.endpoint import Endpoint, Prompt, Streaming
from router.core.endpoints.recording.choices import ChoicesFormat
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder, record_choices
from router.core.endpoints.recording.sse import DONE
from router.core.endpoints.requests.request_fields import RequestFields, missing_field_error
from router.errors import ApiError


class _CompletionsFields(RequestFields):
    prompt: str | list[Any] | None = None
    prompt_embeds: str | list[Any] | None = None  # vLLM's, in place of `prompt`

    def validate(self) -> ApiError | None:
        # Some engines take an empty text, and vLLM takes a list of one; so the engine decides.
        is_missing = self.prompt in (None, []) and not self.prompt_embeds
        return missing_field_error("prompt") if is_missing else None


COMPLETIONS_CHOICES: Final = ChoicesFormat(
    body_object="text_completion",
    event_object="text_completion",
    has_messages=False,
    takes_prompt_list=True,
)

COMPLETIONS: Final = Endpoint(
    path="/v1/completions",
    operation="text_completion",
    fields_type=_CompletionsFields,
    input=Prompt("prompt"),
    find_server_state=None,
    samples=True,
    applies_logit_fields=True,
    may_fall_back=True,
    record_body=partial(record_choices, COMPLETIONS_CHOICES),
    streaming=Streaming(
        needs_usage_option=True,
        make_recorder=partial(ChoicesRecorder, COMPLETIONS_CHOICES),
        replay_end=DONE,
        frames_from_body=partial(frames_from_body, COMPLETIONS_CHOICES),
        choices_format=COMPLETIONS_CHOICES,
    ),
)
