"""deploy/redis: the Redis of the compose files, started here with its own script on another port."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.compose_file import load_compose
from tests.support.paths import ROOT
from tests.support.ports import free_port

FOLDER = ROOT / "deploy" / "redis"
START = (FOLDER / "start.sh").read_text()


def rights(text: str) -> list[str]:
    match = re.search(r"resetchannels ~rh:1:\* &rh:1:\* -@all[^'\n]*", text)
    assert match is not None
    return match[0].split()


def test_the_routers_user_has_the_rights_of_the_docs() -> None:
    documented = rights((ROOT / "docs" / "deploying.md").read_text())
    # The page has this one in its table, for Redis 7.2 or newer.
    assert rights(START) == [*documented, "+client|setinfo"]


def test_the_memory_policy_and_the_persistence_are_those_of_the_docs() -> None:
    lines = (FOLDER / "redis.conf").read_text().splitlines()
    assert {"maxmemory-policy allkeys-lru", "appendonly yes", "appendfsync everysec"} <= set(lines)


class Started:
    """Redis, started by start.sh with the paths and the port of a test."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.port = free_port()
        config = (FOLDER / "redis.conf").read_text()
        for old, new in (
            ("port 6379", f"port {self.port}"),
            ("/data", str(folder)),
            ("/tmp/users.acl", f"{folder}/acl"),
        ):
            assert old in config
            config = config.replace(old, new)
        (folder / "redis.conf").write_text(config)
        # A Redis before 7.2 does not know the command.
        script = START.replace("/etc/redis/redis.conf", f"{folder}/redis.conf").replace(" +client|setinfo", "")
        (folder / "start.sh").write_text(script.replace("/tmp/users.acl", f"{folder}/acl"))
        self.process = subprocess.Popen(
            ["/bin/sh", str(folder / "start.sh")],
            env={"PATH": os.environ["PATH"], **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def wait(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "Ready to accept connections" in line:
                return
        raise AssertionError("Redis does not start")

    def client(self, user: str, password: str) -> "redis.Redis":
        return redis.Redis(port=self.port, username=user, password=password, decode_responses=True)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server here")
    environment = {
        "REDISCLI_AUTH": "router-password",
        "REDIS_ADMIN_PASSWORD": "an admin's >",
        "REDIS_MAXMEMORY": "64mb",
    }
    server = Started(tmp_path, environment)
    try:
        server.wait()
        yield server
    finally:
        server.process.terminate()
        server.process.communicate()


def test_the_router_gets_its_keys_and_nothing_else(started: Started) -> None:
    with started.client("roundhouse", "router-password") as client:
        assert client.set("rh:1:x", "y") is True
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.set("other", "y")
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.config_get("maxmemory")


def test_the_administrator_gets_everything(started: Started) -> None:
    with started.client("default", "an admin's >") as client:
        assert client.config_get("maxmemory") == {"maxmemory": str(64 << 20)}
        assert client.config_get("appendonly") == {"appendonly": "yes"}


def test_nobody_gets_in_without_a_password(started: Started) -> None:
    with redis.Redis(port=started.port) as client, pytest.raises(redis.exceptions.AuthenticationError):
        client.ping()


def test_the_process_list_and_the_files_have_no_password(started: Started, tmp_path: Path) -> None:
    arguments = Path(f"/proc/{started.process.pid}/cmdline")
    if arguments.exists():
        assert b"password" not in arguments.read_bytes()
    users = tmp_path / "acl"
    assert users.stat().st_mode & 0o077 == 0
    assert "router-password" not in users.read_text()


@pytest.mark.parametrize("password", ["", "a b", "a/b", "a:b", "a@b"])
def test_a_password_that_does_not_fit_into_a_url_is_refused(tmp_path: Path, password: str) -> None:
    server = Started(tmp_path, {"REDISCLI_AUTH": password})
    _, error = server.process.communicate()
    assert server.process.returncode == 1
    assert "REDIS_PASSWORD" in error


def test_without_an_admin_password_there_is_no_admin(tmp_path: Path) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server here")
    server = Started(tmp_path, {"REDISCLI_AUTH": "router-password", "REDIS_ADMIN_PASSWORD": ""})
    try:
        server.wait()
        with server.client("default", "") as client, pytest.raises(redis.exceptions.AuthenticationError):
            client.ping()
    finally:
        server.process.terminate()
        server.process.communicate()


def test_the_health_check_of_compose_succeeds(started: Started) -> None:
    check = load_compose((ROOT / "docker-compose.yml").read_text()).services["redis"].healthcheck.test
    command = [check[1], "-p", str(started.port), *check[2:]]
    for password, exit_code in (("router-password", 0), ("wrong", 1)):
        environment = {"PATH": os.environ["PATH"], "REDISCLI_AUTH": password}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == exit_code, done.stdout
