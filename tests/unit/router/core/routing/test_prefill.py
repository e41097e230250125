"""The expected time to the first token of each engine, and the choice by it."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.routing.prefill import (
    AWAY_TOKENS,
    DEFAULT_CAPACITY_TOKENS,
    DEFAULT_SECONDS_PER_TOKEN,
    IN_FLIGHT_TOKENS,
    LOAD_BOUND,
    LOAD_MARGIN,
    EngineLoad,
    PrefillEstimate,
    Prefills,
    SentPrompt,
)
from router.core.routing.prefix_cache.prompt_chain import NO_PROMPT, PIECE, PromptChain
from router.core.types import BYTES_PER_TOKEN

R = DEFAULT_SECONDS_PER_TOKEN
TOKENS = PIECE // BYTES_PER_TOKEN  # of a piece


def prompt(*path: int) -> PromptChain:
    """A prompt of whole pieces; those with a common beginning of the path have a common prefix."""
    hashes = [hash(path[: end + 1]) for end in range(len(path))]
    return PromptChain(hashes, [PIECE * (number + 1) for number in range(len(path))])


class Engines:
    """The engines `a`, `b`, ... and their clock."""

    def __init__(self, names: str = "ab") -> None:
        self.prefills = Prefills()
        self.names = names
        self.now = 100.0

    def estimates(
        self, chain: PromptChain, *, waiting: dict[str, float] | None = None, in_flight: dict[str, int] | None = None,
        home: int = 0, away: float = AWAY_TOKENS,
    ) -> dict[str, PrefillEstimate]:  # fmt: skip
        loads = [EngineLoad(n, (in_flight or {}).get(n, 0), (waiting or {}).get(n)) for n in self.names]
        return dict(self.prefills.estimates(chain, loads, self.now, home=home, away_tokens=away))

    def best(self, chain: PromptChain, **facts: dict[str, float]) -> str:
        found = self.estimates(chain, **facts)  # type: ignore[arg-type]
        return min(found, key=lambda name: (found[name].cost, name))

    def send(self, name: str, chain: PromptChain) -> SentPrompt:
        return self.prefills.of(name).on_sent(chain, self.prefills.seconds_per_token(name, self.now), self.now)

    def first_token(self, name: str, sent: SentPrompt, after: float) -> None:
        self.now += after
        self.prefills.of(name).on_first_token(sent, self.now)

    def answer(self, name: str, sent: SentPrompt, *, tokens: int = 0, cached: int | None = None) -> None:
        self.prefills.of(name).on_answered(
            sent, sent.chain, self.now, prompt_tokens=sent.prompt_tokens, completion_tokens=tokens,
            cached_tokens=cached,
        )  # fmt: skip

    def serve(self, name: str, chain: PromptChain, *, cached: int | None = None) -> None:
        sent = self.send(name, chain)
        self.first_token(name, sent, R * sent.uncached_tokens)
        self.answer(name, sent, cached=cached)


def test_the_engine_that_holds_more_of_a_prompt_is_chosen() -> None:
    engines = Engines()
    engines.serve("b", prompt(1, 2, 3))
    engines.serve("a", prompt(1))
    assert engines.best(prompt(1, 2, 3, 4)) == "b"
    found = engines.estimates(prompt(1, 2, 3, 4))
    assert (found["b"].cached_tokens, found["a"].cached_tokens, found["a"].prompt_tokens) == (
        3 * TOKENS, TOKENS, 4 * TOKENS,
    )  # fmt: skip
    assert found["b"].ttft == pytest.approx(R * TOKENS)


def test_a_queue_that_takes_longer_than_the_prefill_sends_a_prompt_elsewhere() -> None:
    engines = Engines()
    engines.serve("a", prompt(*range(8)))
    assert engines.best(prompt(*range(9))) == "a"
    for number in range(10, 20):
        engines.send("a", prompt(number))
    assert engines.best(prompt(*range(9))) == "b"
    engines.now += 10 * R * TOKENS  # worked off meanwhile
    assert engines.best(prompt(*range(9))) == "a"


def test_a_long_conversation_alone_stays_where_it_is() -> None:
    engines = Engines("abcd")
    chosen = set()
    for turn in range(100, 200, 3):
        chosen.add(name := engines.best(prompt(*range(turn))))
        engines.serve(name, prompt(*range(turn)))
        engines.now += 20
    assert len(chosen) == 1


def test_a_first_token_says_that_what_was_sent_before_it_is_done() -> None:
    engines = Engines()
    sent = [engines.send("a", prompt(number)) for number in range(4)]
    assert engines.prefills.of("a").queue(engines.now) == pytest.approx(4 * R * TOKENS)
    for one in sent[:3]:
        engines.first_token("a", one, 0)
    assert engines.prefills.of("a").queue(engines.now) == pytest.approx(R * TOKENS)
    engines.prefills.of("a").on_ended(sent[3], engines.now)
    engines.prefills.of("a").on_ended(sent[3], engines.now)
    assert engines.prefills.of("a").queue(engines.now) == engines.prefills.of("a").pending == 0


def test_a_prompt_that_waits_at_an_engine_counts_as_held() -> None:
    engines = Engines()
    engines.send("a", prompt(1, 2, 3, 4))
    assert engines.estimates(prompt(1, 2, 3, 4, 5))["a"].cached_tokens == 4 * TOKENS


def test_requests_of_others_that_wait_are_a_queue_and_those_of_this_process_are_not_counted_twice() -> None:
    engines = Engines()
    assert engines.best(prompt(1), waiting={"a": 9, "b": 0}) == "b"
    engines.send("a", prompt(1))
    of_own = engines.estimates(prompt(2), waiting={"a": 1, "b": 0})["a"].queue
    assert of_own == pytest.approx(engines.prefills.of("a").queue(engines.now))


def test_each_request_in_flight_costs_a_little() -> None:
    engines = Engines()
    found = engines.estimates(prompt(1), in_flight={"a": 3, "b": 1})
    assert found["a"].cost - found["b"].cost == pytest.approx(2 * IN_FLIGHT_TOKENS * R)


def test_a_prompt_delays_each_request_in_flight_by_what_is_computed_of_it() -> None:
    engines = Engines()
    engines.serve("a", prompt(1, 2, 3))
    engines.now += 1
    found = engines.estimates(prompt(1, 2, 3, 4), in_flight={"a": 3, "b": 5})
    assert found["a"].others_delay == pytest.approx(R * TOKENS * 4)
    assert found["b"].others_delay == pytest.approx(R * 4 * TOKENS * 4)


def test_a_prefix_that_all_prompts_have_does_not_keep_them_all_at_one_engine() -> None:
    engines = Engines("abcd")
    in_flight = dict.fromkeys("abcd", 0.0)
    for number in range(200):  # none ends
        chain = prompt(*range(80), 1000 + number)
        name = engines.best(chain, in_flight=in_flight)
        engines.first_token(name, engines.send(name, chain), 0.03)
        in_flight[name] += 1
    assert max(in_flight.values()) <= LOAD_BOUND * 200 / 4 + LOAD_MARGIN + 1


def test_a_few_requests_more_than_the_others_have_do_not_take_a_prompt_from_where_it_is_held() -> None:
    engines = Engines("abcd")
    engines.serve("a", prompt(*range(80)))
    assert engines.best(prompt(*range(81)), in_flight={"a": 10, "b": 0, "c": 0, "d": 0}) == "a"


def test_new_tokens_go_where_fewer_were_stored_lately_until_that_is_long_ago() -> None:
    engines = Engines()
    for number in range(200):
        engines.serve("a", prompt(number, 1, 2, 3))
    engines.now += 1
    new = engines.estimates(prompt(999, 1))
    assert new["a"].uncached_tokens == new["b"].uncached_tokens
    assert new["a"].cost > 2 * new["b"].cost
    engines.now += 600
    new = engines.estimates(prompt(999, 1))
    assert new["a"].cost == pytest.approx(new["b"].cost)


def test_a_home_breaks_the_tie_for_a_new_prompt_and_is_given_up_for_a_held_prefix() -> None:
    engines = Engines("abcd")
    homes = Counter(
        min(found := engines.estimates(prompt(1), home=home), key=lambda name: found[name].cost)
        for home in range(1, 401)
    )
    assert set(homes) == set("abcd")
    assert all(70 < count < 130 for count in homes.values())
    engines.serve("c", prompt(1, 2))
    engines.now += 600
    costs = [engines.estimates(prompt(1, 2), home=home) for home in range(1, 30)]
    assert {min(found, key=lambda name: found[name].cost) for found in costs} == {"c"}


def test_without_a_prompt_only_the_queue_and_the_requests_in_flight_count() -> None:
    engines = Engines()
    found = engines.estimates(NO_PROMPT, in_flight={"a": 2})
    assert found["a"].cost == pytest.approx(2 * IN_FLIGHT_TOKENS * R)
    assert found["b"].cost == 0


# -- what is learned --------------------------------------------------------------------------------------------------


def test_the_seconds_per_token_are_those_of_prompts_that_had_nothing_before_them() -> None:
    engines = Engines()
    first = engines.send("a", prompt(1, 2))
    second = engines.send("a", prompt(3, 4))
    engines.first_token("a", first, 0.01 * 2 * TOKENS)
    engines.first_token("a", second, 9.0)
    assert engines.prefills.of("a").measured_seconds_per_token == pytest.approx(0.01)
    assert engines.prefills.seconds_per_token("b", engines.now) == pytest.approx(0.01), "unknown: as the others"


def test_a_slower_engine_gets_a_new_prompt_only_when_the_faster_one_has_a_queue() -> None:
    engines = Engines()
    for name, seconds in (("a", 0.002), ("b", 0.001)):
        sent = engines.send(name, prompt(hash(name), 2))
        engines.first_token(name, sent, seconds * sent.uncached_tokens)
    engines.now += 600
    chosen = [engines.best(prompt(5, 6))]
    engines.send("b", prompt(5, 6))
    engines.send("b", prompt(7, 8))
    chosen.append(engines.best(prompt(9, 10)))
    assert chosen == ["b", "a"]


def test_an_engine_that_was_slow_once_is_tried_again_after_some_minutes() -> None:
    engines = Engines()
    engines.first_token("a", engines.send("a", prompt(1, 1, 1, 1)), after=0.05)
    engines.first_token("b", engines.send("b", prompt(2, 2, 2, 2)), after=60.0)  # it has just started
    for number in range(600):
        chosen = engines.best(prompt(3, number, 0, 0))
        if chosen == "b":
            break
        engines.first_token("a", engines.send("a", prompt(3, number, 0, 0)), after=0.05)
        engines.now += 1
    assert number > 0
    assert chosen == "b"
    engines.first_token("b", engines.send("b", prompt(4, 4, 4, 4)), after=0.05)
    rate = engines.prefills.seconds_per_token("b", engines.now)
    assert rate < 5 * engines.prefills.seconds_per_token("a", engines.now), "the new measurement counts most"


def test_an_engine_that_was_slow_once_is_tried_again_also_if_it_is_compared_with_no_other_of_its_model() -> None:
    engines = Engines()
    for name, seconds in (("a", 0.2), ("b", 20.0)):  # b compiles at its first request
        engines.first_token(name, engines.send(name, prompt(1, 2, 3, 4)), seconds)
    engines.now += 3600
    alone = engines.prefills.estimates(prompt(9, 8), [EngineLoad("b", 0)], engines.now, home=0, away_tokens=0)
    assert alone["b"].ttft < 1


def test_engines_of_different_models_are_not_compared_by_their_speed() -> None:
    engines = Engines()
    engines.prefills.keep("ab", {"a": "large", "b": "small"})
    for name, seconds in (("a", 1.0), ("b", 0.02)):
        engines.first_token(name, engines.send(name, prompt(1, 2, 3, 4)), seconds)
    engines.now += 600
    assert engines.prefills.seconds_per_token("a", engines.now) == pytest.approx(1.0 / (4 * TOKENS))
    found = engines.prefills.estimates(prompt(9, 8), [EngineLoad("a", 0)], engines.now, home=0, away_tokens=0)
    assert found["a"].seconds_per_token == pytest.approx(1.0 / (4 * TOKENS))


def test_a_prompt_that_is_mostly_held_says_nothing_of_the_speed() -> None:
    engines = Engines()
    engines.serve("a", prompt(1, 2))
    known = engines.prefills.of("a").measured_seconds_per_token
    sent = engines.send("a", prompt(1, 2))
    engines.first_token("a", sent, 5.0)
    assert engines.prefills.of("a").measured_seconds_per_token == known


def test_bytes_per_token_are_learned_of_long_prompts() -> None:
    engines = Engines()
    sent = engines.send("a", prompt(*range(8)))
    engines.prefills.of("a").on_answered(
        sent, sent.chain, engines.now, prompt_tokens=4 * PIECE, completion_tokens=0, cached_tokens=None
    )
    assert engines.prefills.of("a").token_bytes == pytest.approx(2)


def test_an_engine_that_has_less_cached_than_believed_has_a_smaller_cache_and_a_larger_one_if_it_has_more() -> None:
    engines = Engines()
    a = engines.prefills.of("a")
    a.set_capacity_tokens(10_000)
    believed = a.index.capacity
    engines.serve("a", prompt(*range(9)))
    engines.serve("a", prompt(*range(9)), cached=4 * TOKENS)
    assert a.index.capacity < believed
    for _ in range(200):
        engines.serve("a", prompt(*range(9)), cached=4 * TOKENS)
    assert a.index.capacity == pytest.approx(0.3 * believed, rel=0.01)
    for number in range(200):
        engines.serve("a", prompt(number + 1000, 1, 2, 3, 4, 5), cached=6 * TOKENS)
    assert a.index.capacity == pytest.approx(1.5 * believed, rel=0.01)


def test_an_engine_that_has_nothing_of_what_was_believed_was_restarted() -> None:
    engines = Engines()
    engines.serve("a", prompt(*range(9)))
    engines.serve("a", prompt(5000, 1), cached=0)
    assert engines.estimates(prompt(*range(9)))["a"].cached_tokens == 9 * TOKENS
    engines.serve("a", prompt(*range(9), 100), cached=0)
    assert engines.estimates(prompt(5000, 1))["a"].cached_tokens == 0
    assert engines.estimates(prompt(*range(9)))["a"].cached_tokens == 9 * TOKENS, "it has been sent since"


def test_an_engine_that_does_not_report_its_size_has_a_large_cache() -> None:
    a = Engines().prefills.of("a")
    a.set_capacity_tokens(None)
    assert a.index.capacity == DEFAULT_CAPACITY_TOKENS * BYTES_PER_TOKEN
    a.set_capacity_tokens(1000)
    assert a.index.capacity == 1000 * BYTES_PER_TOKEN


def test_a_restarted_engine_holds_nothing() -> None:
    engines = Engines()
    engines.serve("a", prompt(1, 2))
    engines.prefills.of("a").forget()
    assert engines.estimates(prompt(1, 2))["a"].cached_tokens == 0


def test_engines_that_are_gone_are_forgotten() -> None:
    engines = Engines()
    engines.serve("a", prompt(1, 2))
    engines.serve("b", prompt(1, 2))
    engines.prefills.keep({"b"})
    found = engines.estimates(prompt(1, 2))
    assert (found["a"].cached_tokens, found["b"].cached_tokens) == (0, 2 * TOKENS)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.booleans()), max_size=30), st.randoms())
def test_when_all_prompts_have_ended_nothing_is_pending(steps: list[tuple[str, int, bool]], random: Random) -> None:
    engines = Engines()
    open_ = []
    for name, number, answered in steps:
        engines.now += random.random()
        open_.append((name, engines.send(name, prompt(number, number)), answered))
        random.shuffle(open_)
        if len(open_) > 3:
            name, sent, answered = open_.pop()
            engines.first_token(name, sent, 0.01)
            if answered:
                engines.answer(name, sent)
    for name, sent, _ in open_:
        engines.prefills.of(name).on_ended(sent, engines.now)
    for name in "ab":
        engine = engines.prefills.of(name)
        assert (engine.pending, engine.pending_tokens, engine.queue(engines.now)) == (0, 0, 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=30), st.integers(0, 3))
def test_two_processes_that_know_the_same_choose_the_same(steps: list[tuple[str, int]], number: int) -> None:
    one, other = Engines("abc"), Engines("cba")
    for engines in (one, other):
        for name, first in steps:
            engines.serve(name, prompt(first, 1))
    assert one.best(prompt(number, 1, 2)) == other.best(prompt(number, 1, 2))
