"""Logs what a router lacks in Redis: rights of its user, commands that a server does not have, keys and channels.

Theory of operation. Without a right, most of the router still works, and each command is refused on its own. So once a
router is connected, it tries each command in a form that changes nothing (router.shared.connection.redis_rights), over
connections of its own that end with it. It does so again when other servers hold the keys, since each server has users
of its own, and every minute while something is missing. One line names what is missing, what fails, and the rules to
grant.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from router.core.types import DEFAULT_TENANT
from router.net.redis.backend import RedisBackend, Server
from router.net.redis.connection import CommandBatch, RedisConnection
from router.net.redis.errors import RedisBackendError
from router.shared.connection.redis_rights import (
    NEEDED_COMMANDS,
    NeededCommand,
    is_unknown,
    parse_refusal,
    read_trial,
    sample_keys,
    uses_of,
    write_trial,
)

log = logging.getLogger("roundhouse.redis")

POLL_INTERVAL: Final = 2.0
"""Seconds between two attempts to reach Redis, and between two looks at which servers hold the keys."""

LOOK_INTERVAL: Final = 60.0
"""Seconds between two trials while something is missing."""

_TIMEOUT: Final = 5.0  # seconds


class RightsReport:
    """Logs a warning when what is missing changes, and one line of information once nothing is."""

    def __init__(self, backend: RedisBackend, kind: str) -> None:
        """`kind`: RedisUrl.kind."""
        self._backend = backend
        needed = [command for command in NEEDED_COMMANDS if command.use in uses_of(kind)]
        (self._subscribe,) = (command for command in needed if command.name == "subscribe")
        self._replying = [command for command in needed if command is not self._subscribe]
        self._logged: tuple[str, ...] = ()

    async def run(self) -> None:
        while True:
            try:
                missing = await self.look()
                topology = self._backend.topology
            except RedisBackendError:
                await asyncio.sleep(POLL_INTERVAL)
                continue
            waited = 0.0
            while self._backend.topology == topology and not (missing and waited >= LOOK_INTERVAL):
                await asyncio.sleep(POLL_INTERVAL)
                waited += POLL_INTERVAL

    async def look(self) -> tuple[str, ...]:
        """Tries everything once. Returns what is missing, and logs it if it has changed.

        Raises RedisBackendError if Redis does not answer.
        """
        lines: list[str] = []
        try:
            for server in await self._backend.servers():
                lines += await self._ask(server)
        except RedisBackendError as error:
            if parse_refusal(error) is None:
                raise
            grant = "ACL SETUSER USER +hello +client|setname +exists"
            lines.append(f"the router cannot connect to Redis, so nothing is cached ({error}). {grant}")
        missing = tuple(dict.fromkeys(lines))
        if missing != self._logged:
            for line in missing:
                log.warning("%s", line)
            if not missing:
                log.info("the router has all rights in Redis now")
            self._logged = missing
        return missing

    async def _ask(self, server: Server) -> Iterator[str]:
        # SUBSCRIBE is answered by a push, or by an error as a reply.
        subscribed: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        connection = RedisConnection(on_push=lambda _: _settle(subscribed, None))
        try:
            await server.connect(connection, _TIMEOUT)
            samples = sample_keys([DEFAULT_TENANT])
            reads = await connection.execute([read_trial(key) for _, key in samples], _TIMEOUT)
            writes = await connection.execute([write_trial(key) for _, key in samples], _TIMEOUT)
            replies = await connection.execute([command.trial for command in self._replying], _TIMEOUT)
            batch = connection.execute([self._subscribe.trial], _TIMEOUT)
            batch.add_done_callback(lambda done: _settle(subscribed, _error_of(done)))
            refusal = await subscribed
        finally:
            connection.abort()
        if isinstance(refusal, RedisBackendError):
            raise refusal
        tried = [*zip(self._replying, replies, strict=True), (self._subscribe, refusal)]
        keys = [pattern for (pattern, _), *pair in zip(samples, reads, writes, strict=True) if _refuses(pair, "key")]
        return describe_missing(tried, keys)


def _settle(future: "asyncio.Future[Exception | None]", value: Exception | None) -> None:
    if not future.done():
        future.set_result(value)


def _error_of(batch: CommandBatch) -> Exception | None:
    if batch.error is not None:
        return batch.error
    (reply,) = batch.result()
    return reply if isinstance(reply, Exception) else None


def describe_missing(tried: Sequence[tuple[NeededCommand, Any]], keys: Sequence[str]) -> Iterator[str]:
    """A line for each loss. `tried`: commands and the replies to their trials. `keys`: patterns that are refused."""
    denied: dict[str, list[NeededCommand]] = {}
    unknown: dict[str, list[NeededCommand]] = {}
    has_scripts = not any(_refuses([reply], "command") for command, reply in tried if command.name == "eval")
    for command, reply in tried:
        if command.trial[0] == "EVAL" and command.name != "eval" and not has_scripts:
            continue  # cannot be tried
        if _refuses([reply], "command"):
            denied.setdefault(command.loss, []).append(command)
        elif is_unknown(command.name, reply):
            unknown.setdefault(command.loss, []).append(command)
    for loss, commands in denied.items():
        rules = " ".join(command.rule for command in commands)
        yield f"Redis' user may not use {_names(commands)}: {loss}. ACL SETUSER USER {rules}"
    for loss, commands in unknown.items():
        yield f"Redis does not have {_names(commands)}: {loss}"
    if _refuses([reply for _, reply in tried], "channel"):
        yield f"Redis' user may not use the channels rh:1:process:*: {_loss_of('publish')}. ACL SETUSER USER &rh:1:*"
    if keys:
        yield f"Redis' user may not read and write the keys {', '.join(keys)}. ACL SETUSER USER ~rh:1:*"


def _names(commands: Iterable[NeededCommand]) -> str:
    return ", ".join(command.name for command in commands)


def _loss_of(name: str) -> str:
    return next(command.loss for command in NEEDED_COMMANDS if command.name == name)


def _refuses(replies: Iterable[Any], of: str) -> bool:
    return any(refusal is not None and refusal.of == of for refusal in map(parse_refusal, replies))
