"""The files of tenants, in a folder that several processes share."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from router.shared.batches.file_folder import LEFTOVER_AGE
from router.shared.batches.file_record import (
    FileRecord,
    FolderUnusableError,
    TooManyFilesError,
    UnknownFileError,
    is_file_id,
)
from router.shared.batches.files import BatchFiles
from router.shared.batches.local_storage import LocalStorage

NOW = 1_700_000_000
HOSTILE_IDS = ["", "..", "../acme/x", "file-", "file-" + "A" * 32, "file-" + "a" * 33, "file-" + "a" * 32 + "\n",
               "/etc/passwd", "file-" + "a" * 28 + "/../", "file-" + "٣" * 32]  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def files(tmp_path: Path, clock: Clock) -> BatchFiles:
    return open_files(tmp_path, clock)


def open_files(folder: Path, clock: Callable[[], float], *, max_files: int = 100, ttl: float = 3600) -> BatchFiles:
    return BatchFiles(LocalStorage(folder / "files"), max_files=max_files, ttl=ttl, clock=clock)


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def create(files: BatchFiles, *data: bytes, tenant: str = "acme", name: str = "a.jsonl") -> FileRecord:
    return await files.create(tenant, name, "batch", pieces(*data))


def names(folder: Path) -> list[str]:
    """All files below a folder, by their suffixes."""
    return sorted(path.suffix for path in folder.rglob("*") if path.is_file())


async def test_a_file_is_on_disk_with_its_record(files: BatchFiles, tmp_path: Path) -> None:
    record = await create(files, b"{}\n", b"{}\n")
    assert is_file_id(record.id)
    path = tmp_path / "files" / "acme" / f"{record.id}.jsonl"
    assert files.name("acme", record.id) == f"acme/{record.id}.jsonl"
    assert path.read_bytes() == b"{}\n{}\n"
    assert json.loads(path.with_suffix(".json").read_bytes()) == {
        "id": record.id, "object": "file", "bytes": 6, "created_at": NOW, "expires_at": NOW + 3600,
        "filename": "a.jsonl", "purpose": "batch", "status": "processed",
    }  # fmt: skip
    assert await files.find("acme", record.id) == record


async def test_only_the_owner_of_the_process_may_read_them(files: BatchFiles, tmp_path: Path) -> None:
    await create(files, b"{}")
    for path in (tmp_path / "files").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert stat.S_IMODE((tmp_path / "files").stat().st_mode) == 0o700


async def test_another_router_finds_them(files: BatchFiles, tmp_path: Path, clock: Clock) -> None:
    record = await create(files, b"{}")
    other = open_files(tmp_path, clock)
    assert await other.find("acme", record.id) == record
    await other.delete("acme", record.id)
    with pytest.raises(UnknownFileError):
        await files.find("acme", record.id)


async def test_the_content_is_read_in_pieces_also_if_it_is_deleted_meanwhile(files: BatchFiles) -> None:
    data = os.urandom(600_000)
    record = await create(files, data)
    content = await files.open("acme", record.id)
    read = [await content.read()]
    await files.delete("acme", record.id)
    while piece := await content.read():
        read.append(piece)
    await content.aclose()
    assert b"".join(read) == data
    assert len(read) == 3


async def test_a_tenant_finds_only_its_own_files(files: BatchFiles) -> None:
    record = await create(files, b"{}")
    for attempt in (files.find, files.open, files.delete):
        with pytest.raises(UnknownFileError):
            await attempt("other", record.id)
    assert (await files.list_files("other")).records == []
    assert (await files.find("acme", record.id)).size == 2


@pytest.mark.parametrize("id_", HOSTILE_IDS)
async def test_an_id_of_another_form_is_no_part_of_a_path(files: BatchFiles, id_: str) -> None:
    await create(files, b"{}")
    for attempt in (files.find, files.open, files.delete):
        with pytest.raises(UnknownFileError):
            await attempt("acme", id_)
    with pytest.raises(UnknownFileError):
        files.name("acme", id_)


@pytest.mark.parametrize("tenant", ["", ".", "..", "../x", "a/b", "A", "/etc", "x" * 65, "a\0"])
async def test_a_tenant_whose_name_is_no_folders_has_no_files(files: BatchFiles, tmp_path: Path, tenant: str) -> None:
    with pytest.raises(ValueError, match="not the name of a tenant"):
        await create(files, b"{}", tenant=tenant)
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["../../x", "a\nb", "", "x" * 5000, "\ud7ff"])
async def test_a_filename_is_no_part_of_a_path(files: BatchFiles, tmp_path: Path, name: str) -> None:
    record = await create(files, b"{}", name=name)
    assert (await files.find("acme", record.id)).filename == name
    assert names(tmp_path) == [".json", ".jsonl"]


async def test_nothing_is_left_of_an_upload_that_fails(files: BatchFiles, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"{}"
        (unfinished,) = (tmp_path / "files" / "acme").iterdir()
        assert unfinished.name.startswith(".new-")
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        await files.create("acme", "a", "batch", broken())
    assert names(tmp_path) == []


async def test_nothing_is_left_of_an_upload_that_is_cancelled(files: BatchFiles, tmp_path: Path) -> None:
    waits = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"{}"
        waits.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(files.create("acme", "a", "batch", endless()))
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert names(tmp_path) == []


async def test_nothing_is_left_if_the_record_cannot_be_written(
    files: BatchFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("router.shared.batches.file_folder.FileFolder.publish", full)
    with pytest.raises(FolderUnusableError, match="No space left on device"):
        await create(files, b"{}")
    assert names(tmp_path) == []
    assert "batch.folder cannot be used" in caplog.text


async def test_what_a_dead_process_has_left_is_no_file_and_is_removed_a_day_later(
    files: BatchFiles, tmp_path: Path, clock: Clock
) -> None:
    kept = await create(files, b"{}")
    clock.now = (tmp_path / "files").stat().st_mtime
    id_ = "file-" + "0" * 32
    for name in (f"{id_}.jsonl", ".new-0", ".new-1"):
        (tmp_path / "files" / "acme" / name).write_bytes(b"{}")
    foreign = tmp_path / "files" / "acme" / "batch_1.part"
    foreign.write_bytes(b"")
    files = open_files(tmp_path, clock, ttl=0)
    kept = await create(files, b"{}")
    with pytest.raises(UnknownFileError):
        await files.find("acme", id_)
    await files.remove_expired()
    assert len(names(tmp_path)) == 6 + 2 - 2  # the first file has expired
    clock.now += LEFTOVER_AGE + 60
    await files.remove_expired()
    assert names(tmp_path) == [".json", ".jsonl", ".part"]
    assert await files.find("acme", kept.id) == kept


async def test_a_file_that_has_expired_is_gone_and_its_space_is_freed(
    files: BatchFiles, tmp_path: Path, clock: Clock
) -> None:
    record = await create(files, b"{}")
    other = await create(files, b"{}", tenant="other")
    clock.now += 3599
    assert await files.find("acme", record.id) == record
    assert await files.remove_expired() == 0
    clock.now += 1
    for attempt in (files.find, files.open, files.delete):
        with pytest.raises(UnknownFileError):
            await attempt("acme", record.id)
    assert (await files.list_files("acme")).records == []
    assert await files.remove_expired() == 2
    assert names(tmp_path) == []
    with pytest.raises(UnknownFileError):
        await files.find("other", other.id)


async def test_a_shorter_time_to_live_is_kept_and_a_longer_one_is_not(files: BatchFiles) -> None:
    for ttl, expected in ((60.0, 60), (7200.0, 3600), (None, 3600)):
        async with files.new_file("acme") as file:
            assert (await files.commit(file, "a", "batch", ttl)).expires_at == NOW + expected


async def test_without_a_time_to_live_a_file_never_expires(tmp_path: Path, clock: Clock) -> None:
    files = open_files(tmp_path, clock, ttl=0)
    record = await create(files, b"{}")
    assert record.expires_at is None
    clock.now += 10**9
    assert await files.find("acme", record.id) == record


async def test_a_tenant_has_no_more_than_so_many_files(tmp_path: Path, clock: Clock) -> None:
    files = open_files(tmp_path, clock, max_files=2)
    first = await create(files, b"{}")
    await create(files, b"{}")
    with pytest.raises(TooManyFilesError) as refused:
        await create(files, b"{}")
    assert refused.value.limit == 2
    await create(files, b"{}", tenant="other")
    await files.delete("acme", first.id)
    await create(files, b"{}")
    clock.now += 3600
    await create(files, b"{}")  # those that have expired do not count


async def test_a_finished_file_is_adopted_also_beyond_the_limit_and_twice(tmp_path: Path, clock: Clock) -> None:
    files = open_files(tmp_path, clock, max_files=1)
    await create(files, b"{}")
    files.storage.write("acme/batch_1/output", b"{}\n")
    id_ = "file-" + "0" * 32
    record = await files.adopt("acme", "acme/batch_1/output", "out.jsonl", "batch_output", id_=id_)
    assert (record.id, record.size, record.purpose) == (id_, 3, "batch_output")
    assert files.storage.files("acme/batch_1") == []
    assert files.storage.read(files.name("acme", id_)) == b"{}\n"
    # The process ended before the record was written.
    (tmp_path / "files" / "acme" / f"{id_}.json").unlink()
    assert await files.adopt("acme", "acme/batch_1/output", "out.jsonl", "batch_output", id_=id_) == record
    assert await files.find("acme", id_) == record


async def test_a_file_that_is_not_there_cannot_be_adopted(files: BatchFiles, tmp_path: Path) -> None:
    with pytest.raises(FolderUnusableError):
        await files.adopt("acme", "acme/none", "out.jsonl", "batch_output")
    assert names(tmp_path) == []


async def test_pages_are_ordered_by_creation_and_go_on_after_an_id(files: BatchFiles, clock: Clock) -> None:
    records = []
    for number in range(5):
        clock.now = NOW + number
        records.append(await create(files, b"{}", name=f"{number}"))
    newest = await files.list_files("acme", limit=2)
    assert (newest.records, newest.has_more) == ([records[4], records[3]], True)
    rest = await files.list_files("acme", limit=3, after=records[3].id)
    assert (rest.records, rest.has_more) == ([records[2], records[1], records[0]], False)
    oldest = await files.list_files("acme", limit=1, order="asc", after=records[0].id)
    assert (oldest.records, oldest.has_more) == ([records[1]], True)
    assert (await files.list_files("acme", after=records[0].id)).records == []
    assert (await files.list_files("acme", purpose="batch_output")).records == []
    for unknown in ("file-" + "0" * 32, "../x"):
        with pytest.raises(UnknownFileError):
            await files.list_files("acme", after=unknown)


async def test_a_damaged_record_is_no_file(files: BatchFiles, tmp_path: Path) -> None:
    record = await create(files, b"{}")
    for damaged in (b"", b"{", b"[]", b'{"id": "file-1"}', b"\xff"):
        (tmp_path / "files" / "acme" / f"{record.id}.json").write_bytes(damaged)
        with pytest.raises(UnknownFileError):
            await files.find("acme", record.id)
        assert (await files.list_files("acme")).records == []
    await files.remove_expired()


async def test_a_folder_that_cannot_be_used_is_told_apart_from_a_missing_file(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "files").write_bytes(b"")
    files = open_files(tmp_path, clock)
    with pytest.raises(FolderUnusableError):
        await create(files, b"{}")
    with pytest.raises(UnknownFileError):
        await files.find("acme", "file-" + "0" * 32)
    assert await files.remove_expired() == 0
