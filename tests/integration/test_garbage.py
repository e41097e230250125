"""The objects of a request are freed by reference counting, so that a late garbage collection finds nothing."""

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from types import CoroutineType, FunctionType
from typing import Any

import pytest

from tests.support.router_server import RouterServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

Ask = Callable[[RouterServer, int], Awaitable[Any]]


async def miss(router: RouterServer, number: int) -> None:
    assert (await router.chat(f"Question {number}?")).headers["x-cache"] == "MISS"


async def streamed_miss(router: RouterServer, number: int) -> None:
    assert (await router.chat(f"Question {number}?", stream=True)).headers["x-cache"] == "MISS"


async def hit(router: RouterServer, number: int) -> None:
    await router.chat("Question?")
    assert (await router.chat("Question?", stream=number % 2 == 0)).headers["x-cache"] == "HIT"


async def joined(router: RouterServer, number: int) -> None:
    answers = await asyncio.gather(*(router.chat(f"Question {number}?", stream=True) for _ in range(3)))
    assert Counter(answer.headers["x-cache"] for answer in answers)["MISS"] == 1


async def refused(router: RouterServer, _: int) -> None:
    assert (await router.http.post("/v1/chat/completions", content=b"{")).status_code == 400


@pytest.mark.parametrize("ask", [miss, streamed_miss, hit, joined, refused])
async def test_no_request_leaves_anything_to_the_garbage_collector(router: RouterServer, ask: Ask) -> None:
    await ask(router, -1)  # objects that are created once do not count
    gc.collect()
    gc.disable()
    try:
        for number in range(5):
            await ask(router, number)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert Counter(map(name_of, filter(is_ours, gc.garbage))) == {}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def is_ours(thing: Any) -> bool:
    """Whether it is an object, a function or a coroutine of the router."""
    if isinstance(thing, CoroutineType):
        return "/router/" in thing.cr_code.co_filename
    return str((thing if isinstance(thing, FunctionType) else type(thing)).__module__).startswith("router.")


def name_of(thing: Any) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))
