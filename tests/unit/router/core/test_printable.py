"""What a terminal gets of a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.printable import escape_unprintable


@pytest.mark.parametrize(
    "text",
    [
        "\U0001f469\u200d\U0001f4bb", "\u2764\ufe0f", "\U0001f469\U0001f3fd\u200d\U0001f680",
        "\u0645\u06cc\u200c\u062e", "10\u202fkm", "\u5c71\u3000\u5ddd",
    ],
)  # fmt: skip
def test_emoji_letters_that_are_joined_and_typographic_spaces_stay(text: str) -> None:
    assert escape_unprintable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\rb\nc\td", "a\\rb\\nc\\td"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202egnp.exe", "a\\u202egnp.exe"),
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("\u200fx\u061c", "\\u200fx\\u061c"),
        ("\ufeffx\u2028", "\\ufeffx\\u2028"),
        ("x\U000e0041", "x\\U000e0041"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_acts_on_a_terminal_or_changes_the_direction_is_escaped(text: str, shown: str) -> None:
    assert escape_unprintable(text) == shown


def test_the_ends_of_lines_stay_where_they_are_wanted() -> None:
    assert escape_unprintable("a\n\tb\r", keep="\n\t") == "a\n\tb\\r"


@given(st.text())
def test_what_is_shown_can_be_encoded_and_has_no_control_character(text: str) -> None:
    shown = escape_unprintable(text)
    shown.encode()
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in shown)
