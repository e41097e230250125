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
from engines.simulator.tokens import pieces

_SHORTEST = 40
_LOOKED_AT = 600
"""Characters at the end of a prompt that decide what is answered."""
_CODE = re.compile(
    r"```|[{};]\s*$|=>|#include|->|\b(?:def|class|function|func|fn|lambda|return|import|python|javascript|typescript|rust|golang|"
    r"java|sql|regex|bug|traceback|compiles?|code|refactor|unit tests?|algorithm)\b",
    re.IGNORECASE | re.MULTILINE,
)
_WORD = re.compile(r"[^\W\d_]{3,20}")


class Kind(Enum):
    """Which field of the answer a token belongs to."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_NAME = "tool_name"
    TOOL_ARGUMENTS = "tool_arguments"


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token; `call` is the number of the tool call it belongs to."""

    text: str
    kind: Kind = Kind.CONTENT
    call: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What to say. At most one of `exact`, `length` and `calls` shapes it; otherwise it ends where its text does.

    `endless` goes on until the caller stops (vLLM's `ignore_eos`), `least` is `min_tokens`.
    """

    seed: int
    prompt: str
    code: bool = False
    fenced: bool = True
    thinking: bool = False
    exact: str | None = None
    length: int | None = None
    calls: tuple[tuple[str, str], ...] = ()
    least: int = 0
    endless: bool = False


def looks_like_code(prompt: str) -> bool:
    """Whether a prompt asks for code, so that the answer should be code too."""
    return _CODE.search(prompt, max(0, len(prompt) - _LOOKED_AT)) is not None


def tokens(answer: Answer) -> Iterator[Token]:
    """The tokens of an answer without its end-of-sequence token; endless where the answer is."""
    rng = Random(answer.seed)  # noqa: S311 - the text has to be the same every time
    words = _WORD.findall(answer.prompt[-_LOOKED_AT:]) or ["this"]
    thought = _thought(rng, words) if answer.thinking else iter(())
    if answer.calls:
        yield from chain(thought, _calls(answer.calls))
        return
    if answer.exact is not None:
        yield from chain(thought, map(Token, pieces(answer.exact)))
        return
    count = 0
    for token in thought:
        yield token
        count += 1
    least = max(answer.least, count + _SHORTEST)
    for unit in _units(rng, words, answer):
        for piece in pieces(unit):
            yield Token(piece)
            count += 1
            if answer.length is not None and count >= answer.length:
                return
        if answer.length is None and not answer.endless and count >= least:
            return


def _calls(calls: tuple[tuple[str, str], ...]) -> Iterator[Token]:
    for number, (name, arguments) in enumerate(calls):
        yield Token(name, Kind.TOOL_NAME, number)
        for piece in pieces(arguments):
            yield Token(piece, Kind.TOOL_ARGUMENTS, number)


def _thought(rng: Random, words: list[str]) -> Iterator[Token]:
    text = " ".join(_fill(rng, template, words) for template in rng.sample(phrases.THOUGHTS, 2))
    return (Token(piece, Kind.REASONING) for piece in pieces(text))


def _units(rng: Random, words: list[str], answer: Answer) -> Iterator[str]:
    """Sentences or snippets without end, each with what separates it from the one before."""
    lead = ""
    while True:
        if not answer.code:
            yield lead + _fill(rng, rng.choice(phrases.SENTENCES), words)
            lead = rng.choice(phrases.BREAKS)
        elif answer.fenced:
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
