"""What a process that starts gets of another's indexes, whatever is lost, late or doubled on the way."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.routing.prefill import Prefills
from router.core.routing.prefix_cache.prefix_index import MIN_WEIGHT
from router.core.routing.prefix_cache.prompt_chain import PIECE, PromptChain
from router.shared.prompts.prompt_snapshot import (
    ASK_PERIOD,
    INTERVAL,
    MAX_ENTRIES,
    TIMEOUT,
    SnapshotPiece,
    SnapshotReceiver,
    SnapshotSender,
    snapshot_pieces,
)
from tests.simulation.clock import CLOCK
from tests.simulation.loop import new_loop

URLS = ("http://a", "http://b", "http://c")
PROMPTS = st.lists(
    st.tuples(st.sampled_from(URLS), st.lists(st.integers(0, 2), min_size=1, max_size=6)), max_size=20
)  # fmt: skip
Entries = dict[str, tuple[list[int], list[int]]]


def prompt(*path: int) -> PromptChain:
    hashes = [hash(path[: end + 1]) & (2**64 - 1) for end in range(len(path))]
    return PromptChain(hashes, [PIECE * (number + 1) for number in range(len(path))])


def prefills(prompts: Sequence[tuple[str, Sequence[int]]] = (), urls: Sequence[str] = URLS) -> Prefills:
    found = Prefills()
    found.keep(urls)
    add(found, prompts)
    return found


def add(to: Prefills, prompts: Sequence[tuple[str, Sequence[int]]]) -> None:
    for url, path in prompts:
        to.of(url).index.add(prompt(*path))


def entries(of: Prefills) -> Entries:
    return {url: engine.index.entries() for url, engine in of.items()}


def asking(to: Prefills) -> SnapshotReceiver:
    receiver = SnapshotReceiver(to, lambda _: None)
    receiver.on_others({"sender": 10**9}, 0.0)
    return receiver


@given(PROMPTS, PROMPTS, PROMPTS, st.integers(1, 4), st.integers(1, 3))
def test_with_all_pieces_in_order_it_is_as_if_the_prompts_had_been_sent_from_here(
    older: list[tuple[str, list[int]]], own: list[tuple[str, list[int]]], meanwhile: list[tuple[str, list[int]]],
    size: int, times: int,
) -> None:  # fmt: skip
    known = prefills(own)
    receiver = asking(known)
    add(known, meanwhile)
    for piece in snapshot_pieces(prefills(older), size):
        for _ in range(times):
            receiver.on_piece("sender", piece, 0.0)
    assert entries(known) == entries(prefills([*older, *own, *meanwhile]))


@given(PROMPTS, PROMPTS, st.integers(1, 4), st.data())
def test_of_a_snapshot_of_which_pieces_are_lost_or_late_each_engine_gets_all_or_nothing(
    older: list[tuple[str, list[int]]], own: list[tuple[str, list[int]]], size: int, data: st.DataObject
) -> None:
    known, sent, all_of = prefills(own), prefills(older), prefills([*older, *own])
    receiver, pieces = asking(known), list(snapshot_pieces(sent, size))
    for piece in data.draw(st.lists(st.sampled_from(pieces), max_size=2 * len(pieces))):
        receiver.on_piece("sender", piece, 0.0)
    before = entries(prefills(own))
    for url, found in entries(known).items():
        assert found in (before[url], entries(all_of)[url])


NONSENSE = st.builds(
    SnapshotPiece,
    st.integers(-2, 4),
    st.sampled_from([*URLS, "", "http://x"]),
    st.binary(max_size=40),
    st.binary(max_size=10),
    st.booleans(),
)


@given(st.lists(NONSENSE, max_size=10))
def test_no_piece_raises_an_exception(pieces: list[SnapshotPiece]) -> None:
    known = prefills()
    receiver = asking(known)
    for piece in pieces:
        receiver.on_piece("sender", piece, 0.0)
    for url in URLS:
        engine = known.of(url)
        assert engine.index.size <= engine.index.capacity


def test_an_engine_that_is_not_configured_here_is_skipped() -> None:
    known = prefills(urls=URLS[1:])
    receiver = asking(known)
    for piece in snapshot_pieces(prefills([(url, [1]) for url in URLS])):
        receiver.on_piece("sender", piece, 0.0)
    assert entries(known) == entries(prefills([(url, [1]) for url in URLS[1:]], URLS[1:]))


def test_pieces_of_a_process_that_was_not_asked_and_later_ones_are_ignored() -> None:
    known = prefills()
    receiver = asking(known)
    for process, path in (("other", [1]), ("sender", [2]), ("sender", [3])):
        for piece in snapshot_pieces(prefills([(URLS[0], path)])):
            receiver.on_piece(process, piece, 0.0)
    assert entries(known) == entries(prefills([(URLS[0], [2])]))


def test_after_a_lost_piece_a_snapshot_that_begins_again_is_taken() -> None:
    known, sent = prefills(), prefills([(URLS[0], [1, 2, 3]), (URLS[1], [4, 5])])
    receiver, pieces = asking(known), list(snapshot_pieces(sent, 1))
    for piece in [*pieces[:1], *pieces[2:], *pieces]:
        receiver.on_piece("sender", piece, 0.0)
    assert entries(known) == entries(sent)


def test_an_engine_that_has_lost_its_cache_meanwhile_gets_nothing_of_a_snapshot() -> None:
    known = prefills()
    receiver, pieces = asking(known), list(snapshot_pieces(prefills([(url, [1, 2]) for url in URLS]), 1))
    for number, piece in enumerate(pieces):
        if number == 1:
            known.of(URLS[0]).index.clear()
        receiver.on_piece("sender", piece, 0.0)
    assert entries(known) == entries(prefills([(url, [1, 2]) for url in URLS[1:]]))


def test_of_more_than_an_index_has_room_for_the_newest_entries_are_collected() -> None:
    known, sent = prefills(), prefills()
    index = known.of(URLS[0]).index
    sent.of(URLS[0]).index.capacity = 10**9
    for number in range(3 * MAX_ENTRIES):
        sent.of(URLS[0]).index.add(PromptChain([number], [MIN_WEIGHT]))
    index.capacity = 2 * MAX_ENTRIES * MIN_WEIGHT
    receiver = asking(known)
    for piece in snapshot_pieces(sent):
        receiver.on_piece("sender", piece, 0.0)
        assert len(receiver._hashes) == len(receiver._weights) <= index.max_entries
    assert index.entries()[0] == list(range(MAX_ENTRIES, 3 * MAX_ENTRIES))


# -- who is asked -----------------------------------------------------------------------------------------------------


class Asker:
    def __init__(self, own: Prefills | None = None) -> None:
        self.asked: list[str] = []
        self.receiver = SnapshotReceiver(own or prefills(), self.asked.append)


def test_the_process_that_has_most_is_asked_once() -> None:
    asker = Asker()
    for now in range(3):
        asker.receiver.on_others({"one": 5, "two": 7, "three": 7}, now)
    assert asker.asked == ["two"]


def test_a_process_that_has_no_more_is_not_asked() -> None:
    asker = Asker(prefills([(URLS[0], [1, 2])]))
    asker.receiver.on_others({"one": 2, "two": 0}, 0)
    asker.receiver.on_others({"one": 3}, 2)
    assert asker.asked == ["one"]


def test_another_is_asked_if_nothing_comes_for_a_while_but_not_for_ever() -> None:
    asker, others = Asker(), {"one": 9, "two": 8, "three": 7, "four": 6, "five": 5}
    for now in range(0, 30, 2):
        asker.receiver.on_others(others, now)
    assert asker.asked == ["one", "two", "three"]
    assert asker.asked == list(others)[: int(ASK_PERIOD / (TIMEOUT + 1)) + 1]


def test_while_pieces_come_no_other_is_asked_and_after_the_last_one_none() -> None:
    asker = Asker()
    asker.receiver.on_others({"one": 9, "two": 8}, 0)
    pieces = list(snapshot_pieces(prefills([(URLS[0], [1, 2, 3])]), 1))
    for now, piece in enumerate(pieces):
        asker.receiver.on_piece("one", piece, 2 * now)
        asker.receiver.on_others({"one": 9, "two": 8}, 2 * now + 1)
    asker.receiver.on_others({"one": 9, "two": 8}, 9)
    assert asker.asked == ["one"]


def test_a_piece_that_is_lost_lets_another_be_asked() -> None:
    asker = Asker()
    asker.receiver.on_others({"one": 9, "two": 8}, 0)
    for piece in list(snapshot_pieces(prefills([(URLS[0], [1, 2, 3])]), 1))[1:]:
        asker.receiver.on_piece("one", piece, 2)
    asker.receiver.on_others({"one": 9, "two": 8}, TIMEOUT)
    assert asker.asked == ["one", "two"]


def test_the_only_other_process_is_asked_again_if_a_piece_was_lost() -> None:
    own, sent = prefills(), prefills([(URLS[0], [1, 2, 3])])
    asker = Asker(own)
    pieces = list(snapshot_pieces(sent, 1))
    asker.receiver.on_others({"one": 9}, 0)
    for piece in pieces[1:]:
        asker.receiver.on_piece("one", piece, 0)
    asker.receiver.on_others({"one": 9}, TIMEOUT)
    for piece in pieces:
        asker.receiver.on_piece("one", piece, TIMEOUT)
    asker.receiver.on_others({"one": 9}, 3 * TIMEOUT)
    assert asker.asked == ["one", "one"]
    assert entries(own) == entries(sent)


# -- how it is sent ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_pieces_are_sent_one_after_another_and_once_more_if_another_process_asks_meanwhile(asked: int) -> None:
    sent: list[tuple[float, SnapshotPiece]] = []
    known = prefills()
    known.of(URLS[0]).index.capacity = 10**9
    for number in range(2 * MAX_ENTRIES + 1):
        known.of(URLS[0]).index.add(prompt(number))
    CLOCK.now = 0.0
    loop = new_loop(Random(1))
    sender = SnapshotSender(known, lambda piece: sent.append((CLOCK.now, piece)))
    for number in range(asked):
        loop.deliver(loop.world, number * INTERVAL / 2, sender.start)
    loop.run(1.0)
    assert not loop.defects
    loop.close()
    numbers = [piece.number for _, piece in sent]
    assert numbers == [0, 1, 2, 3] * min(asked, 2)
    assert [len(piece.hashes) // 8 for _, piece in sent[:4]] == [MAX_ENTRIES, MAX_ENTRIES, 1, 0]
    for (before, piece), (after, _) in pairwise(sent):
        assert after - before >= INTERVAL - 1e-9 or piece.is_last
