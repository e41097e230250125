"""The list of commands that the router's user of Redis needs is what routers really send, and `check` knows each."""

from asyncio import Event
from pathlib import Path
from typing import Any, Final

import pytest

from router.api.access.auth import hash_key
from router.checks.check import check_all
from router.core.cache.redis_keys import hits_key
from router.settings import parse
from router.shared.connection.redis import open_backend
from router.shared.connection.redis_rights import NEEDED_COMMANDS
from router.shared.connection.rights_report import RightsReport
from tests.support.cli_helpers import run_cli
from tests.support.paths import ROOT
from tests.support.redis_deployments import MINIMAL_ACL, Deployment, SentinelGroup
from tests.support.redis_process import RedisServer
from tests.support.router_server import RouterServer, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

RULES: Final = [command.rule for command in NEEDED_COMMANDS]
ADMIN: Final = {"authorization": "Bearer admin-key"}
REST: Final = (
    f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\n[[tenant]]\nname = "default"\nrequests_per_minute = 1000\n'
)
ANSWER: Final = (ROLE_FRAME + chat_frame(content="one "), chat_frame(content="", finish="stop") + DONE_FRAME)
SENT_BY_TESTS: Final = {"config|resetstat", "client|setinfo", "client|maint_notifications", "select"}
"""By the tests, by redis-py without being asked for it, and SELECT, which no database but 0 needs."""
SENT_BY_SERVERS: Final = {"replconf", "psync", "sentinel", "ping", "publish", "subscribe", "config|rewrite"}


async def test_the_list_is_the_one_of_the_documentation_and_of_the_tests() -> None:
    page = (ROOT / "docs/deploying.md").read_text(encoding="utf-8")
    (line,) = (line for line in page.splitlines() if line.startswith("ACL SETUSER roundhouse "))
    assert [rule for rule in line.split() if rule.startswith("+")] == RULES
    assert [rule for rule in MINIMAL_ACL if rule.startswith("+")] == RULES


async def test_routers_and_commands_send_everything_that_is_on_the_list_and_nothing_else(
    own_redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RightsReport, "run", Event().wait)  # it sends everything
    await own_redis.start()
    await own_redis.command("CONFIG", "RESETSTAT")
    engine = ScriptedEngine(*ANSWER, paced=True)
    await engine.start()
    text = router_config(own_redis.url, {"scripted": ("llama", "any", engine.url)}, rest=REST)
    file = tmp_path / "roundhouse.toml"
    file.write_text(text)
    async with RouterServer(text) as first, RouterServer(text) as second:
        await share_a_generation(first, second, engine)
        await eventually(lambda: is_hit(second))
        await administrate(second)
        for command in ("drain", "resume"):
            page = f"/admin/engines/scripted/{command}"
            assert (await first.http.post(page, headers=ADMIN)).status_code == 200
        await eventually(lambda: counts_hits(own_redis))  # without counts, `cache top` has nothing to read
        for arguments in (["top"], ["export", tmp_path / "entries"], ["import", tmp_path / "entries"]):
            result = await run_cli("cache", *arguments, "--config", file)
            assert result.code == 0, result.stderr
        purge = await second.http.post("/admin/cache/purge", json={"all": True}, headers=ADMIN)
        assert purge.status_code == 200
    await engine.stop()
    expected = {command.name for command in NEEDED_COMMANDS if command.use in ("requests", "administration")}
    expected -= {"wait", "ltrim"}  # for replicas, and for the times of engines' starts
    others = await as_counted(own_redis, SENT_BY_TESTS)
    assert await commands_used(own_redis) | others == await as_counted(own_redis, expected) | others


async def test_a_deployment_gets_no_command_that_is_not_on_the_list(deployment: Deployment) -> None:
    text = router_config(deployment.url, {"nobody": ("llama", "any", "http://127.0.0.1:1")}, rest=REST)
    primaries = await deployment.primaries()
    for server in primaries:
        await server.command("CONFIG", "RESETSTAT")
    async with RouterServer(text) as router:
        await eventually(lambda: reports_redis(router))
        assert (await router.http.get("/admin/cache/stats", headers=ADMIN)).status_code == 200
    used: set[str] = set()
    for server in primaries:
        used |= await commands_used(server)
    expected = {command.name for command in NEEDED_COMMANDS} | SENT_BY_TESTS | SENT_BY_SERVERS
    assert used <= await as_counted(primaries[0], expected)
    assert "role" in used or not isinstance(deployment, SentinelGroup)


@pytest.mark.parametrize("command", [command for command in NEEDED_COMMANDS if command.use != "cluster"])
async def test_check_names_a_command_that_the_user_may_not_use(redis_server: RedisServer, command: Any) -> None:
    if command.name in ("role", "hello"):
        pytest.skip("only with Sentinels; without HELLO there is no connection")
    if command.name == "lpush" and not await is_redis_7(redis_server):
        pytest.skip("Redis before 7.0 does not tell whether its user may use lpush")
    user = f"without-{command.name.partition('|')[0]}"
    rules = [rule for rule in RULES if rule != command.rule]
    keys_and_channels = ("resetchannels", "~rh:1:*", "&rh:1:*")
    await redis_server.command("ACL", "SETUSER", user, "on", ">pw", *keys_and_channels, "-@all", *rules)
    url = redis_server.url.replace("unix://", f"unix://{user}:pw@")
    findings = await check_all(parse(router_config(url, {"one": ("llama", "any", "http://127.0.0.1:1")}), {}))
    await redis_server.command("ACL", "DELUSER", user)
    (finding,) = (finding for finding in findings if finding.setting == "cache.url")
    assert finding.fix is not None
    assert f"+{command.name}" in finding.fix.split()
    assert finding.level == ("warning" if command.use == "administration" else "error")


async def test_a_router_names_each_right_that_its_user_lacks_once(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "roundhouse.redis")
    user, url = "reported", redis_server.url.replace("unix://", "unix://reported:pw@")
    keys_and_channels = ("on", ">pw", "~rh:1:*", "&rh:1:*")
    tried = [command for command in NEEDED_COMMANDS if command.use in ("requests", "administration")]
    tried = [command for command in tried if command.name != "hello"]  # Redis lets every user send it
    tried = [command for command in tried if command.name != "lpush" or await is_redis_7(redis_server)]
    for missing in [*(command.rule for command in tried), "&rh:1:*", "~rh:1:*"]:
        rules = [rule for rule in (*keys_and_channels, "-@all", *RULES) if rule != missing]
        await redis_server.command("ACL", "SETUSER", user, "reset", "resetchannels", *rules)
        backend = open_backend(url, timeout=5)
        report = RightsReport(backend, "server")
        caplog.clear()
        (line,) = await report.look()
        assert missing in line.rpartition("ACL SETUSER USER ")[2].split(), missing
        await report.look()
        assert [record.levelname for record in caplog.records] == ["WARNING"], missing
        await redis_server.command("ACL", "SETUSER", user, missing)
        caplog.clear()
        assert await report.look() == ()
        assert caplog.messages == ["the router has all rights in Redis now"]
        await backend.aclose()
    await redis_server.command("ACL", "DELUSER", user)


async def test_a_router_without_client_tracking_says_that_generations_are_not_shared(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    await own_redis.start()
    rules = [rule for rule in MINIMAL_ACL if rule != "+client|tracking"]
    await own_redis.command("ACL", "SETUSER", "app", *rules)
    url = own_redis.url.replace("unix://", "unix://app:sec%2Fret@")

    async def said() -> bool:
        return any("requests at different routers do not share a generation" in line for line in caplog.messages)

    async with RouterServer(router_config(url, {"nobody": ("llama", "any", "http://127.0.0.1:1")})):
        await eventually(said)
    (line,) = (record for record in caplog.records if "client|tracking" in record.getMessage())
    assert line.levelname == "WARNING"


async def test_check_changes_nothing_in_redis(own_redis: RedisServer) -> None:
    await own_redis.start()
    await own_redis.command("ZINCRBY", "rh:1:requests:recent", 1, "row")
    await own_redis.command("SET", "rh:1:watched", "1")
    text = router_config(own_redis.url, {"one": ("llama", "any", "http://127.0.0.1:1")})
    findings = await check_all(parse(text, {}))
    assert all(finding.ok for finding in findings if finding.what == "redis")
    assert await own_redis.command("DBSIZE") == 2
    assert (await own_redis.command("INFO", "persistence"))["rdb_changes_since_last_save"] == 2  # ZINCRBY and SET


async def share_a_generation(first: RouterServer, second: RouterServer, engine: ScriptedEngine) -> None:
    async with open_stream(first, "x") as leading:
        await leading.read_until_text("one ")
        async with open_stream(second, "x") as following:
            await following.read_until_text("one ")
            assert following.headers["x-cache"] == "COALESCED"
            engine.chunk_permits.release()
            await following.read_to_end()
        await leading.read_to_end()


async def administrate(router: RouterServer) -> None:
    for page in ("cache/stats", "cache/entries", "status", "requests", "history?minutes=2"):
        answer = await router.http.get(f"/admin/{page}", headers=ADMIN)
        assert answer.status_code == 200, (page, answer.text)
    key = (await router.chat("x")).headers["x-cache-key"]
    assert (await router.http.get(f"/admin/cache/entries/{key}", headers=ADMIN)).status_code == 200
    assert (await router.http.delete(f"/admin/cache/entries/{key}", headers=ADMIN)).status_code == 200


async def commands_used(server: RedisServer) -> set[str]:
    stats = await server.command("INFO", "commandstats")
    return {name.removeprefix("cmdstat_") for name in stats}


async def as_counted(server: RedisServer, names: set[str]) -> set[str]:
    """The names of commands as in the server's statistics: Redis before 7.0 counts no subcommands."""
    return names if await is_redis_7(server) else {name.partition("|")[0] for name in names}


async def is_redis_7(server: RedisServer) -> bool:
    version = (await server.command("INFO", "server"))["redis_version"]
    return int(version.partition(".")[0]) >= 7


async def is_hit(router: RouterServer) -> bool:
    return (await router.chat("x")).headers["x-cache"] == "HIT"


async def counts_hits(server: RedisServer) -> bool:
    return bool(await server.command("EXISTS", hits_key("default")))


async def reports_redis(router: RouterServer) -> bool:
    return bool((await router.http.get("/healthz")).json()["redis"] == "up")
