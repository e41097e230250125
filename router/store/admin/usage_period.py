"""The days of a usage report, in UTC."""

import datetime as dt

from router.errors import ApiError, bad_request


def usage_days(
    today: str, max_days: int, *, days: str | None = None, first: str | None = None, last: str | None = None
) -> list[str]:
    """The days that the parameters name, as YYYY-MM-DD, the latest first.

    `days`: how many up to today, 30 without any parameter. `first`, `last`: the first and the last day; without
    `last`, up to today; without `first`, that day alone. Raises ApiError (400) if they are wrong, exclude each other,
    or name more than `max_days`.
    """
    if days is not None and (first is not None or last is not None):
        raise bad_request("`days` cannot be combined with `from` and `to`.", param="days", code="invalid_query")
    if first is None and last is None:
        return _back_from(dt.date.fromisoformat(today), _parse_count(days or "30", max_days))
    end = _parse_day(last, "to") if last is not None else dt.date.fromisoformat(today)
    start = _parse_day(first, "from") if first is not None else end
    count = (end - start).days + 1
    if not 1 <= count <= max_days:
        raise bad_request(
            f"`from` must be a day up to `to`, and they may name at most {max_days} days.",
            param="from", code="invalid_query",
        )  # fmt: skip
    return _back_from(end, count)


def _back_from(day: dt.date, count: int) -> list[str]:
    return [(day - dt.timedelta(days=back)).isoformat() for back in range(count)]


def _parse_count(text: str, largest: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= largest):
        raise _wrong("days", f"an integer from 1 to {largest}")
    return int(text)


def _parse_day(text: str, param: str) -> dt.date:
    try:
        # fromisoformat takes other forms, too, such as 20260101 and 2026-W01-1.
        return dt.datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=dt.UTC).date()
    except ValueError:
        raise _wrong(param, "a day such as 2026-01-31") from None


def _wrong(param: str, what: str) -> ApiError:
    return bad_request(f"`{param}` must be {what}.", param=param, code="invalid_query")
