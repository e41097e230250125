"""The modelled replica: what a step computes, what the pool keeps, and what that takes."""

from dataclasses import replace
from itertools import count
from random import Random

import pytest

from benchmarks.routing.model import DRAFT_FACTOR, Replica, Sequence, Speeds
from benchmarks.routing.simulation import Request
from benchmarks.routing.text import render, token_blocks, words
from benchmarks.routing.workloads import Ask

SPEEDS = Speeds(base=1.0, decode=0.1, prefill=0.01, budget=100, sequences=4, blocks=65)
_numbers = count(1)


def sequence(prompt: int, answer: int = 1, *, of: int | None = None) -> Sequence:
    """`of`: sequences with the same number have the same text."""
    text = words(Random(next(_numbers) + 1000 if of is None else of), 10_000)
    return Sequence(token_blocks(text[: 4 * (prompt + answer)].encode()), prompt, answer)


def step(replica: Replica, now: float = 0.0) -> float:
    """The seconds that the next step takes."""
    assert replica.start_step(now)
    assert replica.step_end is not None
    replica.end_step()
    return replica.step_end - now


def complete(replica: Replica, one: Sequence) -> Sequence:
    replica.submit(one)
    while replica.in_flight:
        step(replica)
    return one


def test_a_prompt_that_exceeds_the_budget_is_computed_in_several_steps() -> None:
    replica = Replica(SPEEDS)
    replica.submit(sequence(250))
    assert [step(replica) for _ in range(3)] == pytest.approx([2.0, 2.0, 1.5])
    assert not replica.start_step(0.0)


def test_sequences_that_generate_take_their_tokens_of_the_budget_first() -> None:
    replica = Replica(SPEEDS)
    replica.submit(sequence(16, 10))
    step(replica)
    replica.submit(sequence(200))
    assert step(replica) == pytest.approx(1.0 + 0.1 + 99 * 0.01)


def test_prompts_are_computed_first_come_first_served() -> None:
    replica = Replica(SPEEDS)
    first, second = sequence(150), sequence(20)
    replica.submit(first)
    replica.submit(second)
    step(replica)
    assert (first.left, replica.running) == (50, [first])
    replica.start_step(0.0)
    assert replica.end_step().first == [first, second]


def test_no_more_sequences_run_at_once_than_the_replica_may() -> None:
    replica = Replica(SPEEDS)
    for _ in range(6):
        replica.submit(sequence(4, 5))
    step(replica)
    assert (len(replica.running), len(replica.waiting)) == (4, 2)


def test_a_cached_prefix_is_not_computed() -> None:
    replica = Replica(SPEEDS)
    complete(replica, sequence(64, of=1))
    replica.submit(again := sequence(80, of=1))
    assert step(replica) == pytest.approx(1.0 + 16 * 0.01)
    assert again.cached == 64


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    replica = Replica(SPEEDS)
    complete(replica, sequence(64, of=1))
    assert complete(replica, sequence(64, of=1)).cached == 48


def test_the_next_turn_finds_the_answer_of_the_last_one() -> None:
    question = [{"role": "user", "content": words(Random(1), 29)}]
    answer = words(Random(2), 40)
    replica = Replica(SPEEDS)
    first = Request.of(Ask(question, answer), 1, 0.0)
    complete(replica, first.sequence)
    turn = [*question, {"role": "assistant", "content": answer}, {"role": "user", "content": "and now?"}]
    assert render(turn).startswith(render(question) + answer.encode())
    second = Request.of(Ask(turn, "yes "), 2, 0.0)
    # The last generated token was never computed.
    assert complete(replica, second.sequence).cached == (first.sequence.length - 1) // 16 * 16


def test_the_prompt_that_was_used_least_recently_is_evicted_first() -> None:
    replica = Replica(SPEEDS)  # 64 blocks
    for number in (1, 2, 1, 3):
        complete(replica, sequence(480, of=number))  # 30 blocks
    assert complete(replica, sequence(480, of=1)).cached == 464
    assert complete(replica, sequence(480, of=2)).cached < 464


def test_the_end_of_a_prompt_is_evicted_before_its_beginning() -> None:
    replica = Replica(SPEEDS)
    complete(replica, sequence(640, of=1))  # 40 blocks
    complete(replica, sequence(640))
    assert complete(replica, sequence(640, of=1)).cached == 24 * 16


def test_a_sequence_without_a_free_block_preempts_the_one_that_was_admitted_last() -> None:
    replica = Replica(SPEEDS)
    older, newer = sequence(496, 40), sequence(496, 40)  # 31 blocks each, and 3 for the answer
    replica.submit(older)
    replica.submit(newer)
    while not replica.preemptions:
        step(replica)
    assert (replica.running, list(replica.waiting)) == ([older], [newer])
    while replica.in_flight:
        step(replica)
    assert (older.generated, newer.generated, newer.cached) == (40, 40, 0)


def test_a_preempted_sequence_is_admitted_before_those_that_wait() -> None:
    replica = Replica(SPEEDS)
    sequences = [sequence(496, 40) for _ in range(3)]
    for one in sequences:
        replica.submit(one)
    while not replica.preemptions:
        step(replica)
    assert list(replica.waiting) == sequences[1:]


def test_a_replica_that_restarts_has_an_empty_pool() -> None:
    replica = Replica(SPEEDS)
    complete(replica, sequence(64, of=1))
    replica.restart()
    assert complete(replica, sequence(64, of=1)).cached == 0


def test_what_waits_counts_as_found() -> None:
    replica = Replica(SPEEDS)
    replica.submit(waiting := sequence(64, of=1))
    assert replica.expected_hits(waiting.hashes, 64) == 48
    while replica.in_flight:
        step(replica)
    assert replica.expected_hits(waiting.hashes, 64) == 48
    assert replica.expected_hits(sequence(64).hashes, 64) == 0


def test_the_estimated_time_to_the_first_token_is_that_of_the_steps() -> None:
    replica = Replica(SPEEDS)
    replica.submit(sequence(250))
    replica.start_step(0.0)
    expected = replica.seconds_to_first_token(30, 0.5)
    # 1.5 s are left of this step; 150 tokens and 30 take two more.
    assert expected == pytest.approx(1.5 + 2 * 1.0 + 180 * 0.01)


def test_a_step_with_a_draft_takes_longer_and_yields_several_tokens() -> None:
    def generate(draft: str) -> tuple[Sequence, float]:
        replica = Replica(SPEEDS, draft)
        one = sequence(16, 40)
        one.yields = {"code": 2.5}
        replica.submit(one)
        step(replica)
        return one, step(replica)

    one, seconds = generate("code")
    assert one.generated == 5, "one in the first step, and 2.5 times 2 in all"
    assert seconds == pytest.approx(DRAFT_FACTOR * 1.1)
    for other in ("", "chat"):
        assert generate(other)[0].generated == 2


def test_an_answer_with_a_draft_has_its_length_and_its_full_blocks_are_kept() -> None:
    replica = Replica(SPEEDS, "code")
    one = sequence(16, 50, of=5)
    one.yields = {"code": 7.0}
    complete(replica, one)
    assert one.generated == 50
    assert replica.expected_hits(one.hashes, 66) == 64


def test_where_the_pool_is_full_a_step_with_a_draft_yields_fewer_tokens() -> None:
    replica = Replica(replace(SPEEDS, blocks=4), "code")
    one = sequence(16, 40)
    one.yields = {"code": 30.0}
    replica.submit(one)
    step(replica)
    assert step(replica) > 0
    assert one.generated == 33, "its last token needs no block yet"
