"""The audit as `roundhouse up` writes it, over a connection for each entry: a switch is rare."""

from collections.abc import Callable
from typing import Any, Final

from redis.exceptions import RedisClusterException

from router.net.redis.commands import Command
from router.net.redis.errors import REDIS_ERRORS, RedisBackendError
from router.shared.audit.audit_log import AuditLine, AuditLog
from router.shared.audit.changes import Change
from router.shared.connection.redis import open_client

_TIMEOUT: Final = 5.0  # seconds


class LauncherAudit:
    """An Audit. `report` gets a line for each entry.

    It trims nothing by age: how long entries are kept is a setting of the routers.
    """

    def __init__(self, url: str, report: Callable[[str], None]) -> None:
        self._url = url
        self._report = report

    async def record(self, actor: str, change: Change) -> None:
        client = open_client(self._url, timeout=_TIMEOUT)

        async def send(command: Command) -> Any:
            try:
                return await client.execute_command(*command)
            except (*REDIS_ERRORS, RedisClusterException) as error:
                raise RedisBackendError.from_exception(error) from error

        try:
            await AuditLog(send, self._on_line, router="", keep_seconds=0).record(actor, change)
        finally:
            await client.aclose()

    def _on_line(self, line: AuditLine) -> None:
        what = f"audit: {line.change.action} {line.change.subject} by {line.actor}"
        self._report(f"{what}: {line.problem}; not recorded" if line.link is None else f"{what}, hash {line.link.hash}")
