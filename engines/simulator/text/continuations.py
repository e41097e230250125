"""Where a prompt contains the beginning of its own answer, and how that answer goes on.

An answer is a function of the tokens of its prompt (and of what `sampling_hash` covers). A model that gets these tokens
and the first tokens of its greedy answer goes on with the rest. The simulator does the same: it looks for a place in
the prompt where an answer could begin, generates the answer to what stands before it, and continues that answer if it
begins with what stands after it. So another process can continue an answer exactly from any of its tokens.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from xxhash import xxh3_64_intdigest

from engines.simulator.text import phrases
from engines.simulator.text.answers import OutputSpec, Token, TokenKind, generate_tokens
from engines.simulator.text.prompts import Prompt
from engines.simulator.text.tokens import encode_text, split_tokens, token_id


@dataclass(frozen=True, slots=True)
class AnswerKind:
    """The form of an answer, which cannot be derived from the tokens of its prompt."""

    code: bool
    fenced: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """`source`: its tokens that are still to be generated; `seed` selects the text."""

    seed: int
    code: bool
    source: Iterator[Token]


_PROSE: Final = AnswerKind(code=False, fenced=True)
_KINDS: Final[Sequence[tuple[AnswerKind, Sequence[str]]]] = (
    (_PROSE, phrases.SENTENCES),
    (AnswerKind(code=True, fenced=True), phrases.OPENINGS),
    (AnswerKind(code=True, fenced=False), phrases.SNIPPETS),
)


def _kinds_by_first_piece() -> Mapping[str, tuple[AnswerKind, ...]]:
    kinds: dict[str, tuple[AnswerKind, ...]] = {}
    for kind, templates in _KINDS:
        for piece in {split_tokens(template)[0] for template in templates}:
            kinds[piece] = (*kinds.get(piece, ()), kind)
    return kinds


_BY_PIECE: Final = _kinds_by_first_piece()
_BY_ID: Final = {token_id(piece): kinds for piece, kinds in _BY_PIECE.items()}
_FIRST_PIECE: Final = re.compile(f"(?=({'|'.join(map(re.escape, _BY_PIECE))}))")

MakeSpec = Callable[[int, AnswerKind, int], OutputSpec]
"""The spec of an answer from its seed, its form, and the number of tokens that it has had already."""


def find_answer(
    prompt: Prompt, kind: AnswerKind, sampling_hash: int, choice: int, exact: str | None, make_spec: MakeSpec
) -> Answer:
    """The answer to a prompt, continued if the prompt contains its beginning. `kind`: that of a new answer.

    `choice` is the index of the choice among those of the prompt; `exact`, if set, is what every answer says.
    """

    def answer(base: Sequence[int], kind: AnswerKind, said: int, skip: Callable[[Iterator[Token]], _Rest]) -> _Found:
        seed = _seed(sampling_hash, choice, base)
        rest = skip(generate_tokens(make_spec(seed, kind, said)))
        return None if rest is None else Answer(seed, kind.code, rest)

    found: _Found = None
    if prompt.said is not None:
        said = prompt.said
        found = answer(prompt.base, kind, len(split_tokens(said)), lambda tokens: _after_text(_content(tokens), said))
    elif prompt.from_ids:
        for at, kinds in _places_in_ids(prompt.tokens, exact):
            ids = prompt.tokens[at:]
            for one in kinds:
                found = found or answer(prompt.tokens[:at], one, len(ids), lambda tokens: _after_ids(tokens, ids))  # noqa: B023 - called at once
            if found is not None:
                break
    elif not kind.fenced:  # the text of a completion
        for at, kinds in _places_in_text(prompt.text, exact):
            begun = prompt.text[at:]
            for one in kinds:
                found = found or answer(
                    encode_text(prompt.text[:at]),
                    one,
                    len(split_tokens(begun)),
                    lambda tokens: _after_text(tokens, begun),  # noqa: B023 - called at once
                )
            if found is not None:
                break
    if found is not None:
        return found
    seed = _seed(sampling_hash, choice, prompt.tokens)
    return Answer(seed, kind.code, generate_tokens(make_spec(seed, kind, 0)))


_Rest = Iterator[Token] | None
_Found = Answer | None


def _seed(sampling_hash: int, choice: int, tokens: Iterable[int]) -> int:
    return xxh3_64_intdigest(f"{sampling_hash}:{choice}:".encode() + array("q", tokens).tobytes())


def _places_in_ids(ids: Sequence[int], exact: str | None) -> Iterator[tuple[int, tuple[AnswerKind, ...]]]:
    kinds: Mapping[int, tuple[AnswerKind, ...]] = _BY_ID
    if exact:
        kinds = {token_id(split_tokens(exact)[0]): (_PROSE,)}
    return ((at, kinds[number]) for at, number in enumerate(ids) if at and number in kinds)


def _places_in_text(text: str, exact: str | None) -> Iterator[tuple[int, tuple[AnswerKind, ...]]]:
    if exact:
        first = re.escape(split_tokens(exact)[0])
        return ((match.start(), (_PROSE,)) for match in re.finditer(f"(?={first})", text) if match.start())
    return ((match.start(), _BY_PIECE[match[1]]) for match in _FIRST_PIECE.finditer(text) if match.start())


def _content(tokens: Iterator[Token]) -> Iterator[Token]:
    """Without the reasoning, which a message that is continued does not repeat."""
    return (token for token in tokens if token.kind is not TokenKind.REASONING)


def _after_ids(tokens: Iterator[Token], said: Sequence[int]) -> _Rest:
    for number in said:
        token = next(tokens, None)
        if token is None or token_id(token.text) != number:
            return None
    return tokens


def _after_text(tokens: Iterator[Token], said: str) -> _Rest:
    while said:
        token = next(tokens, None)
        if token is None:
            return None
        if len(token.text) > len(said):
            # What was said ends inside a token; the rest of it is the next one.
            rest = chain([Token(token.text[len(said) :], token.kind)], tokens)
            return rest if token.text.startswith(said) else None
        if not said.startswith(token.text):
            return None
        said = said[len(token.text) :]
    return tokens
