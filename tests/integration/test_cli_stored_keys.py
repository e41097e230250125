"""`roundhouse keys` with keys that live in Redis."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from router.core.api_keys import MAX_KEYS, RETENTION, KeyRecord, encode_record, hash_key
from router.core.cache.redis_keys import KEYS_APPLIED_KEY, KEYS_RECORDS_KEY
from router.store.admin import key_confirmation
from tests.support.cli_helpers import CommandResult, run_cli
from tests.support.key_routers import KEYS_CONFIG, statuses
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, router_config

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def file(redis_server: RedisServer, engines: EngineSet, tmp_path: Path, redis: Any) -> Path:
    path = tmp_path / "roundhouse.toml"
    path.write_text(router_config(redis_server.url, engines.as_config(), rest=KEYS_CONFIG))
    return path


async def keys(file: Path, *arguments: object) -> CommandResult:
    return await run_cli("keys", *arguments, "-c", file)


async def test_a_key_is_made_listed_and_revoked_while_routers_run(make_router: MakeRouter, file: Path) -> None:
    pair = await make_router(file.read_text()), await make_router(file.read_text())
    made = await keys(file, "new", "--tenant", "acme", "--name", "ci", "--expires", "90d")
    (key,) = made.stdout.splitlines()
    key_id = hash_key(key.encode())[7:15]
    assert (made.code, made.stderr) == (
        0, f"The key {key_id} (ci) of acme expires in 90d. Only its hash is stored.\n",
    )  # fmt: skip
    assert await statuses(key, *pair) == [200, 200]
    table = (await keys(file, "list")).stdout
    assert re.search(rf"^{key_id} +tenant +acme +ci +redis +active +\S+ \S+ +\S+ \S+ +-$", table, re.MULTILINE)
    revoked = await keys(file, "revoke", "ci")
    assert (revoked.code, revoked.stdout) == (
        0, f"revoked {key_id} (ci) of acme; 2 router processes confirmed it\n",
    )  # fmt: skip
    assert await statuses(key, *pair) == [401, 401]
    assert [row["status"] for row in (await keys(file, "list", "--json")).json_lines() if row["name"] == "ci"] == [
        "revoked"
    ]
    assert key not in made.stderr + table + revoked.stdout + revoked.stderr


async def test_a_key_may_be_made_before_any_router_runs(make_router: MakeRouter, file: Path) -> None:
    made = (await keys(file, "new", "--tenant", "beta", "--name", "ci", "--json")).json()
    assert made["routers"] == {"confirmed": 0, "unconfirmed": []}
    assert made["expires"] is None
    assert await statuses(made["key"], await make_router(file.read_text())) == [200]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["new", "--name", "ci"], "--name and --expires: only possible with --tenant"),
        (["new", "--tenant", "acme"], "--name: is required with --tenant"),
        (["new", "--tenant", "gamma", "--name", "ci"], "The tenant is not configured; the tenants are acme, beta."),
        (["new", "--tenant", "acme", "--name", "ci", "--expires", "x"], "--expires: `expires` is not a duration"),
        (["revoke", "none"], "Redis has no such key."),
    ],
)
async def test_wrong_use_is_an_error_of_one_line(file: Path, arguments: list[str], message: str) -> None:
    result = await keys(file, *arguments)
    assert (result.code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


async def test_no_key_is_made_where_no_router_would_ask_for_it(file: Path) -> None:
    text = re.sub(r"(?m)^(mode|keys) = .*\n", "", file.read_text())
    for mode in ("", 'mode = "open"\n', 'mode = "header"\n'):
        file.write_text(text.replace("[auth]\n", f"[auth]\n{mode}"))
        result = await keys(file, "new", "--tenant", "acme", "--name", "ci")
        assert (result.code, result.stdout) == (2, "")
        assert 'set it to "keys" first' in result.stderr


async def test_a_process_that_does_not_confirm_is_named_without_the_control_characters_of_its_name(
    file: Path, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_confirmation, "CONFIRMATION_TIMEOUT", 0.1)
    await keys(file, "new", "--tenant", "acme", "--name", "ci")
    presence = {"host": "a\x1b[2J\x07b", "pid": 7, "version": 0, "at": (await redis.time())[0]}
    await redis.hset(KEYS_APPLIED_KEY, "p", json.dumps(presence))
    revoked = await keys(file, "revoke", "ci")
    assert revoked.code == 1
    assert "not confirmed by a\\x1b[2J\\x07b:7: applied there as soon as" in revoked.stderr
    assert revoked.stderr.rstrip("\n").isprintable()


async def test_without_redis_nothing_is_made_or_revoked(file: Path, own_redis: RedisServer) -> None:
    file.write_text(re.sub(r'url = "unix://[^"]*"', f'url = "{own_redis.url}"', file.read_text()))
    for arguments in (["new", "--tenant", "acme", "--name", "ci"], ["revoke", "ci"]):
        result = await keys(file, *arguments)
        assert (result.code, result.stdout) == (1, "")
        assert "Redis does not answer" in result.stderr


async def test_the_number_of_keys_is_bounded_and_those_that_ended_long_ago_make_room(file: Path, redis: Any) -> None:
    now = (await redis.time())[0]

    def record(number: int, **fields: float) -> tuple[str, bytes]:
        made = KeyRecord(hash=hash_key(b"%d" % number), tenant="acme", name=f"k{number}", created=now, **fields)
        return made.id, encode_record(made)

    everything = dict(record(number) for number in range(MAX_KEYS))
    await redis.hset(KEYS_RECORDS_KEY, mapping=everything)
    refused = await keys(file, "new", "--tenant", "acme", "--name", "ci")
    assert refused.code == 2
    assert "10,000 keys" in refused.stderr
    await redis.hset(KEYS_RECORDS_KEY, mapping=dict([record(1, revoked=now - RETENTION - 60)]))
    assert (await keys(file, "new", "--tenant", "acme", "--name", "ci")).code == 0
    assert not await redis.hexists(KEYS_RECORDS_KEY, record(1)[0])
