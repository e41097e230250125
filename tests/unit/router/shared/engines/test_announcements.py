"""Announced engines in Redis: what a router takes up, when it drops it, and what launchers cannot do to each other."""

import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace

from router.core.cache.redis_keys import ANNOUNCEMENTS_KEY
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.shared.connection.redis import open_backend, open_pipeline
from router.shared.engines.announcements import (
    LEASE,
    MAX_ENGINES,
    AnnouncedEngine,
    Announcements,
    Fleet,
    ModelRevision,
    decode_engines,
    decode_fleet,
    held_by_others,
    read_held_command,
    write_command,
)
from tests.support.redis_process import RedisServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = AnnouncedEngine(
    name="llama-chat", model="llama", task="chat", url="http://127.0.0.1:9001", served_model="Llama"
)  # fmt: skip
READ = 2.0  # seconds between two reads


@pytest_asyncio.fixture(loop_scope="session")
async def pipeline(redis_server: RedisServer, redis: Any) -> AsyncIterator[RedisPipeline]:
    opened = open_pipeline(open_backend(redis_server.url, timeout=1), timeout=2.5, retry=0.02)
    await opened.start()
    yield opened
    await opened.aclose()


class Reader:
    """Announcements on a virtual clock."""

    def __init__(self, pipeline: RedisPipeline, previous: "Reader | None" = None) -> None:
        self.now: float = previous.now if previous is not None else 1000.0
        self.changes: list[Fleet] = []
        self.announcements: Announcements = Announcements(
            pipeline,
            self.changes.append,
            clock=lambda: self.now,
            redis_clock=time.time,  # Redis runs on this machine
            previous=previous.announcements if previous is not None else None,
        )

    async def read(self, seconds: float = READ) -> list[str]:
        self.now += seconds
        await self.announcements.refresh()
        return list(self.announcements.fleet.engines)

    async def read_for(self, seconds: float) -> list[str]:
        names: list[str] = []
        for _ in range(round(seconds / READ)):
            names = await self.read()
        return names


async def write(pipeline: RedisPipeline, *engines: AnnouncedEngine, owner: str = "one", **others: Any) -> list[str]:
    (reply,) = await pipeline.execute(write_command(owner, engines, **others))
    return held_by_others(reply)


async def test_an_engine_is_taken_up_when_it_is_announced(pipeline: RedisPipeline) -> None:
    reader = Reader(pipeline)
    assert await reader.read() == []
    await write(pipeline, CHAT)
    assert await reader.read() == ["llama-chat"]
    assert reader.changes == [Fleet({"llama-chat": CHAT})]


async def test_an_engine_is_dropped_when_its_lease_ends_and_taken_up_when_it_is_renewed(
    pipeline: RedisPipeline, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader(pipeline)
    await write(pipeline, CHAT)
    assert await reader.read_for(LEASE) == ["llama-chat"]
    assert await reader.read_for(2 * READ) == []
    # Not "engine llama-chat is dropped": one that is also configured stays.
    assert "the announcement of engine llama-chat is dropped" in caplog.text
    await write(pipeline, CHAT)
    assert await reader.read() == ["llama-chat"]


async def test_a_lease_does_not_end_while_nothing_is_read(pipeline: RedisPipeline) -> None:
    reader = Reader(pipeline)
    await write(pipeline, CHAT)
    await reader.read()
    assert await reader.read(3600) == ["llama-chat"]


async def test_a_withdrawn_engine_is_dropped_at_once(pipeline: RedisPipeline) -> None:
    reader = Reader(pipeline)
    await write(pipeline, CHAT)
    await reader.read()
    await write(pipeline, withdrawn=["llama-chat"])
    assert await reader.read() == []


async def test_an_emptied_redis_is_no_withdrawal(pipeline: RedisPipeline, redis: Any) -> None:
    reader = Reader(pipeline)
    await write(pipeline, CHAT, revisions={"llama": ModelRevision(revision="2", configured="1")})
    await reader.read()
    await redis.delete(ANNOUNCEMENTS_KEY)
    assert await reader.read() == ["llama-chat"]
    assert await reader.read_for(LEASE + READ) == []
    assert reader.announcements.fleet.revisions["llama"].revision == "2"


async def test_an_engine_that_was_dropped_is_not_new_to_the_next_configuration(pipeline: RedisPipeline) -> None:
    reader = Reader(pipeline)
    await write(pipeline, CHAT)
    await reader.read_for(LEASE + 2 * READ)
    assert await Reader(pipeline, reader).read() == []


async def test_the_leases_of_two_configurations_do_not_add_up(pipeline: RedisPipeline) -> None:
    first = Reader(pipeline)
    await write(pipeline, CHAT)
    await first.read()
    second = Reader(pipeline, first)
    for _ in range(round(LEASE / READ) - 1):
        assert await first.read() == await second.read() == ["llama-chat"]


async def test_another_launcher_cannot_announce_an_engine_while_its_lease_holds(pipeline: RedisPipeline) -> None:
    reader = Reader(pipeline)
    await write(pipeline, CHAT)
    other = AnnouncedEngine(name="llama-code", model="llama", task="code", url="http://h:1", served_model="Llama")
    moved = AnnouncedEngine(name="llama-chat", model="llama", task="chat", url="http://h:2", served_model="Llama")
    assert await write(pipeline, other, moved, owner="two") == ["llama-chat"]
    assert await reader.read() == ["llama-chat"]
    assert reader.announcements.fleet.engines["llama-chat"] == CHAT
    await write(pipeline, withdrawn=["llama-chat"])
    assert await write(pipeline, moved, owner="two") == []


async def make_older(redis: Any, name: str, seconds: int) -> None:
    renewed_at, _, rest = (await redis.hget(ANNOUNCEMENTS_KEY, f"engine/{name}")).partition(" ")
    await redis.hset(ANNOUNCEMENTS_KEY, f"engine/{name}", f"{int(renewed_at) - seconds * 1_000_000} {rest}")


async def test_a_router_that_starts_does_not_take_up_an_engine_of_a_launcher_that_has_ended(
    pipeline: RedisPipeline, redis: Any
) -> None:
    await write(pipeline, CHAT)
    await make_older(redis, "llama-chat", 17)
    reader = Reader(pipeline)
    assert await reader.read() == []
    await write(pipeline, CHAT)
    assert await reader.read() == ["llama-chat"]


async def test_a_clock_that_is_set_drops_no_engine(pipeline: RedisPipeline, redis: Any) -> None:
    reader = Reader(pipeline)
    await write(pipeline, CHAT)
    await reader.read()
    await make_older(redis, "llama-chat", 3600)  # renewed, after Redis' clock was set back
    assert await reader.read() == ["llama-chat"]


async def test_a_reader_that_reads_once_judges_leases_by_redis_clock(pipeline: RedisPipeline, redis: Any) -> None:
    await write(pipeline, CHAT, replace(CHAT, name="llama-code"))
    await make_older(redis, "llama-code", 17)
    (reply,) = await pipeline.execute(read_held_command())
    assert list(decode_fleet(reply).engines) == ["llama-chat"]


async def test_invalid_values_are_ignored_and_reported_once(
    pipeline: RedisPipeline, redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    values = {
        "engine/a": b"1 one {}",
        "engine/b": b"nonsense",
        "engine/c": b"\xff\xfe \xff \xff",
        "engine/other-name": b"1 one " + encoded(CHAT),
        "engine/llama-chat": b"1 one " + encoded(replace(CHAT, capacity=0.0)),
        "model/llama": b"{}",
        "else": b"",
    }
    await redis.hset(ANNOUNCEMENTS_KEY, mapping=values)
    reader = Reader(pipeline)
    assert await reader.read() == await reader.read() == []
    assert len(caplog.messages) == 2, "one about engines, one about revisions"


def encoded(engine: AnnouncedEngine) -> bytes:
    return msgspec.json.encode(engine)


async def test_the_number_of_engines_is_bounded() -> None:
    reply = {f"engine/e{i}".encode(): b"1 one " + encoded(CHAT).replace(b"llama-chat", b"e%d" % i) for i in range(300)}
    assert len(decode_engines(reply)) == MAX_ENGINES


async def test_while_redis_is_down_the_engines_stay(pipeline: RedisPipeline) -> None:
    reader = Reader(pipeline)
    await write(pipeline, CHAT)
    await reader.read()
    await pipeline.aclose()
    with pytest.raises(RedisDownError):
        await reader.read()
    await reader.announcements.try_refresh()
    assert list(reader.announcements.fleet.engines) == ["llama-chat"]


class CountingPipeline:
    """Passes commands on, and notes those that a router sends."""

    def __init__(self, pipeline: RedisPipeline) -> None:
        self._pipeline = pipeline
        self.decode = pipeline.decode
        self.sent: list[Any] = []

    async def execute(self, *commands: Any) -> Any:
        self.sent += [command[0] for command in commands]
        return await self._pipeline.execute(*commands)

    def take_sent(self) -> list[Any]:
        sent, self.sent = self.sent, []
        return sent


async def test_a_renewal_does_not_make_a_router_read_all_engines(pipeline: RedisPipeline) -> None:
    counting = CountingPipeline(pipeline)
    reader = Reader(counting)  # type: ignore[arg-type]
    revisions = {"llama": ModelRevision(revision="2", configured="1")}
    shown = replace(CHAT, temperature_celsius=70.5, power_watts=300.0, restarts={"stuck": 1, "dead": 2}, capacity=0.5)
    await write(pipeline, shown, revisions=revisions)
    await reader.read()
    renewed = [
        shown,
        replace(shown, temperature_celsius=-1e-7),
        replace(shown, temperature_celsius=None),
        replace(shown, power_watts=None),
        replace(shown, restarts={}),
    ]
    counting.take_sent()
    for engine in renewed:
        await write(pipeline, engine, revisions=revisions)
        await reader.announcements.try_apply_change()
        assert counting.take_sent() == ["HGET"], engine
    await reader.read()
    assert reader.announcements.fleet.engines == {"llama-chat": renewed[-1]}


@pytest.mark.parametrize(
    "changed",
    [
        replace(CHAT, capacity=0.5),
        replace(CHAT, max_in_flight=4),
        replace(CHAT, url="http://127.0.0.1:9002"),
        replace(CHAT, served_model='x,"power_watts":1'),
        None,
    ],
    ids=["capacity", "limit", "url", "text-like-a-field", "withdrawn"],
)
async def test_a_change_is_applied_as_soon_as_it_is_notified(
    pipeline: RedisPipeline, changed: AnnouncedEngine | None
) -> None:
    reader = Reader(pipeline)
    await write(pipeline, CHAT)
    await reader.read()
    if changed is None:
        await write(pipeline, withdrawn=["llama-chat"])
    else:
        await write(pipeline, changed)
    await reader.announcements.try_apply_change()
    assert list(reader.announcements.fleet.engines.values()) == ([] if changed is None else [changed])


async def test_another_engine_or_revision_and_an_engine_that_is_back_are_applied_at_once(
    pipeline: RedisPipeline, redis: Any
) -> None:
    reader = Reader(pipeline)
    await write(pipeline, CHAT)
    await reader.read()
    fleets = reader.announcements
    await write(pipeline, replace(CHAT, name="llama-code"), owner="two")
    await fleets.try_apply_change()
    assert list(fleets.fleet.engines) == ["llama-chat", "llama-code"]
    await write(pipeline, CHAT, revisions={"llama": ModelRevision(revision="2", configured="1")})
    await fleets.try_apply_change()
    assert fleets.fleet.revisions["llama"].revision == "2"
    await make_older(redis, "llama-chat", 17)
    later = Reader(pipeline)
    assert await later.read() == ["llama-code"]
    await write(pipeline, CHAT)
    await later.announcements.try_apply_change()
    assert list(later.announcements.fleet.engines) == ["llama-chat", "llama-code"]


async def test_a_launcher_of_an_earlier_version_says_not_whether_it_has_changed_anything(
    pipeline: RedisPipeline, redis: Any
) -> None:
    await redis.hset(ANNOUNCEMENTS_KEY, "engine/llama-chat", f"{int(time.time() * 1e6)} one ".encode() + encoded(CHAT))
    reader = Reader(pipeline)
    await reader.announcements.try_apply_change()
    assert list(reader.announcements.fleet.engines) == ["llama-chat"]
