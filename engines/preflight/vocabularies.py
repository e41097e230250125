"""Compares the vocabularies of a target and a draft."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from engines.preflight.observations import Model

_SPACES: Final = ("\u0120", "\u2581")
"""How tokenizers write the space that a token starts with: byte-level BPE, and SentencePiece."""


class VocabularyComparison(msgspec.Struct, frozen=True):
    """None is unknown.

    - `sizes_differ`: of `vocab_size`; vLLM refuses the pair then, unless vocabularies may be heterogeneous.
    - `tokens_differ`: whether any token has another id; vLLM does not check it.
    - `overlap`: the share of the draft's tokens that the target has too, under any id.
    """

    sizes_differ: bool | None
    tokens_differ: bool | None
    overlap: float | None

    @property
    def differ(self) -> bool | None:
        if self.sizes_differ or self.tokens_differ:
            return True
        return None if self.tokens_differ is None else False


def compare_vocabularies(target: Model, draft: Model) -> VocabularyComparison:
    sizes = (target.shape.vocab_size, draft.shape.vocab_size)
    sizes_differ = None if None in sizes else sizes[0] != sizes[1]
    if target.tokens is None or draft.tokens is None:
        return VocabularyComparison(sizes_differ, None, None)
    same = target.tokens == draft.tokens
    return VocabularyComparison(sizes_differ, not same, 1.0 if same else _overlap(target.tokens, draft.tokens))


def _overlap(target: Mapping[str, int], draft: Mapping[str, int]) -> float:
    """As vLLM matches tokens: by spelling, with the space at the start written in either way."""
    draft_tokens = set(_spellings(draft))
    return len(draft_tokens.intersection(_spellings(target))) / max(1, len(draft_tokens))


def _spellings(tokens: Iterable[str]) -> Iterable[str]:
    return (f" {token[1:]}" if token.startswith(_SPACES) else token for token in tokens)
