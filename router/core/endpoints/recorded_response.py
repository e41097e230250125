"""Answers as engines send them, as far as their recorders read them, and what is kept of them.

The classes that JSON is decoded into stand apart from who works with them: they stay Python where that is compiled
(docs/decisions/0006-compiled-modules.md), since msgspec reads their annotations.
"""

from enum import StrEnum
from typing import Any, Final

import msgspec


class NotKept(StrEnum):
    """Why an answer is not stored."""

    ERROR = "error"
    INCOMPLETE = "incomplete"
    EMPTY = "empty"
    TOO_LARGE = "too-large"
    FALLBACK = "fallback"  # another model's than the one that was asked for


class Recording(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A whole answer as it is stored; see types.Entry."""

    body: bytes
    stream: bytes | None
    prompt_tokens: int
    completion_tokens: int


MOST_TOKENS: Final = 2**53
"""More than that no counter takes."""


class Usage(msgspec.Struct, gc=False):
    """What an engine says it used; for /v1/responses and /v1/messages, under OpenAI's older names."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


def read_tokens(value: Any) -> int:
    """A number of tokens as an engine gives it. Counters only count up, so what is no such number is 0.

    Some engines send `null` for a number that they do not know, and some send a float.
    """
    return max(0, min(int(value), MOST_TOKENS)) if type(value) is int or type(value) is float else 0


def read_usage(value: Any) -> Usage | None:
    """The usage of an answer of chats, completions and embeddings; None where it has none."""
    if not isinstance(value, dict):
        return None
    return Usage(read_tokens(value.get("prompt_tokens")), read_tokens(value.get("completion_tokens")))


class Choice(msgspec.Struct, gc=False):
    """Of a choice, or an event's piece of one: what tells whether there is content in it, and how it ended."""

    text: Any = None
    delta: Any = None
    message: Any = None
    finish_reason: Any = None


class Event(msgspec.Struct, gc=False):
    choices: list[Choice] | None = None
    usage: Any = None
    error: Any = None


class Answer(msgspec.Struct, gc=False):
    choices: list[Choice]
    usage: Any = None
    error: Any = None


# Each raises what decoding raises.
read_event = msgspec.json.Decoder(Event).decode
read_answer = msgspec.json.Decoder(Answer).decode
