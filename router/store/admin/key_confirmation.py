"""Waits until the routers apply a change of the API keys.

Each process publishes the version of the records that it applies, and a change waits until every process that is
present applies its version. So after a key was revoked, the next request is refused at every router that has confirmed
it. A process that does not confirm in time is named; it applies the change as soon as it reaches Redis.
"""

import asyncio
import time
from typing import Final

import msgspec

from router.shared.credentials.key_records import PRESENCE_LIFETIME, decode_presences, read_presences_command
from router.store.admin.scan import RedisClient, execute_commands, read_redis_clock

CONFIRMATION_TIMEOUT: Final = 3.0
"""Seconds that the routers have to confirm a change; they usually take some milliseconds."""

_POLL_INTERVAL: Final = 0.02  # seconds
_MAX_LISTED: Final = 100  # processes that did not confirm


class Confirmation(msgspec.Struct, frozen=True):
    """How many router processes apply a change; `unconfirmed`: those of which that is not known, as HOST:PID."""

    confirmed: int
    unconfirmed: tuple[str, ...] = ()


async def wait_for_routers(client: RedisClient, version: int) -> Confirmation:
    """Waits CONFIRMATION_TIMEOUT at most. Raises RedisBackendError."""
    deadline = time.monotonic() + CONFIRMATION_TIMEOUT
    now = (await read_redis_clock(client)).now()
    while True:
        (reply,) = await execute_commands(client, [read_presences_command()])
        present = [each for each in decode_presences(reply).values() if abs(now - each.at) <= PRESENCE_LIFETIME]
        waiting = [each for each in present if each.version < version]
        if not waiting or time.monotonic() >= deadline:
            names = sorted(f"{each.host}:{each.pid}" for each in waiting)
            return Confirmation(len(present) - len(waiting), tuple(names[:_MAX_LISTED]))
        await asyncio.sleep(_POLL_INTERVAL)
