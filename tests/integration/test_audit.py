"""The audit with a real Redis: what administrators change is recorded, by whom, and nothing of it is altered unseen."""

import asyncio
import getpass
import json
import logging
import socket
import time
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from router.api.access.auth import hash_key
from router.core.api_keys import key_id
from router.core.cache.entry_filter import text_document_name
from router.core.cache.redis_keys import AUDIT_KEY
from router.shared.audit.audit_log import AuditLog
from router.shared.audit.changes import Change
from tests.support.cli_helpers import CommandResult, run_cli
from tests.support.entry_factory import entry_key, store_entry
from tests.support.redis_deployments import Deployment
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN: Final = {"authorization": "Bearer admin-key"}
KEY: Final = f"key {key_id(hash_key(b'admin-key'))}"
REST: Final = f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\nmode = "keys"\n[[tenant]]\nname = "acme"\n'
CONTRACT: Final = "The whole text of a contract."
COMMAND_LINE: Final = f"command line: {getpass.getuser()}@{socket.gethostname()}"


@pytest_asyncio.fixture(loop_scope="session")
async def text(redis_server: RedisServer, engines: EngineSet) -> str:
    await redis_server.command("DEL", AUDIT_KEY)
    return router_config(redis_server.url, engines.as_config(), rest=REST)


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(text: str, make_router: MakeRouter) -> RouterServer:
    return await make_router(text)


@pytest.fixture
def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "roundhouse.toml"
    path.write_text(text)
    return path


async def command(file: Path, *words: object, stdin: bytes = b"") -> CommandResult:
    result = await run_cli(*words, "--config", file, stdin=stdin)
    assert result.code == 0, result.stderr
    return result


async def post(router: RouterServer, path: str, body: Any = None) -> Any:
    answer = await router.http.post(path, json=body, headers=ADMIN)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def listed(router: RouterServer, **query: Any) -> list[dict[str, Any]]:
    """The oldest first."""
    answer = await router.http.get("/admin/audit", params=query, headers=ADMIN)
    assert answer.status_code == 200, answer.text
    return list(reversed(answer.json()["entries"]))


async def test_each_change_of_the_admin_api_is_recorded_with_its_key_and_logged(
    guarded: RouterServer, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await store_entry(client, entry_key(1))
    await store_entry(client, entry_key(2))
    with caplog.at_level(logging.INFO, "roundhouse.audit"):
        await post(guarded, "/admin/engines/llama-chat/drain")
        await post(guarded, "/admin/engines/llama-chat/resume")
        key = await post(guarded, "/admin/keys", {"tenant": "acme", "name": "ci", "expires": "90d"})
        await guarded.http.delete(f"/admin/keys/{key['key_id']}", headers=ADMIN)
        await guarded.http.delete(f"/admin/cache/entries/{entry_key(1)}", headers=ADMIN)
        await post(guarded, "/admin/cache/purge", {"tenant": "acme", "document": CONTRACT})
        await post(guarded, "/admin/cache/grep", {"text": "Miss Marple", "purge": True})
    entries = await listed(guarded)
    assert [(entry["action"], entry["subject"]) for entry in entries] == [
        ("drain", "llama-chat"), ("resume", "llama-chat"), ("key_created", key["key_id"]),
        ("key_revoked", key["key_id"]), ("purge", f"key={entry_key(1)}"),
        ("purge", f"tenant=acme document={text_document_name(CONTRACT)}"), ("purge", "all"),
    ]  # fmt: skip
    assert {entry["actor"] for entry in entries} == {KEY}
    assert [entry["number"] for entry in entries] == list(range(1, 8))
    assert entries[0]["details"] == {"everywhere": True}
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(key["expires"]))
    assert entries[2]["details"] == {"name": "ci", "tenant": "acme", "expires": end}
    assert entries[4]["details"] == {"entries": 1, "generations": 0, "result": "done"}
    assert entries[6]["details"] == {"text_length": 11, "entries": 0, "generations": 0, "result": "done"}
    lines = [record for record in caplog.records if record.name == "roundhouse.audit"]
    facts = [record.facts for record in lines]  # type: ignore[attr-defined]
    seen = str(await client.xrange(AUDIT_KEY)) + json.dumps(entries) + str(facts) + caplog.text
    for secret in ("admin-key", key["key"], "contract", "Marple"):
        assert secret not in seen
    assert [record.levelname for record in lines] == ["INFO"] * 7
    assert [each["hash"] for each in facts] == [entry["hash"] for entry in entries]


async def test_what_changes_nothing_is_not_recorded(guarded: RouterServer) -> None:
    await guarded.http.post("/admin/engines/nobody/drain", headers=ADMIN)
    await guarded.http.post("/admin/cache/purge", json={}, headers=ADMIN)
    await guarded.http.post("/admin/engines/llama-chat/drain")
    await post(guarded, "/admin/cache/grep", {"text": "nothing"})
    assert await listed(guarded) == []


async def test_a_session_is_recorded_with_the_key_that_it_began_with(guarded: RouterServer) -> None:
    await guarded.http.post("/dashboard/login", data={"key": "admin-key"})
    from_page = {"x-roundhouse-csrf": "1", "sec-fetch-site": "same-origin"}
    answer = await guarded.http.post("/admin/engines/mistral/resume", headers=from_page)
    assert answer.status_code == 200
    (entry,) = await listed(guarded)
    assert entry["actor"] == f"session of {KEY}"


async def test_each_change_of_a_command_is_recorded_with_its_user(guarded: RouterServer, file: Path) -> None:
    await command(file, "engines", "drain", "llama-chat", "llama-code")
    await command(file, "engines", "resume", "llama-chat")
    await command(file, "engines", "resume", "llama-code")
    await command(file, "cache", "purge", "--tenant", "acme", "--yes")
    await command(file, "cache", "import", stdin=b"")
    made = (await command(file, "keys", "new", "--tenant", "acme", "--name", "cd", "--json")).json()
    await command(file, "keys", "revoke", "cd")
    entries = await listed(guarded)
    assert [(entry["action"], entry["subject"]) for entry in entries] == [
        ("drain", "llama-chat"), ("drain", "llama-code"), ("resume", "llama-chat"), ("resume", "llama-code"),
        ("purge", "tenant=acme"), ("import", "-"), ("key_created", made["key_id"]), ("key_revoked", made["key_id"]),
    ]  # fmt: skip
    assert {(entry["actor"], entry["router"]) for entry in entries} == {(COMMAND_LINE, "")}


async def test_the_command_lists_the_changes_and_checks_the_chain(
    guarded: RouterServer, file: Path, redis_server: RedisServer
) -> None:
    assert (await command(file, "audit")).stdout == "no changes are recorded\n"
    for engine in ("llama-chat", "llama-code", "mistral"):
        await post(guarded, f"/admin/engines/{engine}/resume")
    entries = await listed(guarded)
    table = (await command(file, "audit")).stdout.splitlines()
    assert table[0].split() == ["number", "time", "(UTC)", "who", "what", "of", "details"]
    assert [line.split()[0] for line in table[1:]] == ["3", "2", "1"]
    assert f"{KEY}  resume  mistral     everywhere yes" in table[1]
    page = (await command(file, "audit", "--limit", 2, "--json")).json()
    rest = (await command(file, "audit", "--before", page["before"], "--json")).json()
    assert [entry["number"] for entry in (*page["entries"], *rest["entries"])] == [3, 2, 1]
    assert rest["before"] is None
    assert (await command(file, "audit", "--action", "purge")).stdout == "no purge is recorded\n"
    mistaken = await run_cli("audit", "--action", "purged", "--config", file)
    assert (mistaken.code, mistaken.stdout) == (2, "")
    assert mistaken.stderr.startswith("roundhouse: --action: expected one of drain, resume, ")
    result = await command(file, "audit", "--verify", "--hash", entries[1]["hash"])
    assert result.stdout.splitlines() == [
        "3 entries: each follows from the one before it", f"newest hash: {entries[2]['hash']}",
    ]  # fmt: skip
    await redis_server.command("XDEL", AUDIT_KEY, entries[2]["id"])
    lost = await run_cli("audit", "--verify", "--hash", entries[2]["hash"], "--config", file)
    assert (lost.code, lost.stderr) == (1, f"roundhouse: the audit does not have {entries[2]['hash']}\n")
    await redis_server.command("XDEL", AUDIT_KEY, entries[0]["id"])
    trimmed = (await command(file, "audit", "--verify")).stdout
    assert trimmed.startswith("1 entry, after 1 that are not kept any more: ")


async def test_an_altered_entry_is_named(guarded: RouterServer, file: Path, redis_server: RedisServer) -> None:
    for engine in ("llama-chat", "llama-code", "mistral"):
        await post(guarded, f"/admin/engines/{engine}/resume")
    records = await redis_server.command("XRANGE", AUDIT_KEY, "-", "+")
    await redis_server.command("DEL", AUDIT_KEY)
    for id_, fields in records:
        altered = {**dict(fields), "actor": "key 00000000"} if fields["number"] == "2" else dict(fields)
        await redis_server.command("XADD", AUDIT_KEY, id_, *[word for pair in altered.items() for word in pair])
    result = await run_cli("audit", "--verify", "--config", file)
    second = records[1][0]
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        "1 entry before it: each follows from the one before it",
        f"roundhouse: the audit was altered at entry 2 ({second}): it was changed: its hash is another one",
    ]
    answer = (await guarded.http.get("/admin/audit/verify", headers=ADMIN)).json()
    assert (answer["entries"], answer["newest"], answer["broken"]["id"]) == (1, None, second)
    report = await run_cli("audit", "--verify", "--json", "--config", file)
    assert (report.code, report.json()["ok"], report.json()["broken"]["number"]) == (1, False, 2)
    await post(guarded, "/admin/engines/mistral/resume")
    assert len(await listed(guarded)) == 4, "it goes on after the newest entry"


async def test_two_routers_and_commands_that_write_at_once_keep_one_chain(
    text: str, file: Path, make_router: MakeRouter
) -> None:
    pair = [await make_router(text), await make_router(text)]
    changes = [post(router, "/admin/engines/llama-code/resume") for router in pair * 8]
    commands = [command(file, "engines", "resume", engine) for engine in ("mistral", "llama-chat", "llama-code")]
    await asyncio.gather(*changes, *commands)
    entries = await listed(pair[0])
    assert sorted(entry["number"] for entry in entries) == list(range(1, 20))
    assert (await command(file, "audit", "--verify", "--json")).json()["ok"]


async def test_an_entry_of_somebody_else_does_not_end_the_audit(
    guarded: RouterServer, file: Path, redis_server: RedisServer
) -> None:
    await post(guarded, "/admin/engines/mistral/resume")
    await redis_server.command("XADD", AUDIT_KEY, "*", "hash", "none", "number", "x")
    await post(guarded, "/admin/engines/mistral/resume")
    assert [entry["number"] for entry in await listed(guarded)] == [1, 1]
    result = await run_cli("audit", "--verify", "--config", file)
    assert (result.code, "it is not an entry of the audit" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    "query",
    [{"limit": 0}, {"limit": 1001}, {"limit": "x"}, {"before": "+"}, {"before": "1" * 30}, {"action": "purged"}],
)
async def test_a_query_out_of_bounds_is_refused(guarded: RouterServer, query: dict[str, Any]) -> None:
    answer = await guarded.http.get("/admin/audit", params=query, headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_query")


async def test_long_and_hostile_words_are_bounded(redis_server: RedisServer, client: Any) -> None:
    await redis_server.command("DEL", AUDIT_KEY)

    async def send(words: Any) -> Any:
        return await client.execute_command(*words)

    audit = AuditLog(send, lambda _: None, router="", keep_seconds=0)
    names = [f"name-{number}" for number in range(100)]
    await audit.record("a\x1b[2J\n" * 1000, Change("import", "\u202e" * 1000, {"names": names, "none": None}))
    ((_, fields),) = await client.xrange(AUDIT_KEY)
    assert fields[b"actor"].startswith(b"a\\x1b[2J\\n")
    assert len(fields[b"actor"].decode()) == len(fields[b"subject"].decode()) == 200
    assert json.loads(fields[b"details"]) == {"names": [*names[:20], "and 80 more"]}


async def test_a_change_while_redis_is_down_is_done_and_logged_and_counted(
    own_redis: RedisServer, engines: EngineSet, caplog: pytest.LogCaptureFixture
) -> None:
    await own_redis.start()
    async with RouterServer(router_config(own_redis.url, engines.as_config(), rest=REST)) as router:
        own_redis.kill()
        await eventually(lambda: is_down(router))
        with caplog.at_level(logging.INFO, "roundhouse.audit"):
            assert (await post(router, "/admin/engines/mistral/drain"))["everywhere"] is False
        (line,) = [record for record in caplog.records if record.name == "roundhouse.audit"]
        assert line.levelname == "WARNING"
        facts = line.facts  # type: ignore[attr-defined]
        assert (facts["action"], facts["subject"], facts["actor"]) == ("drain", "mistral", KEY)
        assert (facts["recorded"], facts["problem"]) == ("no", "Redis is down")
        assert (await router.metrics())["roundhouse_audit_lost_total"] == 1.0
        await own_redis.start()


async def test_a_command_whose_change_cannot_be_recorded_says_so_and_succeeds(
    redis_server: RedisServer, file: Path
) -> None:
    await redis_server.command("SET", AUDIT_KEY, "of another type")
    result = await command(file, "engines", "resume", "mistral")
    await redis_server.command("DEL", AUDIT_KEY)
    assert result.stdout == "mistral is back in service\n"
    assert result.stderr.startswith("roundhouse: done, but not recorded in the audit: ")


async def test_a_key_of_another_type_is_an_error_and_not_an_empty_audit(
    guarded: RouterServer, redis_server: RedisServer, file: Path
) -> None:
    await redis_server.command("SET", AUDIT_KEY, "of another type")
    for path in ("/admin/audit", "/admin/audit/verify"):
        assert (await guarded.http.get(path, headers=ADMIN)).status_code == 503
    result = await run_cli("audit", "--verify", "--config", file)
    await redis_server.command("DEL", AUDIT_KEY)
    assert (result.code, "a value of another type" in result.stderr) == (1, True)
    assert (await command(file, "audit", "--verify")).stdout == "no changes are recorded\n"


async def test_every_kind_of_redis_keeps_the_chain(deployment: Deployment, engines: EngineSet, tmp_path: Path) -> None:
    text = router_config(deployment.url, engines.as_config(), rest=REST)
    (tmp_path / "roundhouse.toml").write_text(text)
    await (await deployment.primary_of_key(AUDIT_KEY)).command("DEL", AUDIT_KEY)
    async with RouterServer(text) as router:
        await eventually(lambda: is_up(router))
        await post(router, "/admin/engines/mistral/resume")
        await command(tmp_path / "roundhouse.toml", "engines", "resume", "mistral")
        assert [entry["actor"] for entry in await listed(router)] == [KEY, COMMAND_LINE]
        report = (await command(tmp_path / "roundhouse.toml", "audit", "--verify", "--json")).json()
        assert (report["ok"], report["entries"]) == (True, 2)


async def is_up(router: RouterServer) -> bool:
    return bool((await router.http.get("/healthz")).json()["redis"] == "up")


async def is_down(router: RouterServer) -> bool:
    return bool((await router.http.get("/healthz")).json()["redis"] == "down")


@pytest.mark.parametrize("number", [10**15 - 1, 10**15 - 2, 10**15, 5])
async def test_an_entry_of_somebody_else_fails_no_change(
    guarded: RouterServer, redis_server: RedisServer, number: int
) -> None:
    await redis_server.command("XADD", AUDIT_KEY, "*", "number", number, "previous", "0" * 64, "hash", "0" * 64)
    for change in ("drain", "resume", "drain", "resume"):
        await post(guarded, f"/admin/engines/llama-chat/{change}")
    assert [entry["action"] for entry in await listed(guarded)][-4:] == ["drain", "resume", "drain", "resume"]
    await redis_server.command("DEL", AUDIT_KEY)
    await post(guarded, "/admin/engines/llama-chat/drain")
    await post(guarded, "/admin/engines/llama-chat/resume")
    assert [entry["action"] for entry in await listed(guarded)] == ["drain", "resume"]
