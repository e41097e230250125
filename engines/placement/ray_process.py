"""An engine on a Ray cluster, with the interface of a process on this machine."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from engines.placement.engine_process import EngineProcess
from engines.placement.ray_driver import JOB_VARIABLE, Job
from engines.placement.ray_request import RayRequest
from engines.process import GRACE_PERIOD

FIRST_PLACEMENT_TIMEOUT: Final = 60.0
"""Seconds until the first start fails if no node has the resources free."""

PLACEMENT_TIMEOUT: Final = 1500.0
"""Seconds until a later start fails: a node that died may come back, also the head node.

Less than the time that vLLM has to be ready, so that the log says what is missing.
"""

_DRIVER_EXTRA: Final = 10.0  # seconds that the driver gets in addition to the engine's grace period


class RayProcess(EngineProcess):
    """The process on this machine is `ray_driver`, which exits when the engine has exited or its node has died.

    - Each start asks Ray for a node again.
    - `url` is known once the engine has been placed, and unknown again when the engine is stopped.
    - `argv` ends with the engine's command, without `--host` and `--port`.
    """

    def __init__(self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str], request: RayRequest) -> None:
        """`env` is added to the environment of the engine's node."""
        super().__init__(name, [sys.executable, "-m", "engines.placement.ray_driver", "--", *argv], log, {}, "")
        self._is_killing = False
        self._url_file = log.with_name(f"{log.name}.url")
        self._job = Job(
            request=request,
            env=dict(env),
            url_file=str(self._url_file),
            connect_timeout=0.0,
            placement_timeout=FIRST_PLACEMENT_TIMEOUT,
            grace_period=GRACE_PERIOD,
        )

    @property
    def url(self) -> str | None:
        try:
            return self._url_file.read_text() or None
        except OSError:
            return None

    async def start(self) -> None:
        self._url_file.unlink(missing_ok=True)  # also that of an earlier `up`
        self._env[JOB_VARIABLE] = msgspec.json.encode(self._job).decode()
        self._is_killing = False
        await super().start()
        self._job = msgspec.structs.replace(
            self._job, connect_timeout=PLACEMENT_TIMEOUT, placement_timeout=PLACEMENT_TIMEOUT
        )

    async def stop(self, grace_period: float = GRACE_PERIOD) -> None:
        await super().stop(grace_period + _DRIVER_EXTRA)
        self._url_file.unlink(missing_ok=True)

    def kill(self) -> None:
        """Lets the driver kill the engine, since without its driver it would be terminated only; then the driver."""
        if self._group is None:
            return
        number, self._is_killing = (signal.SIGKILL if self._is_killing else signal.SIGUSR1), True
        with suppress(ProcessLookupError):
            os.killpg(self._group, number)
