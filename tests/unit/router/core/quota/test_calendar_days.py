"""The calendar in integers is that of datetime."""

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from router.core.quota.calendar_days import date_of, first_day_of

EPOCH = dt.date(1970, 1, 1)


@given(st.dates())
def test_a_day_has_the_date_of_the_calendar(date: dt.date) -> None:
    found = date_of((date - EPOCH).days)
    assert (found.year, found.month, found.day) == (date.year, date.month, date.day)
    assert str(found) == date.isoformat()
    assert first_day_of(date.year, date.month) == (date.replace(day=1) - EPOCH).days


def test_a_century_is_a_leap_year_only_every_400_years() -> None:
    for year, leaps in ((1900, False), (2000, True), (2024, True), (2026, False), (2100, False), (2400, True)):
        assert first_day_of(year, 3) - first_day_of(year, 2) == 28 + leaps
