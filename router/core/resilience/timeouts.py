"""How long an engine may take."""

from typing import Final

import msgspec

DEFAULT_ANSWER_TOKENS: Final = 8192
"""Tokens that an answer is taken to have at most where neither the request nor the engine says."""

MAX_ANSWER_TOKENS: Final = 1 << 30
"""Tokens beyond which an answer is not waited for the longer, where the engine does not say what it can."""


class EngineTimeouts(msgspec.Struct, frozen=True):
    """All in seconds, but `min_tokens_per_second`; see settings.Timeouts."""

    first_token: float
    between_tokens: float
    min_tokens_per_second: float

    def total(self, max_tokens: int | None, max_model_len: int | None) -> float:
        """The most seconds that a whole answer may take: to its first token, and its length at the least speed."""
        # What a client asks for need not be a number that makes sense; to refuse it is the engine's part.
        most = max_model_len or MAX_ANSWER_TOKENS
        length = (
            min(max_tokens, most)
            if max_tokens is not None and max_tokens > 0
            else max_model_len or DEFAULT_ANSWER_TOKENS
        )
        return self.first_token + length / self.min_tokens_per_second
