"""Connects commands to the Redis of a configuration; with access to Redis, no admin key is needed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from router.commands.console import EXIT_USAGE, fail, print_err
from router.commands.termination import cancelled_by_signals
from router.core.cache.entry_filter import EntryFilter, parse_listing_filter
from router.core.cache.redis_keys import PURGE_LOG_KEY
from router.errors import ApiError
from router.settings import EMBEDDED, Settings

if TYPE_CHECKING:
    from router.shared.audit.audit_log import AuditLine
    from router.shared.audit.changes import Change
    from router.store.admin.scan import RedisClient

REPLY_TIMEOUT: Final = 10.0
"""Seconds that Redis has for each reply."""

RECORD_TIMEOUT: Final = 2.0
"""Seconds, instead, for a record in the audit: it follows a change that may just have failed for want of a reply."""

ResultT = TypeVar("ResultT")


def with_redis(settings: Settings, config: Path, operation: "Callable[[RedisClient], Awaitable[ResultT]]") -> ResultT:
    """If `operation` fails, the command ends with a message of one line."""
    # Imported here, since commands without Redis do not need it.
    from router.net.redis.errors import (
        CommandRefusedError,
        ReadOnlyReplicaError,
        RedisBackendError,
        WritesRefusedError,
    )

    try:
        return asyncio.run(_run_connected(settings, operation))
    except ReadOnlyReplicaError as error:
        result = "nothing was changed" if error.changed_nothing else "it takes no writes"
        fail(f"{config}: cache.url: Redis is a read-only replica: {result}")
    except WritesRefusedError as error:
        fail(f"{config}: cache.url: {error}")
    except CommandRefusedError as error:
        fail(f"{config}: cache.url: Redis refuses a command: {error}; see `roundhouse check`")
    except RedisBackendError as error:
        hint = "; `roundhouse up` starts the embedded one" if settings.cache.url == EMBEDDED else ""
        fail(f"{config}: cache.url: Redis does not answer ({error}){hint}")
    except ApiError as error:
        fail(error.message, EXIT_USAGE)


async def _run_connected(settings: Settings, operation: "Callable[[RedisClient], Awaitable[ResultT]]") -> ResultT:
    from router.net.redis.connect import open_client
    from router.store.admin.scan import execute_commands

    client = open_client(settings.redis_url, timeout=REPLY_TIMEOUT)
    try:
        # Fails here if Redis does not answer, before `operation` starts.
        await execute_commands(client, [("EXISTS", PURGE_LOG_KEY)])
        return await operation(client)
    finally:
        await client.aclose()


def with_audit(
    settings: Settings,
    operation: "Callable[[RedisClient], Awaitable[ResultT]]",
    changes: "Callable[[ResultT], Sequence[Change]]",
    stopped: "Callable[[BaseException], Sequence[Change]]",
) -> "Callable[[RedisClient], Awaitable[ResultT]]":
    """`operation`, and a record in the audit of each of the `changes` that its result means.

    `stopped`: what it may have changed if it fails, or if a signal ends the command.
    """

    async def run(client: "RedisClient") -> ResultT:
        from router.shared.audit.recorded import recorded

        with cancelled_by_signals():
            return await recorded(
                operation(client),
                partial(record_change, settings),
                changes,
                lambda error: unless_replica(error, stopped(error)),
            )

    return run


def unless_replica(error: BaseException, changes: "Sequence[Change]") -> "Sequence[Change]":
    """What `error` has left half-done; nothing if a replica has refused all of it, which its message then says."""
    from router.net.redis.errors import ReadOnlyReplicaError

    if not isinstance(error, ReadOnlyReplicaError) or any(change.details.get("entries") for change in changes):
        return changes
    error.changed_nothing = True
    return []


async def record_change(settings: Settings, change: "Change") -> None:
    """What cannot be recorded is said, and fails nothing: it is done."""
    from router.net.redis.connect import open_client
    from router.shared.audit.actors import command_line_actor
    from router.shared.audit.audit_log import AuditLog
    from router.store.admin.audit import audit_sender

    # A connection of its own: that of an operation which was stopped may have a reply that nobody has read.
    client = open_client(settings.redis_url, timeout=RECORD_TIMEOUT)
    seconds = settings.router.audit_days * 86400
    try:
        audit = AuditLog(audit_sender(client), _report_unrecorded, router="", keep_seconds=seconds)
        await audit.record(command_line_actor(), change)
    finally:
        await client.aclose()


def _report_unrecorded(line: "AuditLine") -> None:
    if line.problem is not None:
        done = "done, but " if line.change.details.get("result", "done") == "done" else ""
        print_err(f"roundhouse: {done}not recorded in the audit: {line.problem}")


def parse_filter(**parts: str | None) -> EntryFilter:
    """The filter of a command's options; without any, all entries. An invalid option ends the command."""
    given: dict[str, Any] = {name: value for name, value in parts.items() if value is not None}
    try:
        return parse_listing_filter(given)
    except ApiError as error:
        fail(error.message, EXIT_USAGE)
