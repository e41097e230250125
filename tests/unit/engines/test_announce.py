"""Which engines `roundhouse engines announce` announces, and when it withdraws one."""

import asyncio
from typing import Any

import httpx

from engines.announce import announce
from engines.announcer import Announcer
from engines.spec import EngineSpec

SPEC = EngineSpec(name="pod-0", model="llama", task="chat", url="http://pod", served_model="llama")


class SilentRedis:
    """Takes every announcement."""

    async def execute_command(self, *command: Any) -> Any:
        return []

    async def aclose(self) -> None:
        pass


async def _announced_after(answers: list[bool]) -> tuple[list[bool], list[str]]:
    """Whether the engine is announced at each of these answers of /health and after the last; the reported lines."""
    reported: list[str] = []
    announcer = Announcer(SilentRedis(), "pod", reported.append)
    stopped = asyncio.Event()
    announced = []

    def answer(request: httpx.Request) -> httpx.Response:
        announced.append(announcer.current("pod-0") is not None)
        if len(announced) == len(answers):
            stopped.set()
        return httpx.Response(200 if answers[len(announced) - 1] else 503)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        await announce([SPEC], announcer, client, stopped, reported.append, interval=0)
    return [*announced, announcer.current("pod-0") is not None], reported


async def test_an_engine_is_announced_when_it_answers() -> None:
    announced, reported = await _announced_after([False, False, True, True])
    assert announced == [False, False, False, True, True]
    assert reported == ["pod-0 is announced at http://pod"]


async def test_an_engine_is_withdrawn_after_three_failures_in_a_row() -> None:
    announced, reported = await _announced_after([True, False, False, True, False, False, False, False])
    assert announced == [False, True, True, True, True, True, True, False, False]
    assert reported[-1] == "pod-0 is withdrawn: its /health does not answer"


async def test_a_withdrawn_engine_that_answers_again_is_announced_again() -> None:
    announced, _ = await _announced_after([True, False, False, False, True])
    assert announced[-2:] == [False, True]
