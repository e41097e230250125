"""Restarts an engine without a failed request: drain, wait until it is idle, restart, resume."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, Literal, Protocol

import msgspec

from engines.process import StartError
from engines.supervisor import RestartRefusedError
from engines.watchdog.drains import DrainError, Drains

POLL_INTERVAL: Final = 0.5
"""Seconds between two checks whether an engine is idle."""

IDLE_POLLS: Final = 3
"""Checks in a row that must find it idle: until then, routers have the drain, and no request is on its way."""

STALLED_DRAIN: Final = 30.0
"""Seconds that a stalled engine gets to become idle: its requests make no progress."""


class Outcome(msgspec.Struct, frozen=True):
    """What came of it; `problem` for a person if not all went well."""

    event: Literal["restarted", "not restarted"]
    problem: str = ""


class Restart(Protocol):
    """EngineSupervisor.restart."""

    def __call__(self, *, kill: bool = False) -> Awaitable[None]: ...


class PlannedRestart:
    """Restarts one engine.

    - An engine that was drained before stays drained.
    - It is resumed also if the restart fails or is cancelled: routers send nothing to an engine that is down.
    - If meanwhile no other engine of the model is left, it is resumed and not restarted.
    - An engine that does not become idle in time is not restarted, unless it has stalled, or other engines go on with
      the streams that it has left. Then it is killed.
    """

    def __init__(
        self, engine: str, drains: Drains, *, request_count: Callable[[], Awaitable[float | None]],
        restart: Restart, others_available: Callable[[], Awaitable[bool]], drain_timeout: float,
        streams_go_on: bool = False, poll_interval: float = POLL_INTERVAL,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        """`request_count`: its running and waiting requests, None if unknown. `drain_timeout` in seconds.

        `streams_go_on`: routers continue the model's streams at other engines.
        """
        self._engine = engine
        self._drains = drains
        self._request_count = request_count
        self._restart = restart
        self._others_available = others_available
        self._drain_timeout = drain_timeout
        self._streams_go_on = streams_go_on
        self._poll_interval = poll_interval
        self._sleep = sleep

    async def run(self, *, stalled: bool) -> Outcome:
        """`stalled`: the engine computes nothing, so that its requests cannot be saved."""
        try:
            await self._drains.drain_for_restart(self._engine)
            return await self._restart_when_idle(stalled=stalled)
        except DrainError as error:
            return Outcome("not restarted", f"it cannot be drained: {error}")
        finally:
            # Also after a cancellation of the drain, which Redis may have executed. If this fails, it is done later.
            with contextlib.suppress(DrainError):
                await self._drains.resume_after_restart(self._engine)

    async def _restart_when_idle(self, *, stalled: bool) -> Outcome:
        # Another launcher may have drained the last other engine at the same time.
        if not await self._others_available():
            return Outcome("not restarted", "no other engine of the model is left")
        timeout = min(self._drain_timeout, STALLED_DRAIN) if stalled else self._drain_timeout
        is_idle = await self._wait_until_idle(timeout)
        if not is_idle and not stalled and not self._streams_go_on:
            return Outcome("not restarted", f"it did not become idle within {timeout:g} s")
        # The drain may have taken minutes.
        if not is_idle and not stalled and not await self._others_available():
            return Outcome("not restarted", f"it did not become idle within {timeout:g} s, and no other engine is left")
        try:
            await self._restart(kill=not is_idle)
        except (StartError, RestartRefusedError) as error:
            return Outcome("not restarted", str(error))
        if is_idle:
            return Outcome("restarted")
        if stalled:
            return Outcome("restarted", f"requests had stalled for {timeout:g} s after its drain")
        return Outcome("restarted", f"{timeout:g} s after its drain it still had requests, which went on elsewhere")

    async def _wait_until_idle(self, timeout: float) -> bool:
        idle_polls = 0
        try:
            async with asyncio.timeout(timeout):
                while idle_polls < IDLE_POLLS:
                    await self._sleep(self._poll_interval)
                    idle_polls = idle_polls + 1 if await self._request_count() == 0 else 0
        except TimeoutError:
            return False
        return True
