"""/v1/files at a router on a socket, with OpenAI's client and with clients that break off."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tests.support.limited_tenants import ACME, FREE, tenant_tables
from tests.support.raw_http import chunked_body, connect, http_request
from tests.support.router_process import RouterProcess
from tests.support.router_server import MakeRouter, RouterServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

LINES = b'{"custom_id": "1", "body": {}}\n{"custom_id": "2", "body": {}}\n'
TYPE = b"content-type: multipart/form-data; boundary=x"
PURPOSE = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FILE = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
END = b"\r\n--x--\r\n"


def batch(folder: Path, lines: str = "") -> str:
    return f'[batch]\nfolder = "{folder}"\n{lines}\n'


def client(url: str) -> AsyncOpenAI:
    http = DefaultAsyncHttpxClient(verify=False, trust_env=False)
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http)


async def upload(
    router: RouterServer, content: bytes = LINES, headers: Mapping[str, str] | None = None, **fields: str
) -> httpx.Response:
    data = {name: value for name, value in ({"purpose": "batch"} | fields).items() if value}
    return await router.http.post("/v1/files", data=data, files={"file": ("a.jsonl", content)}, headers=headers)


def names(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.rglob("*") if path.is_file())


async def test_openais_client_creates_lists_reads_and_deletes_files(config: str, tmp_path: Path) -> None:
    process = RouterProcess(tmp_path, f"{config}\n{batch(tmp_path / 'files')}")
    process.start()
    try:
        await process.wait_until_ready()
        async with client(process.url) as files_client:
            files = files_client.files
            created = await files.create(file=("one.jsonl", LINES), purpose="batch")
            assert (created.filename, created.bytes, created.purpose) == ("one.jsonl", len(LINES), "batch")
            assert created.object == "file"
            assert created.expires_at == created.created_at + 30 * 86400
            other = await files.create(
                file=("two.jsonl", LINES), purpose="batch",
                expires_after={"anchor": "created_at", "seconds": 3600},
            )  # fmt: skip
            assert other.expires_at == other.created_at + 3600
            assert await files.retrieve(created.id) == created
            listed = [file async for file in files.list(limit=1, order="asc", purpose="batch")]
            assert {file.id: file for file in listed} == {created.id: created, other.id: other}
            content = await files.content(created.id)
            assert content.content == LINES
            deleted = await files.delete(created.id)
            assert (deleted.id, deleted.deleted, deleted.object) == (created.id, True, "file")
            for attempt in (files.retrieve, files.content, files.delete):
                with pytest.raises(openai.NotFoundError) as missing:
                    await attempt(created.id)
                assert missing.value.code == "file_not_found"
        await eventually(lambda: 'path="DELETE /v1/files/{id}" status=404' in process.log.read_text())
    finally:
        process.kill()
    assert names(tmp_path / "files") == [".json", ".jsonl"]


async def test_a_file_is_sent_as_it_was_received(make_router: MakeRouter, config: str, tmp_path: Path) -> None:
    router = await make_router(config + batch(tmp_path))
    lines = b"".join(b'{"number": %d, "text": "\xc3\xa4"}\r\n' % number for number in range(30_000))
    created = await upload(router, lines)
    assert created.json() == {
        "id": created.json()["id"], "object": "file", "bytes": len(lines), "filename": "a.jsonl", "purpose": "batch",
        "status": "processed", "created_at": created.json()["created_at"], "expires_at": created.json()["expires_at"],
    }  # fmt: skip
    path = f"/v1/files/{created.json()['id']}"
    content = await router.http.get(f"{path}/content")
    assert content.content == lines
    assert content.headers["content-type"] == "application/octet-stream"
    assert content.headers["content-disposition"] == "attachment; filename*=utf-8''a.jsonl"
    assert content.headers["content-length"] == str(len(lines))
    assert content.headers["x-request-id"]
    head = await router.http.head(f"{path}/content")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(lines)))

    async def all_are_counted() -> bool:
        counted = {n: name for name, n in (await router.metrics()).items() if name.startswith("llm_requests_total")}
        return 'model="unknown"' in counted.get(3, "")

    await eventually(all_are_counted)  # the last one ends after its client has all of it


async def test_the_files_of_a_tenant_are_its_own(make_router: MakeRouter, config: str, tmp_path: Path) -> None:
    router = await make_router(config + batch(tmp_path) + tenant_tables("requests_per_minute = 4"))
    id_ = (await upload(router, headers=ACME)).json()["id"]
    assert (tmp_path / "acme" / f"{id_}.jsonl").exists()
    for method, path in (("GET", id_), ("GET", f"{id_}/content"), ("DELETE", id_)):
        refused = await router.http.request(method, f"/v1/files/{path}", headers=FREE)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "file_not_found")
    assert (await router.http.get("/v1/files", headers=FREE)).json()["data"] == []
    assert (await router.http.get("/v1/files")).status_code == 401
    assert (await upload(router)).status_code == 401
    for _ in range(3):
        listed = await router.http.get("/v1/files", headers=ACME)
        assert [file["id"] for file in listed.json()["data"]] == [id_]
    assert (await router.http.get("/v1/files", headers=ACME)).status_code == 429


@pytest.mark.parametrize(
    ("fields", "content", "status", "code", "message"),
    [
        ({}, b"", 400, "empty_file", "The file is empty."),
        ({}, b'{"a": 1}\n[]\n', 400, "invalid_jsonl", "The file is not JSON Lines: line 2 is not a JSON object."),
        ({}, b'{"a": 1}\n{"a"', 400, "invalid_jsonl", "line 2 is not valid JSON."),
        ({}, b'{"a": "' + b"x" * 200_000, 413, "file_too_large", "more than 65536 bytes (batch.max_file)."),
        ({"purpose": "fine-tune"}, LINES, 400, None, "`purpose` must be `batch`."),
        ({"purpose": ""}, LINES, 400, None, "`purpose` is missing; it must be `batch`."),
        ({"expires_after[anchor]": "created_at"}, LINES, 400, None, "`expires_after[seconds]` must be a number from"),
        ({"expires_after[seconds]": "3600"}, LINES, 400, None, "`expires_after[anchor]` must be `created_at`."),
        ({"other": "x" * 2000}, LINES, 400, None, "`other` has more than 1024 bytes."),
    ],
)
async def test_an_upload_that_is_refused_leaves_nothing(
    make_router: MakeRouter, config: str, tmp_path: Path,
    fields: dict[str, str], content: bytes, status: int, code: str | None, message: str,
) -> None:  # fmt: skip
    router = await make_router(config + batch(tmp_path, 'max_file = "64KiB"'))
    refused = await upload(router, content, None, **fields)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert message in error["message"]
    assert names(tmp_path) == []
    assert (await upload(router)).status_code == 200


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/files?limit=0", 400, None),
        ("/v1/files?limit=10001", 400, None),
        ("/v1/files?order=up", 400, None),
        ("/v1/files?after=file-1", 400, None),
        ("/v1/files/..%2Fdefault", 404, "not_found"),
        ("/v1/files/..%5Cdefault", 404, "file_not_found"),
        ("/v1/files/file-1/content", 404, "file_not_found"),
    ],
)
async def test_a_request_that_is_not_well_formed_is_refused(
    make_router: MakeRouter, config: str, tmp_path: Path, path: str, status: int, code: str | None
) -> None:
    router = await make_router(config + batch(tmp_path))
    refused = await router.http.get(path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)


async def test_a_tenant_may_have_so_many_files(make_router: MakeRouter, config: str, tmp_path: Path) -> None:
    router = await make_router(config + batch(tmp_path, "max_files = 1"))
    id_ = (await upload(router)).json()["id"]
    refused = await upload(router)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "too_many_files")
    await router.http.delete(f"/v1/files/{id_}")
    assert (await upload(router)).status_code == 200


async def test_without_a_folder_they_are_turned_off(router: RouterServer) -> None:
    for method, path in (("POST", "files"), ("GET", "files/file-1"), ("POST", "batches"), ("GET", "batches/b/cancel")):
        refused = await router.http.request(method, f"/v1/{path}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "batches_turned_off")
        assert "batch.folder" in refused.json()["error"]["message"]


async def test_a_folder_that_cannot_be_used_is_a_503(make_router: MakeRouter, config: str, tmp_path: Path) -> None:
    (tmp_path / "files").write_bytes(b"")
    router = await make_router(config + batch(tmp_path / "files"))
    refused = await upload(router)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "files_unavailable")
    assert str(tmp_path) not in refused.text


async def test_a_client_that_leaves_while_it_reads_a_file_holds_nothing(
    make_router: MakeRouter, config: str, tmp_path: Path
) -> None:
    router = await make_router(config + batch(tmp_path))
    lines = b'{"text": "%s"}\n' % (b"x" * 100) * 300_000
    id_ = (await upload(router, lines)).json()["id"]
    async with connect(router.port, limit=1000) as connection:
        connection.write(http_request(method=b"GET", path=b"/v1/files/%b/content" % id_.encode()))
        assert (await connection._reader.readline()) == b"HTTP/1.1 200 OK\r\n"
    path = str(tmp_path / "default" / f"{id_}.jsonl")
    await eventually(lambda: path not in open_files())


async def test_a_file_that_has_lost_its_end_is_not_taken_for_complete(
    make_router: MakeRouter, config: str, tmp_path: Path
) -> None:
    router = await make_router(config + batch(tmp_path))
    id_ = (await upload(router)).json()["id"]
    (tmp_path / "default" / f"{id_}.jsonl").write_bytes(LINES[:-1])
    with pytest.raises(httpx.RemoteProtocolError):
        await router.http.get(f"/v1/files/{id_}/content")
    (tmp_path / "default" / f"{id_}.jsonl").unlink()
    assert (await router.http.get(f"/v1/files/{id_}/content")).status_code == 404


def open_files() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.add(str(link.readlink()))
        except FileNotFoundError:
            continue
    return found


async def test_a_form_without_a_length_and_with_the_purpose_last_is_accepted(
    make_router: MakeRouter, config: str, tmp_path: Path
) -> None:
    router = await make_router(config + batch(tmp_path))
    body = chunked_body(FILE, LINES[:7], LINES[7:], b"\r\n", PURPOSE, END[2:])
    async with connect(router.port) as connection:
        connection.write(http_request(None, TYPE, b"transfer-encoding: chunked", path=b"/v1/files"), body)
        answer = await connection.read_response()
    assert answer.status == 200
    assert json.loads(answer.body)["bytes"] == len(LINES)


async def test_a_declared_length_above_the_limit_is_refused_before_it_arrives(
    make_router: MakeRouter, config: str, tmp_path: Path
) -> None:
    router = await make_router(config + batch(tmp_path, 'max_file = "64KiB"'))
    async with connect(router.port) as connection:
        connection.write(http_request(None, TYPE, b"content-length: 1000000000", path=b"/v1/files"))
        answer = await connection.read_response()
    assert (answer.status, answer.error_code) == (413, "file_too_large")
    assert names(tmp_path) == []


async def test_pages_follow_one_another(make_router: MakeRouter, config: str, tmp_path: Path) -> None:
    router = await make_router(config + batch(tmp_path))
    ids = {(await upload(router)).json()["id"] for _ in range(3)}

    async def pages() -> AsyncIterator[dict[str, Any]]:
        after: dict[str, str] = {}
        while True:
            page = (await router.http.get("/v1/files", params={"limit": "2", **after})).json()
            yield page
            if not page["has_more"]:
                return
            after = {"after": page["last_id"]}

    found = [page async for page in pages()]
    assert [len(page["data"]) for page in found] == [2, 1]
    assert {file["id"] for page in found for file in page["data"]} == ids
    assert (found[0]["first_id"], found[0]["object"]) == (found[0]["data"][0]["id"], "list")
