"""A simulated engine in its own process, for tests.

async with SimulatedEngine(model="llama") as engine:
    await engine.set_faults({"fault": "stall", "after": 3})
    ...  # send requests to engine.url
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

from tests.support.http_limits import LIMITS
from tests.support.waiting import TEST_TIMEOUT, next_line

READY = "simulator ready at "


class EngineControls:
    """The control endpoints of a simulator at `url`; `client` is used for them."""

    def __init__(self, client: httpx.AsyncClient, model: str, served_names: tuple[str, ...] = ()) -> None:
        self.model = model
        self.url = ""
        self._names = (*served_names, model)
        self._client = client

    async def close_client(self) -> None:
        await self._client.aclose()

    async def set_faults(self, *faults: dict[str, object]) -> None:
        (await self._client.post(f"{self.url}/_sim/faults", json=faults)).raise_for_status()

    async def clear_faults(self) -> None:
        (await self._client.delete(f"{self.url}/_sim/faults")).raise_for_status()

    async def stats(self, **goals: int) -> dict[str, Any]:
        """Counts and the last requests; with goals, once these counts are reached (`in_flight` exactly)."""
        response = (await self._client.get(f"{self.url}/_sim/stats", params=goals)).raise_for_status()
        stats: dict[str, Any] = response.json()
        return stats

    async def metrics(self) -> dict[str, float]:
        """The samples of /metrics by name and labels, as written there."""
        text = (await self._client.get(f"{self.url}/metrics")).raise_for_status().text
        samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    async def metric(self, name: str, **labels: str) -> float:
        """One sample of vLLM's metrics, without the prefix `vllm:`."""
        all_labels = {"engine": "0", "model_name": self._names[0], **labels}
        written = ",".join(f'{key}="{all_labels[key]}"' for key in sorted(all_labels))
        return (await self.metrics())[f"vllm:{name}{{{written}}}"]


class SimulatedEngine(EngineControls):
    """Runs `python -m engines.simulator` on a free port; options are the command's, with underscores.

    With a `port`, its URL is known before it is started.

    A tuple is several values of one option, True is an option without a value, None leaves the option out.
    """

    def __init__(self, model: str = "simulated", **options: object) -> None:
        names = options.get("served_model_name", ())
        client = httpx.AsyncClient(timeout=TEST_TIMEOUT, limits=LIMITS)
        super().__init__(client, model, names if isinstance(names, tuple) else (str(names),))
        self._options = {"model": model, "port": 0, **options}
        if self._options["port"]:
            self.url = f"http://127.0.0.1:{self._options['port']}"
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def pid(self) -> int:
        return self._running_process().pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not exited, on its own or otherwise."""
        return self._process is not None and self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode if self._process is not None else None

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    async def start(self) -> None:
        """Starts it and waits until it accepts connections; after a stop, it uses the same port again.

        Raises RuntimeError if it exits instead, TimeoutError if it does neither.
        """
        if self.url:
            self._options["port"] = self.port
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "engines.simulator", *_arguments(self._options), stdout=asyncio.subprocess.PIPE,
            # In a session of its own: Ctrl-C in a terminal reaches only the program that has started it.
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        try:
            line = (await next_line(self._process.stdout)).decode()
        except TimeoutError:
            await self.kill()
            raise
        if not line.startswith(READY):
            raise RuntimeError(f"the simulator did not start: exit code {await self._process.wait()}")
        self.url = line.removeprefix(READY).strip()

    async def stop(self) -> int:
        """Stops it with SIGTERM, as an operator does; returns its exit code. Stopping twice does nothing."""
        await self.close_client()
        # A new client, since the old one has connections to the stopped process.
        self._client = httpx.AsyncClient(timeout=TEST_TIMEOUT, limits=LIMITS)
        return await self._terminate(signal.SIGTERM)

    async def kill(self) -> int:
        """Kills it (SIGKILL), like a crash."""
        return await self._terminate(signal.SIGKILL)

    def freeze(self) -> None:
        """Stops the process (SIGSTOP): the kernel still accepts connections, but there are no responses."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    async def wait_for_exit(self) -> int:
        return await self._running_process().wait()

    def _running_process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "not started"
        return self._process

    async def _terminate(self, number: signal.Signals) -> int:
        process = self._process
        if process is None:
            return 0
        if process.returncode is None:
            # Not process.send_signal: it polls the exit status, and the wait below would miss the exit code.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
                # A frozen process handles SIGTERM only after SIGCONT.
                os.kill(process.pid, signal.SIGCONT)
        return await asyncio.wait_for(process.wait(), TEST_TIMEOUT)


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
