"""Tokens, texts, stop strings and KV blocks, without a server."""

import json
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.simulator.control.faults import FaultRegistry, make_fault, parse_markers, plan_faults
from engines.simulator.engine.scheduler import Scheduler, Sequence
from engines.simulator.kv_cache.block_pool import BlockPool, block_hashes
from engines.simulator.kv_cache.kv_events import BlockOrigin
from engines.simulator.settings import SimulatorSettings
from engines.simulator.text.answers import OutputSpec, TokenKind, generate_tokens, looks_like_code
from engines.simulator.text.schemas import sample_document
from engines.simulator.text.stop_strings import StopStringMatcher
from engines.simulator.text.tokens import split_tokens

TEXT = st.text(alphabet=st.sampled_from("ab .,\n\r\t  é👩\u200d💻e\u03011234"), max_size=60)


@given(st.text())
def test_pieces_join_to_the_text_they_came_from(text: str) -> None:
    pieces = split_tokens(text)
    assert "".join(pieces) == text
    assert all(pieces)


@given(TEXT, st.lists(TEXT.filter(bool).map(lambda text: text[:4]), min_size=1, max_size=3), st.data(), st.booleans())
def test_a_stop_string_is_found_however_the_text_is_cut(
    text: str, stops: list[str], data: st.DataObject, keep: bool
) -> None:
    watch = StopStringMatcher(tuple(stops), include_stop=keep)
    shown_text, matched, rest = "", None, text
    while rest and matched is None:
        size = data.draw(st.integers(1, len(rest)))
        visible, matched = watch.feed(rest[:size])
        shown_text, rest = shown_text + visible, rest[size:]
        # Text that was sent is never withdrawn: it is always a prefix of the answer.
        assert text.startswith(shown_text)
    first = min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)
    if first is None:
        assert matched is None
        assert shown_text + watch.flush() == text
    elif keep:
        assert matched is not None
        assert shown_text == text[: text.find(matched) + len(matched)]
    else:
        assert matched is not None
        assert shown_text == text[: text.find(matched)]


def test_the_same_seed_gives_the_same_text_and_another_seed_another() -> None:
    texts = ["".join(token.text for token in generate_tokens(OutputSpec(seed))) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("seed", range(20))
def test_a_response_ends_by_itself_after_some_dozens_of_tokens(seed: int) -> None:
    code = seed % 2 == 0
    assert 40 <= len(list(generate_tokens(OutputSpec(seed, code=code)))) <= 140


def test_a_longer_response_begins_with_the_shorter_one() -> None:
    short = list(generate_tokens(OutputSpec(7, token_count=10)))
    long = list(islice(generate_tokens(OutputSpec(7, ignore_eos=True)), 500))
    assert len(short) == 10
    assert long[:10] == short
    assert len(long) == 500


def test_a_reasoning_response_reasons_first() -> None:
    kinds = [token.kind for token in generate_tokens(OutputSpec(7, reasoning=True))]
    first_content = kinds.index(TokenKind.CONTENT)
    assert first_content > 0
    assert set(kinds[:first_content]) == {TokenKind.REASONING}
    assert set(kinds[first_content:]) == {TokenKind.CONTENT}


@pytest.mark.parametrize(
    ("prompt", "code"),
    [("def f(x):", True), ("Refactor this class", True), ("for (;;) {\n", True), ("Who was Stephenson?", False)],
)
def test_prompts_for_code_are_distinguished_from_chat(prompt: str, code: bool) -> None:
    assert looks_like_code(prompt) is code


def test_a_document_matches_its_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x"]}, "c": {"type": "array", "items": {"const": 3}}},
    }
    parsed = json.loads(sample_document(schema, 5))
    assert isinstance(parsed["a"], bool)
    assert (parsed["b"], parsed["c"]) == ("x", [3, 3])


def test_markers_and_json_have_one_vocabulary() -> None:
    assert parse_markers("a [[sim:drop after=3 how=close]] b [[sim:no_done]]") == [
        make_fault("drop", {"after": 3, "how": "close"}),
        make_fault("no_done", {}),
    ]
    assert plan_faults(parse_markers("[[sim:say text=a%20b%0A]]")).exact == "a b\n"
    assert plan_faults(parse_markers("[[sim:say base64=w6k=]]")).exact == "é"


@pytest.mark.parametrize(
    "fault",
    [{"fault": "nonsense"}, {"fault": "stall", "after": "x"}, {"fault": "stall", "afterwards": 1}, {"fault": "status"},
     {"fault": "stall", "times": 0}, {"fault": "drop", "how": "gently"}, {"fault": "say", "base64": "%"}],
)  # fmt: skip
def test_an_unknown_fault_or_option_is_an_error(fault: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"fault|option|times|is no"):
        FaultRegistry().add(fault)


def test_a_fault_with_times_runs_out_and_one_with_match_waits_for_its_prompt() -> None:
    registry = FaultRegistry()
    registry.add({"fault": "no_done", "times": 1, "match": "blue"})
    assert registry.take_matching("red") == []
    assert registry.take_matching("blue") == [make_fault("no_done", {})]
    assert registry.take_matching("blue") == []


def test_a_model_length_beyond_the_kv_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        SimulatorSettings(model="m", kv_blocks=4, max_model_len=100)


def test_prefixes_are_shared_and_stay_cached_until_the_space_is_needed() -> None:
    pool = BlockPool(11)
    prompt = list(range(40))
    hashes = block_hashes(0, prompt)
    first, second = pool.allocate(hashes, 40), pool.allocate(hashes, 40)
    assert first is not None
    assert second is not None
    assert (first[1], second[1]) == (0, 32)
    assert pool.used == 4, "two blocks shared, one of each own"
    pool.free(first[0])
    pool.free(second[0])
    assert pool.usage == 0
    again = pool.allocate(hashes, 40)
    assert again is not None
    assert again[1] == 32
    pool.free(again[0])
    filler = pool.allocate(block_hashes(1, list(range(160))), 160)
    assert filler is not None
    pool.free(filler[0])
    evicted = pool.allocate(hashes, 40)
    assert evicted is not None
    assert evicted[1] == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(0, 30)), max_size=30))
def test_the_scheduler_never_allocates_more_than_it_has_and_gets_all_back(work: list[tuple[int, int, int]]) -> None:
    scheduler = Scheduler(BlockPool(8), 3)
    sequences = []
    for salt, length, grown in work:
        sequence = Sequence(tuple(range(length)), BlockOrigin(str(salt)), lambda: None)
        scheduler.submit(sequence)
        scheduler.admit()
        sequences.append(sequence)
        for token in range(grown):
            if sequence.admitted and len(sequence.tokens) < 100:
                scheduler.append_token(sequence, token)
        assert 0 <= scheduler.pool.used <= 7
        assert scheduler.running <= 3
        assert sum(found.admitted for found in sequences) == scheduler.running
    for sequence in sequences:
        scheduler.finish(sequence)
    assert (scheduler.running, scheduler.waiting, scheduler.pool.used) == (0, 0, 0)


def test_a_sequence_that_needs_space_preempts_the_last_admitted_one() -> None:
    scheduler = Scheduler(BlockPool(5), 8)
    old, newer = (Sequence(tuple(range(start, start + 32)), BlockOrigin(), lambda: None) for start in (0, 100))
    scheduler.submit(old)
    scheduler.submit(newer)
    scheduler.admit()
    assert scheduler.pool.usage == 1
    scheduler.append_token(old, 1)
    assert (old.admitted, newer.admitted) == (True, False)
    assert (scheduler.counts.preemptions, scheduler.running, scheduler.waiting) == (1, 1, 1)
    scheduler.finish(old)
    scheduler.admit()
    assert newer.admitted
