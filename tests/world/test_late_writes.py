"""Responses whose generation ends while Redis is down are stored when it is up again."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from router.api.access.auth import hash_key
from router.core.cache.entry_filter import EntryFilter
from router.core.cache.redis_keys import PURGE_LOG_KEY
from router.core.types import Entry
from router.net.redis.errors import RedisBackendError, RedisDownError
from router.net.tasks import cancel_and_wait
from router.shared.cache.purges import PurgePosition
from router.store.entry_store import WriteResult
from router.store.entry_writer import EntryWriter
from tests.support.entry_factory import entry_key, make_entry
from tests.support.router_server import router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.store_fixture import StoreFixture
from tests.support.streaming_client import open_stream
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

ANSWER = (ROLE_FRAME + chat_frame(content="one "), chat_frame(content="two", finish="stop") + DONE_FRAME)
ADMIN = {"authorization": "Bearer admin"}


# -- routers ----------------------------------------------------------------------------------------------------------


class Setting:
    """`near` reaches Redis through a proxy, `other` directly; the engine sends the second half on command."""

    def __init__(self, near: WorldRouter, other: WorldRouter, proxy: TcpProxy, engine: ScriptedEngine) -> None:
        self.near = near
        self.other = other
        self.proxy = proxy
        self.engine = engine

    async def answer_without_redis(self) -> None:
        """A stream that begins at `near` with Redis and ends without it."""
        self.engine.paced = True
        async with open_stream(self.near, "x") as answer:
            assert answer.headers["x-cache"] == "MISS"
            await answer.read_until_text("one ")
            self.proxy.refuse("listening", "commands")
            self.engine.chunk_permits.release()
            assert (await answer.read_to_end()).endswith(DONE_FRAME)
        self.engine.paced = False

    @property
    def generations(self) -> int:
        return sum(request.method == "POST" for request in self.engine.requests)

    async def writes(self) -> dict[str, float]:
        """The results of near's writes."""
        metrics = await self.near.metrics()
        found = {result: metrics.get(f'llm_cache_writes_total{{result="{result}"}}', 0) for result in RESULTS}
        return {result: count for result, count in found.items() if count}

    async def final(self) -> dict[str, float]:
        """The results, as soon as there is one after the connection is back."""
        assert await self.writes() == {}
        self.proxy.release("listening", "commands")
        return await eventually(self.writes)  # type: ignore[no-any-return]


RESULTS = ("stored", "failed", "dropped", "purged")


@asynccontextmanager
async def start(world: World) -> AsyncIterator[Setting]:
    engine = await world.scripted_engine(*ANSWER, paced=True)
    keys = f'[auth]\nadmin_keys = ["{hash_key(b"admin")}"]'
    async with TcpProxy(world.redis.socket) as proxy:
        texts = [
            router_config(url, {"scripted": ("llama", "any", engine.url)}, rest=keys)
            .replace("2500ms", "50ms")
            .replace("20ms", "500ms")
            for url in (proxy.url, world.redis.url)
        ]
        yield Setting(await world.router(texts[0]), await world.router(texts[1]), proxy, engine)


@scenario
async def test_a_response_that_ended_while_redis_was_down_is_a_hit_when_it_is_up(world: World) -> None:
    async with start(world) as setting:
        await setting.answer_without_redis()
        assert await setting.final() == {"stored": 1}
        for router in (setting.near, setting.other):
            assert (await router.chat("x", stream=True)).headers["x-cache"] == "HIT"
        assert setting.generations == 1


@scenario
async def test_a_response_that_began_while_redis_was_down_is_a_hit_when_it_is_up(world: World) -> None:
    async with start(world) as setting:
        setting.engine.paced = False
        setting.proxy.refuse("listening", "commands")
        for _ in range(2):
            assert (await setting.near.chat("x", stream=True)).headers["x-cache"] == "BYPASS"
        setting.proxy.release("listening", "commands")
        await eventually(lambda: _is_counted(setting.near, "stored"))
        assert await setting.writes() == {"dropped": 1, "stored": 1}, "one entry for a key"
        assert (await setting.other.chat("x", stream=True)).headers["x-cache"] == "HIT"


@scenario
async def test_a_response_that_was_purged_before_redis_was_reached_again_is_not_stored(world: World) -> None:
    async with start(world) as setting:
        await setting.answer_without_redis()
        (await setting.other.http.post("/admin/cache/purge", json={"all": True}, headers=ADMIN)).raise_for_status()
        assert await setting.final() == {"purged": 1}
        for router in (setting.near, setting.other):
            assert (await router.chat("x", stream=True)).headers["x-cache"] in ("MISS", "HIT")
        assert setting.generations == 2, "the purged response answers nobody"


@scenario
async def test_a_younger_response_of_another_router_stays(world: World) -> None:
    async with start(world) as setting:
        await setting.answer_without_redis()
        await asyncio.sleep(1)
        younger = await setting.other.chat("x", stream=True)
        assert younger.headers["x-cache"] == "MISS"
        key = younger.headers["x-cache-key"]
        created = await eventually(lambda: world.redis.client.hget(key, "created"))
        assert await setting.final() == {"stored": 1}
        assert await world.redis.client.hget(key, "created") == created


@scenario
async def test_a_redis_that_comes_back_empty_gets_no_response_of_before(world: World) -> None:
    engine = await world.scripted_engine(*ANSWER, paced=True)
    text = router_config(world.redis.url, {"scripted": ("llama", "any", engine.url)})
    router = await world.router(text.replace("2500ms", "50ms").replace("20ms", "500ms"))
    async with open_stream(router, "x") as answer:
        await answer.read_until_text("one ")
        world.redis.stop(loses_data=True)
        engine.chunk_permits.release()
        assert (await answer.read_to_end()).endswith(DONE_FRAME)
    world.redis.start()
    # With the log of purges, it has lost those that may cover the response.
    await eventually(lambda: _is_counted(router, "purged"))


async def _is_counted(router: WorldRouter, result: str) -> bool:
    return (await router.metrics()).get(f'llm_cache_writes_total{{result="{result}"}}') == 1


# -- the writer -------------------------------------------------------------------------------------------------------


class Writer(StoreFixture):
    """A store's writer, whose repetitions run; `results` by the body's first letter."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, timeout=0.05, retry=0.5)
        self.writer = EntryWriter(self.entries, self.pipeline, time.time, **options)
        self.results: dict[str, WriteResult] = {}
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await super().start()
        self._running = asyncio.get_running_loop().create_task(self.writer.run())

    async def aclose(self) -> None:
        await cancel_and_wait(self._running)
        await self.writer.aclose()
        await super().aclose()

    def write(self, name: str, at: str = "k", since: PurgePosition | None = None, **fields: Any) -> Entry:
        entry = make_entry(body=name.encode(), **fields)
        position = self.purges.last_position if since is None else since
        self.writer.put(at, entry, position, lambda result: self.results.__setitem__(name, result))
        return entry

    async def until_results(self, count: int = 1) -> dict[str, WriteResult]:
        await eventually(lambda: len(self.results) == count, timeout=100)
        return self.results

    async def body(self, at: str = "k") -> bytes | None:
        entry = await self.get(at)
        return None if entry is None else entry.body


@asynccontextmanager
async def open_writer(world: World, **options: Any) -> AsyncIterator[Writer]:
    async with aclosing(Writer(world.redis.url, **options)) as writer:
        await writer.start()
        yield writer


async def stop_redis(world: World, writer: Writer) -> None:
    world.redis.stop(loses_data=False)
    with pytest.raises(RedisDownError):
        await writer.get("other")


@scenario
async def test_an_entry_waits_for_redis_and_keeps_the_rest_of_its_lifetime(world: World) -> None:
    async with open_writer(world) as writer:
        await stop_redis(world, writer)
        writer.write("a", ttl=100.0)
        await asyncio.sleep(60)
        assert writer.results == {}
        world.redis.start()
        assert await writer.until_results() == {"a": "stored"}
        assert await writer.body() == b"a"
        assert 39_000 < await writer.command("PTTL", "k") <= 40_000


@scenario
async def test_an_entry_that_has_expired_meanwhile_is_dropped(world: World) -> None:
    async with open_writer(world) as writer:
        await stop_redis(world, writer)
        writer.write("a", ttl=59.0)
        await asyncio.sleep(60)
        world.redis.start()
        assert await writer.until_results() == {"a": "dropped"}
        assert await writer.command("EXISTS", "k") == 0


@scenario
async def test_the_entry_whose_write_redis_did_not_confirm_is_stored_once(world: World) -> None:
    async with open_writer(world) as writer:
        world.redis.freeze()
        writer.write("a")
        await eventually(lambda: not writer.is_up)
        world.redis.thaw()
        assert await writer.until_results() == {"a": "stored"}
        assert await writer.body() == b"a"


@scenario
async def test_of_two_entries_for_a_key_the_younger_is_stored(world: World) -> None:
    async with open_writer(world) as writer:
        await stop_redis(world, writer)
        writer.write("a")
        await asyncio.sleep(1)
        writer.write("b")
        assert writer.results == {"a": "dropped"}
        world.redis.start()
        assert await writer.until_results(2) == {"a": "dropped", "b": "stored"}
        assert await writer.body() == b"b"


@scenario
async def test_of_two_entries_for_a_key_that_redis_lost_together_the_younger_is_stored(world: World) -> None:
    async with open_writer(world) as writer:
        world.redis.freeze()
        now = int(time.time())
        writer.write("a", created=now + 0.5)
        writer.write("b", created=now + 0.25)
        await eventually(lambda: not writer.is_up)
        assert writer.results == {"b": "dropped"}
        world.redis.stop(loses_data=False)
        world.redis.thaw()
        world.redis.start()
        await writer.until_results(2)
        assert await writer.body() == b"a"


@scenario
async def test_of_two_entries_for_a_key_the_one_with_the_later_time_is_stored(world: World) -> None:
    async with open_writer(world) as writer:
        await stop_redis(world, writer)
        now = int(time.time())
        writer.write("a", created=now + 0.5)
        writer.write("b", created=now + 0.25)
        world.redis.start()
        assert await writer.until_results(2) == {"a": "stored", "b": "dropped"}


@scenario
async def test_an_entry_that_was_purged_takes_no_place_of_one_that_waits(world: World) -> None:
    async with open_writer(world) as writer:
        before = writer.purges.last_position
        await world.redis.client.xadd(PURGE_LOG_KEY, {"scope": EntryFilter(all=True).to_json()})
        await writer.wait_until_up()
        await stop_redis(world, writer)
        writer.write("a", at=entry_key())
        await asyncio.sleep(1)
        writer.write("b", at=entry_key(), since=before)
        world.redis.start()
        assert await writer.until_results(2) == {"a": "stored", "b": "purged"}
        assert await writer.body(entry_key()) == b"a"


@scenario
async def test_a_younger_entry_stays_that_comes_after_the_late_writer_has_looked_for_one(world: World) -> None:
    async with open_writer(world) as late, open_writer(world) as other:
        await stop_redis(world, late)
        late.write("a")
        await asyncio.sleep(1)
        world.redis.start()
        await other.wait_until_up()

        def write_younger(_: object, words: list[bytes]) -> None:
            if words[0] == b"HMGET" and not other.results:
                other.write("b")

        world.redis.model.observe = write_younger
        assert await late.until_results() == {"a": "stored"}
        assert await other.until_results() == {"b": "stored"}
        assert await late.body() == b"b"


@scenario
async def test_what_waits_has_a_limit(world: World) -> None:
    async with open_writer(world, max_waiting=10_000) as writer:
        await stop_redis(world, writer)
        for name in "abc":
            writer.write(name, at=name, stream=b"=" + 3000 * b"x")
        assert writer.results == {"c": "dropped"}
        world.redis.start()
        assert await writer.until_results(3) == {"a": "stored", "b": "stored", "c": "dropped"}
        await stop_redis(world, writer)
        writer.write("d", at="d", stream=b"=" + 6000 * b"x")
        assert "d" not in writer.results, "what was written makes room"


@scenario
async def test_what_has_expired_makes_room(world: World) -> None:
    async with open_writer(world, max_waiting=10_000) as writer:
        await stop_redis(world, writer)
        for name in "ab":
            writer.write(name, at=name, stream=b"=" + 3000 * b"x", ttl=50.0)
        await asyncio.sleep(60)
        for name in "cde":
            writer.write(name, at=name, stream=b"=" + 3000 * b"x")
        dropped = dict.fromkeys("abe", "dropped")
        assert writer.results == dropped
        world.redis.start()
        assert await writer.until_results(5) == {**dropped, "c": "stored", "d": "stored"}


@scenario
async def test_a_write_that_always_fails_is_given_up_and_holds_up_no_other_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_writer(world) as writer:
        execute, refused = writer.backend.execute, asyncio.Event()

        def refuse_one(commands: Sequence[Any], timeout: float) -> Any:
            if any(b"poison" in command for command in commands if isinstance(command, bytes)):
                refused.set()
                failed = asyncio.get_running_loop().create_future()
                failed.set_exception(RedisBackendError("the server is down"))
                return failed
            return execute(commands, timeout)

        monkeypatch.setattr(writer.backend, "execute", refuse_one)
        started = time.time()
        writer.write("poison", at="k1")
        await refused.wait()
        others = [f"other {number}" for number in range(20)]
        for name in others:
            writer.write(name, at=name)
        assert await writer.until_results(20) == dict.fromkeys(others, "stored")
        assert time.time() - started < 5
        assert (await writer.until_results(21))["poison"] == "failed"
        assert 20 < time.time() - started < 40


@scenario
async def test_closing_writes_what_waits(world: World) -> None:
    async with open_writer(world) as writer:
        world.redis.freeze()
        for name in "ab":
            writer.write(name, at=name)
        await eventually(lambda: not writer.is_up)
        world.redis.thaw()
        await writer.pipeline.wait_until_up()
    assert writer.results == {"a": "stored", "b": "stored"}


@scenario
async def test_closing_without_redis_does_not_wait_for_it(world: World) -> None:
    async with open_writer(world) as writer:
        await stop_redis(world, writer)
        writer.write("a")
        started = time.time()
    assert time.time() == pytest.approx(started, abs=0.01)
    assert writer.results == {"a": "failed"}


@scenario
async def test_closing_takes_two_seconds_at_most(world: World) -> None:
    count = 2000
    async with open_writer(world) as writer:
        await stop_redis(world, writer)
        for number in range(count):
            writer.write(f"{number}", at=f"{number}")
        world.redis.start()
        await writer.pipeline.wait_until_up()
        started = time.time()
    assert time.time() - started < 2.2
    stored = [number for number in range(count) if await world.redis.client.exists(f"{number}")]
    assert writer.results == {f"{number}": "stored" if number in stored else "failed" for number in range(count)}
    assert 100 < len(stored) < count
