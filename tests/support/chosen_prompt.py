"""A prompt whose engine was chosen by estimates, as metrics and log lines see it."""

from router.core.routing.prefill import PrefillEstimate
from router.core.routing.prefix_tokens import PrefixTokens
from router.flow.exchange import PromptPlacement


def chosen_prompt(
    *, prompt_tokens: int = 100, cached_tokens: int = 50, ttft: float = 0.1, held: PrefixTokens | None = None
) -> PromptPlacement:
    """`ttft`: the expected seconds, all of them in the queue. `held`: known with the answer."""
    placement = PromptPlacement()
    placement.estimate = PrefillEstimate("http://e:1", prompt_tokens, cached_tokens, ttft, 0.0, ttft)
    placement.prefix_tokens = held
    return placement
