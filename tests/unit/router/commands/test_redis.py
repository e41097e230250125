"""What a command says and records when a replica refuses it."""

import pytest

from router.commands.redis import unless_replica
from router.net.redis.errors import ReadOnlyReplicaError, RedisBackendError
from router.shared.audit.changes import Change

NONE_DELETED = [Change("purge", "all", {"entries": 0, "result": "failed"})]
SOME_DELETED = [Change("purge", "all", {"entries": 3, "result": "failed"})]


def test_what_a_replica_has_refused_altogether_changed_nothing() -> None:
    error = ReadOnlyReplicaError()
    assert unless_replica(error, NONE_DELETED) == []
    assert error.changed_nothing


def test_what_was_changed_before_the_server_became_a_replica_is_recorded() -> None:
    error = ReadOnlyReplicaError()
    assert unless_replica(error, SOME_DELETED) == SOME_DELETED
    assert not error.changed_nothing


@pytest.mark.parametrize("error", [RedisBackendError("TimeoutError"), KeyboardInterrupt()])
def test_any_other_failure_is_recorded_even_if_nothing_is_known_to_be_changed(error: BaseException) -> None:
    assert unless_replica(error, NONE_DELETED) == NONE_DELETED
