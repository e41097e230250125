"""Redis as `deploy` starts it: with the script and the configuration of a container, in a folder of the test."""

import os
import subprocess
from pathlib import Path
from typing import Final

from engines.redis_server import find_program
from tests.support.paths import ROOT
from tests.support.redis_process import RedisServer

PASSWORD: Final = "router-password"
FOLDERS: Final = {
    "compose": ROOT / "deploy" / "redis",
    "kubernetes": ROOT / "deploy" / "kubernetes" / "components" / "redis",
}


class DeployedRedis(RedisServer):
    """`url` is that of the router's user. Only its socket is open. Unlike its parent, it keeps its data on the disk."""

    def __init__(self, deployment: str, *, program: str | None = None) -> None:
        """`deployment`: a name in FOLDERS. `program`: the redis-server to start, if not the machine's."""
        super().__init__()
        self.url = f"unix://roundhouse:{PASSWORD}@{self.socket}"
        self._programs = Path(program or find_program("redis-server")).parent
        self._past_logs = ""
        conf, script = ((FOLDERS[deployment] / name).read_text() for name in ("redis.conf", "start.sh"))
        for old, new in (
            ("port 6379", "port 0"),
            ("/data", str(self.folder)),
            ("/tmp/users.acl", f"{self.folder}/acl"),
        ):
            conf = conf.replace(old, new)
        self._file("redis.conf").write_text(f"{conf}\nunixsocket {self.socket}\n")
        # A Redis before 7.2 does not know the command.
        script = script.replace(" +client|setinfo", "").replace("/etc/redis/", f"{self.folder}/")
        self._file("start.sh").write_text(script.replace("/tmp/users.acl", f"{self.folder}/acl"))

    async def restart(self) -> None:
        """As a container is stopped and started: with SIGTERM, and with the data that is on the disk."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()
        self._past_logs += self._log.read_text()
        await self.start()

    def log(self) -> str:
        return self._past_logs + self._log.read_text()

    def _file(self, name: str) -> Path:
        return self.folder / name

    def _spawn(self) -> "subprocess.Popen[bytes]":
        environment = {
            "PATH": f"{self._programs}:{os.environ['PATH']}",
            "REDISCLI_AUTH": PASSWORD,  # of compose
            "REDIS_PASSWORD": PASSWORD,  # of Kubernetes
        }
        with self._log.open("wb") as log:
            return subprocess.Popen(["/bin/sh", str(self._file("start.sh"))], env=environment, stdout=log)

    async def _answers_ping(self) -> bool:
        return "accept connections at" in self._log.read_text()
