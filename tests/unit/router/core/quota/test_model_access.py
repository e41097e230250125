"""The models that a tenant may use: names, aliases and patterns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.quota.model_access import ModelAccess


@pytest.mark.parametrize(
    ("entries", "name", "allowed"),
    [
        (["llama"], "llama", True),
        (["llama"], "llama2", False),
        (["llama"], "Llama", False),
        (["mistral*"], "mistral", True),
        (["mistral*"], "mistral-7b", True),
        (["mistral*"], "a-mistral", False),
        (["*-7b"], "mistral-7b", True),
        (["*-7b"], "mistral-70b", False),
        (["m*-7b*"], "mistral-7b-instruct", True),
        (["*"], "anything", True),
        (["llama", "phi*"], "phi-4", True),
        (["llama.1"], "llama-1", False),  # no entry is a regular expression
        (["[a-z]*"], "llama", False),
        (["a**b"], "a/x/b", True),
    ],
)
def test_a_model_is_allowed_if_an_entry_matches_its_name(entries: list[str], name: str, allowed: bool) -> None:
    assert ModelAccess(entries).allows(name) is allowed


def test_an_alias_stands_for_its_model() -> None:
    access = ModelAccess(["meta-llama/*"])
    assert access.allows("llama", ("meta-llama/Llama-3.1-8B",))
    assert not access.allows("mistral", ("mistralai/Mistral-7B",))


def test_entries_that_match_nothing_are_told() -> None:
    access = ModelAccess(["llama", "mistral*", "lama", "phi*"])
    assert access.unmatched(["llama", "mistral-7b"]) == ["lama", "phi*"]


@given(st.text("ab*", min_size=1, max_size=8), st.text("ab", max_size=8))
def test_a_star_matches_as_in_a_shell_without_other_special_characters(entry: str, name: str) -> None:
    def matches(pattern: str, text: str) -> bool:
        if not pattern:
            return not text
        if pattern[0] == "*":
            return any(matches(pattern[1:], text[start:]) for start in range(len(text) + 1))
        return bool(text) and pattern[0] == text[0] and matches(pattern[1:], text[1:])

    assert ModelAccess([entry]).allows(name) is matches(entry, name)
