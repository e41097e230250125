"""Why a Redis server cannot be used, in words."""

from typing import Final

from redis.exceptions import RedisError

from router.checks.finding import Problem
from router.checks.words import Fixes, describe
from router.shared.connection.redis_rights import parse_refusal

_FIXES: Final = Fixes(
    start="start Redis, or correct the host and port",
    correct_host="correct the host",
    without_tls="write redis in place of rediss at the URL's start",
    trust="set ssl_ca_certs in the URL to its authority's certificate",
    client_certificate="set ssl_certfile and ssl_keyfile in the URL",
)


def other_protocol(*, tls: bool) -> Problem:
    """`tls`: whether the router uses TLS, and the server does not; else it is the reverse."""
    if tls:
        return Problem("does not speak TLS", _FIXES.without_tls)
    return Problem("speaks TLS, but is asked in plain text", "write rediss in place of redis at the URL's start")


def explain_connection(error: BaseException, timeout: float) -> Problem:
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
