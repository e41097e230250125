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

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from router.core.endpoints.recording.json_repair import decode_repaired
from router.core.endpoints.score_text import score_lines
from router.core.plural import pluralize

LabeledText = tuple[str, str]
"""The label of a piece of an answer, empty for its plain text; and its text."""

MAX_PREVIEW: Final = 80
"""Characters of `answer_preview`."""

_FLOAT_SIZE: Final = 4  # bytes of a number in a vector in base64
_TOOL_CALL: Final = "tool call "
_BEGUN_TEXT: Final = re.compile(rb'"(?:content|text|transcript)"\s*:\s*("(?:[^"\\]|\\.)+)')

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_encode = msgspec.json.Encoder().encode
_decode_string = msgspec.json.Decoder(str).decode


def answer_text(body: bytes) -> str | None:
    """The text of an answer; None if it is not JSON or has no known text. Never raises."""
    parts = [(label, text) for label, text in _decoded_texts(body) if text or label]
    if not parts:
        return None
    if len(parts) == 1 and not parts[0][0]:
        return parts[0][1]
    return "\n\n".join(f"[{label or 'text'}]\n{text}".rstrip("\n") for label, text in parts)


def answer_preview(body: bytes) -> str | None:
    """The first words of an answer in one line, at most MAX_PREVIEW characters; None as for `answer_text`.

    Its plain text is preferred to what has a label. An answer without text says what it is: `2 vectors of 768
    dimensions`.
    """
    found = _decoded_texts(body)
    # A tool may be called without arguments: then its name is all that there is.
    pieces = [(label, text) for label, text in found if text.strip()] or [each for each in found if each[0]]
    plain = [text for label, text in pieces if label in ("", "choice 0") and text]
    # Each piece is cut before it is joined: a text may have megabytes.
    shown = plain or [f"[{label}] {text}" for label, text in pieces]
    return _shorten(" ".join(piece[: 4 * MAX_PREVIEW] for piece in shown[:MAX_PREVIEW])) if shown else None


def preview_of_beginning(body: bytes) -> str | None:
    """As `answer_preview`, of the first bytes of a body that is too large to be read for it."""
    if b'"embedding"' in body:
        return "vectors"
    found = _BEGUN_TEXT.search(body)
    if found is None:
        return None
    begun = found[1][: 6 * MAX_PREVIEW]  # the longest escape of a character has six bytes
    for cut in range(12):  # an escape or a character may be cut off, at most a pair of surrogates
        try:
            return _shorten(decode_repaired(_decode_string, begun[: len(begun) - cut] + b'"'))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return None


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_PREVIEW else f"{line[: MAX_PREVIEW - 1]}…"


def search_form(text: str) -> str:
    """`text` as it is compared in a search: without regard to case, and each run of white space one space."""
    return " ".join(text.casefold().split())


def answer_contains(body: bytes, wanted: str) -> bool:
    """Whether the text of an answer has `wanted`, which is a `search_form`. Never raises.

    The labels of `answer_text`, and what it writes for vectors, scores and tokens, are not searched: a purge of all
    answers with `tokens` is not to find these. The names of tools are, and so are documents that a reranker returns.
    """
    return any(wanted in search_form(text) for text in _searched_texts(body))


def _searched_texts(body: bytes) -> Iterator[str]:
    try:
        answer = decode_repaired(msgspec.json.decode, body)
    except _UNREADABLE:
        return
    match answer:
        case {"choices": list()} | {"output": list()} | {"content": list()} | {"text": str()}:
            for label, text in _labeled_texts(answer):
                # The word before a tool's name is a label like the others.
                tool = label.partition(_TOOL_CALL)[2]
                yield f"{tool} {text}" if tool else text
        case {"results": list(items)} | {"data": list(items)}:
            for item in items:
                yield from _item_words(item)
        case {"prompt": str(text)}:  # of /detokenize
            yield text


def _item_words(item: Any) -> Iterator[str]:
    match item:
        case {"document": {"text": str(text)}} | {"document": str(text)} | {"label": str(text)}:
            yield text


def _decoded_texts(body: bytes) -> list[LabeledText]:
    try:
        return list(_labeled_texts(decode_repaired(msgspec.json.decode, body)))
    except _UNREADABLE:
        return []


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
    return f"{_TOOL_CALL}{name}", text


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
