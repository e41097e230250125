"""Extracts the text of a stored answer for people to read, whatever the endpoint and the engine.

An entry does not have its endpoint, so the form of its JSON decides. What an answer has beside its plain text
(reasoning, tool calls, refusals, further choices) is put under labels:

    [reasoning]
    The user wants the weather. I call the tool.

    [tool call get_weather]
    {"city":"Paris"}

Sources: https://platform.openai.com/docs/api-reference, https://docs.anthropic.com/en/api/messages, and the fields that
vLLM adds to them.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from router.core.endpoints.score_text import score_lines
from router.core.plural import pluralize

LabeledText = tuple[str, str]
"""The label of a piece of an answer, empty for its plain text; and its text."""

_FLOAT_SIZE: Final = 4  # bytes of a number in a vector in base64

_encode = msgspec.json.Encoder().encode


def answer_text(body: bytes) -> str | None:
    """The text of an answer; None if it is not JSON or has no known text. Never raises."""
    try:
        parts = [(label, text) for label, text in _labeled_texts(msgspec.json.decode(body)) if text or label]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not parts:
        return None
    if len(parts) == 1 and not parts[0][0]:
        return parts[0][1]
    return "\n\n".join(f"[{label or 'text'}]\n{text}".rstrip("\n") for label, text in parts)


def _labeled_texts(answer: Any) -> Iterator[LabeledText]:
    match answer:
        case {"choices": list(choices)}:
            for at, choice in enumerate(choices):
                for label, content in _choice_texts(choice):
                    yield (label if len(choices) == 1 else f"choice {at}{label and ': '}{label}"), content
        case {"output": list(items)}:
            for item in items:
                yield from _item_texts(item)
        case {"content": list(blocks)}:
            for block in blocks:
                yield from _item_texts(block)
        case {"data": [{"embedding": _}, *_] as data}:
            yield from _embedding_texts(data)
        case {"text": str(text)}:  # the body beside a lossy stream, see stream_encoding
            yield "", text
        case _:
            yield "", "\n".join(score_lines(answer))


def _choice_texts(choice: Any) -> Iterator[LabeledText]:
    match choice:
        case {"message": dict(message)}:
            yield from _message_texts(message)
        case {"text": str(text)}:
            yield "", text


def _message_texts(message: dict[str, Any]) -> Iterator[LabeledText]:
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if isinstance(reasoning, str):
        yield "reasoning", reasoning
    yield from _content_texts(message.get("content"))
    match message:
        case {"refusal": str(refusal)} if refusal:
            yield "refusal", refusal
    match message:
        case {"audio": {"transcript": str(transcript)}}:
            yield "audio", transcript
    calls = message.get("tool_calls")
    for call in [*(calls if isinstance(calls, list) else ()), {"function": message.get("function_call")}]:
        match call:
            case {"function": {"name": name, **rest}}:
                yield _tool_call_text(name, rest.get("arguments"))
            case {"custom": {"name": name, **rest}}:
                yield _tool_call_text(name, rest.get("input"))


def _content_texts(content: Any) -> Iterator[LabeledText]:
    if isinstance(content, str):
        yield "", content
    elif isinstance(content, list):
        for part in content:
            yield from _item_texts(part)


def _item_texts(item: Any) -> Iterator[LabeledText]:
    # An item of /v1/responses, a block of /v1/messages, or a part of either.
    match item:
        case {"type": "text" | "output_text", "text": str(text)}:
            yield "", text
        case {"type": "reasoning"}:
            parts = [part for name in ("summary", "content") if isinstance(item.get(name), list) for part in item[name]]
            yield "reasoning", "\n".join(part["text"] for part in parts if _has_text(part))
        case {"type": "thinking", "thinking": str(thinking)}:
            yield "reasoning", thinking
        case {"type": "refusal", "refusal": str(refusal)}:
            yield "refusal", refusal
        case {"type": "message", "content": content}:
            yield from _content_texts(content)
        case {"type": str(), "name": name}:  # function_call, tool_use and similar types
            yield _tool_call_text(name, item.get("arguments", item.get("input")))
        case {"type": str(kind)}:
            yield kind, ""


def _has_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _tool_call_text(name: Any, arguments: Any) -> LabeledText:
    text = arguments if isinstance(arguments, str) else "" if arguments is None else _encode(arguments).decode()
    return f"tool call {name}", text


def _embedding_texts(data: list[Any]) -> Iterator[LabeledText]:
    sizes: Counter[int] = Counter()
    for item in data:
        match item:
            case {"embedding": list(numbers)}:
                sizes[len(numbers)] += 1
            case {"embedding": str(base64)}:  # 32-bit floats, as OpenAI encodes them
                sizes[len(base64.rstrip("=")) * 3 // 4 // _FLOAT_SIZE] += 1
    if sizes:
        yield (
            "",
            ", ".join(f"{pluralize(n, 'vector')} of {pluralize(size, 'dimension')}" for size, n in sizes.items()),
        )
