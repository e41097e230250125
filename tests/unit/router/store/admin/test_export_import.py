"""Entries survive export and import unchanged, with their remaining lifetime."""

import json
import time
from typing import Any

import pytest

from router.core.cache.entry_filter import EntryFilter
from router.store.admin import export_import as transfer
from router.store.admin.export_import import (
    ExportResult,
    ImportLineError,
    ImportResult,
    export_entries,
    import_entries,
    read_lines,
)
from router.store.codec import checksum
from tests.support.entry_factory import entry_key, make_entry, make_streamed_entry, redis_fields_format_1, store_entry

pytestmark = pytest.mark.asyncio(loop_scope="session")

ALL = EntryFilter(all=True)


async def exported(client: Any, scope: EntryFilter = ALL) -> list[bytes]:
    lines: list[bytes] = []
    counts = await export_entries(client, scope, lines.append)
    assert counts.entries == len(lines)
    return lines


async def contents(client: Any) -> dict[bytes, Any]:
    """The entries, without the purge positions of their writers."""
    entries = {name: await client.hgetall(name) for name in await client.keys("rh:1:[^p]*")}
    return {name: {**fields, b"purges": b""} for name, fields in entries.items()}


async def test_exported_entries_are_imported_byte_for_byte(client: Any) -> None:
    await store_entry(
        client, entry_key(1), make_entry(body="für alle".encode(), documents=("a",), question="q" * 16, params="p" * 16)
    )
    await store_entry(client, entry_key(2, tenant="other"), make_entry(stream=b"=\xff\x00\r\n\n"))
    before = await contents(client)
    lines = await exported(client)
    await client.flushall()
    assert await import_entries(client, lines) == ImportResult(stored=2, expired=0, older=0)
    assert await contents(client) == before


async def test_an_entry_is_one_readable_line_of_json(client: Any) -> None:
    entry = make_streamed_entry("für alle")
    at = await store_entry(client, entry_key(), entry)
    (line,) = await exported(client)
    decoded = json.loads(line)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert (decoded["key"], decoded["fields"]["body"].encode()) == (at, entry.body)
    assert all(isinstance(value, str) for value in decoded["fields"].values())


async def test_bytes_that_no_router_writes_are_exported_as_base64(client: Any) -> None:
    await store_entry(client, entry_key(), make_entry(stream=b"\xff"))
    (line,) = await exported(client)
    assert json.loads(line)["fields"]["stream"] == {"base64": "/w=="}


async def test_only_entries_that_match_the_filter_are_exported(client: Any) -> None:
    await store_entry(client, entry_key(1))
    await store_entry(client, entry_key(2, tenant="other"))
    await client.set("foreign", "x")
    assert [json.loads(line)["key"] for line in await exported(client, EntryFilter(tenant="other"))] == [
        entry_key(2, tenant="other")
    ]


async def test_keys_that_are_not_entries_are_skipped_and_counted(client: Any) -> None:
    await store_entry(client, entry_key(1))
    await client.hset(entry_key(2), "digest", "only")
    await client.set(entry_key(3), "a string")
    lines: list[bytes] = []
    assert await export_entries(client, ALL, lines.append) == ExportResult(entries=1, left_out=2)


async def test_an_imported_entry_expires_when_it_would_have(client: Any) -> None:
    await store_entry(client, entry_key(), expires=1000)
    (line,) = await exported(client)
    decoded = json.loads(line)
    assert decoded["expires"] == pytest.approx(time.time() + 1000, abs=2)
    decoded["expires"] -= 600  # as if the file were that old
    await client.flushall()
    await import_entries(client, [json.dumps(decoded).encode()])
    assert await client.pttl(entry_key()) == pytest.approx(400_000, abs=2000)


async def test_an_entry_that_expired_meanwhile_is_not_stored(client: Any) -> None:
    await store_entry(client, entry_key())
    (line,) = await exported(client)
    await client.flushall()
    line = json.dumps({**json.loads(line), "expires": time.time() - 1}).encode()
    assert await import_entries(client, [line]) == ImportResult(stored=0, expired=1, older=0)
    assert not await client.exists(entry_key())


async def test_an_entry_as_new_or_newer_remains_and_an_older_or_broken_one_is_replaced(client: Any) -> None:
    now = time.time()
    await store_entry(client, entry_key(1), make_entry(created=now))
    await store_entry(client, entry_key(2), make_entry(created=now))
    await store_entry(client, entry_key(3), make_entry(created=now))
    await store_entry(client, entry_key(4), make_entry(created=now))
    await store_entry(client, entry_key(5), make_entry(created=now))
    lines = await exported(client)
    await store_entry(client, entry_key(2), make_entry(created=now + 10, body=b"newer"))
    await store_entry(client, entry_key(3), make_entry(created=now - 10, body=b"older", stream=b"which went"))
    await client.hset(entry_key(4), "created", "nonsense")
    await client.delete(entry_key(5))
    await client.set(entry_key(5), "a string")
    assert await import_entries(client, lines) == ImportResult(stored=3, expired=0, older=2)
    assert await client.hget(entry_key(2), "body") == b"newer"
    assert await client.hget(entry_key(3), "body") == b'{"a": 1}'
    assert not await client.hexists(entry_key(3), "stream")
    assert await client.hget(entry_key(5), "body") == b'{"a": 1}'
    assert await import_entries(client, lines) == ImportResult(stored=0, expired=0, older=5), "twice does no harm"


GOOD = {
    "key": entry_key(), "expires": 9e9,
    "fields": {
        "digest": "d", "model": "m", "engine": "e", "task": "chat", "created": "1", "ttl": "1", "prompt_tokens": "1",
        "completion_tokens": "1", "generation_ms": "1", "body": "{}", "checksum": checksum(b"{}", None), "format": "2",
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense", b"[]", b"{}", b"\xff", b"[" * 100_000, json.dumps({**GOOD, "key": "foreign"}).encode(),
        json.dumps({**GOOD, "key": "rh:1:purge"}).encode(), json.dumps({**GOOD, "expires": -1}).encode(),
        json.dumps({**GOOD, "expires": 1e300}).encode(), json.dumps({**GOOD, "fields": {}}).encode(),
        json.dumps({**GOOD, "more": 1}).encode(), json.dumps({**GOOD, "fields": {"body": {"base64": "!"}}}).encode(),
        json.dumps({**GOOD, "fields": {**GOOD["fields"], "created": "nan"}}).encode(),  # type: ignore[dict-item]
    ],
    ids=range(13),
)  # fmt: skip
async def test_an_invalid_line_is_refused_with_its_number(client: Any, line: bytes) -> None:
    good = json.dumps(GOOD).encode()
    with pytest.raises(ImportLineError, match="line 3: ") as caught:
        await import_entries(client, [good, b"\n", line, good])
    assert len(str(caught.value)) < 300
    assert await client.exists(entry_key()), "the lines before it are stored"


async def test_a_line_of_another_format_is_refused_and_the_format_named(client: Any) -> None:
    old = {name.decode(): value.decode() for name, value in redis_fields_format_1(make_streamed_entry()).items()}
    newer = {**GOOD["fields"], "format": "3"}  # type: ignore[dict-item]
    for fields, format_ in ((old, 1), (newer, 3)):
        message = f"line 2: written in format {format_}; this router reads format 2"
        with pytest.raises(ImportLineError, match=f"^{message}$"):
            await import_entries(client, [json.dumps(GOOD).encode(), json.dumps({**GOOD, "fields": fields}).encode()])


async def test_an_entry_of_another_format_is_not_exported(client: Any) -> None:
    await store_entry(client, entry_key(1))
    await client.hset(entry_key(2), mapping=redis_fields_format_1(make_streamed_entry()))
    await client.expire(entry_key(2), 60)
    lines: list[bytes] = []
    assert await export_entries(client, ALL, lines.append) == ExportResult(entries=1, left_out=1)


async def test_a_line_has_a_size_limit(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "MAX_LINE", 1000)
    read = iter([json.dumps(GOOD).encode(), b"x" * 5000])
    sizes: list[int] = []

    def read_line(limit: int) -> bytes:
        sizes.append(limit)
        return next(read, b"")[:limit]

    with pytest.raises(ImportLineError, match="line 2: more than 1000 bytes"):
        await import_entries(client, read_lines(read_line))
    assert set(sizes) == {1001}


async def test_many_entries_are_transferred_and_progress_is_reported(client: Any) -> None:
    for number in range(1100):
        await store_entry(client, entry_key(number))
    seen: list[int] = []
    lines: list[bytes] = []
    await export_entries(client, ALL, lines.append, seen.append)
    assert (seen[-1], len(lines)) == (1100, 1100)
    await client.flushall()
    seen.clear()
    assert (await import_entries(client, lines, seen.append)).stored == 1100
    assert seen[-1] == 1100
    assert len(seen) > 10
