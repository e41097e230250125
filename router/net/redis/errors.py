"""Errors of Redis: its error replies, as redis-py's exceptions, and LinkError, which all that uses Redis raises."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import redis.exceptions
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from router.net.local_errors import local_cause

_EXCEPTION_BY_CODE: Final[Mapping[str, Callable[[str], RedisError]]] = {
    "ASK": AskError,
    "CLUSTERDOWN": ClusterDownError,
    "LOADING": BusyLoadingError,
    "MASTERDOWN": MasterDownError,
    "MOVED": MovedError,
    "NOAUTH": AuthenticationError,
    "READONLY": ReadOnlyError,
    "WRONGPASS": AuthenticationError,
}


def parse_error_reply(text: str) -> RedisError:
    """The exception for the text of an error reply.

    A ResponseError is about the command; any other says that the server does not serve at all.
    """
    code, _, rest = text.partition(" ")
    kind = _EXCEPTION_BY_CODE.get(code)
    return ResponseError(text) if kind is None else kind(rest)


REDIS_ERRORS: Final = (redis.exceptions.RedisError, OSError, asyncio.TimeoutError)
"""What is raised when Redis does not do what it was asked, by redis-py and by what lies below it."""


class RedisBackendError(Exception):
    """Redis cannot be asked; the message names the kind of fault, and never an address or a password."""

    @classmethod
    def from_exception(cls, error: Exception) -> "RedisBackendError":
        # redis-py repeats the address, which may hold a password; what Redis itself said holds none.
        if isinstance(error, redis.exceptions.ResponseError):
            return cls(str(error))
        lacking = local_cause(error)
        return cls(type(error).__name__ if lacking is None else f"the router cannot connect: {lacking}")
