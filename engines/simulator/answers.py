"""What a simulated engine says: an endless, deterministic text for a seed, as tokens, and where it ends by itself.

The same seed gives the same text in every process. A longer answer starts with the shorter one, as a greedy engine's
does.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from random import Random

from engines.simulator import phrases
from engines.simulator.tokens import split_tokens

_MIN_TOKENS = 40
_PROMPT_TAIL = 600
"""Characters at the end of a prompt that decide what is answered."""
_CODE = re.compile(
    r"```|[{};]\s*$|=>|#include|->|\b(?:def|class|function|func|fn|lambda|return|import|python|javascript|typescript|rust|golang|"
    r"java|sql|regex|bug|traceback|compiles?|code|refactor|unit tests?|algorithm)\b",
    re.IGNORECASE | re.MULTILINE,
)
_WORD = re.compile(r"[^\W\d_]{3,20}")


class TokenKind(Enum):
    """Which field of the answer a token belongs to."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_NAME = "tool_name"
    TOOL_ARGUMENTS = "tool_arguments"


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token; `call` is the number of the tool call it belongs to."""

    text: str
    kind: TokenKind = TokenKind.CONTENT
    call_index: int = 0


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What to say. At most one of `exact`, `length` and `calls` shapes it; otherwise it ends where its text does.

    `endless` goes on until the caller stops (vLLM's `ignore_eos`), `least` is `min_tokens`.
    """

    seed: int
    prompt: str
    code: bool = False
    fenced: bool = True
    reasoning: bool = False
    exact_text: str | None = None
    token_count: int | None = None
    tool_calls: tuple[tuple[str, str], ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False


def looks_like_code(prompt: str) -> bool:
    """Whether a prompt asks for code, so that the answer should be code too."""
    return _CODE.search(prompt, max(0, len(prompt) - _PROMPT_TAIL)) is not None


def generate_tokens(spec: OutputSpec) -> Iterator[Token]:
    """The tokens of an answer without its end-of-sequence token; endless where the answer is."""
    rng = Random(spec.seed)  # noqa: S311 - the text has to be the same every time
    words = _WORD.findall(spec.prompt[-_PROMPT_TAIL:]) or ["this"]
    thought = _reasoning_tokens(rng, words) if spec.reasoning else iter(())
    if spec.tool_calls:
        yield from chain(thought, _tool_call_tokens(spec.tool_calls))
        return
    if spec.exact_text is not None:
        yield from chain(thought, map(Token, split_tokens(spec.exact_text)))
        return
    count = 0
    for token in thought:
        yield token
        count += 1
    least = max(spec.min_tokens, count + _MIN_TOKENS)
    for unit in _text_units(rng, words, spec):
        for piece in split_tokens(unit):
            yield Token(piece)
            count += 1
            if spec.token_count is not None and count >= spec.token_count:
                return
        if spec.token_count is None and not spec.ignore_eos and count >= least:
            return


def _tool_call_tokens(calls: tuple[tuple[str, str], ...]) -> Iterator[Token]:
    for number, (name, arguments) in enumerate(calls):
        yield Token(name, TokenKind.TOOL_NAME, number)
        for piece in split_tokens(arguments):
            yield Token(piece, TokenKind.TOOL_ARGUMENTS, number)


def _reasoning_tokens(rng: Random, words: list[str]) -> Iterator[Token]:
    text = " ".join(_fill(rng, template, words) for template in rng.sample(phrases.THOUGHTS, 2))
    return (Token(piece, TokenKind.REASONING) for piece in split_tokens(text))


def _text_units(rng: Random, words: list[str], spec: OutputSpec) -> Iterator[str]:
    """Sentences or snippets without end, each with what separates it from the one before."""
    lead = ""
    while True:
        if not spec.code:
            yield lead + _fill(rng, rng.choice(phrases.SENTENCES), words)
            lead = rng.choice(phrases.BREAKS)
        elif spec.fenced:
            opening, snippet = rng.choice(phrases.OPENINGS), rng.choice(phrases.SNIPPETS)
            yield f"{lead}{_fill(rng, opening, words)}\n\n```python\n{_fill(rng, snippet, words)}```"
            lead = "\n\n"
        else:
            yield lead + _fill(rng, rng.choice(phrases.SNIPPETS), words)
            lead = "\n\n"


def _fill(rng: Random, template: str, words: list[str]) -> str:
    a, b, x = rng.sample(phrases.NAMES, 3)
    return template.format(
        noun=rng.choice(phrases.NOUNS),
        noun2=rng.choice(phrases.NOUNS),
        adj=rng.choice(phrases.ADJECTIVES),
        verb=rng.choice(phrases.VERBS),
        word=rng.choice(words),
        number=rng.randrange(3, 1000),
        number2=rng.randrange(2, 60),
        f=rng.choice(phrases.FUNCTIONS),
        c=rng.choice(phrases.CLASSES),
        a=a,
        b=b,
        x=x,
    )
