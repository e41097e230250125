"""Asks one Redis server over a connection of its own, which ends with it; or says why the server cannot be asked."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError

from router.checks.finding import Problem
from router.checks.redis_facts import ServerFacts
from router.checks.words import Fixes, describe
from router.net.redis.commands import Command
from router.net.redis.connect import new_connection
from router.net.redis.errors import REDIS_ERRORS, write_refusal
from router.net.redis.url import HostPort, RedisUrl
from router.shared.connection.redis_rights import (
    DEFAULT_USER_COMMAND,
    NEEDED_COMMANDS,
    has_all_rights,
    is_inconclusive,
    parse_refusal,
    read_trial,
    sample_keys,
    uses_of,
    write_trial,
)

_SUBSCRIBE: Final = "subscribe"
_REPLIES: Final = (ResponseError, AuthenticationError, BusyLoadingError)
"""redis-py's exceptions for error replies: the server understood the router."""

_FIXES: Final = Fixes(
    start="start Redis, or correct the host and port",
    correct_host="correct the host",
    without_tls="write redis in place of rediss at the URL's start",
    trust="set ssl_ca_certs in the URL to its authority's certificate",
    client_certificate="set ssl_certfile and ssl_keyfile in the URL",
)


class CannotAskError(Exception):
    """The server cannot be asked; `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.note)
        self.problem: Final = problem


@contextlib.asynccontextmanager
async def connected(
    address: RedisUrl, host: HostPort | None, *, timeout: float, to_sentinel: bool = False
) -> AsyncIterator[AbstractConnection]:
    """`timeout` in seconds, to connect and per reply. Raises CannotAskError, also for failures inside the block."""
    connection = new_connection(address, host, timeout=timeout, to_sentinel=to_sentinel)
    try:
        await connection.connect()  # type: ignore[no-untyped-call]  # redis-py has no annotation there
        yield connection
    except REDIS_ERRORS as error:
        speaks = _speaks_plain if address.tls else _speaks_tls
        if host is not None and not isinstance(error, _REPLIES) and await speaks(host, timeout):
            raise CannotAskError(_other_protocol(tls=address.tls)) from error
        raise CannotAskError(_explain_connection(error, timeout)) from error
    finally:
        await connection.disconnect(nowait=True)


async def ask(connection: AbstractConnection, *commands: Command) -> list[Any]:
    """The replies; an error reply is an exception among them."""
    await connection.send_packed_command(connection.pack_commands(commands))
    replies = []
    for _ in commands:
        try:
            replies.append(await connection.read_response())
        except RedisError as error:
            if not connection.is_connected:
                raise
            replies.append(error)
    return replies


async def ask_server(
    address: RedisUrl, host: HostPort | None, tenants: Sequence[str], *, timeout: float
) -> ServerFacts:
    """Raises CannotAskError."""
    async with connected(address, host, timeout=timeout) as connection:
        before = time.time()
        clock, info, default = await ask(connection, ("TIME",), ("INFO",), DEFAULT_USER_COMMAND)
        middle = (before + time.time()) / 2
        needed = [command for command in NEEDED_COMMANDS if command.use in uses_of(address.kind)]
        names = [command.name for command in needed]
        replies = await ask(connection, *(("PING",) if c.name == _SUBSCRIBE else c.trial for c in needed))
        samples = sample_keys(tenants)
        reads = await ask(connection, *(read_trial(key) for _, key in samples))
        writes = await ask(connection, *(write_trial(key) for _, key in samples))
        at = names.index(_SUBSCRIBE)
        replies[at] = await _subscribe(connection, needed[at].trial)
    refusals = {name: parse_refusal(reply) for name, reply in zip(names, replies, strict=True)}
    hidden = _refused_keys(samples, reads)
    return ServerFacts(
        address=address.path if host is None else written_host(host),
        info=parse_info(info) if isinstance(info, bytes) else {},
        denied=tuple(name for name, refusal in refusals.items() if refusal is not None and refusal.of == "command"),
        untried=tuple(name for name, reply in zip(names, replies, strict=True) if is_inconclusive(reply)),
        hidden_keys=hidden,
        protected_keys=tuple(pattern for pattern in _refused_keys(samples, writes) if pattern not in hidden),
        hears_channels=all(refusal is None or refusal.of != "channel" for refusal in refusals.values()),
        refuses_writes=next((refusal for refusal in map(write_refusal, replies) if refusal is not None), None),
        default_has_rights=has_all_rights(default),
        clock_lead=0.0 if isinstance(clock, Exception) else int(clock[0]) + int(clock[1]) / 1e6 - middle,
    )


def written_host(host: HostPort) -> str:
    name, port = host
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def parse_info(page: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in page.decode("utf-8", "replace").splitlines())
    return {name: value for name, separator, value in lines if separator and not name.startswith("#")}


async def _subscribe(connection: AbstractConnection, command: Command) -> Any:
    """PING's reply, or the refusal. It is the last on a connection: after a refusal, PING's reply is not read."""
    # SUBSCRIBE is answered by a push, which read_response() does not return.
    await connection.send_packed_command(connection.pack_commands([command, ("PING",)]))
    try:
        return await connection.read_response()
    except RedisError as error:
        if not connection.is_connected:
            raise
        return error


def _refused_keys(samples: Sequence[tuple[str, str]], replies: Sequence[Any]) -> tuple[str, ...]:
    refusals = zip(samples, map(parse_refusal, replies), strict=True)
    return tuple(pattern for (pattern, _), refusal in refusals if refusal is not None and refusal.of == "key")


async def _speaks_tls(host: HostPort, timeout: float) -> bool:
    """Whether the server answers a TLS handshake, with whatever certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(*host, ssl=context)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _speaks_plain(host: HostPort, timeout: float) -> bool:
    """Whether the server answers a PING in plain text, as Redis does; with an error if it wants a password."""
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(*host)
            with contextlib.closing(writer):
                writer.write(b"PING\r\n")
                return (await reader.readline()).startswith((b"+PONG\r\n", b"-NOAUTH", b"-DENIED"))
    except (OSError, TimeoutError, ValueError):  # ValueError: a line of more than 64 KiB
        return False


def _other_protocol(*, tls: bool) -> Problem:
    """`tls`: whether the router uses TLS, and the server does not; else it is the reverse."""
    if tls:
        return Problem("does not speak TLS", _FIXES.without_tls)
    return Problem("speaks TLS, but is asked in plain text", "write rediss in place of redis at the URL's start")


def _explain_connection(error: BaseException, timeout: float) -> Problem:
    """Why the connection, the login or a reply failed. `timeout` in seconds."""
    if (problem := describe(error, _FIXES, timeout)) is not None:
        return problem
    return _explain_reply(error) if isinstance(error, RedisError) else _no_redis()


def _explain_reply(error: RedisError) -> Problem:
    """An error reply to the login, or no reply of Redis at all. redis-py removes the code of some."""
    text = str(error).lower()
    if (refusal := parse_refusal(error)) is not None and refusal.of == "command":
        return Problem("does not let this user log in with HELLO", "ACL SETUSER USER +hello +client|setname")
    if "invalid username-password" in text or "invalid password" in text:
        return Problem("refuses the user or the password", "correct them; special characters are written as %XX")
    if "authenticat" in text or "noauth" in text:
        return Problem("wants a password", "write it before the host, as in redis://:PASSWORD@HOST")
    if "protected mode" in text:
        return Problem(
            "lets no other machine in, because it has no password (protected mode)",
            "set requirepass in redis.conf, and the password in the URL",
        )
    if "max number of clients" in text:
        return Problem("has as many clients as it accepts", "raise maxclients in redis.conf")
    if "db index" in text:
        return Problem("has no such database", "correct the number at the end of the URL")
    if "loading" in text:
        return Problem("is loading its data and does not answer yet", "wait; INFO persistence shows the progress")
    if "unknown command" in text:
        return Problem("is too old: it does not know HELLO", "install Redis 6.2 or newer")
    if "timeout" in text:
        return Problem("does not answer in time", "see whether it hangs, or whether the port is another server's")
    return _no_redis()


def _no_redis() -> Problem:
    return Problem("does not answer as Redis does", "correct the port: another server may listen there")
