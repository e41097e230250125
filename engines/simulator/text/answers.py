"""The text of a simulated answer: endless and deterministic for a seed, as tokens, with its natural end.

The same seed gives the same text in every process. A longer answer starts with the shorter one, as with greedy
decoding.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from random import Random

from engines.simulator.text import phrases
from engines.simulator.text.tokens import split_tokens

_MIN_TOKENS = 40  # an answer without a given length ends with the first sentence after this many
_PROMPT_TAIL = 600
"""Characters at the end of a prompt that determine whether the answer is code."""
_CODE = re.compile(
    r"```|[{};]\s*$|=>|#include|->|\b(?:def|class|function|func|fn|lambda|return|import|python|javascript|typescript|rust|golang|"
    r"java|sql|regex|bug|traceback|compiles?|code|refactor|unit tests?|algorithm)\b",
    re.IGNORECASE | re.MULTILINE,
)


class TokenKind(Enum):
    """The field of the response that a token belongs to."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_NAME = "tool_name"
    TOOL_ARGUMENTS = "tool_arguments"


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token; `call_index` is the index of the tool call that it belongs to."""

    text: str
    kind: TokenKind = TokenKind.CONTENT
    call_index: int = 0


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What to generate; the text ends by itself unless `exact_text`, `token_count` or `tool_calls` is set.

    At most one of the three is set. Reasoning is the `thought`, or a text of the seed. `ignore_eos` continues until the
    caller stops, and `min_tokens` is a lower bound, as in vLLM. The text depends on nothing else of the prompt, so that
    an engine that gets only token ids can go on.
    """

    seed: int
    code: bool = False
    fenced: bool = True
    reasoning: bool = False
    thought: str = ""
    text_before_calls: str = ""
    exact_text: str | None = None
    token_count: int | None = None
    tool_calls: tuple[tuple[str, str], ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False


def looks_like_code(prompt: str) -> bool:
    """Whether a prompt asks for code, so that the answer is code too."""
    return _CODE.search(prompt, max(0, len(prompt) - _PROMPT_TAIL)) is not None


def generate_tokens(spec: OutputSpec) -> Iterator[Token]:
    """The tokens of an answer without its end-of-sequence token; endless with `ignore_eos`."""
    rng = Random(spec.seed)  # noqa: S311 - the text must be reproducible
    reasoning = _reasoning_tokens(rng, spec.thought) if spec.reasoning else iter(())
    if spec.tool_calls:
        yield from chain(
            reasoning, map(Token, split_tokens(spec.text_before_calls)), _tool_call_tokens(spec.tool_calls)
        )
        return
    if spec.exact_text is not None:
        yield from chain(reasoning, map(Token, split_tokens(spec.exact_text)))
        return
    count = 0
    for token in reasoning:
        yield token
        count += 1
    min_count = max(spec.min_tokens, count + _MIN_TOKENS)
    for unit in _text_units(rng, spec):
        for piece in split_tokens(unit):
            yield Token(piece)
            count += 1
            if spec.token_count is not None and count >= spec.token_count:
                return
        if spec.token_count is None and not spec.ignore_eos and count >= min_count:
            return


def _tool_call_tokens(calls: tuple[tuple[str, str], ...]) -> Iterator[Token]:
    for number, (name, arguments) in enumerate(calls):
        yield Token(name, TokenKind.TOOL_NAME, number)
        for piece in split_tokens(arguments):
            yield Token(piece, TokenKind.TOOL_ARGUMENTS, number)


def _reasoning_tokens(rng: Random, thought: str) -> Iterator[Token]:
    text = thought or " ".join(_fill(rng, template) for template in rng.sample(phrases.THOUGHTS, 2))
    return (Token(piece, TokenKind.REASONING) for piece in split_tokens(text))


def _text_units(rng: Random, spec: OutputSpec) -> Iterator[str]:
    """Sentences or snippets without end, each with its separator from the one before."""
    separator = ""
    while True:
        if not spec.code:
            yield separator + _fill(rng, rng.choice(phrases.SENTENCES))
            separator = rng.choice(phrases.BREAKS)
        elif spec.fenced:
            opening, snippet = rng.choice(phrases.OPENINGS), rng.choice(phrases.SNIPPETS)
            yield f"{separator}{_fill(rng, opening)}\n\n```python\n{_fill(rng, snippet)}```"
            separator = "\n\n"
        else:
            yield separator + _fill(rng, rng.choice(phrases.SNIPPETS))
            separator = "\n\n"


def _fill(rng: Random, template: str) -> str:
    a, b, x = rng.sample(phrases.NAMES, 3)
    return template.format(
        noun=rng.choice(phrases.NOUNS),
        noun2=rng.choice(phrases.NOUNS),
        adj=rng.choice(phrases.ADJECTIVES),
        verb=rng.choice(phrases.VERBS),
        word=rng.choice(phrases.WORDS),
        number=rng.randrange(3, 1000),
        number2=rng.randrange(2, 60),
        f=rng.choice(phrases.FUNCTIONS),
        c=rng.choice(phrases.CLASSES),
        a=a,
        b=b,
        x=x,
    )
