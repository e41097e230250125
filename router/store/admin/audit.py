"""Reads the audit, and checks the chain of its hashes."""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from redis.exceptions import RedisClusterException

from router.net.redis.commands import Command
from router.net.redis.errors import RedisBackendError
from router.shared.audit.audit_chain import ChainCheck, ChainReport
from router.shared.audit.audit_log import Send
from router.shared.audit.audit_stream import (
    MAX_ENTRIES,
    PAGE,
    AuditEntry,
    StoredEntry,
    decode_entry,
    decode_page,
    page_before_command,
    page_from_command,
)
from router.store.admin.scan import OnProgress, RedisClient, execute_commands, no_progress

MAX_PAGE: Final = 1000
"""Entries in one answer."""

_ID: Final = re.compile(r"\d{1,20}-\d{1,20}")
_MAX_CHECKS: Final = 3  # that begin again, since entries were trimmed faster than they were read


class AuditQuery(NamedTuple):
    """The newest `limit` entries, of one action or of all. `before`: only those before the one with this id."""

    limit: int
    before: str | None = None
    action: str | None = None


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """`entries`: the newest first. `before`: for the next page; None if there is none."""

    entries: list[AuditEntry]
    before: str | None


class _TrimmedError(Exception):
    """The entry with which a page has to begin is gone."""


def audit_sender(client: RedisClient) -> Send:
    """What an AuditLog sends its commands with."""

    async def send(command: Command) -> Any:
        try:
            (reply,) = await execute_commands(client, [command])
        except RedisClusterException as error:  # for a cluster without a reachable node; it is no RedisError
            raise RedisBackendError.from_exception(error) from error
        return reply

    return send


def is_entry_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


async def fetch_audit(client: RedisClient, query: AuditQuery) -> AuditPage:
    """What cannot be decoded is left out; `check_audit` reports it. Raises RedisBackendError."""
    entries: list[AuditEntry] = []
    before = query.before or "+"
    # With an action, most entries may be others; all of them are read at most.
    count = query.limit if query.action is None else PAGE
    for _ in range(0, MAX_ENTRIES + count, count):
        page = await _read_page(client, page_before_command(before, count))
        for stored in page:
            before = stored.id
            entry = decode_entry(stored)
            if entry is not None and query.action in (None, entry.action):
                entries.append(entry)
                if len(entries) == query.limit:
                    return AuditPage(entries=entries, before=before)
        if len(page) < count:
            break
    return AuditPage(entries=entries, before=None)


async def _read_page(client: RedisClient, command: Command) -> list[StoredEntry]:
    (reply,) = await execute_commands(client, [command])
    if reply is None:
        raise RedisBackendError("the key of the audit has a value of another type")
    return decode_page(reply)


async def check_audit(
    client: RedisClient, on_entry: Callable[[str], None] = lambda _: None, progress: OnProgress = no_progress
) -> ChainReport:
    """Checks all entries. `on_entry` gets the hash of each, `progress` their number. Raises RedisBackendError."""
    for _ in range(_MAX_CHECKS):
        try:
            return await _check(client, on_entry, progress)
        except _TrimmedError:
            continue
    raise RedisBackendError("entries of the audit are trimmed faster than they can be read")


async def _check(client: RedisClient, on_entry: Callable[[str], None], progress: OnProgress) -> ChainReport:
    check = ChainCheck()
    last, done = "-", 0
    while True:
        page = await _read_page(client, page_from_command(last))
        if last != "-":
            # A page begins with the last entry of the one before it. Without that, entries between them may be gone.
            if not page or page[0].id != last:
                raise _TrimmedError
            page = page[1:]
        for stored in page:
            check.add(stored.id, stored.fields)
            on_entry(stored.fields.get(b"hash", b"").decode("ascii", "replace"))
        done += len(page)
        progress(done)
        if not page:
            return check.report()
        last = page[-1].id
