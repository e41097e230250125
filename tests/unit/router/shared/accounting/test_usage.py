"""The usage ledger adds every amount once, in a hash for each tenant and day."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.redis_keys import usage_key
from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisDownError
from router.shared.accounting.daily_sums import days_until, decode_sums
from router.shared.accounting.usage import UsageLedger

DAY = 86400.0
NOON = 1_790_000_000.0 // DAY * DAY + DAY / 2
(TODAY,) = days_until(NOON, 1)


class Pipeline:
    """Redis, which applies a command unless it is down or refuses. `loses_reply`: it applies it and goes down."""

    def __init__(self) -> None:
        self.state = "up"
        self.sums: dict[str, Counter[str]] = {}

    def send(self, command: Command, *, on_reply: Any) -> None:
        if self.state == "down":
            raise RedisDownError
        _, _, _, key, _, *pairs = command
        if self.state != "refuses":
            for field, amount in zip(pairs[::2], pairs[1::2], strict=True):
                self.sums.setdefault(str(key), Counter())[str(field)] += int(amount)
        replies = {"up": [1], "refuses": [Exception("OOM")], "loses_reply": None}
        on_reply(replies[self.state])


def flush(ledger: UsageLedger, pipeline: Pipeline, now: float = NOON) -> None:
    ledger.flush(pipeline, now)


accounts = st.tuples(
    st.sampled_from(["acme", "other"]), st.sampled_from([None, "0a1b2c3d"]), st.sampled_from(["llama", "org/llama"])
)
batches = st.lists(
    st.tuples(st.lists(accounts, max_size=5), st.sampled_from(["up", "down", "refuses", "loses_reply"])), max_size=6
)


@given(batches)
def test_every_request_is_counted_once_whatever_redis_does_and_also_if_a_reply_is_lost(intervals: Any) -> None:
    ledger, pipeline, expected = UsageLedger(), Pipeline(), Counter[tuple[str, str]]()
    for requests, state in [*intervals, ([], "up")]:
        for tenant, key_id, model in requests:
            ledger.add(tenant, key_id, model, [("requests", 1)])
            expected[usage_key(tenant, TODAY), f"{key_id or '-'}/{model}/requests"] += 1
        pipeline.state = state
        flush(ledger, pipeline)
    found = {(key, field): count for key, sums in pipeline.sums.items() for field, count in sums.items()}
    assert found == dict(expected)


def test_one_line_in_the_log_says_that_redis_refuses_the_sums(caplog: pytest.LogCaptureFixture) -> None:
    ledger, pipeline = UsageLedger(), Pipeline()
    pipeline.state = "refuses"
    for _ in range(2):
        ledger.add("acme", None, "llama", [("requests", 1)])
        flush(ledger, pipeline)
    assert caplog.messages == ["Redis refuses the sums of the usage; they are kept: OOM"]


def test_what_was_used_before_midnight_counts_for_its_day_if_it_was_flushed_then() -> None:
    ledger, pipeline = UsageLedger(), Pipeline()
    for now in (NOON, NOON + DAY, NOON):  # the clock jumps over midnight, and back
        ledger.add("acme", "k", "llama", [("requests", 1)])
        flush(ledger, pipeline, now)
    today, tomorrow = usage_key("acme", TODAY), usage_key("acme", days_until(NOON + DAY, 1)[0])
    assert pipeline.sums == {today: {"k/llama/requests": 2}, tomorrow: {"k/llama/requests": 1}}


def test_fields_that_are_not_ours_are_left_out() -> None:
    reply = {
        b"k/org/llama/requests": b"3", b"k/llama/hits": b"many", b"nonsense": b"1", b"/llama/hits": b"1",
        b"k/llama/coalesced": b"1e308", b"k/llama/saved_tokens": b"nan", b"k/llama/gpu_seconds": b"-inf",
    }  # fmt: skip
    assert decode_sums(reply) == {("k", "org/llama"): {"requests": 3}}
