"""Which of the requests in Redis are shown."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from router.shared.status.latest_requests import RequestFilter, decode_requests
from router.shared.status.status_documents import RequestRow
from tests.support.status_factory import request_row

NAMES = st.sampled_from(["acme", 'a"tenant":"acme"', "ä", "\\", '","cache":"HIT"', '"status":200,'])
MAYBE = st.none() | NAMES
ROWS = st.builds(
    request_row, st.integers(1, 9), request_id=NAMES, tenant=NAMES, model=MAYBE, key_id=MAYBE, reason=MAYBE,
    cache=st.sampled_from(["HIT", "MISS", None]), status=st.sampled_from([200, 429, 502]),
    outcome=st.sampled_from(["complete", "failed"]), notable=st.booleans(),
)  # fmt: skip
FILTERS = st.builds(
    RequestFilter, request_id=MAYBE, tenant=MAYBE, model=MAYBE, key_id=MAYBE, failed=st.booleans(), slow=st.booleans(),
    hits=st.booleans(),
)  # fmt: skip


def encoded(rows: list[RequestRow]) -> list[bytes]:
    return [msgspec.json.encode(row) for row in rows]


@given(ROWS, FILTERS)
def test_a_row_is_found_by_its_json_exactly_if_the_filter_shows_it(row: RequestRow, shown: RequestFilter) -> None:
    assert decode_requests([encoded([row])], shown) == ([row] if shown.shows(row) else [])


def test_the_newest_are_shown_of_each_kind_up_to_the_limit_and_each_once() -> None:
    rows = [request_row(number) for number in range(1, 7)]
    assert decode_requests([encoded(rows[:4]), encoded(rows[1:])], limit=3) == rows[:4]


def test_a_value_that_is_no_row_takes_no_place_of_one_that_is() -> None:
    row = request_row(1, tenant="acme")
    values = [b'{"tenant":"acme"}', b"\xff", *encoded([row])]
    assert decode_requests([values], RequestFilter(tenant="acme"), limit=1) == [row]
