"""Redis' error replies as redis-py's exceptions, and the exceptions into which all failures are translated."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import redis.exceptions
from redis.crc import REDIS_CLUSTER_HASH_SLOTS
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
from router.net.redis.refusals import REFUSALS_IN_WORDS, WriteRefusal

_MAX_PORT: Final = 65535

_EXCEPTION_BY_CODE: Final[Mapping[str, Callable[[str], RedisError]]] = {
    "CLUSTERDOWN": ClusterDownError,
    "LOADING": BusyLoadingError,
    "MASTERDOWN": MasterDownError,
    "NOAUTH": AuthenticationError,
    "READONLY": ReadOnlyError,
    "WRONGPASS": AuthenticationError,
}


def parse_error_reply(text: str) -> RedisError:
    """The exception for the text of an error reply.

    A ResponseError concerns one command; any other exception means that the server does not serve at all.
    """
    code, _, rest = text.partition(" ")
    if code in ("ASK", "MOVED"):
        return _parse_redirection(code, rest) or ResponseError(text)
    kind = _EXCEPTION_BY_CODE.get(code)
    return ResponseError(text) if kind is None else kind(rest)


def _parse_redirection(code: str, rest: str) -> RedisError | None:
    """None if it leads nowhere: then it is a refusal of one command, as any other."""
    try:
        error = AskError(rest) if code == "ASK" else MovedError(rest)
    except ValueError:
        return None
    return error if 0 <= error.slot_id < REDIS_CLUSTER_HASH_SLOTS and is_port(error.port) else None


def is_port(port: int) -> bool:
    """Whether a server can listen there. Python's sockets raise an OverflowError for a port beyond."""
    return 0 < port <= _MAX_PORT


REDIS_ERRORS: Final = (redis.exceptions.RedisError, OSError, asyncio.TimeoutError)
"""The exceptions of redis-py and of the layers below it when a command fails."""


# ResponseErrors of a server that does not serve at all.
_NOT_SERVING: Final = (ClusterDownError, MasterDownError)


class RedisDownError(Exception):
    """Redis is not available at present."""


class RedisBackendError(Exception):
    """Redis is not available. The message names the kind of error, and never an address or a password."""

    @classmethod
    def from_exception(cls, error: Exception) -> "RedisBackendError":
        # The messages of redis-py's other exceptions may repeat the URL, and with it a password; Redis' replies do not.
        if (refusal := write_refusal(error)) is not None:
            return WritesRefusedError(refusal)
        if isinstance(error, ReadOnlyError):
            return ReadOnlyReplicaError()
        if isinstance(error, redis.exceptions.ResponseError):
            return cls(str(error)) if isinstance(error, _NOT_SERVING) else CommandRefusedError(str(error))
        local = local_cause(error)
        return cls(type(error).__name__ if local is None else f"the router cannot open a connection: {local}")


class ReadOnlyReplicaError(RedisBackendError):
    """The server is a replica, which takes no writes and may not get purges from elsewhere: so it counts as down.

    `changed_nothing`: known of an operation whose first write was refused.
    """

    def __init__(self) -> None:
        super().__init__("it is a read-only replica")
        self.changed_nothing = False


# In the replies to commands and, behind other words, to scripts; redis-py removes the code of some.
_REFUSALS: Final[tuple[tuple[str, WriteRefusal], ...]] = (
    ("command not allowed when used memory", "full"),
    ("MISCONF", "cannot-save"),
    ("Not enough good replicas", "too-few-replicas"),
)


def write_refusal(error: object) -> WriteRefusal | None:
    """None for a reply that says something else."""
    if not isinstance(error, ResponseError):
        return None
    text = str(error)
    return next((refusal for words, refusal in _REFUSALS if words in text), None)


class WritesRefusedError(RedisBackendError):
    """Redis answers, and takes no writes. The message says why, for people."""

    def __init__(self, refusal: WriteRefusal) -> None:
        super().__init__(f"{REFUSALS_IN_WORDS[refusal]}: it takes no writes")
        self.refusal: Final = refusal


class CommandRefusedError(RedisBackendError):
    """Redis answers with an error: its user may not use the command, for example. The message is Redis' own."""


class UnexpectedReplyError(RedisDownError, RedisBackendError):
    """A reply has a form that its command cannot have. It says no more than a Redis that is down."""

    @classmethod
    def of(cls, reply: object) -> "UnexpectedReplyError":
        return cls(f"a reply has an unexpected form: {type(reply).__name__}")
