"""lab/eviction.py: its model of Redis, its traces and its bound."""

import json
import sys
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import eviction
from lab.eviction import MEMORY, POLICIES, Policy, compare, peak_memory, run, table
from lab.eviction_traces import MIXES, Mix, make_trace
from lab.redis_memory import LFU_INITIAL, RedisMemory

FEW = POLICIES[:2]


def test_the_same_seed_gives_the_same_comparison_within_the_bound() -> None:
    rows = compare("mixed", [1, 2], 300)
    assert compare("mixed", [1, 2], 300, FEW)[:2] == rows[:2]
    assert len(rows) == len(MEMORY) * (len(POLICIES) + 1)
    for memory in MEMORY:
        *others, bound = [row for row in rows if row.memory == memory]
        assert bound.policy == "bound"
        assert all(0 < row.seconds <= bound.seconds and 0 < row.hits <= bound.hits for row in others)


def test_a_table_and_json_have_every_policy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eviction.py", "--mixes", "mixed", "--seeds", "1", "--requests", "300"]
    monkeypatch.setattr(sys, "argv", [*words, "--json"])
    eviction.main()
    rows = json.loads(capsys.readouterr().out)
    assert {row["policy"] for row in rows} == {policy.name for policy in POLICIES} | {"bound"}
    assert "allkeys-lru" in table(compare("mixed", [1], 300, FEW))


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_a_trace_has_the_mix_that_it_was_asked_for(mix: Mix) -> None:
    trace = make_trace(mix, 3, 5000)
    instants = [at for at, _ in trace.requests]
    counts: dict[int, int] = {}
    for _, key in trace.requests:
        counts[key] = counts.get(key, 0) + 1
    assert instants == sorted(instants)
    assert 4500 < len(trace.requests) < 5500
    assert sum(count == 1 for count in counts.values()) > mix.once * 4500
    assert any(response.size == 25_000 for response in trace.responses) is (mix.embeddings > 0)


@pytest.mark.parametrize("eviction_policy", ["lru", "lfu", "ttl"])
@given(keys=st.lists(st.integers(0, 50), max_size=200))
def test_the_memory_stays_within_its_limit(eviction_policy: str, keys: list[int]) -> None:
    memory, expected = RedisMemory(1000, eviction_policy, Random(1)), dict[int, int]()
    for now, key in enumerate(keys):
        if memory.get(key, now) is None:
            memory.put(key, 90, now, 30.0)
        expected[key] = now
        assert memory.used <= 1000 + 90  # Redis evicts before the next write
        assert memory.used == 90 * len(memory)


def test_the_least_recently_used_of_few_entries_is_evicted() -> None:
    memory = RedisMemory(4, "lru", Random(1))
    for key in range(5):
        memory.put(key, 1, 10.0 * key, 1e9)
    oldest = memory.get(0, 60.0)
    assert oldest is not None
    memory.touch(oldest, 60.0)
    for key in range(5, 8):
        memory.put(key, 1, 10.0 * key + 50, 1e9)
    assert memory.get(0, 200.0) is oldest  # five samples of five entries find the least recently used one nearly always


def test_the_counter_of_lfu_is_logarithmic_and_decays() -> None:
    memory = RedisMemory(1000, "lfu", Random(1))
    entry = memory.put(1, 1, 0.0, 1e9)
    assert entry.counter == LFU_INITIAL
    for _ in range(1000):
        memory.touch(entry, 1.0)
    assert 10 < entry.counter < 30  # redis.conf: 1,000 hits at factor 10 make 18
    reached = entry.counter
    memory.touch(entry, 61.0 + 60 * 4)
    assert entry.counter in (reached - 5, reached - 4)


def test_without_pressure_worth_changes_nothing() -> None:
    trace = make_trace(MIXES["mixed"], 1, 2000)
    enough = 3 * peak_memory(trace)
    by_ttl, by_worth = (run(trace, enough, 1, Policy("", "lru", lifetime)) for lifetime in (None, eviction.by_worth))
    assert by_ttl == by_worth


def test_hits_of_a_local_cache_that_redis_does_not_see_cost_more_than_reported_ones() -> None:
    trace = make_trace(MIXES["mixed"], 1, 4000)
    limit = peak_memory(trace) // 10
    plain, unseen, reported = (
        run(trace, limit, 1, Policy("", "lru", local=local, reported=reported)).seconds
        for local, reported in ((0.0, False), (0.3, False), (0.3, True))
    )
    assert unseen < reported == pytest.approx(plain, rel=0.02)
