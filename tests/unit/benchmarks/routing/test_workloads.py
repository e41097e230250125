"""The loads of benchmarks/routing: seeded, and as their descriptions say."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import pytest

from benchmarks.routing.simulation import Request
from benchmarks.routing.trace import read_trace
from benchmarks.routing.workloads import WORKLOADS, Ask, Fork, Script, Workload, agents, changing


def asks(script: Script) -> Iterator[Ask]:
    for step in script:
        if isinstance(step, Ask):
            yield step
        elif isinstance(step, Fork):
            for branch in step.branches:
                yield from asks(branch)


def beginning(workload: Workload) -> list[tuple[float, list[Ask]]]:
    return [(client.start, list(islice(asks(client.script), 3))) for client in workload.clients[:20]]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_gives_the_same_requests_each_time_and_another_seed_gives_others(name: str) -> None:
    make = WORKLOADS[name]
    assert beginning(make(1)) == beginning(make(1))
    assert beginning(make(1)) != beginning(make(2))


def test_each_turn_of_an_agent_begins_with_the_one_before_it() -> None:
    for client in agents(1, count=5):
        own = [step for step in client.script if isinstance(step, Ask)]
        for before, after in pairwise(own):
            assert after.messages[: len(before.messages)] == before.messages
            assert after.messages[len(before.messages)]["content"] == before.answer


def test_some_agents_start_sub_agents_that_know_their_conversation_and_some_that_do_not() -> None:
    known: Counter[bool] = Counter()
    for client in agents(1, count=12):
        messages: list[dict[str, str]] = []
        for step in client.script:
            if isinstance(step, Ask):
                messages = step.messages
            elif isinstance(step, Fork):
                firsts = [next(asks(branch)) for branch in step.branches]
                known.update(first.messages[: len(messages)] == messages for first in firsts)
    assert known[True] > 3
    assert known[False] > 3


def test_a_replica_that_comes_back_has_left_before() -> None:
    workload = changing(1)
    present = set(range(workload.replicas)) - workload.absent
    for change in workload.changes:
        assert change.is_added is (change.replica not in present)
        present ^= {change.replica}


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_prompts_of_a_trace_share_the_blocks_that_it_says(tmp_path: Path, name: str) -> None:
    rows = [
        {"timestamp": 0, "input_length": 2048, "output_length": 100, "hash_ids": [0, 1, 2, 3]},
        {"timestamp": 3000, "input_length": 2048, "output_length": 100, "hash_ids": [0, 1, 8, 9]},
    ]
    path = tmp_path / name
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    one, other = (Request.of(next(asks(client.script)), 1, 0.0) for client in read_trace(path, 1).clients)
    assert one.sequence.answer == 50
    assert one.sequence.prompt == pytest.approx(512, abs=16)
    shared = [a for a, b in zip(one.sequence.hashes, other.sequence.hashes, strict=True) if a == b]
    # Two of four blocks of 128 tokens.
    assert len(shared) == 16
