"""Compares what an engine was believed to hold of a prompt with what it reports."""

from typing import NamedTuple

from router.core.routing.prefill import PrefillEstimate


class PrefixTokens(NamedTuple):
    """The tokens of an answered prompt.

    - `expected`: were believed to be in the engine's prefix cache; `new`: the others.
    - `found`: were there, as the engine reports it; None if it does not.
    """

    expected: int
    new: int
    found: int | None


def compare_prefix(estimate: PrefillEstimate, prompt_tokens: int, cached_tokens: int | None) -> PrefixTokens:
    """`prompt_tokens`, `cached_tokens`: as the engine reports them; 0 and None are unknown."""
    # An estimate counts bytes; its share is applied to the engine's own count, so that the two can be compared.
    tokens = prompt_tokens or estimate.prompt_tokens
    expected = round(estimate.cached_share * tokens)
    return PrefixTokens(expected, tokens - expected, cached_tokens)
