"""The savings ledger adds every amount in Redis once, within bounds, and keeps what it cannot send."""

import logging
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.redis_keys import savings_key
from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisDownError
from router.shared.accounting import ledger as ledger_module
from router.shared.accounting.daily_sums import MAX_PENDING_DAYS, days_until, decode_sums
from router.shared.accounting.ledger import SavingsLedger, add_commands, read_command
from router.shared.accounting.retention import RETENTION_DAYS

DAY = 86400.0
NOON = 1_790_000_000.0 // DAY * DAY + DAY / 2
(TODAY,) = days_until(NOON, 1)


class Pipeline:
    """Keeps the sums that are sent, by day; `reply` is what Redis answers, None if it goes down first."""

    def __init__(self) -> None:
        self.up = True
        self.reply: Any = [1]
        self.added: dict[str, Counter[str]] = {}

    def send(self, command: Command, *, on_reply: Any) -> None:
        if not self.up:
            raise RedisDownError
        _, _, _, key, _, *pairs = command
        if self.reply == [1]:
            for field, amount in zip(pairs[::2], pairs[1::2], strict=True):
                self.added.setdefault(str(key), Counter())[str(field)] += float(amount)  # type: ignore[assignment]
        on_reply(self.reply)


def flush(ledger: SavingsLedger, pipeline: Pipeline, now: float = NOON) -> None:
    ledger.flush(pipeline, now)


amounts = st.lists(
    st.tuples(
        st.sampled_from(["acme", "other"]), st.sampled_from(["llama", "org/llama"]),
        st.sampled_from(["requests", "hits"]), st.integers(0, 9),
    ),
    max_size=20,
)  # fmt: skip


@given(st.lists(st.tuples(amounts, st.sampled_from(["up", "down", "refuses"])), max_size=6))
def test_every_amount_is_added_once_whatever_redis_does_meanwhile(intervals: Any) -> None:
    ledger, pipeline, expected = SavingsLedger(), Pipeline(), Counter[str]()
    for added, state in [*intervals, ([], "up")]:
        for tenant, model, kind, amount in added:
            ledger.add(tenant, model, [(kind, amount)])
            expected[f"{tenant}/{model}/{kind}"] += amount
        pipeline.up = state != "down"
        pipeline.reply = [Exception("OOM")] if state == "refuses" else [1]
        flush(ledger, pipeline)
    assert pipeline.added.get(savings_key(TODAY), Counter()) == +expected


def test_sums_whose_fate_is_unknown_are_not_added_again() -> None:
    ledger, pipeline = SavingsLedger(), Pipeline()
    ledger.add("acme", "llama", [("requests", 1)])
    pipeline.reply = None
    flush(ledger, pipeline)
    pipeline.reply = [1]
    flush(ledger, pipeline)
    assert pipeline.added == {}


def test_sums_count_for_the_day_on_which_they_were_added_also_if_redis_was_down_then() -> None:
    ledger, pipeline = SavingsLedger(), Pipeline()
    pipeline.up = False
    ledger.add("acme", "llama", [("requests", 1)])
    flush(ledger, pipeline, NOON)
    ledger.add("acme", "llama", [("requests", 2)])
    pipeline.up = True
    flush(ledger, pipeline, NOON + DAY)
    assert [dict(added) for added in pipeline.added.values()] == [
        {"acme/llama/requests": 1.0}, {"acme/llama/requests": 2.0}
    ]  # fmt: skip
    assert list(pipeline.added) == [savings_key(day) for day in reversed(days_until(NOON + DAY, 2))]


def test_of_a_long_outage_the_last_days_are_kept() -> None:
    ledger, pipeline = SavingsLedger(), Pipeline()
    pipeline.up = False
    for day in range(20):
        ledger.add("acme", "llama", [("requests", 1)])
        flush(ledger, pipeline, NOON + day * DAY)
    pipeline.up = True
    flush(ledger, pipeline, NOON + 19 * DAY)
    assert sorted(pipeline.added) == sorted(map(savings_key, days_until(NOON + 19 * DAY, MAX_PENDING_DAYS)))


def test_the_number_of_sums_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAX_ACCOUNTS", 3)
    ledger, pipeline = SavingsLedger(), Pipeline()
    for _ in range(2):
        for tenant in "abcde":
            ledger.add(tenant, "llama", [("requests", 1)])
    flush(ledger, pipeline)
    assert pipeline.added[savings_key(TODAY)] == {f"{tenant}/llama/requests": 2.0 for tenant in "abc"}


def test_a_redis_that_refuses_them_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    ledger, pipeline = SavingsLedger(), Pipeline()
    with caplog.at_level(logging.WARNING, "roundhouse.savings"):
        for reply in ([Exception("OOM")], [Exception("OOM")], [1], [Exception("READONLY")]):
            pipeline.reply = reply
            ledger.add("acme", "llama", [("requests", 1)])
            flush(ledger, pipeline)
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["OOM", "READONLY"]


def test_many_sums_go_in_several_commands() -> None:
    sums: ledger_module.Sums = {(f"t{number}", "llama", "requests"): number for number in range(1200)}
    parts = [part for _, part in add_commands(TODAY, sums)]
    assert [len(part) for part in parts] == [500, 500, 200]
    assert {account: amount for part in parts for account, amount in part.items()} == sums


@pytest.mark.asyncio(loop_scope="session")
async def test_the_sums_of_several_processes_add_up_in_redis_and_expire(client: Any) -> None:
    account: ledger_module.Account = ("acme", "org/llama", "gpu_seconds_saved")
    for amount in (0.1, 2.25, 1e-6, 1e9):
        for command, _ in add_commands(TODAY, {account: amount}):
            await client.execute_command(*command)
    reply = await client.execute_command(*read_command(TODAY))
    sums = decode_sums(reply)[("acme", "org/llama")]
    assert sums["gpu_seconds_saved"] == pytest.approx(1e9 + 2.350001, abs=1e-5)
    assert RETENTION_DAYS * DAY - 60 < await client.ttl(savings_key(TODAY)) <= RETENTION_DAYS * DAY


def test_fields_that_are_not_ours_are_left_out() -> None:
    reply = {
        b"acme/llama/requests": b"3", b"acme/llama/hits": b"many", b"acme/llama/joules_saved": b"inf",
        b"nonsense": b"1", b"/llama/hits": b"1", b"acme//hits": b"1", b"\xff/llama/hits": b"2",
    }  # fmt: skip
    assert decode_sums(reply) == {("acme", "llama"): {"requests": 3}, ("\ufffd", "llama"): {"hits": 2}}
    assert decode_sums([b"acme/llama/requests", b"3"]) == {("acme", "llama"): {"requests": 3}}
