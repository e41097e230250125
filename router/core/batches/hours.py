"""`batch.hours`: when the lines of batches run, as in `22:00-06:00`, by the clock of the wall."""

import re
from typing import Final, NamedTuple

_FORM: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])")


class Hours(NamedTuple):
    """In minutes of the day. `last` is not among them. The same for both: all day."""

    first: int
    last: int

    def has(self, hour: int, minute: int) -> bool:
        now = 60 * hour + minute
        if self.first < self.last:
            return self.first <= now < self.last
        return now >= self.first or now < self.last


def parse_hours(text: str) -> Hours | None:
    """None for another form."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    first_hour, first_minute, last_hour, last_minute = map(int, match.groups())
    return Hours(60 * first_hour + first_minute, 60 * last_hour + last_minute)
