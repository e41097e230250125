"""The sums and percentiles of the history, out of counts in Redis."""

import pytest

from router.shared.status.traffic import (
    MINUTE,
    add_commands,
    decode_counts,
    first_token_name,
    last_hour,
    minute_of,
    minute_row,
)


def bucket(lower: str, upper: str, result: str = "HIT") -> str:
    return first_token_name(result, lower, upper)


def test_a_minute_without_traffic_has_zeros_and_unknown_times() -> None:
    row = minute_row(7, {})
    assert (row.at, row.requests, row.gpu_seconds_saved) == (7 * MINUTE, 0, 0.0)
    assert (row.ttft_ms.hit.p50, row.ttft_ms.miss.p99) == (None, None)
    assert last_hour([]).hit_ratio is None


def test_seconds_are_stored_in_milliseconds() -> None:
    assert minute_row(7, {"gpu_seconds_spent": 1250}).gpu_seconds_spent == 1.25


def test_percentiles_are_interpolated_within_their_bucket() -> None:
    # As Prometheus: rank 1 of 2 is the end of the first bucket, and rank 1.98 is 98 % into the second.
    times = minute_row(0, {bucket("0.1", "0.25"): 1, bucket("0.5", "1.0"): 1}).ttft_ms.hit
    assert times.p50 == 250
    assert times.p99 == pytest.approx(1000 * (0.5 + 0.5 * 0.98))


def test_a_percentile_beyond_the_last_bound_is_that_bound() -> None:
    assert minute_row(0, {bucket("300.0", "+Inf"): 3}).ttft_ms.hit.p50 == 300_000


def test_times_are_apart_by_cache_result_and_together_in_the_last_hour() -> None:
    counts = {bucket("0", "0.001"): 9, bucket("1.0", "2.5", "MISS"): 1, bucket("5.0", "10.0", "BYPASS"): 90}
    times = minute_row(0, counts).ttft_ms
    assert times.hit.p99 is not None and times.hit.p99 <= 1  # noqa: PT018 - for mypy
    assert times.miss.p50 == 1750
    hour = last_hour([counts, counts])
    assert hour.ttft_p50_ms is not None and 5000 < hour.ttft_p50_ms < 10_000  # noqa: PT018 - for mypy


def test_the_hit_ratio_is_of_what_was_looked_up() -> None:
    hour = last_hour([{"hits": 2, "misses": 1, "bypass": 50}, {"coalesced": 1}])
    assert (hour.hit_ratio, hour.hits, hour.bypass) == (0.5, 2, 50)


def test_what_is_no_count_is_left_out() -> None:
    reply = {b"requests": b"3", b"hits": b"many", b"misses": b"-1", b"stale": b"9" * 30, b"\xff": b"1"}
    counts = decode_counts(reply)
    assert counts["requests"] == 3
    assert not {"hits", "misses", "stale"} & set(counts)
    # Also as a list, as Redis sends hashes in its older protocol; and a key that is missing.
    assert decode_counts([b"requests", b"3"]) == {"requests": 3}
    assert decode_counts({}) == decode_counts(None) == {}
    assert minute_row(0, {"ttft/HIT/x/1": 1, "ttft/HIT/1": 1, "ttft": 1}).ttft_ms.hit.p50 is None


def test_every_minute_expires() -> None:
    assert add_commands(minute_of(125.0), {"hits": 2}) == [
        ("HINCRBY", "rh:1:traffic:2", "hits", 2), ("EXPIRE", "rh:1:traffic:2", 7260),
    ]  # fmt: skip
