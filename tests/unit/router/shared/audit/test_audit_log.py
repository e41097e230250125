"""The audit is written although Redis fails, refuses, or loses entries in the middle; no change fails because of it."""

from collections.abc import Mapping
from typing import Any

import pytest

from router.net.redis.commands import Command
from router.net.redis.errors import RedisBackendError, WritesRefusedError
from router.shared.audit import audit_stream
from router.shared.audit.audit_chain import ChainCheck, ChainReport
from router.shared.audit.audit_log import AuditLine, AuditLog
from router.shared.audit.changes import Change
from router.store.admin.audit import audit_sender, check_audit

DRAIN = Change("drain", "e1")


class FakeRedis:
    """The stream as the script appends to it. `fault`: what the next command meets, before or after it is executed."""

    def __init__(self) -> None:
        self.entries: list[Mapping[bytes, bytes]] = []
        self.lines: list[AuditLine] = []
        self.fault: tuple[str, Exception] | None = None

    async def send(self, command: Command) -> Any:
        fault, self.fault = self.fault, None
        if fault is not None and fault[0] == "before":
            raise fault[1]
        reply = self._append(command)
        if fault is not None:
            raise fault[1]
        return reply

    def _append(self, command: Command) -> list[Any]:
        expected, words = command[4], command[8:]
        newest = self.entries[-1] if self.entries else {}
        if newest.get(b"hash", b"") != expected:
            return [0, newest.get(b"number", b""), newest.get(b"previous", b""), newest.get(b"hash", b"")]
        self.entries.append(dict(zip(words[::2], words[1::2], strict=True)))  # type: ignore[arg-type]
        return [1]

    def audit(self) -> AuditLog:
        return AuditLog(self.send, self.lines.append, router="host:1", keep_seconds=0, clock=lambda: 1_796_000_000.0)

    def report(self) -> ChainReport:
        check = ChainCheck()
        for position, fields in enumerate(self.entries):
            check.add(f"{position}-0", fields)
        return check.report()


@pytest.mark.parametrize(
    "error", [WritesRefusedError("full"), RedisBackendError("ConnectionError"), ValueError("a bug")]
)
async def test_a_record_that_redis_refuses_raises_nothing_and_the_next_one_follows(error: Exception) -> None:
    redis = FakeRedis()
    audit = redis.audit()
    await audit.record("somebody", DRAIN)
    redis.fault = ("before", error)
    await audit.record("somebody", DRAIN)
    await audit.record("somebody", DRAIN)
    assert [line.problem is None for line in redis.lines] == [True, False, True]
    assert redis.lines[1].facts()["recorded"] == "no"
    assert (redis.report().entries, redis.report().broken) == (2, None)


async def test_an_entry_whose_reply_is_lost_stays_and_the_next_one_follows_it() -> None:
    redis = FakeRedis()
    audit = redis.audit()
    redis.fault = ("after", RedisBackendError("TimeoutError"))
    await audit.record("somebody", DRAIN)
    await audit.record("somebody", DRAIN)
    assert [line.problem for line in redis.lines] == ["TimeoutError", None]
    assert (redis.report().entries, redis.report().broken) == (2, None)


async def test_after_a_failover_that_loses_entries_the_chain_goes_on_from_the_newest_that_is_left() -> None:
    redis = FakeRedis()
    audit = redis.audit()
    for _ in range(4):
        await audit.record("somebody", DRAIN)
    lost = [line.link for line in redis.lines[2:]]
    del redis.entries[2:]
    await audit.record("somebody", DRAIN)
    repeated = redis.lines[-1].link
    assert repeated is not None
    assert (redis.report().entries, redis.report().newest, redis.report().broken) == (3, repeated.hash, None)
    assert [link.number for link in lost if link is not None] == [3, 4]
    assert repeated.number == 3, "a number again that is in the log with another hash"
    assert repeated.hash not in {link.hash for link in lost if link is not None}


@pytest.mark.asyncio(loop_scope="session")
async def test_beyond_the_most_entries_the_oldest_are_trimmed_and_the_chain_still_holds(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_stream, "MAX_ENTRIES", 5)
    audit = AuditLog(audit_sender(client), lambda _: None, router="", keep_seconds=86_400)
    for written in range(1, 13):
        await audit.record("somebody", DRAIN)
        report = await check_audit(client)
        assert (report.entries, report.trimmed, report.broken) == (min(written, 5), max(0, written - 5), None)
