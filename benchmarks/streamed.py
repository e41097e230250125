"""Streams of English text in the form of vLLM 0.32: captured streams with other text, ids and counts.

The text is this repository's own: paragraphs, list items and table cells of its pages, then docstrings of the router,
without markup; of these, only those that consist mostly of letters. It is split into pieces as a BPE tokenizer with a
large vocabulary splits English: a word with the space before it, up to three digits, a run of other characters. That is
4.5 bytes per token and about 40,000 tokens. A longer stream repeats the text.
"""

import re
import struct
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

ROOT: Final = Path(__file__).parents[1]
CAPTURES: Final = ROOT / "tests" / "data" / "captures"

_PIECE: Final = re.compile(r"'(?:s|t|re|ve|ll|d|m)\b| ?[^\W\d_]+| ?\d{1,3}| ?(?:[^\w\s]|_)+\n*|\s+")
_FENCED: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_ITEM_OR_CELL: Final = re.compile(r"^- |^\d+\. |\|", re.MULTILINE)
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_DOCSTRING: Final = re.compile(r'"""(.*?)"""', re.DOTALL)
_ID: Final = re.compile(rb'"(chatcmpl-tool-|chatcmpl-|cmpl-|resp_|msg_)[0-9a-f]{16}"')
_CREATED: Final = re.compile(rb'"created":\d+')
_MIN_PARAGRAPH: Final = 60  # characters
_MIN_LETTERS: Final = 0.94  # share of letters and spaces; below it are lists of options and of figures

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Stream(NamedTuple):
    """A streamed response: the path and the request, its events, its text, and its number of tokens."""

    path: str
    request: dict[str, Any]
    events: list[bytes]
    text: str
    tokens: int


def shapes() -> Iterator[tuple[str, Stream]]:
    """One stream of each kind."""
    yield "chat", chat(500)
    yield "chat", chat(66)
    yield "chat", chat(32_000)
    yield "chat with logprobs", chat_with_logprobs(500)
    yield "chat with a tool call", chat_with_tool_call(500)
    yield "chat, n=2", chat_of_two(500)
    yield "completion", completion(500)
    yield "response", response(500)
    yield "message", message(500)


@cache
def prose() -> list[str]:
    """The text of this repository in pieces."""
    pages = [_FENCED.sub("", page.read_text()) for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])]
    texts = [_ITEM_OR_CELL.sub("\n\n", page) for page in pages]
    for module in sorted((ROOT / "router").rglob("*.py")):
        texts += _DOCSTRING.findall(module.read_text())
    paragraphs = [_plain(paragraph) for text in texts for paragraph in text.split("\n\n")]
    return _PIECE.findall("\n\n".join(filter(_is_prose, paragraphs)))


def _plain(paragraph: str) -> str:
    return re.sub(r"[`*]", "", _LINK.sub(r"\1", " ".join(paragraph.split())))


def _is_prose(paragraph: str) -> bool:
    if len(paragraph) < _MIN_PARAGRAPH or not paragraph[0].isalpha():
        return False
    return sum(character.isalpha() or character == " " for character in paragraph) / len(paragraph) >= _MIN_LETTERS


def pieces(tokens: int, number: int = 0) -> list[str]:
    """That many tokens of prose. Each `number` starts at another place and contains the number in its first words."""
    words = prose()
    start = number * 37 % len(words)
    marker = ["Answer", f" {number // 1000:03d}", f"{number % 1000:03d}", ":"] if number else []
    return [*marker, *(words[at % len(words)] for at in range(start, start + tokens - len(marker)))]


def chat(tokens: int, number: int = 0) -> Stream:
    """A streamed chat."""
    opening, first, *_, last, usage, done = _captured("chat-stream-usage", number)
    texts = pieces(tokens, number)
    text, end = _around(first, "ve"), _around(last, "stract")
    events = [opening, *map(text, texts[:-1]), end(texts[-1]), _counted(usage, 15, 8, tokens), done]
    return _stream("/v1/chat/completions", events, texts, number)


def chat_with_logprobs(tokens: int) -> Stream:
    """A chat with the log probabilities of each token and of one other."""
    opening, first, *_, last, done = _captured("chat-logprobs-stream")
    rng, texts = Random(tokens), pieces(tokens)
    events = [opening]
    for piece in texts:
        event = _decode((last if len(events) == tokens else first).removeprefix(b"data: "))
        choice = event["choices"][0]
        likely = [_logprob(piece, rng), _logprob(rng.choice(prose()), rng)]
        choice["delta"]["content"] = piece
        choice["logprobs"]["content"] = [{**likely[0], "top_logprobs": likely}]
        events.append(b"data: %b\n\n" % _encode(event))
    events += [_usage(tokens), done]
    return _stream("/v1/chat/completions", events, texts, logprobs=True, top_logprobs=2)


def _logprob(token: str, rng: Random) -> dict[str, Any]:
    (logprob,) = struct.unpack("f", struct.pack("f", -rng.expovariate(1.0)))  # the engine's are single precision
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def chat_with_tool_call(tokens: int) -> Stream:
    """A chat whose response is one tool call with a text as its only argument."""
    opening, call, first, *_, last, done = _captured("chat-tool-required-stream")
    inside = [_encode(piece).decode()[1:-1] for piece in pieces(tokens - 4)]
    texts = ['{"', "text", '": "', *inside, '"}']
    events = [opening, call, *map(_around(first, "n"), texts), last, _usage(tokens), done]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    return _stream("/v1/chat/completions", events, texts, tools=[tool], tool_choice="required")


def chat_of_two(tokens: int) -> Stream:
    """A chat with two choices whose tokens alternate; `tokens`: those of both together."""
    opening, other_opening, first, *_, other, last, done = _captured("chat-n2-stream")
    texts = [pieces(tokens // 2, number) for number in (1, 2)]
    text, other_text = _around(first, "td"), _around(other, "ader")
    events = [opening, other_opening]
    for piece, other_piece in zip(*(each[:-1] for each in texts), strict=True):
        events += [text(piece), other_text(other_piece)]
    other_end = _around(last, "tin")
    events += [other_end(texts[0][-1]).replace(b'"index":1', b'"index":0'), other_end(texts[1][-1])]
    events += [_usage(tokens), done]
    return _stream("/v1/chat/completions", events, texts[0] + texts[1], n=2)


def completion(tokens: int) -> Stream:
    """A streamed completion."""
    first, *_, last, usage, done = _captured("completion-stream-usage")
    texts = pieces(tokens)
    events = [*map(_around(first, "ull"), texts[:-1]), _around(last, "rue")(texts[-1])]
    return _stream("/v1/completions", [*events, _counted(usage, 6, 4, tokens), done], texts)


def response(tokens: int) -> Stream:
    """A stream of /v1/responses, which repeats its text in each of its last four events and numbers all events."""
    *opening, first, _, _, _, _, _, text_done, part_done, item_done, completed = _captured("responses-stream")
    texts = pieces(tokens)
    completed = completed.replace(b'"output_tokens":8', b'"output_tokens":%d' % tokens)
    full_text = "".join(texts)
    closing = [
        _around(event, "```python\ndef _get_name_in")(full_text)
        for event in (text_done, part_done, item_done, completed)
    ]
    events = [*opening, *map(_around(first, "```"), texts), *closing]
    numbered = [
        re.sub(rb'"sequence_number":\d+', b'"sequence_number":%d' % number, event)
        for number, event in enumerate(events)
    ]
    return _stream("/v1/responses", numbered, texts)


def message(tokens: int) -> Stream:
    """A stream of /v1/messages."""
    start, block, first, *_, block_stop, end, stop = _captured("messages-stream")
    texts = pieces(tokens)
    end = end.replace(b'"output_tokens":8', b'"output_tokens":%d' % tokens)
    events = [start, block, *map(_around(first, "```"), texts), block_stop, end, stop]
    return _stream("/v1/messages", events, texts)


def _captured(name: str, number: int = 0) -> list[bytes]:
    """The events of a captured stream, with other ids for each number."""

    def other(found: re.Match[bytes]) -> bytes:
        return b'"%b%016x"' % (found[1], Random(f"{found[1]!r} {number}").getrandbits(64))

    _, _, body = _read(name).partition(b"\n\n")
    # Events of two captures are combined in one stream, so their times must be equal.
    body = _CREATED.sub(b'"created":1795233472', _ID.sub(other, body))
    return [event + b"\n\n" for event in body.strip().split(b"\n\n")]


@cache
def _read(name: str) -> bytes:
    return (CAPTURES / f"{name}.http").read_bytes().replace(b"\r\n", b"\n")


def _around(event: bytes, text: str) -> Callable[[str], bytes]:
    """A function that returns the same event with another text."""
    before, found, after = event.partition(_encode(text))
    assert found, text

    def event_of(piece: str) -> bytes:
        return b"%b%b%b" % (before, _encode(piece), after)

    return event_of


def _counted(usage: bytes, total: int, completion_tokens: int, tokens: int) -> bytes:
    """A usage event, with other counts."""
    counted = usage.replace(b'"completion_tokens":%d' % completion_tokens, b'"completion_tokens":%d' % tokens)
    return counted.replace(b'"total_tokens":%d' % total, b'"total_tokens":%d' % (total - completion_tokens + tokens))


def _usage(tokens: int) -> bytes:
    """A usage event for a chat that was captured without one; the router requests it from every engine."""
    return _counted(_captured("chat-stream-usage")[-2], 15, 8, tokens)


def request(path: str, number: int = 0, **fields: Any) -> dict[str, Any]:
    """A request for a stream; each `number` gives another one."""
    prompt = f"question {number}: what is the sea?"
    match path:
        case "/v1/completions":
            what: dict[str, Any] = {"prompt": prompt}
        case "/v1/responses":
            what = {"input": prompt}
        case _:
            what = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 40_000}
    return {"model": "bare", **what, **fields, "temperature": 0, "stream": True}


def _stream(path: str, events: list[bytes], texts: list[str], number: int = 0, **fields: Any) -> Stream:
    return Stream(path, request(path, number, **fields), events, "".join(texts), len(texts))
