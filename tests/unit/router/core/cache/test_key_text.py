"""The text of a key is made of its parts and can be parsed into them."""

import msgspec
import pytest

from router.core.cache.key_parts import KeyParts
from router.core.cache.redis_keys import (
    DRAINS_KEY,
    PURGE_LOG_KEY,
    breaker_key,
    claim_key,
    claimed_entry_key,
    flight_key,
    hits_key,
    limit_key,
    probe_key,
)  # fmt: skip
from tests.support.factories import conversation, derive_key

KEY = derive_key(conversation(("system", "Be brief."), ("user", "Why?")))


def test_a_derived_key_is_parsed_into_its_parts() -> None:
    assert (KEY.parts.tenant, KEY.parts.model) == KEY.canonical_parts[:2]
    assert KEY.parts == KeyParts.parse(KEY.text)
    assert KEY.parts.text == KEY.text == "rh:1:" + ":".join(msgspec.structs.astuple(KEY.parts))


def test_the_key_of_a_claim_contains_the_parts_of_its_entry() -> None:
    assert KeyParts.parse(claimed_entry_key(claim_key(KEY.text))) == KEY.parts


@pytest.mark.parametrize(
    "key",
    [
        "", "rh:1:", "foreign:key", "a:b:c:d:e", "rh:2:a:b:c:d:e", "rh:1:a:b:c:d", KEY.text + ":more", PURGE_LOG_KEY,
        DRAINS_KEY, claim_key(KEY.text), flight_key(KEY.text, "1"), hits_key("a"), limit_key("a"), breaker_key("a"),
        probe_key("a"),
    ],
)  # fmt: skip
def test_a_text_that_is_not_an_entrys_key_has_no_parts(key: str) -> None:
    assert KeyParts.try_parse(key) is None
    with pytest.raises(ValueError, match="not the key of an entry"):
        KeyParts.parse(key)
