"""The days of a usage report."""

from typing import Any

import pytest

from router.errors import ApiError
from router.store.admin.usage_period import usage_days

TODAY = "2028-03-01"


def days(**given: str) -> list[str]:
    return usage_days(TODAY, 400, **given)


def test_the_default_is_thirty_days_up_to_today() -> None:
    assert (len(days()), days()[0], days()[-1]) == (30, TODAY, "2028-02-01")  # February has 29 days


def test_days_go_back_over_the_ends_of_months_and_leap_days() -> None:
    assert days(days="3") == ["2028-03-01", "2028-02-29", "2028-02-28"]
    assert days(first="2027-12-31", last="2028-01-01") == ["2028-01-01", "2027-12-31"]
    assert days(first="2028-02-29") == ["2028-03-01", "2028-02-29"]
    assert days(last="2027-02-28") == ["2027-02-28"]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"days": "0"}, "days"), ({"days": "401"}, "days"), ({"days": "x"}, "days"), ({"days": "\uff11"}, "days"),
        ({"days": "9" * 50}, "days"), ({"days": "1", "first": TODAY}, "days"), ({"first": "2028-02-30"}, "from"),
        ({"first": "20280101"}, "from"), ({"first": "2028-W01-1"}, "from"), ({"last": ""}, "to"),
        ({"first": "2028-03-02"}, "from"), ({"first": "2027-01-26"}, "from"),
        ({"first": "2028-01-02", "last": "2028-01-01"}, "from"),
    ],
)  # fmt: skip
def test_wrong_days_are_refused_with_the_parameter(given: Any, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        days(**given)
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, param, "invalid_query")
