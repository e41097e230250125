"""What processes send each other of prompts: they estimate alike, and nothing that arrives does harm."""

import asyncio
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from router.core.routing.prefill import AWAY_TOKENS, SESSION_AWAY_TOKENS, EngineLoad, Prefills
from router.core.routing.prefix_cache.prompt_chain import PIECE, PromptChain
from router.shared.prompts.prompt_records import (
    ASK_DELAY,
    CHAIN_VERSION,
    FLUSH_DELAY,
    MAX_AGE,
    MAX_PIECES,
    MAX_REMOTE_PIECES,
    MEMORY,
    PRESENCE,
    UNHEARD_AWAY_TOKENS,
    PromptRecords,
)
from tests.support.virtual_time import on_virtual_time
from tests.support.waiting import eventually

URLS = ("http://a", "http://b")


def prompt(*path: int) -> PromptChain:
    hashes = [hash(path[: end + 1]) & (2**64 - 1) for end in range(len(path))]
    return PromptChain(hashes, [PIECE * (number + 1) for number in range(len(path))])


class Wire:
    """Delivers messages at once to all others, or loses them."""

    def __init__(self) -> None:
        self.up = True
        self.loses = False
        self.now = 100.0
        self.sent: list[bytes] = []
        self.processes: list[Process] = []

    def publish(self, message: bytes) -> None:
        self.sent.append(message)
        if not self.loses:
            for process in self.processes:
                process.records.on_message(message)


class Process:
    def __init__(self, wire: Wire, name: str, *, has_workers: bool = False) -> None:
        self.wire = wire
        self.prefills = Prefills()
        self.prefills.keep(URLS)
        self.records = PromptRecords(self.prefills, name, has_workers=has_workers, clock=lambda: wire.now)
        self.records.link = wire
        wire.processes.append(self)

    def send(self, url: str, chain: PromptChain) -> int:
        self.prefills.of(url).on_sent(chain, self.prefills.seconds_per_token(url, self.wire.now), self.wire.now)
        return self.records.on_sent(url, chain)

    def known(self, chain: PromptChain) -> list[Any]:
        loads = [EngineLoad(url, 0) for url in URLS]
        found = self.prefills.estimates(chain, loads, self.wire.now, home=0, away_tokens=0)
        return [(found[url].cached_tokens, round(found[url].queue, 9)) for url in URLS]

    def remote(self) -> list[int]:
        return [self.prefills.of(url).remote for url in URLS]


def pair() -> tuple[Wire, Process, Process]:
    wire = Wire()
    one, other = Process(wire, "one"), Process(wire, "other")
    one.records.say_hello()
    return wire, one, other


async def flushed() -> None:
    await asyncio.sleep(1.5 * FLUSH_DELAY)


@on_virtual_time
async def test_what_one_process_sends_the_other_knows() -> None:
    _, one, other = pair()
    one.send(URLS[1], prompt(1, 2, 3))
    await flushed()
    assert other.known(prompt(1, 2, 3, 4)) == one.known(prompt(1, 2, 3, 4)) != [(0, 0), (0, 0)]
    assert other.remote() == [0, 1]


@on_virtual_time
async def test_a_first_token_ends_the_queue_and_the_answer_is_known_with_the_next_turn() -> None:
    _, one, other = pair()
    number = one.send(URLS[0], prompt(1, 2))
    one.records.on_computed(number)
    await flushed()
    assert other.prefills.of(URLS[0]).queue(other.wire.now) == 0
    assert other.remote() == [1, 0]
    one.records.on_answered(number, prompt(1, 2), prompt(1, 2, 7, 8), 500)
    one.records.on_ended(number)
    await flushed()
    assert other.remote() == [0, 0]
    assert other.known(prompt(1, 2, 7, 8))[0][0] == 4 * PIECE // 4
    assert other.prefills.of(URLS[0]).inflow(other.wire.now) > 500


@on_virtual_time
async def test_an_answer_that_changes_the_end_of_a_prompt_is_known_as_it_is() -> None:
    _, one, other = pair()
    number = one.send(URLS[0], prompt(1, 2, 3))
    one.records.on_answered(number, prompt(1, 2, 3), prompt(1, 2, 9, 9), 5)
    await flushed()
    assert other.prefills.of(URLS[0]).index.match(prompt(1, 2, 9, 9).hashes) == 4


@on_virtual_time
async def test_a_process_alone_sends_only_that_it_is_there() -> None:
    wire = Wire()
    alone = Process(wire, "one")
    alone.send(URLS[0], prompt(1))
    await flushed()
    assert wire.sent == []
    alone.records.say_hello()
    assert len(wire.sent) == 1


@on_virtual_time
async def test_a_new_process_is_heard_and_answered_at_once() -> None:
    wire = Wire()
    one, other = Process(wire, "one"), Process(wire, "other")
    other.records.say_hello()
    one.send(URLS[0], prompt(1))
    other.send(URLS[1], prompt(2))
    await flushed()
    assert (one.remote(), other.remote()) == ([0, 1], [1, 0])


@on_virtual_time
async def test_records_are_sent_together() -> None:
    wire, one, _ = pair()
    before = len(wire.sent)
    for number in range(20):
        one.send(URLS[0], prompt(number))
    await flushed()
    assert len(wire.sent) == before + 1


@on_virtual_time
async def test_a_prompt_of_12_kib_takes_200_bytes_and_a_very_long_one_is_cut() -> None:
    wire, one, other = pair()
    one.send(URLS[0], prompt(*range(12)))
    await flushed()
    assert len(wire.sent[-1]) <= 200
    one.send(URLS[0], prompt(*range(6000)))
    await flushed()
    assert len(wire.sent[-1]) < 11 * MAX_PIECES
    assert other.prefills.of(URLS[0]).index.match(prompt(*range(400)).hashes) > 300


@on_virtual_time
async def test_a_message_that_comes_twice_changes_nothing() -> None:
    wire, one, other = pair()
    number = one.send(URLS[0], prompt(1))
    await flushed()
    other.records.on_message(wire.sent[-1])
    assert other.remote() == [1, 0]
    one.records.on_ended(number)
    await flushed()
    other.records.on_message(wire.sent[-1])
    assert other.remote() == [0, 0]


@on_virtual_time
async def test_a_prompt_whose_end_is_lost_is_forgotten_once_its_process_says_that_it_has_ended() -> None:
    wire, one, other = pair()
    ended, answered, open_ = (one.send(URLS[0], prompt(number)) for number in range(3))
    await flushed()
    wire.loses = True
    one.records.on_ended(ended)
    one.records.on_answered(answered, prompt(1), prompt(1), 5)
    await flushed()
    wire.loses = False
    assert other.remote() == [3, 0]
    one.records.say_hello()
    other.records.say_hello()
    assert other.remote() == [1, 0]
    wire.loses = True
    one.records.on_ended(open_)
    await flushed()
    wire.loses = False
    one.records.say_hello()
    other.records.say_hello()
    assert other.remote() == [0, 0]


@on_virtual_time
async def test_a_process_sends_the_ends_of_prompts_before_it_says_that_they_have_ended() -> None:
    _, one, other = pair()
    number = one.send(URLS[0], prompt(1))
    await flushed()
    one.records.on_answered(number, prompt(1), prompt(1, 2), 5)
    one.records.say_hello()
    other.records.say_hello()
    assert other.prefills.of(URLS[0]).index.match(prompt(1, 2).hashes) == 2


@on_virtual_time
async def test_a_prompt_that_does_not_end_is_forgotten_after_a_while() -> None:
    wire, one, other = pair()
    one.send(URLS[0], prompt(1))
    await flushed()
    for _ in range(int(MAX_AGE / PRESENCE) + 1):
        wire.now += PRESENCE
        one.records.say_hello()
        assert other.remote() == [1, 0]
    wire.now += 1
    other.records.say_hello()
    assert other.remote() == [0, 0]
    assert other.prefills.of(URLS[0]).pending == 0


@on_virtual_time
async def test_the_prompts_of_a_process_that_is_gone_are_forgotten_with_it() -> None:
    wire, one, other = pair()
    one.send(URLS[0], prompt(1))
    await flushed()
    assert other.remote() == [1, 0]
    wire.now += PRESENCE + 1
    other.records.say_hello()
    assert other.remote() == [0, 0]
    assert other.prefills.of(URLS[0]).pending == 0


@on_virtual_time
async def test_an_end_whose_begin_was_lost_is_ignored() -> None:
    wire, one, other = pair()
    wire.loses = True
    number = one.send(URLS[0], prompt(1))
    await flushed()
    wire.loses = False
    one.records.on_answered(number, prompt(1), prompt(1, 2), 5)
    one.records.on_ended(number)
    await flushed()
    assert (other.remote(), other.known(prompt(1, 2))) == ([0, 0], [(0, 0), (0, 0)])


@on_virtual_time
async def test_a_url_that_is_not_configured_here_is_ignored() -> None:
    _, one, other = pair()
    one.prefills.keep((*URLS, "http://c"))
    one.send("http://c", prompt(1))
    await flushed()
    assert other.prefills.known("http://c") is None


@on_virtual_time
async def test_the_prompts_of_others_are_bounded_by_their_pieces() -> None:
    _, one, other = pair()
    for number in range(MAX_REMOTE_PIECES // MAX_PIECES + 3):
        hashes = range(MAX_PIECES * number, MAX_PIECES * (number + 1))
        one.send(URLS[0], PromptChain(hashes, [PIECE * (end + 1) for end in range(MAX_PIECES)]))
    await flushed()
    assert other.remote() == [MAX_REMOTE_PIECES // MAX_PIECES, 0]
    wait_for_all = PRESENCE + 1
    other.wire.now += wait_for_all
    other.records.say_hello()
    assert other.remote() == [0, 0]
    one.send(URLS[1], prompt(1))
    one.records.say_hello()
    await flushed()
    assert other.remote() == [0, 1]


# -- a process that starts --------------------------------------------------------------------------------------------


@on_virtual_time
async def test_processes_that_start_get_what_the_one_that_has_most_knows() -> None:
    wire, one, _ = pair()
    for number in range(40):
        one.send(URLS[number % 2], prompt(1, number, 2))
    await flushed()
    later = [Process(wire, name) for name in ("later", "latest")]
    for process in later:
        process.records.say_hello()
    for process in later:
        await eventually(lambda process=process: process.known(prompt(1))[1][0])  # type: ignore[misc]
        for number in range(40):
            cached = [cached for cached, _ in process.known(prompt(1, number, 2))]
            assert cached == [cached for cached, _ in one.known(prompt(1, number, 2))]
            assert cached[number % 2] == 3 * PIECE // 4


@on_virtual_time
async def test_a_snapshot_is_asked_of_others_only_if_they_have_something() -> None:
    wire, _, _ = pair()
    later = Process(wire, "later")
    later.records.say_hello()
    await asyncio.sleep(1.5 * ASK_DELAY)
    assert not any(msgspec.msgpack.decode(message)[2] for message in wire.sent)


PACKED = st.one_of(st.binary(max_size=40), st.integers(0, 5).map(lambda n: b"\x01" * (8 * n)))
NUMBERS = st.integers(-(2**63), 2**64 - 1)
RECORDS = st.lists(
    st.one_of(
        st.tuples(st.just(0), NUMBERS, st.sampled_from([*URLS, "x"]), st.tuples(PACKED, PACKED)),
        st.tuples(st.just(1), st.integers(0, 3)),
        st.tuples(st.just(2), st.integers(0, 3), NUMBERS, NUMBERS, st.tuples(PACKED, PACKED)),
        st.tuples(st.just(3), st.sampled_from(["x", "other"])),
        st.tuples(st.just(4), st.integers(0, 3), st.sampled_from([*URLS, "x"]), PACKED, PACKED, st.booleans()),
    ),
    max_size=8,
)


MESSAGES = st.tuples(st.just(CHAIN_VERSION), st.just("x"), RECORDS, st.none() | st.tuples(NUMBERS, NUMBERS))


@given(st.one_of(st.binary(max_size=30), MESSAGES.map(msgspec.msgpack.encode)))
async def test_no_message_raises_an_exception(payload: bytes) -> None:
    _, _, other = pair()
    other.records.on_message(payload)
    other.records.say_hello()
    other.known(prompt(1))


@on_virtual_time
async def test_a_process_with_another_version_of_the_chains_is_not_heard() -> None:
    _, _, other = pair()
    other.records.on_message(msgspec.msgpack.encode((CHAIN_VERSION + 1, "x", [(0, 1, URLS[0], (b"", b""))])))
    assert other.remote() == [0, 0]


# -- while others cannot be heard -------------------------------------------------------------------------------------


@on_virtual_time
async def test_prompts_stay_closer_to_their_homes_while_others_are_not_heard() -> None:
    wire, one, _ = pair()
    assert one.records.away_tokens(AWAY_TOKENS) == AWAY_TOKENS
    wire.up = False
    assert one.records.away_tokens(AWAY_TOKENS) == one.records.away_tokens(SESSION_AWAY_TOKENS) == UNHEARD_AWAY_TOKENS
    wire.now += PRESENCE + 1
    one.records.say_hello()
    assert one.records.away_tokens(AWAY_TOKENS) == UNHEARD_AWAY_TOKENS
    wire.now += MEMORY + 1
    one.records.say_hello()
    assert one.records.away_tokens(AWAY_TOKENS) == AWAY_TOKENS


@on_virtual_time
async def test_a_process_that_is_gone_is_not_waited_for() -> None:
    wire, one, other = pair()
    wire.processes.remove(other)
    wire.now += PRESENCE + 1
    one.records.say_hello()
    sent = len(wire.sent)
    one.send(URLS[0], prompt(1))
    await flushed()
    assert len(wire.sent) == sent


@on_virtual_time
async def test_a_worker_knows_that_there_are_others_before_it_hears_of_them() -> None:
    wire = Wire()
    worker = Process(wire, "one", has_workers=True)
    assert worker.records.away_tokens(AWAY_TOKENS) == UNHEARD_AWAY_TOKENS
    assert Process(wire, "alone").records.away_tokens(AWAY_TOKENS) == AWAY_TOKENS
