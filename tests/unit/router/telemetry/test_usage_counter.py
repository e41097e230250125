"""Usage and savings are two views of one ledger."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.redis_keys import savings_key, usage_key
from router.core.types import CacheStatus
from router.net.redis.commands import Command
from router.shared.accounting.daily_sums import days_until
from router.telemetry.usage_counter import UsageCounter
from tests.support.inflight_factory import generation_record

NOON = 1_790_035_200.0
(TODAY,) = days_until(NOON, 1)

Sums = dict[str, Counter[str]]

requests = st.tuples(
    st.sampled_from(["acme", "other"]), st.sampled_from([None, "k1", "k2"]), st.sampled_from(["llama", "org/llama"]),
    st.sampled_from(list(CacheStatus)), st.integers(1, 9), st.integers(0, 99), st.integers(0, 9),
    st.none() | st.integers(0, 9),
)  # fmt: skip


class Pipeline:
    """Keeps the sums that are sent, by the Redis key."""

    def __init__(self) -> None:
        self.sums: Sums = {}

    def send(self, command: Command, *, on_reply: Any) -> None:
        _, _, _, key, _, *pairs = command
        for field, amount in zip(pairs[::2], pairs[1::2], strict=True):
            self.sums.setdefault(str(key), Counter())[str(field)] += float(amount)  # type: ignore[assignment]
        on_reply([1])


def sent(counter: UsageCounter) -> Sums:
    pipeline = Pipeline()
    counter.flush(pipeline, NOON)
    return pipeline.sums


@given(st.lists(requests, max_size=20))
def test_the_savings_are_the_usage_without_the_keys(added: list[Any]) -> None:
    counter = UsageCounter()
    for each in added:
        counter.add_requests(*each)
    sums = sent(counter)
    savings = sums.pop(savings_key(TODAY), Counter())
    without_keys: Counter[str] = Counter()
    for key, usage in sums.items():
        tenant = next(name for name in ("acme", "other") if key == usage_key(name, TODAY))
        for field, amount in usage.items():
            without_keys[f"{tenant}/{field.partition('/')[2]}"] += amount
    only_savings = {"gpu_seconds_saved", "joules_saved"}
    assert {field: n for field, n in savings.items() if field.rpartition("/")[2] not in only_savings} == without_keys
    saving = [each for each in added if each[3] in (CacheStatus.HIT, CacheStatus.STALE, CacheStatus.COALESCED)]
    for kind, position in (("gpu_seconds_saved", 6), ("joules_saved", 7)):
        found = sum(amount for field, amount in savings.items() if field.endswith(f"/{kind}"))
        assert found == sum(each[position] or 0 for each in saving), kind


def test_a_refused_request_counts_for_its_key_by_the_reason_and_its_tenant_is_found_in_the_savings() -> None:
    counter = UsageCounter()
    counter.add_refused("acme", "k", "unknown", "requests_limit", 2)
    counter.add_refused("acme", "k", "unknown", "tokens_per_day_budget", 1)
    counter.add_refused("acme", "k", "unknown", "requests_limit", 1)
    assert sent(counter) == {
        usage_key("acme", TODAY): {
            "k/unknown/refused:requests_limit": 3.0, "k/unknown/refused:tokens_per_day_budget": 1.0,
        },
        savings_key(TODAY): {"acme/unknown/refused": 4.0},
    }  # fmt: skip


def test_a_generation_counts_for_its_key_and_its_seconds_and_energy_in_the_savings() -> None:
    counter = UsageCounter()
    generation = generation_record("acme", key_id="k", model="m", stream=True)
    generation.prompt_tokens, generation.completion_tokens = 5, 7
    counter.add_generation(generation, 3.0)
    counter.add_energy(generation, 60.0)
    assert sent(counter) == {
        usage_key("acme", TODAY): {"k/m/gpu_seconds": 3.0, "k/m/prompt_tokens": 5.0, "k/m/completion_tokens": 7.0},
        savings_key(TODAY): {"acme/m/gpu_seconds_spent": 3.0, "acme/m/joules_spent": 60.0},
    }
    assert sent(counter) == {}, "nothing is sent twice"
