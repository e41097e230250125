"""`roundhouse check` of a configuration whose files are in S3."""

import socket

import pytest

from router.checks.file_store import check_file_store
from router.settings import Settings, parse
from tests.support.object_store import ObjectStore
from tests.support.ports import free_port
from tests.support.router_server import router_config
from tests.support.waiting import TEST_TIMEOUT


def settings_of(folder: str) -> Settings:
    text = router_config("redis://127.0.0.1:1", {"one": ("llama", "any", "http://127.0.0.1:1")})
    return parse(f'{text}\n[batch]\nfolder = "{folder}"\n', {})


async def test_a_store_that_can_be_listed(object_store: ObjectStore) -> None:
    (finding,) = await check_file_store(settings_of(f"s3://{object_store.bucket}/files"), timeout=TEST_TIMEOUT)
    assert (finding.level, finding.note) == ("ok", "the object store can be listed")


async def test_a_bucket_that_is_not_there(object_store: ObjectStore) -> None:
    (finding,) = await check_file_store(settings_of("s3://no-such-bucket"), timeout=TEST_TIMEOUT)
    assert finding.level == "error"
    assert "NoSuchBucket" in finding.note


async def test_a_store_that_is_not_there(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    (finding,) = await check_file_store(settings_of("s3://bucket"), timeout=TEST_TIMEOUT)
    assert finding.level == "error"
    assert "Could not connect" in finding.note


async def test_a_store_that_does_not_answer(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        (finding,) = await check_file_store(settings_of("s3://bucket"), timeout=0.5)
    assert (finding.level, finding.note) == ("error", "the object store does not answer within 0.5 s")


async def test_a_folder_of_this_machine_is_no_store() -> None:
    assert await check_file_store(settings_of("/tmp/files"), timeout=TEST_TIMEOUT) == []
