"""The hours in which the lines of batches run."""

import pytest

from router.core.batches.hours import Hours, parse_hours


@pytest.mark.parametrize(
    ("text", "times", "others"),
    [
        ("22:00-06:00", [(22, 0), (23, 59), (0, 0), (5, 59)], [(6, 0), (12, 0), (21, 59)]),
        ("09:30-17:00", [(9, 30), (16, 59)], [(9, 29), (17, 0), (0, 0)]),
        ("00:00-00:00", [(0, 0), (12, 0), (23, 59)], []),
        ("00:00-01:00", [(0, 0), (0, 59)], [(1, 0), (23, 59)]),
    ],
)
def test_hours_may_pass_midnight(text: str, times: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    hours = parse_hours(text)
    assert isinstance(hours, Hours)
    assert [time for time in times + others if hours.has(*time)] == times


@pytest.mark.parametrize("text", ["", "22-06", "24:00-06:00", "22:60-06:00", "22:00-06:00 ", "22:00", "2:00-6:00"])
def test_other_words_are_no_hours(text: str) -> None:
    assert parse_hours(text) is None
