"""What files and batches rely on, in a folder and in an object store."""

import contextlib
import errno
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from pathlib import Path

import pytest

from router.core.batches.batch_object import RequestCounts
from router.core.batches.result_line import line_id, response_line
from router.shared.batches.batch_folder import BatchFolder
from router.shared.batches.local_storage import LocalStorage
from router.shared.batches.object_storage import ObjectStorage
from router.shared.batches.storage import Storage
from tests.support.object_store import ObjectStore, run_object_store

ID = "batch_111111111111111111111111"


@pytest.fixture(scope="module")
def object_store() -> Iterator[ObjectStore]:
    with run_object_store() as store:
        yield store


@pytest.fixture(scope="module")
def bucket(object_store: ObjectStore) -> ObjectStorage:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in object_store.environment.items():
            patch.setenv(name, value)
        found = ObjectStorage.at(f"s3://{object_store.bucket}")
        assert found.folders("") == []
    return found


@pytest.fixture
def objects(bucket: ObjectStorage, object_store: ObjectStore) -> ObjectStorage:
    return ObjectStorage(bucket._files, f"{object_store.bucket}/{secrets.token_hex(8)}")


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "folder":
        return LocalStorage(tmp_path / "files")
    found: ObjectStorage = request.getfixturevalue("objects")
    return found


def test_what_is_written_can_be_read(storage: Storage) -> None:
    storage.write("acme/a", b"old")
    storage.write("acme/a", b"0123456789")
    assert storage.read("acme/a") == b"0123456789"
    assert storage.read_range("acme/a", 3, 4) == b"3456"
    assert storage.read_range("acme/a", 8, 4) == b"89"
    with storage.open("acme/a") as file:
        assert (file.read(4), file.read(4), file.read(4)) == (b"0123", b"4567", b"89")


def test_a_file_is_read_by_lines_of_which_none_is_longer_than_asked_for(storage: Storage) -> None:
    storage.write("acme/a", b"one\n" + b"x" * 1_000_000 + b"\nlast")
    with storage.open("acme/a") as file:
        assert file.readline(10) == b"one\n"
        assert file.readline(10) == b"x" * 10
        assert [len(line) for line in file] == [1_000_000 - 10 + 1, 4]


@pytest.mark.parametrize("name", ["acme/none", "none/a"])
def test_a_file_that_is_not_there_is_told_apart_from_a_storage_that_fails(storage: Storage, name: str) -> None:
    storage.write("acme/a", b"")
    for attempt in (
        lambda: storage.read(name), lambda: storage.read_range(name, 0, 1), lambda: storage.open(name).read(),
        lambda: storage.copy(name, "acme/b"), lambda: storage.move(name, "acme/b"),
    ):  # fmt: skip
        with pytest.raises(FileNotFoundError):
            attempt()
    assert not storage.remove(name)
    assert [file.name for file in storage.files("acme")] == ["a"]


@pytest.mark.parametrize("size", [0, 3, 20_000_000])
def test_a_new_file_is_there_once_it_is_committed(storage: Storage, size: int) -> None:
    content = b"x" * size
    new = storage.create("acme/a")
    for start in range(0, size, 1_000_000):
        new.write(content[start : start + 1_000_000])
    assert storage.files("acme") == []
    new.commit()
    new.discard()
    assert storage.read("acme/a") == content
    assert [file.name for file in storage.files("acme")] == ["a"]


@pytest.mark.parametrize("size", [0, 3, 20_000_000])
def test_nothing_is_left_of_a_new_file_that_is_discarded(
    storage: Storage, object_store: ObjectStore, size: int
) -> None:
    new = storage.create("acme/a")
    new.write(b"x" * size)
    new.discard()
    new.discard()
    storage.remove_unfinished("acme", inf)
    assert storage.files("acme") == []
    assert object_store.unfinished_uploads() == []


def test_an_upload_holds_no_more_than_a_part_and_a_download_less(objects: ObjectStorage, tmp_path: Path) -> None:
    new, local = objects.create("acme/a"), LocalStorage(tmp_path).create("acme/a")
    held = []
    for size in (1 << 20, 1 << 20, 30 << 20):
        new.write(b"x" * size)
        local.write(b"x" * size)
        held.append(new.held)
    assert (held, local.held) == ([1 << 20, 2 << 20, 5 << 20], 0)
    assert len(new._file.buffer.getbuffer()) < 5 << 20
    new.commit()
    local.discard()
    with objects.open("acme/a") as file:
        raw = file.raw._file  # type: ignore[attr-defined]
        file.read(1000)
        assert len(raw.cache.cache) <= (1 << 20) + (256 << 10)


def test_some_of_many_files_may_be_gone(storage: Storage) -> None:
    storage.write("acme/a", b"1")
    storage.write("acme/b", b"2")
    assert sorted(storage.read_all(["acme/a", "acme/none", "acme/b"])) == [b"1", b"2"]
    assert list(storage.read_all(["acme/a"])) == [b"1"]
    assert list(storage.read_all(["acme/none"])) == []
    assert list(storage.read_all([])) == []


def test_a_copy_outlasts_its_source(storage: Storage) -> None:
    storage.write("acme/a", b"content")
    storage.copy("acme/a", "acme/b/copy")
    assert storage.remove("acme/a")
    assert storage.read("acme/b/copy") == b"content"


def test_a_move_can_be_repeated(storage: Storage) -> None:
    storage.write("acme/b/a", b"content")
    for _ in range(2):
        assert storage.move("acme/b/a", "acme/c") == 7
    assert storage.files("acme/b") == []
    assert storage.read("acme/c") == b"content"


def test_folders_have_names_files_and_an_age(storage: Storage) -> None:
    assert (storage.folders(""), storage.files("acme"), storage.folders("acme")) == ([], [], [])
    assert storage.names("acme") == []
    assert storage.changed_at("acme/b") == inf
    storage.write("acme/b/one", b"")
    storage.write("acme/b/two", b"")
    storage.write("acme/three", b"")
    storage.write("other/four", b"")
    assert sorted(storage.folders("")) == ["acme", "other"]
    assert storage.folders("acme") == ["b"]
    assert [file.name for file in storage.files("acme")] == storage.names("acme") == ["three"]
    assert sorted(file.name for file in storage.files("acme/b")) == ["one", "two"]
    now = time.time()
    assert all(abs(file.changed_at - now) < 60 for file in storage.files("acme/b"))
    assert abs(storage.changed_at("acme/b") - now) < 60
    storage.remove_folder("acme/b")
    storage.remove_folder("acme/b")
    assert (storage.folders("acme"), storage.files("acme/b")) == ([], [])


def test_another_process_finds_the_lines_of_a_log_that_were_synced(storage: Storage) -> None:
    log = storage.log(lambda segment: f"acme/log-{segment}")
    written = []
    for number in range(30):
        line = b"%d%s\n" % (number, b"x" * 100_000)
        log.append(line)
        written.append(line)
        if number % 7 == 0:
            log.sync()
            names = sorted((file.name for file in storage.files("acme")), key=lambda name: int(name[4:]))
            assert b"".join(storage.read(f"acme/{name}") for name in names) == b"".join(written)
    log.close()
    log.close()


def test_a_sync_of_an_object_writes_no_more_than_the_last_mebibyte_again(
    objects: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    write = objects.write

    def counted(name: str, data: bytes) -> None:
        sizes.append(len(data))
        write(name, data)

    monkeypatch.setattr(objects, "write", counted)
    log = objects.log(lambda segment: f"log-{segment}")
    for _ in range(50):
        log.append(b"x" * 99_999 + b"\n")
        log.sync()
        log.sync()
    assert len(sizes) == 50
    assert max(sizes) <= (1 << 20) + 100_000
    assert sum(file.name.startswith("log-") for file in objects.files("")) == 5


def test_a_write_that_was_given_up_and_arrives_late_replaces_no_later_lines(
    objects: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up: list[tuple[str, bytes]] = []
    write = objects.write

    def fails(name: str, data: bytes) -> None:
        given_up.append((name, data))
        raise TimeoutError

    log = objects.log(lambda segment: f"acme/log-{segment}")
    log.append(b"one\n")
    log.sync()
    written = [(file.name, b"one\n") for file in objects.files("acme")]
    monkeypatch.setattr(objects, "write", fails)
    log.append(b"two\n")
    with pytest.raises(TimeoutError):
        log.sync()
    monkeypatch.setattr(objects, "write", write)
    log.append(b"three\n")
    log.sync()
    assert [objects.read(f"acme/{file.name}") for file in objects.files("acme")] == [b"one\ntwo\nthree\n"]
    for name, data in [*given_up, *((f"acme/{name}", data) for name, data in written)]:
        write(name, data)
    assert b"one\ntwo\nthree\n" in [objects.read(f"acme/{file.name}") for file in objects.files("acme")]


class _BusyStore(BaseHTTPRequestHandler):
    """Answers each second request."""

    requests = 0

    def do_GET(self) -> None:
        type(self).requests += 1
        body = b"content" if self.requests % 2 == 0 else b"<Error><Code>InternalError</Code></Error>"
        self.send_response(200 if self.requests % 2 == 0 else 500)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_request_that_the_store_could_not_answer_is_repeated(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _BusyStore)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        for name, value in object_store.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        assert ObjectStorage.at("s3://bucket").read("acme/a") == b"content"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_connections_that_break_are_not_in_the_log_for_each_request(
    bucket: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.folders("")
    loop = bucket._files.loop
    logged: list[object] = []
    monkeypatch.setattr(loop, "default_exception_handler", logged.append)
    bug = {"message": "lost", "exception": ValueError("a bug")}
    loop.call_exception_handler({"message": "lost", "exception": ConnectionResetError("reset")})
    loop.call_exception_handler(bug)
    assert logged == [bug]


def test_a_bucket_that_is_not_there_is_no_missing_file(bucket: ObjectStorage) -> None:
    storage = ObjectStorage(bucket._files, f"none-{secrets.token_hex(8)}/files")
    for attempt in (
        lambda: storage.read("acme/a"), lambda: storage.files("acme"), lambda: storage.folders(""),
        lambda: storage.write("acme/a", b""), lambda: list(storage.read_all(["acme/a"])),
        lambda: storage.open("acme/a"), lambda: storage.copy("acme/a", "acme/b"),
        lambda: storage.create("acme/a").commit(),
    ):  # fmt: skip
        with pytest.raises(OSError, match="NoSuchBucket") as raised:
            attempt()
        assert not isinstance(raised.value, FileNotFoundError)


def result(number: int) -> bytes:
    return response_line(line_id(ID, number), f"n{number}", 200, "request", "MISS", b"{}")


def test_a_batch_is_checked_taken_over_and_joined(storage: Storage) -> None:
    line = '{{"custom_id": "{}", "method": "POST", "url": "/v1/embeddings", "body": {{"model": "m", "input": "x"}}}}\n'
    storage.write("acme/input", "".join(line.format(number) for number in range(150)).encode())
    folder = BatchFolder(storage, "acme", ID, "/v1/embeddings", 1000)
    assert folder.check_input("acme/input", "aa", 1000, lambda: False) == 150
    storage.remove("acme/input")
    assert [len(folder.entries("aa", number)) for number in (0, 1)] == [100, 50]
    for token, given_back, numbers in (("b0", "", range(1, 4)), ("b1", "b0", range(4, 6))):
        taken = folder.take_over(0, token, given_back)
        assert taken.known == set(range(1, numbers[0]))
        taken.writer.write([("output", result(number)) for number in numbers])
        taken.writer.close()
    names = [file.name for file in storage.files(f"acme/{ID}")]
    assert not [name for name in names if "b0" in name]
    joined = folder.join("cc", 2, {0: "b1"}, "aa", True, lambda: False)
    assert joined.counts == RequestCounts(total=150, completed=5, failed=145)
    assert joined.output is not None
    assert storage.move(joined.output, "acme/file") > 0
    folder.remove()
    assert storage.folders("acme") == []
    assert storage.read("acme/file").count(b"\n") == 5


def test_names_are_read_without_a_look_at_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch lists its results for each range: over NFS, a look at each file is a request."""
    storage = LocalStorage(tmp_path)
    storage.write("acme/a", b"")

    class Entry:
        name = "a"

        def is_file(self) -> bool:
            return True

    class Entries(contextlib.ExitStack):
        def __iter__(self) -> Iterator[Entry]:
            return iter((Entry(),))

    monkeypatch.setattr("router.shared.batches.local_storage.os.scandir", lambda _: Entries())
    assert storage.names("acme") == ["a"]


def test_only_the_owner_may_read_a_folder(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "a" / "files")
    storage.write("acme/b/1", b"")
    storage.log(lambda _: "acme/c/2").close()
    storage.copy("acme/b/1", "acme/b/3")
    for path in (tmp_path / "a" / "files").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert stat.S_IMODE((tmp_path / "a" / "files").stat().st_mode) == 0o700


def test_a_file_system_without_links_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    storage = LocalStorage(tmp_path)
    storage.write("a", b"content")
    storage.copy("a", "b/c")
    assert storage.read("b/c") == b"content"


def test_an_object_store_that_is_away_raises_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        storage = ObjectStorage.at(f"s3://{store.bucket}")
        storage.write("a", b"")
        monkeypatch.setattr(storage._files, "retries", 1)
    for attempt in (lambda: storage.read("a"), lambda: storage.write("a", b""), lambda: storage.files("")):
        with pytest.raises(OSError, match="connect") as raised:
            attempt()
        assert not isinstance(raised.value, FileNotFoundError)
