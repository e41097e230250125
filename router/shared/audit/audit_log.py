"""Writes the audit: an entry for each change, in Redis and in the log."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from router.net.redis.commands import Command
from router.net.redis.errors import RedisBackendError
from router.shared.audit.audit_chain import Link, link, read_link
from router.shared.audit.audit_stream import Newest, append_command, decode_appended
from router.shared.audit.changes import Change, Detail, bounded, bounded_details

_MAX_TRIES: Final = 100  # each failed one is another writer's success

Send = Callable[[Command], Awaitable[Any]]
"""Sends a command to Redis and returns the reply. Raises RedisBackendError."""


class AuditLine(NamedTuple):
    """What a log line says. `link`: None if the entry is not in Redis; `problem`: why."""

    actor: str
    change: Change
    link: Link | None
    problem: str | None

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"action": self.change.action, "subject": self.change.subject, "actor": self.actor}
        facts |= {name: _detail_text(value) for name, value in self.change.details.items()}
        if self.link is not None:
            facts |= {"number": self.link.number, "hash": self.link.hash}
        return facts if self.problem is None else {**facts, "recorded": "no", "problem": self.problem}


def _detail_text(value: Detail) -> Any:
    return value if isinstance(value, str | int | None) else ", ".join(value)


class Audit(Protocol):
    """Records changes.

    - A change is recorded when it is done, and does not fail because it cannot be recorded.
    - Each has a line in the log, with the hash of its entry, or with the reason why there is none.
    """

    async def record(self, actor: str, change: Change) -> None: ...


class NoAudit:
    """An Audit that keeps nothing."""

    async def record(self, actor: str, change: Change) -> None:
        pass


class AuditLog:
    """An Audit in Redis."""

    def __init__(
        self,
        send: Send,
        write_line: Callable[[AuditLine], None],
        *,
        router: str,
        keep_seconds: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`router`: the process that writes, empty for a command. `keep_seconds`: 0 to trim nothing by age."""
        self._send = send
        self._write_line = write_line
        self._router = router
        self._keep_seconds = keep_seconds
        self._clock = clock
        self._newest = Newest()  # as this process last saw it; Redis replies with the newest if it differs
        # Tries of one process at once would only make each other fail.
        self._lock = asyncio.Lock()

    async def record(self, actor: str, change: Change) -> None:
        change = Change(change.action, bounded(change.subject), bounded_details(change.details))
        fields = _fields(bounded(actor), change, self._router, self._clock())
        try:
            async with self._lock:
                line = AuditLine(actor, change, await self._append(fields), None)
        except RedisBackendError as error:
            line = AuditLine(actor, change, None, str(error) or type(error).__name__)
        except Exception as error:  # noqa: BLE001 - the change is made, and must not fail now, whatever Redis has
            line = AuditLine(actor, change, None, type(error).__name__)
        self._write_line(line)

    async def _append(self, fields: Mapping[bytes, bytes]) -> Link:
        """Raises RedisBackendError."""
        for _ in range(_MAX_TRIES):
            linked = link(fields, self._newest.link)
            own_link = read_link(linked)
            if own_link is None:  # somebody has made an entry with the last possible number
                linked = link(fields, None)
                own_link = read_link(linked)
                assert own_link is not None
            own = Newest(linked[b"hash"], own_link)
            reply = await self._send(append_command(linked, self._newest, self._keep_seconds))
            appended = decode_appended(reply)
            if appended.is_done or appended.newest == own:
                self._newest = own
                return own_link
            self._newest = appended.newest
        raise RedisBackendError("too many others write to it at the same time")


def _fields(actor: str, change: Change, router: str, now: float) -> dict[bytes, bytes]:
    return {
        b"at": b"%d" % (now * 1000),
        b"actor": actor.encode(),
        b"action": change.action.encode(),
        b"subject": change.subject.encode("utf-8", "backslashreplace"),
        b"details": msgspec.json.encode(change.details),
        b"router": router.encode(),
        # Else the same change by the same person in the same millisecond would pass for one that was sent twice.
        b"nonce": secrets.token_hex(6).encode(),
    }
