"""What Redis has about API keys, whoever wrote it."""

import msgspec
import pytest

from router.core.api_keys import MAX_KEYS, KeyRecord, encode_record, hash_key
from router.shared.credentials.key_records import decode_presences, decode_records


@pytest.mark.parametrize("fields", [{"version": 10**14}, {"version": -1}, {"pid": 10**30}, {"host": 1}])
def test_a_presence_that_no_process_has_written_confirms_nothing(fields: dict[str, int]) -> None:
    written = {"host": "a", "pid": 1, "version": 1, "at": 0}
    assert set(decode_presences([b"x", msgspec.json.encode(written)])) == {"x"}
    assert decode_presences([b"x", msgspec.json.encode(written | fields)]) == {}


def test_records_that_cannot_be_decoded_take_one_line_and_no_places(caplog: pytest.LogCaptureFixture) -> None:
    foreign = [word for number in range(3 * MAX_KEYS) for word in (b"%08x" % number, b"{}")]
    made = KeyRecord(hash=hash_key(b"a"), tenant="acme", name="ci", created=0)
    assert decode_records([*foreign, made.id.encode(), encode_record(made)]).by_id == {made.id: made}
    assert caplog.messages == [f"ignored {3 * MAX_KEYS:,} records of API keys in Redis that cannot be decoded"]
