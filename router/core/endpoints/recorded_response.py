"""Answers as engines send them, as far as their recorders read them, and what is kept of them.

The classes that JSON is decoded into stand apart from who works with them: they stay Python where that is compiled
(docs/decisions/0006-compiled-modules.md), since msgspec reads their annotations.
"""

from enum import StrEnum
from typing import Any, Final

import msgspec


class NotStoredReason(StrEnum):
    """Why an answer is not stored."""

    ERROR = "error"
    INCOMPLETE = "incomplete"
    EMPTY = "empty"
    TOO_LARGE = "too-large"
    FALLBACK = "fallback"  # another model's than the one that was asked for


class RecordedResponse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A whole answer as it is stored; see types.Entry."""

    body: bytes
    stream: bytes | None
    prompt_tokens: int
    completion_tokens: int


MAX_TOKEN_COUNT: Final = 2**53
"""More than that no counter takes."""


class ReportedUsage(msgspec.Struct, gc=False):
    """What an engine says it used; for /v1/responses and /v1/messages, under OpenAI's older names."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


def parse_token_count(value: Any) -> int:
    """A number of tokens as an engine gives it. Counters only count up, so what is no such number is 0.

    Some engines send `null` for a number that they do not know, and some send a float.
    """
    return max(0, min(int(value), MAX_TOKEN_COUNT)) if type(value) is int or type(value) is float else 0


def parse_usage(value: Any) -> ReportedUsage | None:
    """The usage of an answer of chats, completions and embeddings; None where it has none."""
    if not isinstance(value, dict):
        return None
    return ReportedUsage(
        parse_token_count(value.get("prompt_tokens")), parse_token_count(value.get("completion_tokens"))
    )


class ResponseChoice(msgspec.Struct, gc=False):
    """Of a choice, or an event's piece of one: what tells whether there is content in it, and how it ended."""

    text: Any = None
    delta: Any = None
    message: Any = None
    finish_reason: Any = None


class ChatEvent(msgspec.Struct, gc=False):
    choices: list[ResponseChoice] | None = None
    usage: Any = None
    error: Any = None


class ChatResponse(msgspec.Struct, gc=False):
    choices: list[ResponseChoice]
    usage: Any = None
    error: Any = None


# Each raises what decoding raises.
decode_chat_event = msgspec.json.Decoder(ChatEvent).decode
decode_chat_response = msgspec.json.Decoder(ChatResponse).decode
