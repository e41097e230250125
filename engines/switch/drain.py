"""Waits until an engine that gets no new requests has ended those that it has."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from engines.switch.engine_client import EngineHttp

POLL_INTERVAL: Final = 0.5
"""Seconds between two polls of an engine's metrics."""

IDLE_POLLS: Final = 3
"""Polls in a row that must find the engine idle."""


async def wait_until_idle(
    engine: EngineHttp, is_running: Callable[[], bool], timeout: float, *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, clock: Callable[[], float] = time.monotonic,
) -> bool:  # fmt: skip
    """Whether it is idle within `timeout` seconds. An engine that has exited is idle.

    One that does not answer, or does not report its requests, is not known to be idle.
    """
    deadline = clock() + timeout
    idle_polls = 0
    while is_running():
        idle_polls = idle_polls + 1 if await engine.running_requests() == 0 else 0
        if idle_polls == IDLE_POLLS:
            return True
        if clock() + POLL_INTERVAL > deadline:
            return False
        await sleep(POLL_INTERVAL)
    return True
