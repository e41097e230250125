"""Cache directives of clients."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.cache_control import NO_DIRECTIVES, CacheControl, parse_cache_control
from router.errors import ApiError


@pytest.mark.parametrize(
    ("header", "meant"),
    [
        (b"", NO_DIRECTIVES),
        (b"no-store", CacheControl(no_store=True)),
        (b"no-cache", CacheControl(no_cache=True)),
        (b"only-if-cached", CacheControl(only_if_cached=True)),
        (b"max-age=60", CacheControl(max_age=60)),
        (b'max-age="60"', CacheControl(max_age=60)),
        (b"max-age=0", CacheControl(max_age=0)),
        (b"No-Store , NO-CACHE", CacheControl(no_store=True, no_cache=True)),
        (b"no-cache,,  max-age = 5", CacheControl(no_cache=True, max_age=5)),
        (b"max-stale=10", CacheControl(max_stale=10)),
        (b"max-stale", CacheControl(max_stale=inf)),
        (b"max-age=1, max-stale=0", CacheControl(max_age=1, max_stale=0)),
        (b"min-fresh=10, no-transform, private, x=y", NO_DIRECTIVES),
        (b"max-stale=soon", NO_DIRECTIVES),
        (b"no-storex, x-no-cache", NO_DIRECTIVES),
    ],
)
def test_directives_are_parsed_as_rfc_9111_defines_them(header: bytes, meant: CacheControl) -> None:
    assert parse_cache_control(header, None) == meant


@pytest.mark.parametrize("age", [b"", b"soon", b"-1", b"1.5", b"99999999999999999999"])
def test_an_age_that_is_not_a_number_is_ignored(age: bytes) -> None:
    assert parse_cache_control(b"max-age=" + age, None) == CacheControl(max_age=0)


@pytest.mark.parametrize("by", [b"soon", b"-1", b"1.5", b"99999999999999999999"])
def test_a_staleness_that_is_not_a_number_is_ignored(by: bytes) -> None:
    assert parse_cache_control(b"max-stale=" + by, None) == NO_DIRECTIVES


def test_the_time_to_live_is_a_whole_number_of_seconds() -> None:
    assert parse_cache_control(b"", b"30") == CacheControl(ttl=30)
    assert parse_cache_control(b"no-cache", b"0") == CacheControl(no_cache=True, ttl=0)


@pytest.mark.parametrize("ttl", [b"", b"soon", b"-1", b"1.5", b"1h", b"99999999999999999999"])
def test_another_time_to_live_is_the_clients_error(ttl: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_cache_control(b"", ttl)
    assert (caught.value.status, caught.value.param) == (400, "X-Cache-TTL")


@given(st.binary(max_size=80))
def test_any_header_can_be_parsed(header: bytes) -> None:
    assert isinstance(parse_cache_control(header, None), CacheControl)
