"""Error replies of Redis."""

from typing import Any

import pytest
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    ResponseError,
)

from router.net.redis.errors import CommandRefusedError, RedisBackendError, parse_error_reply


def test_an_error_reply_has_the_exception_class_of_redis_py() -> None:
    kinds = {
        "ERR no": ResponseError, "WRONGTYPE not so": ResponseError, "NOPERM no": ResponseError, "": ResponseError,
        "MOVED 1 127.0.0.1:7000": MovedError, "ASK 1 127.0.0.1:7000": AskError, "CLUSTERDOWN so": ClusterDownError,
        "MASTERDOWN so": ClusterDownError, "READONLY so": ReadOnlyError, "LOADING so": BusyLoadingError,
        "NOAUTH so": AuthenticationError, "WRONGPASS so": AuthenticationError,
    }  # fmt: skip
    for text, kind in kinds.items():
        error = parse_error_reply(text)
        assert isinstance(error, kind), text
        assert isinstance(error, ResponseError) == (kind not in (BusyLoadingError, AuthenticationError)), text
    moved: Any = parse_error_reply("MOVED 12 127.0.0.1:7000")
    assert (moved.slot_id, moved.host, moved.port) == (12, "127.0.0.1", 7000)


@pytest.mark.parametrize(
    "text",
    ["MOVED", "MOVED 1", "MOVED x 127.0.0.1:1", "MOVED 16384 127.0.0.1:1", "MOVED -1 127.0.0.1:1", "ASK 1 127.0.0.1:0",
     "ASK 1 127.0.0.1:65536", "ASK 1 127.0.0.1:x", "MOVED 1 2 3", "MOVED 99999999999999999999999 a:1"],
)  # fmt: skip
def test_a_redirection_to_nowhere_is_a_refusal_of_one_command(text: str) -> None:
    error = parse_error_reply(text)
    assert type(error) is ResponseError
    assert str(error) == text


def test_a_refused_command_is_told_apart_from_a_server_that_does_not_serve() -> None:
    refused = {"NOPERM this user has no permissions": True, "ERR x": True, "CLUSTERDOWN x": False, "READONLY x": False}
    for text, is_refused in refused.items():
        translated = RedisBackendError.from_exception(parse_error_reply(text))
        assert isinstance(translated, CommandRefusedError) is is_refused, text
