"""The order in which an engine that starts is warmed up with recent prompts.

A prompt in the prefix cache saves the computing of each prefix that a later prompt has in common with it. How often
that will be is estimated by how many of the recent prompts have the prefix, and what it saves each time by its size. So
the first prompt is the one that saves the most, and then always the one that adds the most to what the engine holds: a
system prompt that many requests have comes before a long prompt that only one has, and once.
"""

from collections import Counter
from collections.abc import Sequence

from router.core.routing.prefix_cache.prompt_chain import PromptChain


def most_saving_first(chains: Sequence[PromptChain]) -> list[int]:
    """The positions of the prompts' chains in this order; of equal ones, the earlier comes first."""
    counts = Counter(hash_ for chain in chains for hash_ in chain.hashes)
    held: set[int] = set()

    def added_saving(position: int) -> int:
        chain, start, total = chains[position], 0, 0
        for hash_, end in zip(chain.hashes, chain.ends, strict=True):
            if hash_ not in held:
                total += (end - start) * counts[hash_]
            start = end
        return total

    order, left = [], list(range(len(chains)))
    while left:
        best = max(left, key=added_saving)
        left.remove(best)
        order.append(best)
        held.update(chains[best].hashes)
    return order
