"""Redis' error replies as redis-py's exceptions, and RedisBackendError, into which all failures are translated."""

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

    A ResponseError concerns one command; any other exception means that the server does not serve at all.
    """
    code, _, rest = text.partition(" ")
    kind = _EXCEPTION_BY_CODE.get(code)
    return ResponseError(text) if kind is None else kind(rest)


REDIS_ERRORS: Final = (redis.exceptions.RedisError, OSError, asyncio.TimeoutError)
"""The exceptions of redis-py and of the layers below it when a command fails."""


class RedisBackendError(Exception):
    """Redis is not available. The message names the kind of error, and never an address or a password."""

    @classmethod
    def from_exception(cls, error: Exception) -> "RedisBackendError":
        # The messages of redis-py's other exceptions may repeat the URL, and with it a password; Redis' replies do not.
        if isinstance(error, redis.exceptions.ResponseError):
            return cls(str(error))
        local = local_cause(error)
        return cls(type(error).__name__ if local is None else f"the router cannot open a connection: {local}")
