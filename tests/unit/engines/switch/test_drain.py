"""An old engine is idle when its metrics say so several times in a row."""

from collections.abc import Iterable
from typing import Any

from engines.switch.drain import IDLE_POLLS, POLL_INTERVAL, wait_until_idle
from engines.switch.engine_client import parse_running_requests


class Engine:
    """Reports the given numbers of requests, one at each poll; the last one for ever."""

    def __init__(self, counts: Iterable[float | None]) -> None:
        self._counts = list(counts)
        self.polls = 0

    async def running_requests(self) -> float | None:
        self.polls += 1
        return self._counts.pop(0) if len(self._counts) > 1 else self._counts[0]


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now


async def wait(engine: Engine, *, timeout: float = 60, running: bool = True) -> bool:
    time = Time()
    http: Any = engine
    return await wait_until_idle(http, lambda: running, timeout, sleep=time.sleep, clock=time.clock)


async def test_it_takes_several_idle_polls_in_a_row() -> None:
    engine = Engine([2, 0, 1, 0])
    assert await wait(engine)
    assert engine.polls == 3 + IDLE_POLLS


async def test_a_busy_engine_is_given_up_at_the_deadline() -> None:
    engine = Engine([1])
    assert not await wait(engine, timeout=10)
    assert engine.polls == 10 / POLL_INTERVAL + 1


async def test_an_engine_that_does_not_answer_is_not_known_to_be_idle() -> None:
    assert not await wait(Engine([None]), timeout=5)


async def test_an_engine_that_has_exited_is_idle() -> None:
    engine = Engine([1])
    assert await wait(engine, running=False)
    assert engine.polls == 0


def test_running_and_waiting_requests_of_all_cores_are_summed() -> None:
    page = (
        '# HELP vllm:num_requests_running x\nvllm:num_requests_running{engine="0"} 2.0\n'
        'vllm:num_requests_running{engine="1"} 1.0\nvllm:num_requests_waiting{engine="0"} 4.0\nvllm:other 9\n'
    )
    assert parse_running_requests(page) == 7
    assert parse_running_requests("vllm:other 9\n") is None
    assert parse_running_requests("vllm:num_requests_running x\n") is None
