"""The priority of a tenant's requests, in the terms of vLLM: a lower number is handled earlier, and the default is 0.

A client may send it in the field `priority`. The tenant's settings bound it, so that no client takes the place of
others. The queue for the engines' slots goes by it (router.core.quota.fair_queue), and so does an engine that runs
vLLM's priority scheduler; others do not get the field.

Source: `priority` in vLLM's entrypoints/openai/chat_completion/protocol.py, `--scheduling-policy priority`.
"""

from typing import Final

import msgspec

MIN_PRIORITY: Final = -(2**63)
MAX_PRIORITY: Final = 2**63 - 1
"""vLLM's range. The lowest number is the highest priority."""

DEFAULT_PRIORITY: Final = 0

LINE_PRIORITY: Final = 2**31 - 1
"""Of lines of batches. Of engines, too, whose field may have 32 bits."""


class PriorityRule(msgspec.Struct, frozen=True):
    """The priorities of one tenant.

    - `highest`: the lowest number that its requests may have; a client that asks for a lower one gets this.
    - `default`: the number of a request that does not ask for one.
    """

    highest: int = DEFAULT_PRIORITY
    default: int = DEFAULT_PRIORITY

    def apply(self, requested: int | None) -> int:
        return max(self.highest, self.default if requested is None else requested)


def priority_rule(highest: int | None, default: int | None) -> PriorityRule:
    """`highest`: None is 0. `default`: None is 0, or `highest` where that is lower in priority."""
    bound = DEFAULT_PRIORITY if highest is None else highest
    return PriorityRule(bound, max(bound, DEFAULT_PRIORITY if default is None else default))
