"""Uploads to /v1/files that take long, break off, or stop: what the router waits for, and what is left."""

import asyncio
from pathlib import Path

import pytest

from router.api.batches.file_upload import MIN_RATE
from tests.support.raw_http import RawConnection, connect, http_request
from tests.support.router_server import router_config
from tests.support.waiting import eventually
from tests.world.http import PORT
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

LINE = b'{"text": "%s"}\n' % (b"x" * 1000)
HEAD = (
    b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
)
END = b"\r\n--x--\r\n"
SIZE = 80 * 64 * len(LINE)


async def start(world: World, folder: Path, rest: str = "") -> WorldRouter:
    engine = await world.engine()
    table = {"one": ("llama", "any", engine.url)}
    batch = f'[batch]\nfolder = "{folder}"\n{rest}'
    return await world.router(router_config(world.redis.url, table, router='receive = "10s"', rest=batch))


def begin(connection: RawConnection) -> None:
    length = b"content-length: %d" % (len(HEAD) + SIZE + len(END))
    media_type = b"content-type: multipart/form-data; boundary=x"
    connection.write(http_request(None, media_type, length, path=b"/v1/files"), HEAD)


def names(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.rglob("*") if path.is_file())


@scenario
async def test_a_slow_upload_may_take_longer_than_the_timeout_of_a_request(world: World, tmp_path: Path) -> None:
    router = await start(world, tmp_path)
    async with connect(PORT, host=router.name) as connection:
        begin(connection)
        for _ in range(80):
            connection.write(LINE * 64)
            await asyncio.sleep(len(LINE) * 64 / MIN_RATE)
        connection.write(END)
        assert (await connection.read_response()).status == 200
    assert names(tmp_path) == [".json", ".jsonl"]


@pytest.mark.parametrize("rate", [0, MIN_RATE // 2], ids=["silent", "too slow"])
@scenario
async def test_an_upload_below_the_lowest_rate_is_408_and_leaves_nothing(
    world: World, tmp_path: Path, rate: int
) -> None:
    router = await start(world, tmp_path)
    started = asyncio.get_running_loop().time()
    async with connect(PORT, host=router.name) as connection:
        begin(connection)

        async def send() -> None:
            while rate:
                connection.write(LINE * 8)
                await asyncio.sleep(len(LINE) * 8 / rate)

        sending = asyncio.ensure_future(send())
        answer = await connection.read_response()
        sending.cancel()
    assert (answer.status, answer.error_code) == (408, "request_timeout")
    assert asyncio.get_running_loop().time() - started == pytest.approx(20 if rate else 10, rel=0.05)
    await eventually(lambda: names(tmp_path) == [])


@scenario
async def test_a_fast_beginning_is_no_credit_for_silence(world: World, tmp_path: Path) -> None:
    router = await start(world, tmp_path)
    async with connect(PORT, host=router.name) as connection:
        begin(connection)
        connection.write(LINE * 64 * 79)
        await eventually(lambda: len(names(tmp_path)) == 1)
        silent_since = asyncio.get_running_loop().time()
        assert (await connection.read_response()).status == 408
        assert asyncio.get_running_loop().time() - silent_since == pytest.approx(10, abs=1)
    await eventually(lambda: names(tmp_path) == [])


@scenario
async def test_a_client_that_leaves_during_its_upload_leaves_nothing(world: World, tmp_path: Path) -> None:
    router = await start(world, tmp_path)
    async with connect(PORT, host=router.name) as connection:
        begin(connection)
        connection.write(LINE)
        await eventually(lambda: len(names(tmp_path)) == 1)
    await eventually(lambda: names(tmp_path) == [])


@scenario
async def test_files_that_have_expired_leave_the_disk_within_an_hour(world: World, tmp_path: Path) -> None:
    router = await start(world, tmp_path, 'file_ttl = "1h"\n')
    created = await router.http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", LINE)})
    path = f"/v1/files/{created.json()['id']}"
    await asyncio.sleep(3500)
    assert (await router.http.get(path)).status_code == 200
    await asyncio.sleep(200)
    assert (await router.http.get(path)).status_code == 404
    await asyncio.sleep(3600)
    assert names(tmp_path) == []
