"""Which failures count as an engine that ended, and for whom."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from router.core.endpoints.chat import CHAT
from router.core.endpoints.requests.request import parse_request
from router.core.resilience.engine_losses import Suspects
from router.errors import ApiError
from router.flow.attempts.engine_losses import EngineLosses
from router.net.client.errors import EngineError, connection_reset, timed_out, unreachable
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from tests.support.waiting import eventually

REQUEST = parse_request(CHAT, b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}')
OTHER = parse_request(CHAT, b'{"model": "m", "messages": [{"role": "user", "content": "y"}]}')


class Client:
    """The engines' answers to checks."""

    def __init__(self, status: int | EngineError) -> None:
        self.status = status
        self.checks = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = asyncio.Event()

    async def get(self, *_: Any, **__: Any) -> Any:
        self.checks += 1
        self.asked.set()
        await self.may_answer.wait()
        if isinstance(self.status, EngineError):
            raise self.status
        return Response(self.status)


class Response:
    def __init__(self, status: int) -> None:
        self.status = status

    def __enter__(self) -> "Response":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def engine(name: str) -> Engine:
    return Engine(EngineConfig(name=name, model="m", task="any", url="http://127.0.0.1:1", served_model="m"))


async def lose(losses: EngineLosses, name: str, request: Any = REQUEST, tenant: str = "acme") -> None:
    await losses.on_failure("id", tenant, request, engine(name), connection_reset(), 1.0)


def is_stopped(losses: EngineLosses, request: Any = REQUEST, tenant: str = "acme") -> bool:
    try:
        losses.require_allowed(tenant, request)
    except ApiError:
        return True
    return False


def new(status: int | EngineError, clock: Callable[[], float] = lambda: 100.0) -> tuple[EngineLosses, Client]:
    client: Any = Client(status)
    return EngineLosses(client, Suspects(), clock=clock), client


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "stopped"),
    [(unreachable(), True), (connection_reset(), True), (503, True), (200, False), (404, False), (timed_out(), False)],
)
async def test_an_engine_that_answers_its_check_or_is_busy_is_not_lost(
    status: int | EngineError, stopped: bool
) -> None:
    losses, _ = new(status)
    await lose(losses, "a")
    await lose(losses, "b")
    assert is_stopped(losses) is stopped


@pytest.mark.asyncio
async def test_only_the_same_request_of_the_same_tenant_is_stopped_until_it_is_answered() -> None:
    losses, _ = new(unreachable())
    await lose(losses, "a")
    await lose(losses, "b")
    assert is_stopped(losses)
    assert not is_stopped(losses, OTHER)
    assert not is_stopped(losses, tenant="beta")
    losses.on_success("acme", REQUEST)
    assert not is_stopped(losses)


@pytest.mark.asyncio
async def test_an_engine_with_hundreds_of_streams_is_checked_once_and_none_of_them_is_stopped() -> None:
    losses, client = new(unreachable())
    await asyncio.gather(*(lose(losses, "a", request) for request in [REQUEST, OTHER] * 100))
    assert client.checks == 1
    assert not is_stopped(losses)


@pytest.mark.asyncio
async def test_an_engine_counts_although_the_client_leaves_during_its_check() -> None:
    losses, client = new(unreachable())
    await lose(losses, "a")
    client.may_answer.clear()
    client.asked.clear()
    losing = asyncio.ensure_future(lose(losses, "b"))
    await client.asked.wait()
    losing.cancel()
    await asyncio.wait([losing])
    client.may_answer.set()
    await eventually(lambda: is_stopped(losses))


@pytest.mark.asyncio
async def test_an_engine_that_a_check_found_alive_is_checked_again_at_its_next_failure() -> None:
    losses, client = new(200)
    await lose(losses, "a", OTHER)
    client.status = unreachable()
    await lose(losses, "a")
    await lose(losses, "b")
    assert is_stopped(losses)
