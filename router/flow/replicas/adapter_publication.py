"""What follows from an adapter that was loaded or unloaded: its old entries are purged, and all routers are told."""

import contextlib
import time
from collections.abc import Sequence

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.redis_keys import ADAPTERS_KEY
from router.net.redis.errors import RedisBackendError
from router.store.admin.purge import purge
from router.store.admin.scan import RedisClient, execute_commands
from router.upstream.adapter_changes import AdapterRequest, EngineChange
from router.upstream.adapters import adapter_name


async def publish_change(
    redis: RedisClient, model: str, request: AdapterRequest, changes: Sequence[EngineChange]
) -> tuple[bool, int]:
    """Returns whether Redis has the message to the routers, and the number of purged entries.

    Only an adapter that may be replaced in place is purged: with the same path, other weights have the same keys.
    Raises RedisBackendError if that fails.
    """
    if not any(change.may_be_done for change in changes):
        return True, 0
    purged = 0
    if request.load_inplace:  # before the message: the next request must not find an old entry
        purged = (await purge(redis, EntryFilter(model=adapter_name(model, request.lora_name)))).entries
    with contextlib.suppress(RedisBackendError):
        # The value is for people; the write itself is the message, see router.flow.replicas.invalidation.
        await execute_commands(redis, [("SET", ADAPTERS_KEY, int(time.time()))])
        return True, purged
    return False, purged
