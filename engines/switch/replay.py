"""Sends recent requests to engines: to warm one up, and to compare two."""

import asyncio
from collections.abc import Sequence
from typing import Final

from engines.switch.engine_client import EngineHttp
from engines.switch.prompts import replay_body, warm_up_body, warm_up_order
from engines.switch.shadow_report import Answer
from router.shared.prompts.recent_prompts import RecentPrompt

WARM_UP_PROMPTS: Final = 64
"""Recent requests of a warm-up at most."""

WARM_UP_TIMEOUT: Final = 60.0
"""Seconds of a whole warm-up at most."""

_WARM_UP_AT_ONCE: Final = 4
_REPLAY_TIMEOUT: Final = 120.0  # seconds per request


async def warm_up(engine: EngineHttp, prompts: Sequence[RecentPrompt], timeout: float = WARM_UP_TIMEOUT) -> int:
    """How many requests the engine answered within the time. A request that it refuses counts as not answered."""
    waiting = iter(warm_up_order(prompts))
    answered = 0

    async def send() -> None:
        nonlocal answered
        for prompt in waiting:
            is_answered = await engine.accepts(prompt.path, warm_up_body(prompt, engine.served_model), timeout)
            answered += is_answered  # not before the wait, in which the others count as well

    try:
        async with asyncio.timeout(timeout), asyncio.TaskGroup() as senders:
            for _ in range(_WARM_UP_AT_ONCE):
                senders.create_task(send())
    except TimeoutError:
        pass  # the rest is not warmed up
    return answered


async def replay(engine: EngineHttp, prompts: Sequence[RecentPrompt]) -> list[Answer]:
    """One after the other, so that the seconds can be compared."""
    bodies = [(prompt.path, replay_body(prompt, engine.served_model)) for prompt in prompts]
    return [await engine.answer(path, body, _REPLAY_TIMEOUT) for path, body in bodies]
