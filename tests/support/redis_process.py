"""A real Redis for tests to read, freeze and kill."""

import asyncio
import contextlib
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
    """The server exited instead of starting: a port is in use, or an option is unknown."""


class RedisServer:
    """A redis-server on its own Unix socket; `kill` and `start` restart it at the same place, empty.

    `port`: a TCP port to listen on as well; `program`: the program to start; `conf`: the text of its configuration
    file.
    """

    def __init__(self, *options: str, port: int = 0, program: str = "redis-server", conf: str | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rh-"))  # a Unix socket's path is limited to about 100 bytes
        self.socket = self.folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self.port = port
        self._program = program
        self._options = options
        self._conf = self.folder / "redis.conf" if conf is not None else None
        if self._conf is not None:
            self._conf.write_text(conf or "")
        self._log = self.folder / "redis.log"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Raises CannotStartError."""
        self._process = self._spawn()
        await eventually(self._answers_ping)

    async def command(self, *words: str | int) -> Any:
        """Executes a command; returns redis-py's reply. Raises redis.exceptions.ResponseError."""
        client: Any = aioredis.Redis.from_url(self.url, decode_responses=True)
        try:
            return await client.execute_command(*words)
        finally:
            await client.aclose()

    async def command_bytes(self, *words: str | int) -> Any:
        """Like `command`, but without decoding the reply."""
        client: Any = aioredis.Redis.from_url(self.url)
        try:
            return await client.execute_command(*words)
        finally:
            await client.aclose()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def freeze(self) -> None:
        """Stops the process: the kernel still accepts connections, but there are no replies."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.socket.unlink(missing_ok=True)
            self._process = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder)

    def _spawn(self) -> "subprocess.Popen[bytes]":
        argv = [find_program(self._program), *([str(self._conf)] if self._conf is not None else [])]
        argv += ["--bind", "127.0.0.1", "--port", str(self.port)]
        argv += ["--unixsocket", str(self.socket), "--dir", str(self.folder)]
        if "--sentinel" not in self._options:
            # Nothing is saved, so that a restarted server is empty; Sentinels have no data.
            argv += ["--save", "", "--appendonly", "no"]
        argv += self._options
        with self._log.open("wb") as log:
            # In a session of its own: Ctrl-C in a terminal reaches only the program that has started it.
            return subprocess.Popen(argv, stdout=log, start_new_session=True)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    async def _answers_ping(self) -> bool:
        assert self._process is not None
        # It has exited: eventually() would wait in vain.
        if self._process.poll() is not None:
            raise CannotStartError(self._log.read_text(errors="replace")[-1000:])
        try:
            reader, writer = await asyncio.open_unix_connection(str(self.socket))
            with contextlib.closing(writer):
                writer.write(b"PING\r\n")
                return await reader.readline() == b"+PONG\r\n"
        except OSError:  # not there yet, or it closes its first connections while it starts
            return False
