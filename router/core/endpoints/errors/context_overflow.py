"""A request that exceeds the model's context length: parsed from engines' messages, written as agents parse it.

By this error, agents know that they have to shorten their history: most by OpenAI's `code`, Claude Code by the text of
Anthropic's message, from which it also parses the numbers, and LangChain in a stream by the words of OpenAI's message.

Sources: vLLM's renderers and serving, SGLang's tokenizer manager, llama.cpp's server; the messages of Anthropic's API.
"""

import re
from typing import Final, NamedTuple

CONTEXT_LENGTH_EXCEEDED: Final = "context_length_exceeded"
"""OpenAI's `code`."""

_LIMIT: Final = re.compile(
    r"maximum context length (?:is|of) (\d{1,12}) tokens"
    r"|the model's context length \((\d{1,12}) tokens\)"
    r"|the available context size \((\d{1,12}) tokens\)"
    r"|the maximum model length of (\d{1,12})"
)
_PROMPT: Final = re.compile(
    r"(?:your prompt contains|your request has) (?:at least )?(\d{1,12}) input tokens"
    r"|\((\d{1,12}) in the [a-z ]{1,40}, \d{1,12} in the completion"
    r"|: (\d{1,12}) tokens from the input messages"
    r"|(?:input|request) \((\d{1,12}) tokens\)"
    r"|prompt \(length (\d{1,12})\)"
)
_COMPLETION: Final = re.compile(
    r"(\d{1,12}) in the completion|(\d{1,12}) tokens for the completion|is too large: (\d{1,12})\."
)

_OPENAI_WORDS: Final = "exceeds the context window"

# vLLM does not count the tokens of a text that has too many characters for any.
_TEXT: Final = re.compile(r"your prompt contains \d{1,12} characters")


class ContextOverflow(NamedTuple):
    """Numbers of tokens; None for what the engine does not say. `is_exact`: whether `prompt` is not only a minimum."""

    limit: int
    prompt: int | None
    completion: int | None
    is_exact: bool


def find_context_overflow(message: str) -> ContextOverflow | None:
    """`message`: of an engine's error, bounded."""
    limit, prompt, completion = _number(_LIMIT, message), _number(_PROMPT, message), _number(_COMPLETION, message)
    if limit is None or (prompt is completion is None and not _TEXT.search(message)):
        return None
    return ContextOverflow(limit, prompt, completion, is_exact="at least" not in message)


def anthropic_message(message: str) -> str:
    """The error in the words of Anthropic's API; the message itself where it does not name the limit."""
    overflow = find_context_overflow(message)
    if overflow is None:
        return message
    limit, prompt, completion, is_exact = overflow
    if prompt is not None and prompt <= limit and completion is not None:
        return (
            f"input length and `max_tokens` exceed context limit: {prompt} + {completion} > {limit}, "
            "decrease input length or `max_tokens` and try again"
        )
    if prompt is None or prompt <= limit:
        prompt, is_exact = limit + 1, False
    return f"prompt is too long: {'' if is_exact else 'at least '}{prompt} tokens > {limit} maximum"


def openai_stream_message(message: str) -> str:
    """The message with the words that OpenAI's API has in a stream of /v1/responses."""
    return message if _OPENAI_WORDS in message else f"The request {_OPENAI_WORDS} of this model. {message}"


def _number(pattern: re.Pattern[str], message: str) -> int | None:
    found = pattern.search(message)
    return None if found is None else int(next(group for group in found.groups() if group is not None))
