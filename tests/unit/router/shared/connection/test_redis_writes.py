"""When Redis counts as one that takes no writes."""

import time

import pytest
from redis.exceptions import OutOfMemoryError, ResponseError

from router.net.redis.errors import RedisBackendError, WritesRefusedError, write_refusal
from router.net.redis.refusals import WriteRefusal
from router.shared.connection.redis_writes import REFUSAL_LIFETIME, RedisWrites

OOM = ResponseError("OOM command not allowed when used memory > 'maxmemory'.")


class Pipeline:
    up = True


def state(writes: RedisWrites) -> str:
    return writes.redis_state


def test_a_refusal_counts_until_a_while_after_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    pipeline = Pipeline()
    writes = RedisWrites(pipeline, clock=lambda: now[0])  # type: ignore[arg-type]
    writes.on_trial([None])
    assert state(writes) == "up"
    writes.on_refused(OOM)
    now[0] += REFUSAL_LIFETIME - 1
    writes.on_trial([None])
    assert state(writes) == "full", "of a cluster, another server may be full"
    writes.on_trial([OOM])
    now[0] += REFUSAL_LIFETIME
    writes.on_trial(None)
    assert state(writes) == "full", "no reply says nothing"
    pipeline.up = False
    assert state(writes) == "down"
    pipeline.up = True
    caplog.set_level("INFO")
    writes.on_trial([None])
    assert (state(writes), caplog.messages[-1]) == ("up", "Redis takes writes again")
    writes.on_refused(OOM)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]


def test_a_jump_of_the_clock_changes_neither_since_when_nor_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, seconds = [1_796_000_000.0], [100.0]
    monkeypatch.setattr(time, "time", lambda: wall[0])
    writes = RedisWrites(Pipeline(), clock=lambda: seconds[0])  # type: ignore[arg-type]
    writes.on_refused(OOM)
    for jump in (3600.0, -7200.0):
        wall[0] += jump
        writes.on_trial([OOM])
        assert (state(writes), writes.since) == ("full", 1_796_000_000.0)
    seconds[0] += REFUSAL_LIFETIME
    writes.on_trial([None])
    assert (state(writes), writes.since) == ("up", None)


def test_another_error_is_logged_once_a_minute_and_is_no_refusal_of_all_writes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    writes = RedisWrites(Pipeline())  # type: ignore[arg-type]
    for _ in range(3):
        writes.on_refused(ResponseError("NOPERM this user has no permissions to run the 'eval' command"))
    assert state(writes) == "up"
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (OOM, "full"),
        (ResponseError("OOM command not allowed when used memory > 'maxmemory'. script: 5, on @user_script"), "full"),
        (ResponseError("Error running script (call to f_1): @user_script:1: @user_script: 1: -OOM command not allowed "
                       "when used memory > 'maxmemory'."), "full"),
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "full"),  # redis-py
        (ResponseError("MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist"),
         "cannot-save"),
        (ResponseError("MISCONF Errors writing to the AOF file: No space left on device"), "cannot-save"),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), "too-few-replicas"),
        (ResponseError("WRONGTYPE"), None),
        (RedisBackendError("timeout"), None),
        (None, None),
    ],
)  # fmt: skip
def test_a_refusal_is_recognised_by_redis_words(error: object, refusal: WriteRefusal | None) -> None:
    assert write_refusal(error) == refusal
    if refusal is not None and isinstance(error, Exception):
        translated = RedisBackendError.from_exception(error)
        assert isinstance(translated, WritesRefusedError)
        assert translated.refusal == refusal
