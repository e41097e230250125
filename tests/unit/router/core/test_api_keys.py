"""Records of API keys: their encoding, and how the records of several processes merge."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.api_keys import (
    MAX_RECORD,
    RETENTION,
    KeyRecord,
    decode_record,
    encode_record,
    find_records,
    hash_key,
    is_key_name,
    merge_records,
)

NOW: Final = 1_800_000_000.0
DAY: Final = 86400.0

_times = st.one_of(st.none(), st.floats(NOW - 90 * DAY, NOW + 90 * DAY))
records = st.builds(
    KeyRecord,
    hash=st.sampled_from([hash_key(key) for key in (b"a", b"b", b"c")]),
    tenant=st.from_regex(r"[a-z0-9._-]{1,64}", fullmatch=True),
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
    created=st.floats(0, NOW),
    expires=_times,
    revoked=_times,
)
by_id = st.lists(records, max_size=3).map(lambda found: {record.id: record for record in found})


def record(key: bytes = b"a", **fields: float | str | None) -> KeyRecord:
    return KeyRecord(**{"hash": hash_key(key), "tenant": "acme", "name": "ci", "created": NOW, **fields})  # type: ignore[arg-type]  # fields as a test needs them


@given(records)
def test_a_record_is_decoded_as_it_was_encoded(stored: KeyRecord) -> None:
    encoded = encode_record(stored)
    assert len(encoded) <= MAX_RECORD
    assert decode_record(stored.id.encode(), encoded) == stored
    assert decode_record(b"00000000", encoded) is None


@given(st.one_of(st.binary(max_size=200), records.map(encode_record)), st.integers(0, 300), st.binary(max_size=3))
def test_bytes_that_are_no_record_are_none_and_never_an_error(value: bytes, position: int, inserted: bytes) -> None:
    changed = value[:position] + inserted + value[position + len(inserted) :]
    decoded = decode_record(b"ca978112", changed)
    assert decoded is None or decoded.id == "ca978112"


def test_a_record_over_the_bound_is_not_decoded() -> None:
    value = encode_record(record())
    assert decode_record(record().id.encode(), value + b" " * (MAX_RECORD - len(value))) == record()
    assert decode_record(record().id.encode(), value + b" " * (MAX_RECORD - len(value) + 1)) is None


# -- merging ----------------------------------------------------------------------------------------------------------


@given(by_id, by_id)
def test_after_redis_has_the_lost_records_nothing_more_is_lost(
    known: dict[str, KeyRecord], stored: dict[str, KeyRecord]
) -> None:
    merged, lost = merge_records(known, stored, NOW)
    written = stored | {record.id: record for record in lost}
    assert merge_records(merged, written, NOW) == (merged, [])
    assert written == merged


@given(by_id, by_id)
def test_a_key_that_either_side_knows_as_revoked_is_not_valid(
    known: dict[str, KeyRecord], stored: dict[str, KeyRecord]
) -> None:
    merged, _ = merge_records(known, stored, NOW)
    same_key = {id_ for id_ in merged if id_ not in known or id_ not in stored or known[id_].hash == stored[id_].hash}
    for side in (known, stored):
        revoked = {id_ for id_, each in side.items() if each.revoked is not None}
        assert not [id_ for id_ in revoked & same_key if merged[id_].is_valid(NOW)]


def test_a_record_that_redis_lost_is_written_again_unless_its_key_has_ended() -> None:
    valid, revoked = record(b"a"), record(b"b", revoked=NOW - DAY)
    ended = [record(b"c", expires=NOW), record(b"d", revoked=NOW - RETENTION - 1)]
    merged, lost = merge_records({each.id: each for each in (valid, revoked, *ended)}, {}, NOW)
    assert lost == [valid, revoked] == list(merged.values())


def test_a_revocation_that_a_failover_lost_is_written_again() -> None:
    merged, lost = merge_records({record().id: record(revoked=NOW)}, {record().id: record()}, NOW)
    assert lost == [record(revoked=NOW)] == list(merged.values())


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ci", "CI-2", "a" * 64, "1234567", "123456789", "abcdefgh", "laptop.of_bob"])
def test_a_name_is_a_word(name: str) -> None:
    assert is_key_name(name)


@pytest.mark.parametrize("name", ["", "a" * 65, "-ci", "a b", "a\n", "é", "a:b", "12345678", "deadbeef", "a\x1b"])
def test_a_name_is_not_like_an_id_or_a_text(name: str) -> None:
    assert not is_key_name(name)


def test_a_key_is_found_by_its_id_or_by_the_name_that_it_has_while_it_is_not_revoked() -> None:
    ci, old_ci, of_beta = record(b"a"), record(b"b", revoked=NOW), record(b"c", tenant="beta")
    everything = [ci, old_ci, of_beta]
    assert find_records(everything, old_ci.id) == [old_ci]
    assert find_records(everything, "ci") == [ci, of_beta]
    assert find_records(everything, "ci", "beta") == [of_beta]
    assert find_records(everything, "c") == []
