"""How long an engine may take to respond."""

from typing import Final

import msgspec

DEFAULT_ANSWER_TOKENS: Final = 8192
"""Assumed maximum length of a response in tokens if neither the request nor the engine gives one."""

MAX_ANSWER_TOKENS: Final = 1 << 30
"""Upper bound for `max_tokens` if the engine's context length is unknown."""


class EngineTimeouts(msgspec.Struct, frozen=True):
    """In seconds, except `min_tokens_per_second`; see settings.TimeoutSettings."""

    first_token: float
    between_tokens: float
    min_tokens_per_second: float

    def total(self, max_tokens: int | None, max_model_len: int | None) -> float:
        """Timeout of a complete response in seconds: to its first token, then its length at the minimum speed."""
        # `max_tokens` comes from the client and may be absurd. The engine refuses it; here it only must not overflow.
        token_limit = max_model_len or MAX_ANSWER_TOKENS
        length = (
            min(max_tokens, token_limit)
            if max_tokens is not None and max_tokens > 0
            else max_model_len or DEFAULT_ANSWER_TOKENS
        )
        return self.first_token + length / self.min_tokens_per_second
