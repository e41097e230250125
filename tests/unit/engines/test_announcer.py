"""The announcer of a launcher, with a real Redis."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from msgspec.json import encode
from msgspec.structs import replace
from redis.exceptions import RedisError

from engines.announcer import AnnounceError, Announcer
from router.core.cache.redis_keys import ANNOUNCEMENTS_KEY
from router.shared.engines.announcements import AnnouncedEngine, ModelRevision, decode_engines, decode_revisions
from tests.support.ports import free_port
from tests.support.redis_deployments import MINIMAL_ACL, USER
from tests.support.redis_process import RedisServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = AnnouncedEngine(name="chat", model="llama", task="chat", url="http://127.0.0.1:9001", served_model="Llama")
CODE = replace(CHAT, name="code", task="code")
SECOND = ModelRevision(revision="2", configured="1")


class Launcher:
    """An announcer with what it reported."""

    def __init__(self, url: str, owner: str = "one") -> None:
        self.reports: list[str] = []
        self.announcer = Announcer.connect(url, owner, self.reports.append)


@pytest_asyncio.fixture(loop_scope="session")
async def launchers(redis_server: RedisServer, redis: Any) -> AsyncIterator[list[Launcher]]:
    opened = [Launcher(redis_server.url, owner) for owner in ("one", "two")]
    yield opened
    for launcher in opened:
        await launcher.announcer.aclose()


async def stored(redis: Any) -> dict[bytes, bytes]:
    return {field.encode(): value.encode() for field, value in (await redis.hgetall(ANNOUNCEMENTS_KEY)).items()}


async def announced(redis: Any) -> dict[str, AnnouncedEngine | None]:
    return {name: each.engine for name, each in decode_engines(await stored(redis)).items()}


async def test_engines_are_announced_and_withdrawn(launchers: list[Launcher], redis: Any) -> None:
    one = launchers[0].announcer
    await one.announce(CHAT, CODE)
    assert await announced(redis) == {"chat": CHAT, "code": CODE}
    await one.withdraw("chat", "unknown")
    assert await announced(redis) == {"chat": None, "code": CODE}
    assert (one.current("chat"), one.current("code")) == (None, CODE)


async def test_what_another_launcher_announces_is_reported_once_and_stays(
    launchers: list[Launcher], redis: Any
) -> None:
    one, two = launchers
    await one.announcer.announce(CHAT)
    for _ in range(2):
        await two.announcer.announce(replace(CHAT, url="http://127.0.0.1:9002"), CODE)
    assert await announced(redis) == {"chat": CHAT, "code": CODE}
    assert len(two.reports) == 1
    assert "another launcher announces chat" in two.reports[0]


async def test_a_refused_launcher_does_not_change_the_revision_of_the_others_model(
    launchers: list[Launcher], redis: Any
) -> None:
    one, two = launchers
    embed = replace(CODE, name="embed", model="e5", task="any")
    await one.announcer.announce(CHAT, revisions={"llama": SECOND})
    assert one.announcer.problem is None
    third = ModelRevision(revision="3", configured="1")
    await two.announcer.announce(CHAT, embed, revisions={"llama": third, "e5": third})
    assert decode_revisions(await stored(redis)) == {"llama": SECOND, "e5": third}
    assert "another launcher announces chat" in (two.announcer.problem or "")


async def test_an_engine_is_withdrawn_beside_one_that_another_launcher_announces(
    launchers: list[Launcher], redis: Any
) -> None:
    one, two = launchers
    await one.announcer.announce(CHAT)
    await two.announcer.announce(CHAT, CODE)
    await two.announcer.withdraw("chat", "code")
    assert await announced(redis) == {"chat": CHAT, "code": None}


async def test_a_takeover_is_complete_or_nothing(launchers: list[Launcher], redis: Any) -> None:
    one, two = launchers
    await one.announcer.announce(CHAT)
    await two.announcer.announce(CODE)
    new = replace(CODE, url="http://127.0.0.1:9003")
    with pytest.raises(AnnounceError, match="another launcher announces chat"):
        await two.announcer.take_over([replace(CHAT, url=new.url), new], {"llama": SECOND})
    assert await announced(redis) == {"chat": CHAT, "code": CODE}
    assert two.announcer.current("code") == CODE
    await two.announcer.take_over([new], {"llama": SECOND})
    assert (await announced(redis))["code"] == new
    assert decode_revisions(await stored(redis)) == {"llama": SECOND}


async def test_a_takeover_of_unknown_outcome_is_undone_by_the_next_renewal(
    redis_server: RedisServer, redis: Any
) -> None:
    class LosesReplies:
        """Redis executes the command, and the connection ends before the reply."""

        async def execute_command(self, *command: Any) -> Any:
            await redis.execute_command(*command)
            raise ConnectionResetError

        async def aclose(self) -> None: ...

    failing = Announcer(LosesReplies(), "one", lambda _: None)
    await failing.announce(CHAT)
    with pytest.raises(AnnounceError):
        await failing.take_over([replace(CHAT, url="http://127.0.0.1:9003")], {"llama": SECOND})
    assert decode_revisions(await stored(redis)) == {"llama": SECOND}
    await failing.renew()
    assert await announced(redis) == {"chat": CHAT}
    assert decode_revisions(await stored(redis)) == {"llama": ModelRevision(revision="1", configured="1")}


async def test_a_renewal_and_a_change_during_a_take_over_do_not_undo_it(
    launchers: list[Launcher], redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    announcer = launchers[0].announcer
    await announcer.announce(CHAT)
    new = replace(CHAT, url="http://127.0.0.1:9003")
    execute, arrived = announcer._redis.execute_command, asyncio.Event()

    async def execute_in_the_other_order(*command: Any) -> Any:
        if encode(CHAT) in command:
            await arrived.wait()
        reply = await execute(*command)
        if encode(new) in command:
            arrived.set()
        return reply

    monkeypatch.setattr(announcer._redis, "execute_command", execute_in_the_other_order)
    take_over = asyncio.ensure_future(announcer.take_over([new], {"llama": SECOND}))
    await asyncio.sleep(0)
    late = [asyncio.ensure_future(announcer.renew()), asyncio.ensure_future(announcer.change("chat", capacity=0.5))]
    await asyncio.gather(take_over, *late)
    assert await announced(redis) == {"chat": replace(new, capacity=0.5)}
    assert decode_revisions(await stored(redis)) == {"llama": SECOND}


async def test_the_engines_are_announced_again_after_redis_was_down(own_redis: RedisServer) -> None:
    await own_redis.start()
    launcher = Launcher(own_redis.url)
    await launcher.announcer.announce(CHAT, revisions={"llama": SECOND})
    own_redis.kill()
    await launcher.announcer.announce(CODE)
    assert len(launcher.reports) == 1
    assert "cannot announce the engines in Redis" in launcher.reports[0]
    await own_redis.start()
    await launcher.announcer.renew()
    reply = await own_redis.command("HKEYS", ANNOUNCEMENTS_KEY)
    assert set(reply) == {"changed", "engine/chat", "engine/code", "model/llama"}
    await launcher.announcer.aclose()


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(TimeoutError(), "no reply within 5 s"), (OSError(), "OSError"), (RedisError("READONLY"), "READONLY")],
    ids=repr,
)
async def test_a_problem_is_reported_with_its_reason_also_where_the_exception_has_no_text(
    failure: Exception, reason: str
) -> None:
    class Failing:
        async def execute_command(self, *_: Any) -> Any:
            raise failure

        async def aclose(self) -> None:
            pass

    with pytest.raises(AnnounceError) as caught:
        await Announcer(Failing(), "one", lambda _: None).take_over([CHAT], {})
    assert str(caught.value) == f"cannot announce the engines in Redis: {reason}"


async def test_the_documented_permissions_suffice_and_old_engines_are_removed() -> None:
    server = RedisServer("--user", "roundhouse", *MINIMAL_ACL, port=free_port())
    await server.start()
    try:
        await server.command("HSET", ANNOUNCEMENTS_KEY, "engine/old", "1 other -")
        launcher = Launcher(f"redis://{USER}@127.0.0.1:{server.port}/0")
        await launcher.announcer.take_over([CHAT], {"llama": SECOND})
        assert set(await server.command("HKEYS", ANNOUNCEMENTS_KEY)) == {"changed", "engine/chat", "model/llama"}
        await launcher.announcer.aclose()
        assert launcher.reports == []
    finally:
        server.remove()
