"""The deadline of a batch to a cluster: its servers are queried in rounds, and only silence is limited."""

import asyncio
from typing import Any

import pytest

from router.net.redis.cluster import ClusterBackend
from router.net.redis.commands import after_previous
from router.net.redis.deadline import MAX_EXTRA_TIME
from router.net.redis.url import HostPort
from tests.support.virtual_time import on_virtual_time

HOST = ("here", 1)
SLOTS = [[0, 16383, [b"here", 1]]]
TIMEOUT = 0.2


class Server:
    """Takes longer than the timeout for large replies, like a server whose replies keep arriving."""

    def __init__(self, timeouts: list[tuple[float, float]]) -> None:
        self._given = timeouts

    async def execute(self, commands: list[Any], timeout: float, extra_time: float = MAX_EXTRA_TIME) -> list[Any]:
        if commands[0][0] == "CLUSTER":
            return [SLOTS]
        if commands[0][0] == "GET":
            self._given.append((timeout, extra_time))
            await asyncio.sleep(2 * TIMEOUT if commands[0][1] == "large" else 0)
        return [b"OK"] * len(commands)

    async def aclose(self) -> None:
        pass


@on_virtual_time
async def test_a_later_command_has_its_full_timeout_after_a_large_one() -> None:
    timeouts: list[tuple[float, float]] = []

    def open_server(_: HostPort) -> Any:
        return Server(timeouts)

    link = ClusterBackend([HOST], open_server, timeout=1)
    assert await link.execute([("GET", "large"), after_previous(("GET", "small"))], TIMEOUT) == [b"OK", b"OK"]
    (silence, more), (silence_later, more_later) = timeouts
    assert silence == pytest.approx(TIMEOUT)
    assert more == pytest.approx(MAX_EXTRA_TIME)
    assert silence_later == pytest.approx(TIMEOUT)
    assert silence_later + more_later == pytest.approx(MAX_EXTRA_TIME - TIMEOUT), "all of it has one cap"
    await link.aclose()
