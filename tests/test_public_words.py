"""What users see keeps its name; see tests/support/public_words.py."""

from tests.support.offenders import assert_none
from tests.support.public_words import FILE, public_words, read_words


def test_no_word_that_users_see_is_gone() -> None:
    """If it must go, CHANGELOG.md says what takes its place, and the list loses it in the same commit."""
    assert_none(sorted(read_words() - public_words()))


def test_new_words_are_in_the_list() -> None:
    new = sorted(public_words() - read_words())
    assert_none([f"{word} is not in {FILE.name}: run `python -m tests.support.public_words`" for word in new])
