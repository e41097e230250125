"""Which connection errors are caused by this machine itself."""

import errno
import socket

import pytest

from router.core.resilience.retry import FailureClass, classify_failure
from router.net.local_errors import local_cause
from router.net.redis.errors import RedisBackendError


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL])
def test_exhausted_resources_of_this_machine_are_local_errors_and_are_named(number: int) -> None:
    error = OSError(number, "Connect call failed ('10.0.0.1', 6379)")
    cause = local_cause(error)
    assert cause
    assert cause in str(RedisBackendError.from_exception(error))
    assert "10.0.0.1" not in str(RedisBackendError.from_exception(error))


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(errno.ECONNREFUSED, "refused"), ConnectionResetError(), TimeoutError(), OSError(),
        OSError(errno.EHOSTUNREACH, ""), OSError("Multiple exceptions: [Errno 111], [Errno 99]"), ValueError(),
        socket.gaierror(socket.EAI_NONAME, ""), socket.gaierror(socket.EAI_AGAIN, ""),
    ],
    ids=repr,
)  # fmt: skip
def test_any_other_error_may_be_the_servers(error: Exception) -> None:
    assert local_cause(error) is None
    assert str(RedisBackendError.from_exception(error)) == type(error).__name__


def test_a_resolver_without_memory_is_a_local_error() -> None:
    assert local_cause(socket.gaierror(socket.EAI_MEMORY, ""))


def test_a_local_error_counts_against_no_engine_and_costs_no_attempt() -> None:
    assert classify_failure("local", None) == FailureClass(
        counts_for_breaker=False,
        engine_busy=False,
        may_retry_engine=False,
        uses_retry_budget=False,
        counts_as_attempt=False,
    )
