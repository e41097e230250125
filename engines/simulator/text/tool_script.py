"""A script of tool calls, for agents: which tool an answer calls after how many results of tools.

The number of results in the conversation decides, so that any engine can answer any turn.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec


class ToolScript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What "auto" calls in a conversation, one call an answer; after `calls` results, the answer is text.

    `tools`: names, with the arguments. The first one that a request offers is called; a request that offers none of
    them gets text. `thought` and `text`: what an answer with a call says before it. In all texts, `{step}` is the
    number of the call, from 1.
    """

    calls: int
    tools: dict[str, dict[str, Any]]
    thought: str = ""
    text: str = ""

    @classmethod
    def parse(cls, text: bytes | str) -> Self:
        """Of JSON. Raises msgspec.MsgspecError."""
        return msgspec.json.decode(text, type=cls)

    def next_call(
        self, messages: Sequence[Mapping[str, Any]], offered: Mapping[str, object]
    ) -> tuple[tuple[str, object], ...]:
        """The name of the tool, and a schema that only its arguments match; empty if the answer is text."""
        step = next_step(messages)
        name = next((name for name in self.tools if name in offered), None)
        return () if name is None or step > self.calls else (self.call(name, step),)

    def call(self, name: str, step: int) -> tuple[str, object]:
        return name, {"const": _filled(self.tools[name], step)}

    def before_call(self, step: int) -> tuple[str, str]:
        """The thought and the text of an answer with a call."""
        return self.thought.replace("{step}", str(step)), self.text.replace("{step}", str(step))


def next_step(messages: Sequence[Mapping[str, Any]]) -> int:
    return 1 + sum(map(_results, messages))


def _results(message: Mapping[str, Any]) -> int:
    """The results of tools in a message of a chat, or of /v1/messages."""
    if message.get("role") == "tool":
        return 1
    content = message.get("content")
    if not isinstance(content, list):
        return 0
    return sum(isinstance(part, Mapping) and part.get("type") == "tool_result" for part in content)


def _filled(value: object, step: int) -> object:
    match value:
        case str():
            return value.replace("{step}", str(step))
        case list():
            return [_filled(item, step) for item in value]
        case dict():
            return {key: _filled(item, step) for key, item in value.items()}
    return value
