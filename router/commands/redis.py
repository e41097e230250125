"""How commands ask the Redis of a configuration: directly, since whoever has Redis needs no key of an administrator."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from router.commands.console import WRONG_USE, fail
from router.core.cache.entry_filter import Scope, scope_of
from router.core.cache.redis_keys import PURGES
from router.errors import ApiError
from router.settings import EMBEDDED, Settings

if TYPE_CHECKING:
    from router.store.admin.scan import Client

PATIENCE: Final = 10.0
"""Seconds that Redis has for each answer."""

Told = TypeVar("Told")


def with_redis(settings: Settings, config: Path, work: "Callable[[Client], Awaitable[Told]]") -> Told:
    """Does some work with a client; where that fails, the command ends with one line."""
    from router.net.redis.errors import LinkError  # what commands without Redis need not load

    try:
        return asyncio.run(_connected(settings, work))
    except LinkError as error:
        hint = "; `roundhouse up` starts the embedded one" if settings.cache.url == EMBEDDED else ""
        fail(f"{config}: cache.url: Redis does not answer ({error}){hint}")
    except ApiError as error:
        fail(error.message, WRONG_USE)


async def _connected(settings: Settings, work: "Callable[[Client], Awaitable[Told]]") -> Told:
    from router.net.redis.connect import open_client
    from router.store.admin.scan import ask

    client = open_client(settings.redis_url, timeout=PATIENCE)
    try:
        await ask(client, [("EXISTS", PURGES)])
        return await work(client)
    finally:
        await client.aclose()


def narrowed(**parts: str | None) -> Scope:
    """The scope that options name; of none, all. Where one cannot be meant, the command ends."""
    given: dict[str, Any] = {name: value for name, value in parts.items() if value is not None}
    try:
        return scope_of(given)
    except ApiError as error:
        fail(error.message, WRONG_USE)
