"""What an engine is believed to hold: prefixes that were sent, the longest of the oldest prompts forgotten first."""

from hypothesis import given
from hypothesis import strategies as st

from router.core.routing.prefix_cache.prefix_index import MAX_MARKS, MIN_WEIGHT, PrefixIndex
from router.core.routing.prefix_cache.prompt_chain import PIECE, PromptChain

# A prompt is a path in a tree: pieces are numbers, and a hash stands for all pieces before it.
PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=30)


def chain(path: list[int], size: int = PIECE) -> PromptChain:
    hashes = [hash(tuple(path[: end + 1])) & (2**64 - 1) for end in range(len(path))]
    return PromptChain(hashes, [size * (number + 1) for number in range(len(path))])


def test_the_longest_common_prefix_is_found() -> None:
    index = PrefixIndex(100 * PIECE)
    index.add(chain([1, 2, 3]))
    assert [index.match(chain(path).hashes) for path in ([1, 2, 3, 4], [1, 2, 4], [1, 2], [2], [])] == [3, 2, 2, 0, 0]


@given(PATHS, st.integers(1, 40))
def test_a_prefix_that_is_found_was_sent_and_all_its_prefixes_are_held(paths: list[list[int]], capacity: int) -> None:
    index = PrefixIndex(capacity * PIECE)
    sent: set[int] = set()
    for path in paths:
        sent.update(chain(path).hashes)
        index.add(chain(path))
        for other in paths:
            hashes = chain(other).hashes
            held = index.match(hashes)
            assert all(one in index and one in sent for one in hashes[:held])
            assert not any(one in index for one in hashes[held:])


@given(PATHS, st.integers(1, 40), st.sampled_from([1, 100, PIECE]))
def test_it_is_never_larger_than_its_capacity(paths: list[list[int]], capacity: int, size: int) -> None:
    index = PrefixIndex(capacity * PIECE)
    for path in paths:
        index.add(chain(path, size))
        assert len(index) * MIN_WEIGHT <= index.size <= capacity * PIECE


def test_the_oldest_prompt_is_forgotten_from_its_end_and_what_others_share_stays() -> None:
    index = PrefixIndex(6 * PIECE)
    index.add(chain([1, 1, 1]))
    index.add(chain([1, 2, 2]))
    assert len(index) == 5
    index.add(chain([1, 2, 2, 3, 4]))
    assert index.match(chain([1, 1, 1]).hashes) == 1
    assert index.match(chain([1, 2, 2, 3, 4]).hashes) == 5


@given(PATHS, PATHS, PATHS, st.integers(1, 40))
def test_older_entries_are_forgotten_before_its_own_and_in_their_order(
    older: list[list[int]], own: list[list[int]], later: list[list[int]], capacity: int
) -> None:
    """As if all prompts had come to one index, if there is room for them until the entries are added."""
    other, index, one = PrefixIndex(10**9), PrefixIndex(10**9), PrefixIndex(10**9)
    for path in older:
        other.add(chain(path))
        one.add(chain(path))
    for path in own:
        index.add(chain(path))
        one.add(chain(path))
    index.add_older(*other.entries())
    assert (index.entries(), index.size) == (one.entries(), one.size)
    index.capacity = one.capacity = capacity * PIECE
    for path in later:
        index.add(chain(path))
        one.add(chain(path))
        assert index.entries() == one.entries()


def test_marks_are_no_entries_and_stay_where_they_are_among_them() -> None:
    index = PrefixIndex(10 * PIECE)
    index.add(chain([1]))
    index.mark(5.0)
    index.add(chain([2]))
    assert index.entries() == ([*chain([1]).hashes, *chain([2]).hashes], [PIECE, PIECE])
    index.add_older([7, 8], [PIECE, PIECE])
    assert (len(index), index.size, index.oldest_use()) == (4, 4 * PIECE, 5.0)


def test_older_entries_that_do_not_fit_are_left_out() -> None:
    other, index = PrefixIndex(10 * PIECE), PrefixIndex(4 * PIECE)
    other.add(chain([1, 1, 1, 1, 1]))
    index.add(chain([2, 2]))
    index.add_older(*other.entries())
    assert (index.match(chain([2, 2]).hashes), index.match(chain([1, 1, 1]).hashes)) == (2, 1)
    assert index.size <= index.capacity
    index.add_older([5], [2**16 - 1])
    assert index.size <= index.capacity


def test_a_use_makes_a_prompt_recent() -> None:
    index = PrefixIndex(8 * PIECE)
    for path in ([1, 1, 1], [2, 2, 2], [1, 1, 1], [3, 3, 3]):
        index.add(chain(path))
    assert index.match(chain([1, 1, 1]).hashes) == 3
    assert index.match(chain([2, 2, 2]).hashes) < 3


def test_a_prompt_larger_than_the_cache_leaves_its_beginning() -> None:
    index = PrefixIndex(64 * PIECE)
    index.add(chain([1] * 1000))
    assert index.match(chain([1] * 1000).hashes) in range(60, 65)


def test_a_cleared_index_holds_nothing() -> None:
    index = PrefixIndex(64 * PIECE)
    index.add(chain([1, 2]))
    index.clear()
    assert (len(index), index.size, index.match(chain([1]).hashes)) == (0, 0, 0)


# -- how long the oldest prefix has not been used ---------------------------------------------------------------------


def piece(name: int) -> PromptChain:
    return PromptChain([name], [PIECE])


@given(
    st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=200),
    st.integers(2, 10),
)
def test_the_oldest_use_is_known_to_the_next_mark(uses: list[tuple[int, bool]], capacity: int) -> None:
    index, last_uses, marks = PrefixIndex(capacity * PIECE), dict[int, float](), list[float]()
    for number, (name, marked) in enumerate(uses):
        index.add(piece(name))
        last_uses[name] = float(number)
        if marked:
            marks.append(number + 0.5)
            index.mark(marks[-1])
        held = [name for name in last_uses if name in index]
        oldest = min(last_uses[name] for name in held)
        # While marks are few, none is dropped.
        expected = next((mark for mark in marks if mark > oldest), None)
        assert len(index) == len(held)
        if len(marks) <= MAX_MARKS:
            assert index.oldest_use() == expected
        elif expected is not None:
            found = index.oldest_use()
            assert found is None or (found in marks and found >= expected)


def test_marks_are_few_however_long_an_index_lives() -> None:
    index = PrefixIndex(100 * PIECE)
    index.add(piece(0))
    for number in range(10_000):
        index.add(piece(1))
        index.mark(float(number))
        assert index.match([1]) == 1
    assert len(index) == 2
    assert len(index._pieces) <= 2 + MAX_MARKS
    oldest = index.oldest_use()
    assert oldest is not None
    assert oldest == 0


def test_a_mark_without_a_use_since_the_last_one_adds_nothing() -> None:
    index = PrefixIndex(100 * PIECE)
    index.mark(1.0)
    index.add(piece(0))
    index.mark(2.0)
    index.mark(3.0)
    assert (index.oldest_use(), len(index._pieces)) == (2.0, 2)
    index.clear()
    assert (index.oldest_use(), len(index), len(index._pieces)) == (None, 0, 0)


def test_what_was_used_before_a_prefix_is_listed_from_the_oldest_on_and_can_be_dropped() -> None:
    index = PrefixIndex(100 * PIECE)
    for now, path in enumerate(([1], [2, 2], [3])):
        index.add(chain(path))
        index.mark(now)
    one, two, three = chain([1]).hashes, chain([2, 2]).hashes, chain([3]).hashes
    assert index.used_before(three[0], 10) == [one[0], two[1], two[0]]
    assert index.used_before(three[0], 2) == [one[0], two[1]]
    assert index.used_before(5, 10) == ()
    index.drop([*one, *two, 5])
    assert (len(index), index.size, index.match(three)) == (1, PIECE, 1)
