"""Which master the Sentinels' answers give, and what becomes of the connections to them."""

import asyncio
from typing import Any

import pytest
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import ConnectionError as RedisConnectionError

from router.net.redis.sentinel import Sentinels
from tests.support.virtual_time import on_virtual_time

SERVICE = "service"


def state(port: int, *, epoch: int = 0, flags: str = "master", name: str = SERVICE) -> dict[bytes, bytes]:
    fields = {"name": name, "ip": "::1", "port": str(port), "config-epoch": str(epoch), "flags": flags}
    return {field.encode(): value.encode() for field, value in fields.items()}


class Sentinel:
    """A connection to one. `reply`: what it says, or raises; None: it is frozen. `delay`: seconds to connect."""

    def __init__(self, reply: Any, delay: float = 0.0) -> None:
        self._reply = reply
        self._delay = delay
        self.connected = False

    async def connect(self) -> None:
        await asyncio.sleep(self._delay)
        self.connected = True

    async def send_command(self, *words: str) -> None:
        assert words == ("SENTINEL", "MASTERS")

    async def read_response(self) -> Any:
        if self._reply is None:
            await asyncio.Event().wait()
        if isinstance(self._reply, Exception):
            raise self._reply
        return self._reply

    async def disconnect(self, nowait: bool = False) -> None:
        assert nowait, "a wait may be cancelled"
        self.connected = False


async def discover(*sentinels: Sentinel) -> Any:
    others = iter(sentinels)

    def connect(_: object) -> Any:
        return next(others)

    try:
        return await Sentinels([("host", 1)] * len(sentinels), connect).discover_master(SERVICE)
    finally:
        await asyncio.sleep(0)  # a query learns only then that it is cancelled
        assert not any(sentinel.connected for sentinel in sentinels)


@on_virtual_time
async def test_the_latest_failover_that_a_majority_knows_decides() -> None:
    old, new = [state(1, epoch=3)], [state(2, epoch=4)]
    assert await discover(Sentinel(old), Sentinel(new), Sentinel(None)) == ("::1", 2)
    assert await discover(Sentinel([state(5, name="other"), *new])) == ("::1", 2)
    assert await discover(Sentinel([[word for pair in new[0].items() for word in pair]])) == ("::1", 2), "RESP2"


@on_virtual_time
async def test_no_connection_to_a_sentinel_stays_open() -> None:
    answers = [state(1)]
    for slow in (Sentinel(None), Sentinel(None, 5), Sentinel(answers, 5), Sentinel(RedisConnectionError())):
        assert await discover(Sentinel(answers), Sentinel(answers), slow) == ("::1", 1)


@on_virtual_time
async def test_a_sentinel_that_does_not_know_the_master_does_not_count() -> None:
    for useless in (
        RedisConnectionError(),
        AttributeError(),
        [],
        b"nonsense",
        [state(1, name="other")],
        [state(0, epoch=9)],
        [state(1, epoch=-1)],
    ):
        assert await discover(Sentinel(useless), Sentinel([state(2)])) == ("::1", 2)
        with pytest.raises(MasterNotFoundError, match="no Sentinel knows"):
            await discover(Sentinel(useless))


@on_virtual_time
async def test_a_master_that_is_down_is_no_master() -> None:
    for flags in ("master,s_down", "master,s_down,o_down", "slave"):
        with pytest.raises(MasterNotFoundError, match="down"):
            await discover(Sentinel([state(1, flags=flags)]))
