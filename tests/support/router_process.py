"""`roundhouse serve` in its own processes, for tests that kill, freeze and restart it."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx

from tests.support.http_limits import LIMITS
from tests.support.ports import free_port
from tests.support.processes import children
from tests.support.waiting import TEST_TIMEOUT, eventually

START_TIMEOUT = 60.0
"""Seconds for a start: two workers took 17 s on a machine with a load of 15. A router that has exited fails at once."""

ROUNDHOUSE = [sys.executable, "-m", "router"]


def http_client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=TEST_TIMEOUT, verify=False, trust_env=False, limits=LIMITS)


class RouterProcess:
    """A router with its workers; signals reach all of them.

    Its port stays the same across restarts, and `log` has all output.
    """

    process: "subprocess.Popen[bytes]"

    def __init__(self, folder: Path, text: str, *, name: str = "serve") -> None:
        """`text` is the configuration without a port; `name` is the name of the log."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"{name}.log"
        self.config = folder / f"{name}.toml"
        self.write_config(text)

    def write_config(self, text: str | None) -> None:
        if text is None:
            # None: the file is missing.
            self.config.unlink()
        else:
            # The choice of an engine is random otherwise, as long as little is known of their drafts.
            explore = "" if "explore" in text else "explore = 0"
            self.config.write_text(text.replace("[router]", f"[router]\nport = {self.port}\n{explore}"))

    def start(self, stdin: int = subprocess.DEVNULL, argv: Sequence[str] = ()) -> None:
        """`argv`: a program to run instead of the command."""
        argv = argv or [*ROUNDHOUSE, "serve", "-c", str(self.config)]
        with self.log.open("ab") as log:
            # In a group of its own, so that one signal reaches its workers too.
            self.process = subprocess.Popen(argv, stdin=stdin, stdout=log, stderr=log, start_new_session=True)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    async def wait_until_ready(self) -> None:
        async with http_client(self.url) as http:

            async def answers() -> bool:
                assert self.is_running, self.log.read_text()
                try:
                    return (await http.get("/readyz")).status_code == 200
                except httpx.TransportError:
                    return False

            await eventually(answers, START_TIMEOUT)

    def worker_pids(self) -> set[int]:
        """The process ids of its workers; empty with a single worker, or on a machine without /proc."""
        return {pid for pid, command in children(self.process.pid).items() if b"spawn_main" in command}

    def send_signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def kill_worker(self, worker: int) -> None:
        assert worker in self.worker_pids()
        os.kill(worker, signal.SIGKILL)

    def kill(self) -> None:
        """Kills it, like a crash; does nothing if it has exited."""
        with contextlib.suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)
        # Reaps it, so that its port is free afterwards.
        self.process.wait()
