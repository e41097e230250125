"""Records the reloads of a router in the audit: once each, however many workers it has.

The process that reads the file writes the entry: the only one if there are no workers, else their supervisor, which has
no connection to Redis and no event loop. So it is written in a thread, over a connection of its own.
"""

import asyncio
import os
import socket
import threading
from collections.abc import Sequence
from typing import Final

from router.net.redis.connect import open_client
from router.process.changed_settings import changed_settings
from router.process.wiring.audit import keep_seconds, write_audit_line
from router.settings import Settings
from router.shared.audit.audit_log import AuditLog
from router.shared.audit.changes import configuration_reloaded
from router.store.admin.audit import audit_sender

_TIMEOUT: Final = 2.0  # seconds for Redis' replies; the process does not end before its threads


def record_reload(old: Settings, new: Settings, actor: str | None) -> threading.Thread:
    """Returns at once. `actor`: None if nobody said who sent the signal."""
    host = socket.gethostname()
    arguments = (new, changed_settings(old, new), actor or f"SIGHUP@{host}", f"{host}:{os.getpid()}")
    thread = threading.Thread(target=_record, args=arguments, name="audit of a reload")
    thread.start()
    return thread


def _record(settings: Settings, changed: Sequence[str], actor: str, router: str) -> None:
    asyncio.run(_append(settings, changed, actor, router))


async def _append(settings: Settings, changed: Sequence[str], actor: str, router: str) -> None:
    client = open_client(settings.redis_url, timeout=_TIMEOUT)
    try:
        audit = AuditLog(audit_sender(client), write_audit_line, router=router, keep_seconds=keep_seconds(settings))
        await audit.record(actor, configuration_reloaded(router, changed))
    finally:
        await client.aclose()
