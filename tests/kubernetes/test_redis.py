"""deploy/kubernetes: Redis, as its container starts it."""

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as aioredis
from redis.exceptions import RedisError

from engines.redis_server import find_program
from router.shared.connection.redis_rights import NEEDED_COMMANDS
from tests.support.kubernetes_manifests import FOLDER
from tests.support.paths import ROOT
from tests.support.waiting import eventually

REDIS = FOLDER / "components" / "redis"


@pytest.fixture
async def socket(tmp_path: Path) -> AsyncIterator[Path]:
    """The socket of a server that start.sh has started with redis.conf, in folders of the test."""
    conf, script, socket = (tmp_path / name for name in ("redis.conf", "start.sh", "redis.sock"))
    # The image has Redis 8; versions before 7.2, which may be installed here, do not know that right.
    script.write_text((REDIS / "start.sh").read_text().replace(" +client|setinfo", ""))
    conf.write_text((REDIS / "redis.conf").read_text().replace("dir /data", f"dir {tmp_path}"))
    environment = {
        "PATH": f"{Path(find_program('redis-server')).parent}:{os.environ['PATH']}",
        "REDIS_PASSWORD": "right",
        "USERS_FILE": str(tmp_path / "users.acl"),
        "REDIS_CONF": str(conf),
    }
    argv = ["sh", str(script), "--port", "0", "--unixsocket", str(socket)]
    process = await asyncio.create_subprocess_exec(*argv, env=environment, stdout=subprocess.DEVNULL)
    try:
        await eventually(socket.exists)
        yield socket
    finally:
        process.terminate()
        await process.wait()


async def _error_of(socket: Path, password: str | None, *command: str) -> str:
    user = None if password is None else "roundhouse"
    client: Any = aioredis.Redis(unix_socket_path=str(socket), username=user, password=password)
    try:
        await client.execute_command(*command)
    except RedisError as error:
        return str(error)
    finally:
        await client.aclose()
    return ""


async def test_only_the_router_with_its_password_has_access_and_only_to_its_keys(socket: Path) -> None:
    assert await _error_of(socket, "right", "SET", "rh:1:probe", "1") == ""
    assert "permissions" in await _error_of(socket, "right", "SET", "other", "1")
    assert "permissions" in await _error_of(socket, "right", "FLUSHALL")
    assert "invalid username-password" in await _error_of(socket, "wrong", "PING")
    assert "already authenticated" in await _error_of(socket, None, "PING")
    assert "right" not in (socket.parent / "users.acl").read_text().split()


def test_redis_grants_the_documented_rights() -> None:
    script = (REDIS / "start.sh").read_text()
    assert {command.rule for command in NEEDED_COMMANDS} <= set(script.split())
    page = (ROOT / "docs" / "deploying.md").read_text()
    (documented,) = re.findall(r"ACL SETUSER roundhouse on >password (.*)", page)
    assert f"{documented} +client|setinfo\n" in script
