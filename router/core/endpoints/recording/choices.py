"""What differs between the two APIs whose responses are lists of choices: chats and completions."""

from collections.abc import Mapping
from typing import Any, Final

from router.core.endpoints.recording.delta_merge import JOINED_FIELDS, has_no_pieces, may_merge

_TEXT_FIELDS: Final = frozenset(("content", "reasoning", "reasoning_content", "text"))


def choice_count(fields: Mapping[str, Any], *, takes_prompt_list: bool) -> int:
    """The number of choices of a complete response to a request with these fields."""
    n = fields.get("n")
    count = n if isinstance(n, int) else 1
    if takes_prompt_list:
        prompt, embeds = fields.get("prompt"), fields.get("prompt_embeds")
        # A list of integers is one prompt, as token ids; any other list has a prompt in each item.
        is_many = isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int))
        prompts = len(prompt) if prompt is not None and is_many else int(prompt is not None)
        # vLLM answers the embedded prompts, and then the others, of which the empty text is one.
        prompts += len(embeds) if isinstance(embeds, list) else int(embeds is not None)
        return count * max(1, prompts)
    return count


class ChoicesFormat:
    """The form of the choices of one API.

    - `body_object`, `event_object`: the value of `object` in a JSON response and in the events of a stream.
    - `has_messages`: a choice has a `message`, or in a stream a `delta`; otherwise it has a `text`.
    - `takes_prompt_list`: the field `prompt` may be a list of prompts, each with choices of its own.
    """

    def __init__(self, *, body_object: str, event_object: str, has_messages: bool, takes_prompt_list: bool) -> None:
        self.body_object = body_object
        self.event_object = event_object
        self.has_messages = has_messages
        self.takes_prompt_list = takes_prompt_list

    def may_merge(self, begin: bytes, end: bytes) -> bool:
        """Whether events with these bytes before and after their text may be merged; see delta_merge.may_merge."""
        return may_merge(begin, end, _TEXT_FIELDS, self._text_container)

    def _text_container(self, event: Any) -> Any:
        """See delta_merge.FindContainer."""
        choices = event.pop("choices", None)
        if type(choices) is not list or len(choices) != 1 or type(choices[0]) is not dict:
            return None
        for name, value in event.items():
            if value is not None and (name in JOINED_FIELDS or type(value) is dict or type(value) is list):
                return None
        choice = choices[0]
        if not self.has_messages:
            return choice
        delta = choice.pop("delta", None)
        return delta if type(delta) is dict and has_no_pieces(choice) else None
