"""The deadline of a batch to a cluster: its servers are queried in rounds, and only silence is limited."""

import asyncio
from typing import Any

import pytest

from router.net.redis.cluster import ClusterBackend
from router.net.redis.commands import after_previous
from router.net.redis.deadline import MAX_EXTRA_TIME
from router.net.redis.errors import RedisBackendError
from router.net.redis.slots import command_slot
from router.net.redis.url import HostPort
from tests.support.virtual_time import on_virtual_time

ONE = ("one", 1)
TIMEOUT = 0.2
CONNECT_TIMEOUT = 1.0


class Servers:
    """The primaries of a cluster. `slots`: the map. `frozen`: those that do not answer.

    Each takes longer than the timeout for large replies, like a server whose replies keep arriving. `given`: the
    timeout of each GET, and its extra time.
    """

    def __init__(self) -> None:
        self.slots = [[0, 16383, [b"one", 1]]]
        self.frozen: set[HostPort] = set()
        self.given: list[tuple[float, float]] = []

    def backend(self) -> ClusterBackend:
        def open_server(host: HostPort) -> Any:
            return Server(self, host)

        return ClusterBackend([ONE], open_server, timeout=CONNECT_TIMEOUT)


class Server:
    """A connection to one of them."""

    def __init__(self, servers: Servers, host: HostPort) -> None:
        self._servers = servers
        self._host = host

    async def execute(self, commands: list[Any], timeout: float, extra_time: float = MAX_EXTRA_TIME) -> list[Any]:
        if self._host in self._servers.frozen:
            await asyncio.sleep(timeout)
            raise RedisBackendError("TimeoutError")
        if commands[0][0] == "CLUSTER":
            return [self._servers.slots]
        if commands[0][0] == "GET":
            self._servers.given.append((timeout, extra_time))
            await asyncio.sleep(2 * TIMEOUT if commands[0][1] == "large" else 0)
        return [b"OK"] * len(commands)

    async def aclose(self) -> None:
        pass


@on_virtual_time
async def test_a_later_command_has_its_full_timeout_after_a_large_one() -> None:
    servers = Servers()
    link = servers.backend()
    assert await link.execute([("GET", "large"), after_previous(("GET", "small"))], TIMEOUT) == [b"OK", b"OK"]
    (silence, more), (silence_later, more_later) = servers.given
    assert silence == pytest.approx(TIMEOUT)
    assert more == pytest.approx(MAX_EXTRA_TIME)
    assert silence_later == pytest.approx(TIMEOUT)
    assert silence_later + more_later == pytest.approx(MAX_EXTRA_TIME - TIMEOUT), "all of it has one cap"
    await link.aclose()


@on_virtual_time
async def test_a_frozen_primary_costs_one_timeout_until_another_one_takes_over() -> None:
    servers = Servers()
    servers.slots = [[0, 8191, [b"one", 1]], [8192, 16383, [b"other", 1]]]
    keys = sorted("abcdefgh", key=lambda key: command_slot(("GET", key)) or 0)
    link, clock = servers.backend(), asyncio.get_running_loop().time

    async def ask(key: str) -> tuple[bool, float]:
        """Whether it is answered, and after how many seconds."""
        started = clock()
        reply, served = await link.execute([("GET", key), ("GET", keys[-1])], TIMEOUT)
        assert served == b"OK", "the other server answers"
        return reply == b"OK", round(clock() - started, 3)

    assert await ask(keys[0]) == (True, 0)
    servers.frozen.add(ONE)
    assert await ask(keys[0]) == (False, TIMEOUT)
    for _ in range(20):
        assert await ask(keys[0]) == (False, 0)
        await asyncio.sleep(1)
    servers.slots = [[0, 16383, [b"other", 1]]]
    await asyncio.sleep(5)
    assert await ask(keys[0]) == (True, 0)
    await link.aclose()
