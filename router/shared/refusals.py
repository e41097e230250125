"""What Redis says instead of a reply, as redis-py's exceptions."""

from collections.abc import Callable, Mapping
from typing import Final

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

_BY_CODE: Final[Mapping[str, Callable[[str], RedisError]]] = {
    "ASK": AskError,
    "CLUSTERDOWN": ClusterDownError,
    "LOADING": BusyLoadingError,
    "MASTERDOWN": MasterDownError,
    "MOVED": MovedError,
    "NOAUTH": AuthenticationError,
    "READONLY": ReadOnlyError,
    "WRONGPASS": AuthenticationError,
}


def refusal(text: str) -> RedisError:
    """The exception for the text of an error reply.

    A ResponseError is about the command; any other says that the server does not serve at all.
    """
    code, _, rest = text.partition(" ")
    kind = _BY_CODE.get(code)
    return ResponseError(text) if kind is None else kind(rest)
