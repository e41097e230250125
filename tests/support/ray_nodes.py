"""The nodes of a Ray cluster, several on one machine. Needs Ray."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.ports import free_port
from tests.support.waiting import eventually

START_TIMEOUT = 90.0
"""Seconds; Ray starts a dozen processes, which compete with other tests."""


# By default, Ray takes a node that does not answer for 15 s to be dead.
_FAST_DETECTION = {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "3"}


class RayNodes:
    """A cluster whose head node takes no engines; `add` starts further nodes."""

    def __init__(self) -> None:
        # Not in pytest's folder: the path of a Unix socket is limited to 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self.address = f"127.0.0.1:{free_port()}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    async def start(self) -> None:
        port = self.address.rpartition(":")[2]
        head = ["--head", "--port", port, "--include-dashboard=false", f"--temp-dir={self.folder}"]
        await self._start("head", [*head, "--num-cpus=0"])

    async def add(self, name: str) -> None:
        """A node with one CPU."""
        await self._start(name, ["--address", self.address, "--num-cpus=1"])

    def kill(self, name: str) -> None:
        """With all its processes, like a machine that loses its power."""
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for name in [*self._processes]:
            self.kill(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _start(self, name: str, options: list[str]) -> None:
        common = ["--block", "--num-gpus=0", "--node-ip-address=127.0.0.1", "--object-store-memory=80000000"]
        log = self.folder / f"{name}.txt"
        with log.open("wb") as output:
            self._processes[name] = process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
                [sys.executable, "-m", "ray.scripts.scripts", "start", *options, *common, "--disable-usage-stats"],
                stdout=output, stderr=output, env=os.environ | _FAST_DETECTION,
                start_new_session=True,
            )  # fmt: skip

        def is_started() -> bool:
            assert process.poll() is None, log.read_text()
            return "Ray runtime started" in log.read_text()

        await eventually(is_started, timeout=START_TIMEOUT)
