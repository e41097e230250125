"""The proxy between routers and Redis: its faults, and the connections that they affect."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from tests.support.ports import free_port
from tests.support.proxy_process import ConnectionFault, ProxyProcess
from tests.support.redis_process import RedisServer
from tests.support.tcp_proxy import ConnectionKind
from tests.support.waiting import next_line

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
        line = await next_line(self._reader)
        if not line:
            raise ConnectionResetError
        return line.strip()

    def close(self) -> None:
        self._writer.close()


class ProxySetup(NamedTuple):
    proxy: ProxyProcess
    redis: RedisServer
    port: int
    clients: list[Client]


@pytest_asyncio.fixture
async def setup() -> AsyncIterator[ProxySetup]:
    redis = RedisServer(port=free_port())
    port = free_port()
    proxy = ProxyProcess(NAME, {port: redis.port})
    clients: list[Client] = []
    try:
        await redis.start()
        await proxy.start()
        yield ProxySetup(proxy, redis, port, clients)
    finally:
        for client in clients:
            client.close()
        await proxy.stop()
        redis.remove()


async def connect(setup: ProxySetup, kind: ConnectionKind | None) -> Client:
    client = Client(*await asyncio.open_connection("127.0.0.1", setup.port))
    setup.clients.append(client)
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
async def test_one_kind_of_connection_is_held_and_the_other_continues(setup: ProxySetup, held: ConnectionKind) -> None:
    clients = {kind: await connect(setup, kind) for kind in ("listening", "commands", None)}
    assert await setup.proxy.inject(ConnectionFault("hold", held, seconds=LONG)) == 1
    for kind, client in clients.items():
        client.send("PING")
        if kind == held:
            assert await is_silent(client)
        else:
            assert await client.reply() == b"+PONG"


async def test_held_data_is_forwarded_when_the_time_is_over(setup: ProxySetup) -> None:
    client = await connect(setup, "commands")
    started = asyncio.get_running_loop().time()
    assert await setup.proxy.inject(ConnectionFault("hold", seconds=0.2)) == 1
    assert await client.ask("PING") == b"+PONG"
    assert asyncio.get_running_loop().time() - started >= 0.1
    assert await client.ask("PING") == b"+PONG"


async def test_a_reply_can_be_lost_although_the_command_is_executed(setup: ProxySetup) -> None:
    client = await connect(setup, "commands")
    assert await setup.proxy.inject(ConnectionFault("lose", seconds=1.0)) == 1
    with pytest.raises(ConnectionError):
        await client.ask("SET k v")
    assert await setup.redis.command("GET", "k") == "v"


async def test_a_cut_closes_the_selected_connections_and_new_ones_work(setup: ProxySetup) -> None:
    cut, other = await connect(setup, "commands"), await connect(setup, None)
    assert await setup.proxy.inject(ConnectionFault("cut")) == 1
    with pytest.raises(ConnectionError):
        await cut.ask("PING")
    assert await other.ask("PING") == b"+PONG"
    again = await connect(setup, "commands")
    assert await again.ask("PING") == b"+PONG"


async def test_one_of_several_connections_can_be_selected_and_data_can_be_delayed(setup: ProxySetup) -> None:
    clients = [await connect(setup, "commands") for _ in range(3)]
    assert await setup.proxy.inject(ConnectionFault("cut", pick=0.5)) == 1
    with pytest.raises(ConnectionError):
        await clients[1].ask("PING")
    assert await setup.proxy.inject(ConnectionFault("delay", seconds=LONG, late=0.1)) == 2
    started = asyncio.get_running_loop().time()
    assert await clients[0].ask("PING") == b"+PONG"
    assert asyncio.get_running_loop().time() - started >= 0.2  # one delay in each direction


async def test_without_redis_behind_it_connections_end_at_once(setup: ProxySetup) -> None:
    setup.redis.kill()
    client = await connect(setup, None)
    with pytest.raises(ConnectionError):
        await client.ask("PING")
