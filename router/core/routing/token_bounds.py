"""What is known of the context that a request needs; see router.core.routing.context_length."""

from enum import IntEnum

import msgspec


class TokenBounds(msgspec.Struct, frozen=True):
    """The context that a request needs, in tokens; vLLM's context holds prompt and completion together.

    - `min_prompt`: the prompt has at least so many.
    - `completion`: the `max_tokens` of the request; vLLM refuses more than its whole context, and others shorten it.
    - `max_total`: upper bound for prompt and completion; None if there is none, as with images.
    """

    min_prompt: int
    completion: int
    max_total: int | None


class Fit(IntEnum):
    """Whether a request fits into an engine's context."""

    FITS = 0
    MAY_FIT = 1
    TOO_LONG = 2
