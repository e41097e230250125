"""Which recent prompts an engine that starts gets first."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.core.routing.prefix_cache.prompt_chain import NO_PROMPT, PIECE, PromptChain
from router.core.routing.prefix_cache.warm_up import most_saving_first


def chain(*path: int, size: int = PIECE) -> PromptChain:
    hashes = [hash(path[: end + 1]) for end in range(len(path))]
    return PromptChain(hashes, [size * (number + 1) for number in range(len(path))])


def test_what_many_prompts_share_comes_before_a_long_prompt_that_only_one_has() -> None:
    shared = [chain(1, 1, number) for number in range(4)]
    assert most_saving_first([chain(2, 2, 2, 2, 2), *shared])[:2] == [1, 0]


def test_of_the_turns_of_a_conversation_the_last_comes_first_and_the_others_add_nothing() -> None:
    assert most_saving_first([chain(1), chain(1, 2), chain(1, 2, 3), chain(5, 5), NO_PROMPT]) == [2, 3, 0, 1, 4]


def test_a_long_prefix_comes_before_a_short_one_that_as_many_have() -> None:
    assert most_saving_first([chain(1, size=100), chain(1, size=100), chain(2), chain(2)]) == [2, 0, 1, 3]


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=8))
def test_each_prompt_comes_once_and_none_before_one_that_adds_more(paths: list[list[int]]) -> None:
    chains = [chain(*path) for path in paths]
    order = most_saving_first(chains)
    assert sorted(order) == list(range(len(chains)))
    counts = Counter(hash_ for each in chains for hash_ in each.hashes)
    held: set[int] = set()
    for place, position in enumerate(order):
        added = [sum(counts[hash_] for hash_ in set(chains[other].hashes) - held) for other in order[place:]]
        assert added[0] == max(added)
        held.update(chains[position].hashes)
