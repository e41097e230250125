"""A simulated engine as a process of its own, for tests.

async with SimulatedEngine(model="llama") as engine:
    await engine.faults({"fault": "stall", "after": 3})
    ...  # talk to engine.url
    await engine.stats(aborted=1)  # waits until one generation was aborted
"""

import asyncio
import contextlib
import os
import signal
import sys
from types import TracebackType
from typing import Any, Self

import httpx

READY = "simulator ready at "


class SimulatedEngine:
    """Runs `python -m engines.simulator` on a free port; options are the command's, with underscores.

    A tuple is several values of one option, True an option without a value, None leaves the option out.
    """

    def __init__(self, model: str = "simulated", **options: object) -> None:
        self.model = model
        self.url = ""
        self._options = {"model": model, "port": 0, **options}
        self._process: asyncio.subprocess.Process | None = None
        self._client = httpx.AsyncClient(timeout=15)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._running_process().pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended, by itself or otherwise."""
        return self._process is not None and self._process.returncode is None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.url.rsplit(":", 1)[1])

    async def start(self) -> None:
        """Start it and wait until it accepts connections; after a stop, it comes back on the same port.

        Raises RuntimeError where it ends instead.
        """
        if self.url:
            self._options["port"] = self.port
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "engines.simulator", *_arguments(self._options), stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode()
        if not line.startswith(READY):
            raise RuntimeError(f"the simulator did not start: exit code {await self._process.wait()}")
        self.url = line.removeprefix(READY).strip()

    async def stop(self) -> int:
        """End it as an operator would (SIGTERM); returns its exit code. Stopping twice does nothing."""
        await self._client.aclose()
        self._client = httpx.AsyncClient(timeout=15)
        return await self._terminate(signal.SIGTERM)

    async def kill(self) -> int:
        """End it at once (SIGKILL), as a crash would."""
        return await self._terminate(signal.SIGKILL)

    def freeze(self) -> None:
        """Let it hang (SIGSTOP): connections are accepted by the kernel, and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on after `freeze`."""
        os.kill(self.pid, signal.SIGCONT)

    async def wait_for_exit(self) -> int:
        """Wait until it ended by itself; returns its exit code."""
        return await self._running_process().wait()

    async def set_faults(self, *faults: dict[str, object]) -> None:
        """Set faults, see docs/simulator.md."""
        (await self._client.post(f"{self.url}/_sim/faults", json=faults)).raise_for_status()

    async def clear_faults(self) -> None:
        """Clear all faults."""
        (await self._client.delete(f"{self.url}/_sim/faults")).raise_for_status()

    async def stats(self, **goals: int) -> dict[str, Any]:
        """Counts and the last requests; with goals, once these counts are reached (`in_flight` exactly)."""
        response = (await self._client.get(f"{self.url}/_sim/stats", params=goals)).raise_for_status()
        found: dict[str, Any] = response.json()
        return found

    async def metrics(self) -> dict[str, float]:
        """The samples of /metrics by name and labels, as they are written there."""
        text = (await self._client.get(f"{self.url}/metrics")).raise_for_status().text
        samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    async def metric(self, name: str, **labels: str) -> float:
        """One sample of vLLM's metrics, without the prefix `vllm:`."""
        found = {"engine": "0", "model_name": self._served_name(), **labels}
        written = ",".join(f'{key}="{found[key]}"' for key in sorted(found))
        return (await self.metrics())[f"vllm:{name}{{{written}}}"]

    def _served_name(self) -> str:
        names = self._options.get("served_model_name")
        return str(names[0] if isinstance(names, tuple) else names or self.model)

    def _running_process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "not started"
        return self._process

    async def _terminate(self, number: signal.Signals) -> int:
        process = self._process
        if process is None:
            return 0
        if process.returncode is None:
            # The process' own send_signal would look whether it has ended, and take its exit code from who waits below.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
                os.kill(process.pid, signal.SIGCONT)
        return await process.wait()


def _arguments(options: dict[str, object]) -> list[str]:
    arguments: list[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        arguments.append(f"--{name.replace('_', '-')}")
        if isinstance(value, tuple):
            arguments += map(str, value)
        elif value is not True:
            arguments.append(str(value))
    return arguments
