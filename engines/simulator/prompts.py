"""Prompts as an engine sees them: one text and its tokens, rendered by the simulator's own chat template."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engines.simulator.tokens import encode_text


@dataclass(frozen=True, slots=True)
class Prompt:
    """`user_text` decides whether the answer is code: the last user message, or the whole prompt."""

    text: str
    tokens: tuple[int, ...]
    user_text: str


def chat_prompt(
    messages: Sequence[dict[str, Any]],
    documents: Sequence[dict[str, Any]] | None,
    tools: Sequence[dict[str, Any]] | None,
) -> Prompt:
    """Renders a conversation; documents and tools come first, as in most templates."""
    parts = [f"<|document|>\n{json.dumps(document, ensure_ascii=False)}\n" for document in documents or ()]
    parts += [f"<|tool|>\n{json.dumps(tool, ensure_ascii=False)}\n" for tool in tools or ()]
    user_text = ""
    for message in messages:
        content = _content(message.get("content"))
        parts.append(f"<|{message['role']}|>\n{content}\n")
        if message.get("tool_calls"):
            parts.append(json.dumps(message["tool_calls"], ensure_ascii=False) + "\n")
        if message["role"] == "user":
            user_text = content
    text = "".join(parts)
    # The generation prompt counts as tokens; markers and the seed only see the conversation.
    return Prompt(text, tuple(encode_text(text + "<|assistant|>\n")), user_text)


def completion_prompts(prompt: str | list[Any]) -> tuple[Prompt, ...]:
    """The prompts of a completion: a text, token ids, or a list of either."""
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        prompt = [prompt]
    return tuple(_completion_prompt(item) for item in prompt)


def _completion_prompt(prompt: str | list[int]) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(prompt, tuple(encode_text(prompt)), prompt)
    # The simulator cannot decode token ids; each id stands for itself in the text.
    text = "".join(f"<{number}>" for number in prompt)
    return Prompt(text, tuple(prompt), text)


def _content(content: object) -> str:
    """The text of a message; parts of other types are represented by their type."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(
            str(part.get("text", f"<{part.get('type')}>")) if isinstance(part, dict) else str(part) for part in content
        )
    return str(content)
