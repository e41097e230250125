"""Numbers are short, and fit their columns."""

import pytest

from router.commands.top.formats import count, milliseconds, percent, seconds, sparkline
from router.commands.top.table import share_lines


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "?"), (0, "0"), (9999, "9,999"), (9999.6, "10.0k"), (12_345, "12.3k"), (999_940, "999.9k"),
        (999_960, "1.0M"), (5.4e9, "5.4G"), (2.5e15, "2,500.0T"),
    ],
)  # fmt: skip
def test_a_count_is_short(number: float | None, text: str) -> None:
    assert count(number) == text


@pytest.mark.parametrize(
    ("number", "text"), [(None, "?"), (0.42, "0.4ms"), (41.2, "41ms"), (9_999, "9999ms"), (12_500, "12.5s")]
)
def test_a_time_has_its_unit(number: float | None, text: str) -> None:
    assert milliseconds(number) == text


def test_a_share_is_a_percentage_and_seconds_have_a_digit_while_they_are_few() -> None:
    assert [percent(None), percent(0.005), percent(1.0)] == ["?", "0%", "100%"]
    assert [seconds(0.0), seconds(99.94), seconds(12_345)] == ["0.0s", "99.9s", "12.3ks"]


def test_a_sparkline_shows_the_last_values_relative_to_the_highest() -> None:
    assert sparkline([0, 1, 2, 4, 8], 10) == "▁▂▃▅█"
    assert sparkline([9, 0, 1], 2) == "▁█"
    assert sparkline([0, 0, 0], 10) == "▁▁▁"
    assert sparkline([], 10) == sparkline([1, 2], 0) == sparkline([1, 2], -3) == ""
    assert sparkline([0, 8], 10, ascii_only=True) == "_#"


@pytest.mark.parametrize(
    ("available", "wanted", "shares"),
    [
        (10, [2, 2, 50], [2, 2, 6]), (9, [50, 50, 50], [3, 3, 3]), (0, [5, 0, 5], [1, 0, 1]),
        (100, [2, 3, 4], [2, 3, 4]),
    ],
)  # fmt: skip
def test_lines_are_divided_fairly_and_none_is_wasted(available: int, wanted: list[int], shares: list[int]) -> None:
    assert share_lines(available, wanted) == shares
