"""The audit as a router writes it: to Redis, and a line each to the log."""

import logging
from collections.abc import Callable
from typing import Any, Final

from router.api.admin.audit import RequestAudit
from router.net.redis.commands import Command
from router.net.redis.errors import RedisBackendError
from router.process.wiring.redis_link import RedisLink
from router.settings import Settings
from router.shared.audit.audit_log import AuditLine, AuditLog
from router.store.admin.audit import audit_sender
from router.telemetry.log_output import with_facts

log = logging.getLogger("roundhouse.audit")

_DAY: Final = 86400  # seconds


def build_audit(settings: Settings, router: str, redis: RedisLink, count_lost: Callable[[], None]) -> RequestAudit:
    """`router`: `HOST:PID`. `count_lost` is called for each change that is not in Redis."""

    send_by_client = audit_sender(redis.admin_client)

    async def send(command: Command) -> Any:
        if not redis.pipeline.up:  # a change does not wait for the admin client's timeout
            raise RedisBackendError("Redis is down")
        return await send_by_client(command)

    def on_line(line: AuditLine) -> None:
        write_audit_line(line)
        if line.problem is not None:
            count_lost()

    seconds = keep_seconds(settings)
    return RequestAudit(AuditLog(send, on_line, router=router, keep_seconds=seconds, clock=redis.clock.now))


def keep_seconds(settings: Settings) -> int:
    return settings.router.audit_days * _DAY


def write_audit_line(line: AuditLine) -> None:
    level = logging.INFO if line.problem is None else logging.WARNING
    log.log(level, "", extra=with_facts(line.facts()))
