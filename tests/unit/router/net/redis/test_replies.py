"""Replies of any form: they are decoded, or UnexpectedReplyError is raised; nothing else."""

import contextlib
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from router.net.redis.clock import RedisClock
from router.net.redis.errors import UnexpectedReplyError
from router.net.redis.replies import decode_reply, hash_fields, integers, stream_records
from router.net.redis.slots import parse_slots
from router.shared.accounting.daily_sums import decode_fields
from router.shared.credentials.key_records import decode_presences, decode_records, decode_used, decode_version
from router.shared.engines.drains import decode_drains
from router.shared.engines.start_times import decode_starts
from router.shared.inflight.claim import Claim
from router.shared.quota.budgets import decode_use
from router.shared.quota.rate_limit_script import decode_status
from router.shared.status.router_snapshots import decode_snapshots
from router.shared.status.traffic import decode_counts

SCALARS: Final = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary(max_size=8)
    | st.sampled_from([b"1-0", b"2-0", b"version", b"drained 1", b"9" * 5000, ResponseError("x")])
)  # fmt: skip
FORMS: Final = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.binary(max_size=3), inner, max_size=3)
)
DECODERS: Final[list[Callable[[Any], Any]]] = [
    Claim.decode, decode_drains, decode_fields, decode_presences, decode_records, decode_snapshots, decode_starts,
    decode_used, decode_version, decode_counts, hash_fields, stream_records,
]  # fmt: skip


@pytest.mark.parametrize("decode", DECODERS)
@given(FORMS)
def test_a_decoder_raises_only_that_the_form_is_unexpected(decode: Callable[[Any], Any], reply: Any) -> None:
    with contextlib.suppress(UnexpectedReplyError):
        decode(reply)


@given(FORMS)
def test_a_limit_and_a_budget_are_read_only_from_numbers_that_the_scripts_return(reply: Any) -> None:
    for decode, count in ((decode_status, 6), (decode_use, 7)):
        with contextlib.suppress(UnexpectedReplyError):
            decode_reply(decode, reply)
            assert len(reply) == count
            assert min(integers(reply, count)[:3]) >= 0


@pytest.mark.parametrize(
    ("decode", "reply"),
    [
        (decode_status, [4, 0, 0, 0, 0, 0]),
        (decode_status, [-1, 0, 0, 0, 0, 0]),
        (decode_status, [0, 0, True, 0, 0, 0]),
        (decode_status, [0, 0, 0, 0, 0]),
        (decode_use, [86400, 9, 0, 0, 0, 0, 0]),
        (decode_use, [86400, 1, 10**9, 0, 0, 0, 0]),
        (decode_use, [-86400, 1, 1, 0, 0, 0, 0]),
        (decode_use, {b"day": 1}),
        (hash_fields, [b"a"]),
        (hash_fields, 5),
        (stream_records, [[b"1-0", None]]),
        (stream_records, [[b"1", []]]),
        (stream_records, [[b"9" * 5000 + b"-0", []]]),
    ],
)
def test_what_no_script_of_ours_returns_is_unexpected(decode: Callable[[Any], Any], reply: Any) -> None:
    with pytest.raises(UnexpectedReplyError):
        decode_reply(decode, reply)


@pytest.mark.parametrize(
    "row",
    [
        [0, 16384, [b"a", 7000]],
        [0, 100_000_000, [b"a", 7000]],
        [-1, 5, [b"a", 7000]],
        [5, 4, [b"a", 7000]],
        [0, 5, [b"a", 65536]],
        [0, 5, [b"a", 0]],
        [0, 5, [b"a", None]],
        [0, 5, [7, 7000]],
        [0, 5],
        7,
    ],
)
def test_a_map_with_slots_or_ports_that_do_not_exist_is_unexpected(row: Any) -> None:
    with pytest.raises(UnexpectedReplyError):
        decode_reply(lambda reply: parse_slots(reply, "b"), [[0, 100, [b"a", 7000]], row])


@given(FORMS)
def test_the_clock_takes_no_time_that_is_none(reply: Any) -> None:
    clock = RedisClock(wall=lambda: 1000.0, monotonic=lambda: 5.0)
    clock.update(reply, 5.0)
    assert 0 <= clock.now() < 1e11
