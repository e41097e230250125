"""A real Redis for tests: to read, to freeze and to kill."""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import redis.asyncio as aioredis

from engines.redis_server import find_program
from tests.support.waiting import eventually


class CannotStartError(Exception):
    """The server ended instead of starting: a port is taken, or it does not know one of its options."""


class RedisServer:
    """A redis-server of its own on a Unix socket; `kill` and `start` bring it back, empty, at the same place.

    `port`: where it listens too; `program`: what is started; `conf`: the text of its configuration file.
    """

    def __init__(self, *options: str, port: int = 0, program: str = "redis-server", conf: str | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rh-"))  # a socket's path must be short
        self.socket = self.folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self.port = port
        self._program = program
        self._options = options
        self._conf = self.folder / "redis.conf" if conf is not None else None
        if self._conf is not None:
            self._conf.write_text(conf or "")
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Raises CannotStartError."""
        self._process = self._spawn()
        await eventually(self._answers_ping)

    async def command(self, *words: str | int) -> Any:
        """Sends it a command; its reply, as redis-py gives it. Raises redis.exceptions.ResponseError."""
        client: Any = aioredis.Redis.from_url(self.url, decode_responses=True)
        try:
            return await client.execute_command(*words)
        finally:
            await client.aclose()

    async def command_bytes(self, *words: str | int) -> Any:
        """The same, with bytes in the reply as they are."""
        client: Any = aioredis.Redis.from_url(self.url)
        try:
            return await client.execute_command(*words)
        finally:
            await client.aclose()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def freeze(self) -> None:
        """Connections are accepted by the kernel, and nobody answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.socket.unlink(missing_ok=True)
            self._process = None

    def remove(self) -> None:
        """Ends it, and leaves nothing behind."""
        self.kill()
        shutil.rmtree(self.folder)

    def _spawn(self) -> "subprocess.Popen[bytes]":
        argv = [find_program(self._program), *([str(self._conf)] if self._conf is not None else [])]
        argv += ["--port", str(self.port), "--unixsocket", str(self.socket), "--dir", str(self.folder)]
        if "--sentinel" not in self._options:
            argv += ["--save", "", "--appendonly", "no"]
        argv += self._options
        return subprocess.Popen(argv, stdout=subprocess.DEVNULL)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    async def _answers_ping(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise CannotStartError
        try:
            reader, writer = await asyncio.open_unix_connection(str(self.socket))
        except OSError:
            return False
        writer.write(b"PING\r\n")
        answer = await reader.readline()
        writer.close()
        return answer == b"+PONG\r\n"
