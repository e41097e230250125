"""What is read of the audit: whatever stands in the stream is an entry or none, and never an error."""

from hypothesis import given
from hypothesis import strategies as st

from router.shared.audit.audit_chain import link
from router.shared.audit.audit_stream import StoredEntry, decode_entry, decode_page

NAMES = [b"at", b"actor", b"action", b"subject", b"details", b"router", b"number", b"previous", b"hash", b"other"]
WORDS = st.binary(max_size=30) | st.sampled_from([b"1", b"9" * 400, b"{}", b"[" * 3000, b'{"a": 1e999}', b"0" * 64])
ENTRY = {
    b"at": b"1796000000123", b"actor": b"key 0f786551", b"action": b"drain", b"subject": b"e1",
    b"details": b'{"everywhere":true}', b"router": b"host:1",
}  # fmt: skip


@given(st.dictionaries(st.sampled_from(NAMES), WORDS))
def test_whatever_stands_there_is_read(fields: dict[bytes, bytes]) -> None:
    decode_entry(StoredEntry("1-0", fields))
    changed = decode_entry(StoredEntry("1-0", link({**ENTRY, **fields}, None)))
    assert changed is None or changed.number == 1


def test_an_entry_is_read_as_it_was_written() -> None:
    entry = decode_entry(StoredEntry("7-0", link(ENTRY, None)))
    assert entry is not None
    assert (entry.id, entry.at, entry.actor, entry.action) == ("7-0", 1796000000.123, "key 0f786551", "drain")
    assert (entry.subject, entry.details, entry.router) == ("e1", {"everywhere": True}, "host:1")


def test_what_is_too_long_is_not_read() -> None:
    assert decode_entry(StoredEntry("7-0", link({**ENTRY, b"actor": b"x" * 20_000}, None))) is None


def test_an_entry_with_two_fields_of_one_name_is_none() -> None:
    words = [word for field in link(ENTRY, None).items() for word in field]
    forged = [b"actor", b"nobody", *words]
    page = decode_page([(b"1-0", words), (b"2-0", forged)])
    assert [decode_entry(stored) is not None for stored in page] == [True, False]
