"""How long an engine may take to respond."""

from typing import Final

DEFAULT_ANSWER_TOKENS: Final = 8192
"""Assumed maximum length of an answer in tokens if neither the request nor the engine gives one."""

MAX_ANSWER_TOKENS: Final = 1 << 30
"""Upper bound for `max_tokens` if the engine's context length is unknown."""

MAX_BATCH_TOKENS: Final = 1 << 16
"""The most tokens that several answers, or prompts, of one request count as; a longer single one counts in full.

The number of answers comes from the client, and an engine computes them together.
"""

PREFILL_SPEED: Final = 1000.0
"""Bytes of a body per second: about 250 tokens. Few engines on a CPU are slower; a GPU is a hundred times faster."""

_BYTES_PER_TOKEN: Final = 4


class Workload:
    """What an engine has to compute for one request.

    - `max_tokens`: the client's limit of each answer; None without one.
    - `answers`: prompts (inputs, documents) times choices.
    - `prompt_bytes`: the size of the prompts, not decoded.
    """

    def __init__(self, max_tokens: int | None, answers: int = 1, prompt_bytes: int = 0) -> None:
        self.max_tokens = max_tokens
        self.answers = answers
        self.prompt_bytes = prompt_bytes


class EngineTimeouts:
    """In seconds, except `min_tokens_per_second`; see settings.TimeoutSettings."""

    def __init__(self, first_token: float, between_tokens: float, min_tokens_per_second: float) -> None:
        self.first_token = first_token
        self.between_tokens = between_tokens
        self.min_tokens_per_second = min_tokens_per_second

    def total(self, work: Workload, max_model_len: int | None) -> float:
        """Timeout of a complete response in seconds.

        The sum of `first_token`, the prompts at PREFILL_SPEED, and the length of all answers at the minimum speed.
        """
        # These numbers come from the client and may be absurd. The engine refuses them; here they must not overflow.
        token_limit = max_model_len or MAX_ANSWER_TOKENS
        length = (
            min(work.max_tokens, token_limit)
            if work.max_tokens is not None and work.max_tokens > 0
            else max_model_len or DEFAULT_ANSWER_TOKENS
        )
        tokens = max(length, min(length * max(1, work.answers), MAX_BATCH_TOKENS))
        # A body can have what is no text, such as an image; the context bounds what one prompt can be.
        prompt_bytes = min(work.prompt_bytes, _BYTES_PER_TOKEN * max(max_model_len or 0, MAX_BATCH_TOKENS))
        return self.first_token + prompt_bytes / PREFILL_SPEED + tokens / self.min_tokens_per_second
