"""The proxy between routers and Redis: its faults, and the connections that they affect."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from tests.support.redis_process import RedisServer
from tests.support.tcp_proxy import ConnectionFault, ConnectionKind, ProxyProcess
from tests.support.waiting import free_port

NAME = "some-router"
LONG = 60.0  # seconds; longer than the test


class Client:
    """A connection to Redis through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, words: str) -> bytes:
        """The first line of the reply; raises ConnectionError if the connection is cut."""
        self.send(words)
        return await self.reply()

    def send(self, words: str) -> None:
        self._writer.write(words.encode() + b"\r\n")

    async def reply(self) -> bytes:
        line = await self._reader.readline()
        if not line:
            raise ConnectionResetError
        return line.strip()

    def close(self) -> None:
        self._writer.close()


class Rig(NamedTuple):
    proxy: ProxyProcess
    redis: RedisServer
    port: int
    clients: list[Client]


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    redis = RedisServer(port=free_port())
    port = free_port()
    proxy = ProxyProcess(NAME, {port: redis.port})
    clients: list[Client] = []
    try:
        await redis.start()
        await proxy.start()
        yield Rig(proxy, redis, port, clients)
    finally:
        for client in clients:
            client.close()
        await proxy.stop()
        redis.remove()


async def connect(rig: Rig, kind: ConnectionKind | None) -> Client:
    client = Client(*await asyncio.open_connection("127.0.0.1", rig.port))
    rig.clients.append(client)
    if kind is not None:
        assert await client.ask(f"CLIENT SETNAME {NAME}") == b"+OK"
    if kind == "listening":
        assert await client.ask("HELLO 3") != b""
        client.send("CLIENT TRACKING ON BCAST")
        while await client.reply() != b"+OK":
            pass
    return client


async def is_silent(client: Client) -> bool:
    """Whether nothing arrives for a moment."""
    try:
        # A correct proxy sends nothing, so the short wait causes no false failure; it can only miss a late reply.
        async with asyncio.timeout(0.05):
            await client.reply()
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize("held", ["listening", "commands"])
async def test_one_kind_of_connection_is_held_and_the_other_continues(rig: Rig, held: ConnectionKind) -> None:
    clients = {kind: await connect(rig, kind) for kind in ("listening", "commands", None)}
    assert await rig.proxy.inject(ConnectionFault("hold", held, seconds=LONG)) == 1
    for kind, client in clients.items():
        client.send("PING")
        if kind == held:
            assert await is_silent(client)
        else:
            assert await client.reply() == b"+PONG"


async def test_held_data_is_forwarded_when_the_time_is_over(rig: Rig) -> None:
    client = await connect(rig, "commands")
    began = asyncio.get_running_loop().time()
    assert await rig.proxy.inject(ConnectionFault("hold", seconds=0.2)) == 1
    assert await client.ask("PING") == b"+PONG"
    assert asyncio.get_running_loop().time() - began >= 0.1
    assert await client.ask("PING") == b"+PONG"


async def test_a_reply_can_be_lost_although_the_command_is_executed(rig: Rig) -> None:
    client = await connect(rig, "commands")
    assert await rig.proxy.inject(ConnectionFault("lose", seconds=0.1)) == 1
    with pytest.raises(ConnectionError):
        await client.ask("SET k v")
    assert await rig.redis.command("GET", "k") == "v"


async def test_a_cut_closes_the_selected_connections_and_new_ones_work(rig: Rig) -> None:
    cut, other = await connect(rig, "commands"), await connect(rig, None)
    assert await rig.proxy.inject(ConnectionFault("cut")) == 1
    with pytest.raises(ConnectionError):
        await cut.ask("PING")
    assert await other.ask("PING") == b"+PONG"
    again = await connect(rig, "commands")
    assert await again.ask("PING") == b"+PONG"


async def test_one_of_several_connections_can_be_selected_and_data_can_be_delayed(rig: Rig) -> None:
    clients = [await connect(rig, "commands") for _ in range(3)]
    assert await rig.proxy.inject(ConnectionFault("cut", pick=0.5)) == 1
    with pytest.raises(ConnectionError):
        await clients[1].ask("PING")
    assert await rig.proxy.inject(ConnectionFault("delay", seconds=LONG, late=0.1)) == 2
    began = asyncio.get_running_loop().time()
    assert await clients[0].ask("PING") == b"+PONG"
    assert asyncio.get_running_loop().time() - began >= 0.2  # one delay in each direction


async def test_without_redis_behind_it_connections_end_at_once(rig: Rig) -> None:
    rig.redis.kill()
    client = await connect(rig, None)
    with pytest.raises(ConnectionError):
        await client.ask("PING")
