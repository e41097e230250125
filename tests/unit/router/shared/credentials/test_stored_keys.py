"""The keys in Redis, as two processes know them: nothing that Redis loses brings a revoked key back."""

from collections.abc import AsyncIterator, Collection
from typing import Final

import pytest
import pytest_asyncio

from router.core.api_keys import KeyRecord, hash_key
from router.core.cache.redis_keys import KEYS_APPLIED_KEY, KEYS_RECORDS_KEY, KEYS_USED_KEY
from router.net.redis.pipeline import RedisPipeline
from router.shared.connection.redis import open_backend, open_pipeline
from router.shared.credentials.key_records import (
    decode_presences,
    decode_records,
    decode_used,
    merge_commands,
    read_presences_command,
    read_records_command,
    read_used_command,
)
from router.shared.credentials.stored_keys import StoredKeys
from tests.support.redis_process import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOW: Final = 1_800_000_000.0


def record(key: bytes, **fields: float) -> KeyRecord:
    return KeyRecord(hash=hash_key(key), tenant="acme", name="ci", created=NOW, **fields)


class Process:
    """The keys of one process; `valid` are the hashes of those that it accepts."""

    def __init__(self, pipeline: RedisPipeline) -> None:
        self.pipeline = pipeline
        self.used: list[str] = []
        self.valid: set[str] = set()
        self.changes = 0
        self.keys: StoredKeys = StoredKeys(
            pipeline,
            self._on_change,
            clock=lambda: NOW,
            take_used=self._take_used,
        )

    def _on_change(self, records: Collection[KeyRecord]) -> None:
        self.valid = {each.hash for each in records if each.is_valid(NOW)}
        self.changes += 1

    def _take_used(self) -> list[str]:
        used, self.used = self.used, []
        return used

    async def write(self, *records: KeyRecord) -> None:
        (reply,) = await self.pipeline.execute(*merge_commands(records, 0))
        assert isinstance(reply, list)

    async def read(self) -> dict[str, KeyRecord]:
        (reply,) = await self.pipeline.execute(read_records_command())
        return decode_records(reply).by_id

    async def read_used(self) -> dict[str, int]:
        (reply,) = await self.pipeline.execute(read_used_command())
        return decode_used(reply)


@pytest_asyncio.fixture(loop_scope="session")
async def processes(own_redis: RedisServer) -> AsyncIterator[tuple[Process, Process]]:
    await own_redis.start()
    pipelines = [open_pipeline(open_backend(own_redis.url, timeout=5), timeout=5, retry=0.02) for _ in range(2)]
    for pipeline in pipelines:
        await pipeline.start()
    yield Process(pipelines[0]), Process(pipelines[1])
    for pipeline in pipelines:
        await pipeline.aclose()


async def test_a_process_reads_the_records_once_for_each_change(processes: tuple[Process, Process]) -> None:
    process, writer = processes
    for _ in range(2):
        await process.keys.refresh()
    assert (process.keys.loaded, process.changes, process.valid) == (True, 1, set())
    await writer.write(record(b"a"))
    for _ in range(2):
        await process.keys.refresh()
    assert (process.changes, process.valid) == (2, {hash_key(b"a")})
    await writer.write(record(b"a", revoked=NOW))
    await process.keys.refresh()
    assert process.valid == set()


@pytest.mark.parametrize("version", ["9" * 20, "9" * 14, "1e308", "nan", "-5", ""])
async def test_a_version_that_no_process_has_written_hides_no_revocation(
    processes: tuple[Process, Process], own_redis: RedisServer, version: str
) -> None:
    process, writer = processes
    await writer.write(record(b"a"), record(b"b"))
    await own_redis.command("HSET", KEYS_RECORDS_KEY, "version", version)
    await process.keys.refresh()
    for key, valid in ((b"a", {hash_key(b"b")}), (b"b", set())):
        await writer.write(record(key, revoked=NOW))
        await process.keys.refresh()
        assert process.valid == valid


@pytest.mark.parametrize("loss", [("DEL", KEYS_RECORDS_KEY), ("HDEL", KEYS_RECORDS_KEY, "version")])
async def test_records_that_redis_lost_are_written_again(
    processes: tuple[Process, Process], own_redis: RedisServer, loss: tuple[str, ...]
) -> None:
    process, writer = processes
    before = [record(b"a"), record(b"b", revoked=NOW)]
    await writer.write(*before)
    await process.keys.refresh()
    await own_redis.command(*loss)
    await process.keys.refresh()
    assert process.valid == {hash_key(b"a")}
    assert await process.read() == {each.id: each for each in before}
    await process.keys.refresh()
    (presence,) = decode_presences((await process.pipeline.execute(read_presences_command()))[0]).values()
    version = await own_redis.command("HGET", KEYS_RECORDS_KEY, "version")
    assert presence.version == (int(version) if version is not None else 0)


async def test_a_process_that_missed_a_revocation_does_not_bring_the_key_back(
    processes: tuple[Process, Process], own_redis: RedisServer
) -> None:
    stale, fresh = processes
    await fresh.write(record(b"a"))
    for process in processes:
        await process.keys.refresh()
    await fresh.write(record(b"a", revoked=NOW))
    await fresh.keys.refresh()
    await own_redis.command("DEL", KEYS_RECORDS_KEY)
    await stale.keys.refresh()  # writes its valid record
    await fresh.keys.refresh()  # writes that it is revoked
    await stale.keys.refresh()
    assert (stale.valid, fresh.valid) == (set(), set())
    assert [each.revoked for each in (await fresh.read()).values()] == [NOW]


async def test_a_value_of_another_type_is_not_taken_for_an_absence_of_keys(
    processes: tuple[Process, Process], own_redis: RedisServer
) -> None:
    process, _ = processes
    await own_redis.command("SET", KEYS_RECORDS_KEY, "x")
    await process.keys.refresh()
    assert not process.keys.loaded
    assert process.changes == 0
    await own_redis.command("DEL", KEYS_RECORDS_KEY)
    await process.keys.refresh()
    assert process.keys.loaded


async def test_the_last_use_of_a_key_is_sent_once_and_kept_while_redis_is_down(
    processes: tuple[Process, Process], own_redis: RedisServer
) -> None:
    process, _ = processes
    process.used = ["aaaaaaaa"]
    process.keys.record_use("bbbbbbbb")
    process.keys.flush_used()
    assert await process.read_used() == {"aaaaaaaa": int(NOW), "bbbbbbbb": int(NOW)}
    own_redis.kill()
    await process.keys.try_refresh()
    process.used = ["cccccccc"]
    process.keys.flush_used()
    await own_redis.start()
    await process.pipeline.wait_until_up()
    process.keys.flush_used()
    assert await process.read_used() == {"cccccccc": int(NOW)}
    await own_redis.command("DEL", KEYS_USED_KEY)
    process.keys.flush_used()
    assert await process.read_used() == {}


async def test_a_process_that_ends_is_waited_for_no_more(
    processes: tuple[Process, Process], own_redis: RedisServer
) -> None:
    process, other = processes
    for each in processes:
        await each.keys.refresh()
    assert len(await own_redis.command("HKEYS", KEYS_APPLIED_KEY)) == 2
    process.keys.withdraw()

    async def one_is_left() -> bool:
        return len(await own_redis.command("HKEYS", KEYS_APPLIED_KEY)) == 1

    await eventually(one_is_left)
    await process.write(record(b"a"))
    await process.keys.refresh()
    await other.keys.refresh()
    assert await one_is_left()


async def test_keys_that_were_not_read_for_a_while_are_not_known(processes: tuple[Process, Process]) -> None:
    here, _ = processes
    await here.write(record(b"k"))
    await here.keys.refresh()
    assert here.valid == {hash_key(b"k")}
    await here.keys.configure(enabled=False, publishes=False)
    assert not here.keys.loaded
    assert not here.keys.records
    await here.keys.configure(enabled=True, publishes=True)
    assert [each.hash for each in here.keys.records] == [hash_key(b"k")]
