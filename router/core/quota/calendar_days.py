"""The calendar of UTC in integers: the core has no module that reads a clock, such as datetime.

Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days and days_from_civil. The years of
these algorithms begin in March, so that a leap day is the last day of a year.
"""

from typing import Final, NamedTuple

_EPOCH: Final = 719_468  # days from 1 March of year 0 to 1 January 1970
_DAYS_OF_ERA: Final = 146_097  # of 400 years


class Date(NamedTuple):
    """`month` and `day` from 1."""

    year: int
    month: int
    day: int

    def __str__(self) -> str:
        return f"{self.year:04}-{self.month:02}-{self.day:02}"


def date_of(days: int) -> Date:
    """`days` since 1 January 1970."""
    era, of_era = divmod(days + _EPOCH, _DAYS_OF_ERA)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153  # 0 is March
    day = of_year - (153 * month + 2) // 5 + 1
    return Date(era * 400 + year + (month >= 10), month + 3 if month < 10 else month - 9, day)


def first_day_of(year: int, month: int) -> int:
    """The first day of a month, in days since 1 January 1970. `month` from 1."""
    of_march_year = year - (month <= 2)
    era, year_of_era = divmod(of_march_year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5
    of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + of_year
    return era * _DAYS_OF_ERA + of_era - _EPOCH
