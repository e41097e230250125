"""`roundhouse status` and `models`, and the names that people guess for other commands."""

import re
from pathlib import Path
from typing import Any

import pytest

from router.api.access.auth import hash_key
from router.commands import admin_access
from tests.support.cli_helpers import run_cli
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config
from tests.support.waiting import eventually

ADMIN_KEY = "admin-key-of-a-test"
ADMIN = f'[auth]\nadmin_keys = ["{hash_key(ADMIN_KEY.encode())}"]'

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def file(tmp_path: Path, redis_server: RedisServer, engines: EngineSet) -> Path:
    path = tmp_path / "roundhouse.toml"
    path.write_text(router_config(redis_server.url, engines.as_config()))
    return path


async def test_a_router_that_is_well_is_shown_on_one_screen_with_exit_code_0(router: RouterServer) -> None:
    async def well() -> Any:
        result = await run_cli("status", "--url", router.url)
        return result if result.code == 0 else None

    result = await eventually(well)
    first, *rest = result.stdout.splitlines()
    assert first.startswith(f"healthy  {router.url}  ")
    assert first.endswith("  Redis up")
    assert [line.split()[0] for line in rest if line] == ["engine", "llama-chat", "llama-code", "mistral"]
    assert len(rest) < 24


async def test_a_degraded_router_has_exit_code_1_and_names_what_is_wrong(
    make_router: MakeRouter, engines: EngineSet
) -> None:
    text = router_config(f"redis://127.0.0.1:{free_port()}", engines.as_config())
    router = await make_router(text)

    async def degraded() -> Any:
        result = await run_cli("status", "--url", router.url, "--json")
        return result if result.code == 1 else None

    result = await eventually(degraded)
    (problem,) = result.json()["problems"]
    assert re.fullmatch(r"Redis is down since [0-9:]{8} UTC: every request is a bypass", problem)
    assert (result.code, result.json()["status"], result.json()["redis"]) == (1, "degraded", "down")
    assert "Redis is down" in (await run_cli("status", "--url", router.url)).stdout


async def test_a_router_without_engines_has_exit_code_2(make_router: MakeRouter, redis_server: RedisServer) -> None:
    gone = {"gone": ("llama", "any", f"http://127.0.0.1:{free_port()}")}
    router = await make_router(router_config(redis_server.url, gone))

    async def down() -> Any:
        result = await run_cli("status", "--url", router.url)
        return result if "engine gone is down since" in result.stdout else None

    result = await eventually(down)
    assert "  no engine of llama is in service: only hits are served\n" in result.stdout
    assert re.search(r"  engine gone is down since [0-9:]{8} UTC: connection refused\n", result.stdout)
    assert result.code == 2
    assert result.stdout.startswith("unhealthy")


async def test_with_a_key_a_tenant_that_is_limited_is_named(
    make_router: MakeRouter, own_redis: RedisServer, engines: EngineSet, tmp_path: Path
) -> None:
    await own_redis.start()
    limited = f'{ADMIN}\n[[tenant]]\nname = "default"\nrequests_per_minute = 1\n'
    router = await make_router(router_config(own_redis.url, engines.as_config(), rest=limited))
    for _ in range(40):
        await router.chat("The sea?")
    key = tmp_path / "key"
    key.write_text(ADMIN_KEY)

    async def named() -> Any:
        result = await run_cli("status", "--url", router.url, "--key-file", key)
        return result if "tenant default is being limited: 39 refused in 5 minutes" in result.stdout else None

    assert (await eventually(named)).code == 0
    key.write_text("another-key")
    result = await run_cli("status", "--url", router.url, "--key-file", key)
    assert (result.code, "tenant" in result.stdout, "without tenants: " in result.stderr) == (0, False, True)


async def test_the_state_needs_no_file_of_a_key_and_none_of_the_variables_of_engines(
    router: RouterServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_access, "running_pid", lambda _: 1)
    place = f'[router]\nhost = "127.0.0.1"\nport = {router.port}\n[auth]\nadmin_key_file = "{tmp_path}"\n'
    path = tmp_path / "roundhouse.toml"
    path.write_text(f'{place}[[engine]]\nname = "e"\napi_key = "${{A_VARIABLE_THAT_IS_NOT_SET}}"\n')

    async def well() -> Any:
        result = await run_cli("status", "--config", path)
        return result if result.code == 0 else None

    result = await eventually(well)
    assert result.stdout.startswith(f"healthy  {router.url}  ")
    assert result.stderr == f"roundhouse: without an admin key: {tmp_path}: Is a directory\n"
    path.write_text(f"{place.replace('port', 'prot')}")
    wrong = await run_cli("status", "--config", path)
    assert (wrong.code, "prot" in wrong.stderr) == (2, True)


async def test_no_answer_and_another_server_have_exit_code_2(engines: EngineSet) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    result = await run_cli("status", "--url", nowhere)
    assert (result.code, result.stdout) == (2, f"unreachable  {nowhere}\n  it does not answer (ConnectError)\n")
    other = await run_cli("status", "--json", "--url", f"http://127.0.0.1:{engines.chat.port}")
    assert (other.code, other.json()["status"]) == (2, "unreachable")


async def test_models_are_listed_by_the_names_that_clients_use(file: Path) -> None:
    result = await run_cli("models", "-c", file, "--json")
    rows = {row["name"]: row for row in result.json_lines()}
    assert set(rows) == {"llama", "mistral"}
    assert (rows["llama"]["engines"], rows["llama"]["engines_up"]) == (["llama-chat", "llama-code"], 2)
    table = (await run_cli("models", "-c", file)).stdout
    assert "2 of 2" in table


async def test_the_names_that_only_read_do_what_the_long_ones_do(file: Path, router: RouterServer) -> None:
    answer = await router.chat("The sea?")
    key = answer.headers["x-cache-key"]

    async def stored() -> bool:
        return (await run_cli("cache", "show", key, "-c", file)).code == 0

    await eventually(stored)
    got, shown = [await run_cli("cache", name, key, "-c", file, "--json") for name in ("get", "show")]
    assert (got.code, got.json()["entry"]["key"]) == (0, key)
    assert got.json()["text"] == shown.json()["text"]
    status, listed = [await run_cli("engines", name, "-c", file, "--json") for name in ("status", "list")]
    assert [row["name"] for row in status.json_lines()] == [row["name"] for row in listed.json_lines()]


async def test_the_names_that_would_delete_show_it_and_delete_nothing(file: Path, router: RouterServer) -> None:
    answer = await router.chat("The moon?")
    key = answer.headers["x-cache-key"]

    async def stored() -> bool:
        return (await run_cli("cache", "show", key, "-c", file)).code == 0

    await eventually(stored)
    for arguments, count, command in (
        (["delete", key], "1 entry", f"cache purge --key {key}"),
        (["clear", "--tenant", "default"], "", "cache purge --tenant default"),
        (["clear"], "", "cache purge --all"),
    ):
        result = await run_cli("cache", *arguments, "-c", file)
        assert result.code == 2, "a script must not take it for done"
        assert f"{count}" in result.stdout
        assert "would be purged" in result.stdout
        assert f"nothing was purged; to purge: roundhouse {command} --config {file}" in result.stderr
        assert await stored()


async def test_keys_create_names_the_command_that_makes_a_key() -> None:
    result = await run_cli("keys", "create", "--tenant", "acme", "--name", "ci")
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr == "roundhouse: no key was made; to make one: roundhouse keys new --tenant acme --name ci\n"


async def test_several_engines_are_drained_at_once_or_none(file: Path) -> None:
    refused = await run_cli("engines", "drain", "llama-chat", "none", "-c", file)
    assert refused.code == 2
    assert "no engine 'none'" in refused.stderr

    async def drained() -> list[str]:
        rows = (await run_cli("engines", "list", "-c", file, "--json")).json_lines()
        return [row["name"] for row in rows if row["drained"]]

    assert await drained() == []
    done = await run_cli("engines", "drain", "llama-chat", "llama-code", "-c", file)
    assert (done.code, done.stdout) == (0, "llama-chat is drained\nllama-code is drained\n")
    assert await drained() == ["llama-chat", "llama-code"]
    for name in ("llama-chat", "llama-code"):
        await run_cli("engines", "resume", name, "-c", file)


async def test_version_and_help_are_commands_too() -> None:
    assert (await run_cli("version")).stdout == (await run_cli("--version")).stdout
    assert set((await run_cli("version", "--json")).json()) == {"version", "compiled"}
    assert (await run_cli("help", "cache", "purge")).stdout == (await run_cli("cache", "purge", "--help")).stdout
    assert (await run_cli("help")).stdout == (await run_cli("--help")).stdout
    unknown = await run_cli("help", "chekc")
    assert (unknown.code, "Did you mean 'check'?" in unknown.stderr) == (2, True)
