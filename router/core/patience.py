"""How long an engine may take."""

from typing import Final

import msgspec

UNKNOWN_LENGTH: Final = 8192
"""Tokens that an answer is taken to have at most where neither the request nor the engine says."""


class Patience(msgspec.Struct, frozen=True):
    """All in seconds, but `min_tokens_per_second`; see settings.Timeouts."""

    first_token: float
    between_tokens: float
    min_tokens_per_second: float

    def total(self, max_tokens: int | None, max_model_len: int | None) -> float:
        """The most seconds that a whole answer may take: to its first token, and its length at the least speed."""
        length = max_tokens or max_model_len or UNKNOWN_LENGTH
        if max_model_len is not None:
            length = min(length, max_model_len)
        return self.first_token + length / self.min_tokens_per_second
