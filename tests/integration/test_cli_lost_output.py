"""A key that cannot be shown is not lost unseen: standard output is a full disk, or a pipe that nobody reads."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.api.access.auth import hash_key
from tests.support.cli_helpers import run_cli, run_cli_into
from tests.support.first_steps import engine_of
from tests.support.redis_process import RedisServer
from tests.support.router_server import router_config
from tests.support.scripted_engine import served
from tests.support.waiting import TEST_TIMEOUT

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(params=["full", "closed"])
def output(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """A file descriptor, and why it takes nothing."""
    if request.param == "full":
        descriptor, reason = os.open("/dev/full", os.O_WRONLY), "No space left on device"
    else:
        reading, descriptor = os.pipe()
        os.close(reading)
        reason = "Broken pipe"
    yield descriptor, f"standard output: {reason}"
    os.close(descriptor)


@pytest.mark.parametrize("force", [False, True])
async def test_init_writes_no_file_with_the_hashes_of_keys_that_it_cannot_show(
    tmp_path: Path, output: tuple[int, str], force: bool
) -> None:
    descriptor, reason = output
    path = tmp_path / "roundhouse.toml"
    if force:
        path.write_text("mine")
    async with served(engine_of("llama")) as url:
        options = ["--engine", url, "--redis", "redis://127.0.0.1:1", "--admin-key", *["--force"] * force]
        result = await run_cli_into(descriptor, "init", "-o", path, *options)
    assert result.code == 1
    assert result.stderr.endswith(f"roundhouse: {reason}: the keys are not shown, so {path} is not written\n")
    assert (path.read_text() if path.exists() else None) == ("mine" if force else None)


async def test_keys_new_says_how_to_revoke_the_key_that_it_cannot_show(
    tmp_path: Path, output: tuple[int, str], redis_server: RedisServer, redis: object
) -> None:
    descriptor, reason = output
    path = tmp_path / "roundhouse.toml"
    rest = f'[auth]\nmode = "keys"\nadmin_keys = ["{hash_key(b"a")}"]\n[[tenant]]\nname = "acme"\n'
    path.write_text(router_config(redis_server.url, {"e": ("llama", "any", "http://127.0.0.1:9")}, rest=rest))
    result = await run_cli_into(descriptor, "keys", "new", "--tenant", "acme", "--name", "ci", "--config", path)
    rows = (await run_cli("keys", "list", "--config", path, "--json")).json_lines()
    (made,) = [row["key_id"] for row in rows if row["name"] == "ci"]
    undo = f"roundhouse keys revoke {made} --config {path}"
    assert (result.code, result.stderr) == (
        1, f"roundhouse: {reason}: the key {made} is made, and cannot be shown again; revoke it: {undo}\n"
    )  # fmt: skip
    assert (await run_cli("keys", "revoke", made, "--config", path)).code == 0


async def test_keys_new_without_a_tenant_says_that_the_key_is_not_shown(output: tuple[int, str]) -> None:
    descriptor, reason = output
    result = await run_cli_into(descriptor, "keys", "new")
    assert (result.code, result.stderr) == (
        1, f"roundhouse: {reason}: the key is not shown, and stored nowhere\n"
    )  # fmt: skip


async def test_an_output_that_the_shell_has_closed_is_told() -> None:
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", 'exec "$0" -m router keys new >&-', sys.executable, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(TEST_TIMEOUT):
        _, err = await process.communicate()
    assert (process.returncode, err.decode()) == (
        1, "roundhouse: standard output: it is closed: the key is not shown, and stored nowhere\n"
    )  # fmt: skip
