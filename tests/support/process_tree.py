"""A running `roundhouse up` with simulated engines, and requests in a steady flow."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.ports import free_port
from tests.support.processes import children
from tests.support.waiting import eventually

_ENGINE = """
[[engine]]
name = "{name}"
model = "llama"
url = "http://127.0.0.1:{port}"
served_model = "served"
[engine.launch]
target = "old"
draft = "draft-{name}"
"""


# Seconds between two requests of a client: what clients would use of the machine is missing where processes start.
_PAUSE = 0.05


class ProcessTree:
    """`roundhouse up` with the engines e0 and e1 of the model llama. `stop` and `start` restart it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{free_port()}"
        self.config = folder / "roundhouse.toml"
        text = f'[router]\nport = {self.url.rpartition(":")[2]}\nstate = "state"\nexplore = 0\n'
        # A busy machine can be silent for longer than by default, and the answer would not come from the cache.
        text += '[cache]\ntimeout = "2500ms"\n[[model]]\nname = "llama"\nrevision = "r1"\n'
        self.config.write_text(text + "".join(_ENGINE.format(name=name, port=free_port()) for name in ("e0", "e1")))
        self._log = folder / "up.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> str:
        return self._log.read_text()

    async def start(self) -> None:
        self._process = process = self._launch()

        def is_ready() -> bool:
            assert process.poll() is None, self.output
            return "stop: Ctrl-C" in self.output

        await eventually(is_ready, timeout=60)

    def _launch(self) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-m", "router", "up", "-c", str(self.config), "--engines", "simulator"]
        with self._log.open("wb") as log:
            return subprocess.Popen(argv, cwd=self.folder, stdout=log, stderr=log, env=os.environ)

    async def stop(self, number: int = signal.SIGINT) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            await asyncio.to_thread(self._process.wait, 60)

    def engines(self) -> list[bytes]:
        """The command lines of the engines that run, with a NUL after each argument."""
        assert self._process is not None
        return [command for command in children(self._process.pid).values() if b"engines.simulator" in command]

    async def start_command(self, *command: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "router", *command, "-c", str(self.config), cwd=self.folder,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    async def run(self, *command: str) -> tuple[int, str, str]:
        """A command of `roundhouse`: its exit code, output and errors."""
        process = await self.start_command(*command)
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def ask(self, prompt: str, **fields: Any) -> httpx.Response:
        async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
            return await http.post(f"{self.url}/v1/chat/completions", json=_body(prompt, **fields))

    @asynccontextmanager
    async def load(self, clients: int = 2) -> AsyncIterator[list[httpx.Response]]:
        """Sends new requests one after the other from each client; the responses so far, all complete."""
        responses: list[httpx.Response] = []
        ended = asyncio.Event()

        async def send_requests(http: httpx.AsyncClient, client: int) -> None:
            for number in itertools.count():
                if ended.is_set():
                    return
                body = _body(f"client {client}, request {number}", stream=client % 2 == 0)
                response = await http.post(f"{self.url}/v1/chat/completions", json=body)
                assert response.status_code == 200, response.text
                assert client % 2 or response.text.endswith("[DONE]\n\n")
                responses.append(response)
                await asyncio.sleep(_PAUSE)

        async with httpx.AsyncClient(timeout=60, trust_env=False) as http, asyncio.TaskGroup() as group:
            for client in range(clients):
                group.create_task(send_requests(http, client))
            try:
                yield responses
            finally:
                ended.set()


def _body(prompt: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": "llama", "messages": messages, "temperature": 0, "max_tokens": 8, **fields}
