"""Prompts as an engine sees them: one text and its tokens, rendered by the simulator's own chat template."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engines.simulator.text.tokens import encode_text

_GENERATION_PROMPT = "<|assistant|>\n"


@dataclass(frozen=True, slots=True)
class Prompt:
    """`user_text` decides whether the answer is code: the last user message, or the whole prompt.

    `said`: the text that an answer to be continued begins with. `tokens` end with its tokens; those before it are
    `base`.
    """

    text: str
    tokens: tuple[int, ...]
    user_text: str
    said: str | None = None
    base: tuple[int, ...] = ()
    """Empty without `said`."""
    from_ids: bool = False
    """The client sent the tokens; `text` only names them."""


def chat_prompt(
    messages: Sequence[dict[str, Any]],
    documents: Sequence[dict[str, Any]] | None,
    tools: Sequence[dict[str, Any]] | None,
    *,
    generation_prompt: bool = True,
    continue_final: bool = False,
) -> Prompt:
    """Renders a conversation; documents and tools come first, as in most templates.

    `generation_prompt` and `continue_final` are vLLM's `add_generation_prompt` and `continue_final_message`, not both.
    """
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
    if continue_final:
        return _open_ended(text, messages[-1], user_text)
    # The generation prompt counts as tokens; markers only see the conversation.
    return Prompt(text, tuple(encode_text(text + _GENERATION_PROMPT * generation_prompt)), user_text)


def _open_ended(text: str, last: dict[str, Any], user_text: str) -> Prompt:
    """A conversation without the end of its last message."""
    text = text.removesuffix("\n")
    said = _content(last.get("content"))
    if last["role"] != "assistant":
        return Prompt(text, tuple(encode_text(text)), user_text)
    # The tokens of what was said may differ from those that were generated, as a real tokenizer's may.
    base = encode_text(text.removesuffix(said))
    return Prompt(text, (*base, *encode_text(said)), user_text, said, tuple(base))


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
    return Prompt(text, tuple(prompt), text, from_ids=True)


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
