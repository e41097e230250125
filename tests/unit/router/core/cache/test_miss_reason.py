"""The miss reason: the key part in which a request differs from known ones."""

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.fingerprint import Fingerprint, entry_fingerprint
from router.core.cache.miss_reason import SeenKeys, fingerprint_request, hash_parts
from router.core.cache.purge_index import BEGINNING
from router.core.endpoints.endpoint import InferenceRequest
from tests.support.factories import chat, completion, conversation, derive_key, request_parts

FIRST: Final = [("system", "Be brief."), ("user", "<context>one</context> Why?")]


def fingerprint_of(inference_request: InferenceRequest, **target: Any) -> Fingerprint:
    return fingerprint_request(derive_key(inference_request, **target), request_parts(inference_request))


def changed(**parts: str) -> InferenceRequest:
    """The same request with another text in one place."""
    texts = {"system": "Be brief.", "rag": "one", "query": "Why?", **parts}
    return conversation(("system", texts["system"]), ("user", f"<context>{texts['rag']}</context> {texts['query']}"))


KNOWN: Final = fingerprint_of(changed())

ONE_APART: Final = [
    ("system", fingerprint_of(changed(system="Be long."))),
    ("rag", fingerprint_of(changed(rag="two"))),
    ("query", fingerprint_of(changed(query="How?"))),
    ("params", fingerprint_of(conversation(*FIRST, temperature=0.5))),
    ("params", fingerprint_of(conversation(*FIRST, somebodys_field={"a": 1}))),
    ("model", fingerprint_of(changed(), model="mistral")),
    ("model", fingerprint_of(changed(), revision="2")),
]
IDS: Final = ["system", "rag", "query", "params", "unknown-field", "model", "revision"]


@pytest.mark.parametrize(("reason", "wanted"), ONE_APART, ids=IDS)
def test_one_part_that_differs_is_named(reason: str, wanted: Fingerprint) -> None:
    assert wanted.differing_parts(KNOWN) == KNOWN.differing_parts(wanted) == [reason]


def test_several_parts_that_differ_are_all_named() -> None:
    assert fingerprint_of(changed(system="Be long.", query="How?"), model="mistral").differing_parts(KNOWN) == [
        "model", "system", "query",
    ]  # fmt: skip


@pytest.mark.parametrize("fields", [{"stream": True}, {"user": "u"}, {"temperature": None}])
def test_two_forms_of_one_request_differ_only_in_parts_of_the_key(fields: dict[str, Any]) -> None:
    expected = [] if "temperature" not in fields else ["params"]
    assert fingerprint_of(conversation(*FIRST, **fields)).differing_parts(KNOWN) == expected


def test_a_system_prompt_that_only_one_request_has_changes_the_query_too() -> None:
    assert fingerprint_of(conversation(FIRST[1])).differing_parts(KNOWN) == ["system", "query"]


def test_another_endpoint_differs_in_the_parameters() -> None:
    assert "params" in fingerprint_of(completion()).differing_parts(fingerprint_of(chat()))


def test_an_entry_without_hashes_of_its_query_differs_in_its_query() -> None:
    expected = fingerprint_of(changed(query="How?"))
    old = entry_fingerprint(derive_key(changed()).text, "", "")
    assert old is not None
    assert expected.differing_parts(old) == ["query"]
    assert KNOWN.differing_parts(old) == []


@pytest.mark.parametrize("key", ["", "rh:1:purge", "rh:1:claim:a:b:c:d:e", "foreign:key", "rh:1:a:b:c:d"])
def test_a_text_that_is_not_an_entrys_key_has_no_fingerprint(key: str) -> None:
    assert entry_fingerprint(key, "", "") is None


# -- the memory of a process ------------------------------------------------------------------------------------------


def test_without_any_known_entry_a_miss_is_new() -> None:
    assert SeenKeys().miss_reason(hash_parts(KNOWN)) == "new"


@pytest.mark.parametrize(("reason", "wanted"), ONE_APART, ids=IDS)
def test_a_miss_is_explained_by_the_entry_that_differs_in_one_part(reason: str, wanted: Fingerprint) -> None:
    seen_keys = SeenKeys()
    seen_keys.add(hash_parts(KNOWN))
    assert seen_keys.miss_reason(hash_parts(wanted)) == reason


def test_an_entry_that_existed_and_is_gone_has_expired() -> None:
    seen_keys = SeenKeys()
    seen_keys.add(hash_parts(KNOWN))
    assert seen_keys.miss_reason(hash_parts(KNOWN)) == "expired"


@pytest.mark.parametrize("reason", ["system", "rag", "query"])
def test_the_key_of_another_processs_entry_is_enough_for_the_parts_of_a_key(reason: str) -> None:
    seen_keys = SeenKeys()
    seen_keys.add_key(derive_key(changed()).text)
    assert seen_keys.miss_reason(hash_parts(dict(ONE_APART)[reason])) == reason
    assert seen_keys.miss_reason(hash_parts(KNOWN)) == "expired"


def test_a_request_that_differs_in_two_parts_is_new() -> None:
    seen_keys = SeenKeys()
    seen_keys.add(hash_parts(KNOWN))
    assert seen_keys.miss_reason(hash_parts(fingerprint_of(changed(system="Be long.", rag="two")))) == "new"


def test_another_tenants_entries_explain_nothing() -> None:
    seen_keys = SeenKeys()
    seen_keys.add(hash_parts(KNOWN))
    seen_keys.add_key(derive_key(changed()).text)
    for _, wanted in [("", KNOWN), *ONE_APART]:
        key = msgspec.structs.replace(wanted.key, tenant="other")
        others = Fingerprint(key, wanted.question, wanted.params)
        assert seen_keys.miss_reason(hash_parts(others)) == "new"


def test_cleared_keys_are_forgotten() -> None:
    seen_keys = SeenKeys()
    seen_keys.add(hash_parts(KNOWN))
    seen_keys.clear()
    assert seen_keys.miss_reason(hash_parts(KNOWN)) == "new"


def test_a_purge_forgets_everything_but_which_keys_had_an_entry() -> None:
    seen_keys, hashes = SeenKeys(), hash_parts(KNOWN)
    seen_keys.add(hashes)
    assert seen_keys.purged_since(hashes) is None
    seen_keys.on_purge((5, 0))
    seen_keys.on_purge((6, 0))
    assert seen_keys.purged_since(hashes) == (5, 0)
    for _, wanted in [("", KNOWN), *ONE_APART]:
        assert seen_keys.miss_reason(hash_parts(wanted)) == "new"
    assert [seen_keys.purged_since(hash_parts(wanted)) for _, wanted in ONE_APART] == [None] * len(ONE_APART)


def test_a_deletion_by_a_purge_that_redis_reports_leaves_the_purge_as_the_cause() -> None:
    key, hashes = derive_key(changed()).text, hash_parts(KNOWN)
    seen_keys = SeenKeys()
    seen_keys.add(hashes)
    seen_keys.add_key(key)
    seen_keys.on_purge((5, 0))
    seen_keys.add_key(key)
    assert seen_keys.purged_since(hashes) == (5, 0)
    without_memory = SeenKeys()
    without_memory.on_purge((5, 0))
    without_memory.add_key(key)
    assert without_memory.purged_since(hashes) == BEGINNING


def test_an_entry_that_was_stored_since_a_purge_was_not_purged() -> None:
    seen_keys, hashes = SeenKeys(), hash_parts(KNOWN)
    seen_keys.add(hashes)
    seen_keys.on_purge((5, 0))
    seen_keys.add(hashes)
    assert (seen_keys.purged_since(hashes), seen_keys.miss_reason(hashes)) == (None, "expired")


def test_a_response_that_was_not_stored_because_of_a_purge_was_purged() -> None:
    seen_keys, hashes = SeenKeys(), hash_parts(KNOWN)
    seen_keys.add_purged(hashes)
    assert seen_keys.purged_since(hashes) == BEGINNING
    seen_keys.add_not_stored(hashes)
    assert (seen_keys.purged_since(hashes), seen_keys.miss_reason(hashes)) == (None, "not-stored")
    seen_keys.clear()
    assert seen_keys.purged_since(hashes) is None


def test_many_keys_from_before_a_purge_are_remembered_as_well() -> None:
    seen_keys = SeenKeys()
    every = [hash_parts(fingerprint_of(chat(seed=number))) for number in range(200)]
    for hashes in every:
        seen_keys.add(hashes)
    before = seen_keys.remembers_purges
    seen_keys.on_purge((5, 0))
    assert (before, seen_keys.remembers_purges) == (False, True)
    seen_keys.add(every[7])
    seen_keys.on_purge((6, 0))
    assert [seen_keys.purged_since(hashes) for hashes in every] == [(6, 0) if at == 7 else (5, 0) for at in range(200)]
    seen_keys.add(every[7])
    assert seen_keys.purged_since(every[7]) is None


def test_the_keys_from_before_purges_are_remembered_up_to_a_bound() -> None:
    seen_keys = SeenKeys(max_entries=20)
    for number in range(200):
        hashes = hash_parts(fingerprint_of(chat(seed=number)))
        seen_keys.add(hashes)
        seen_keys.on_purge((number, 0))
        assert seen_keys.purged_since(hashes) == (number, 0)
        assert len(seen_keys._before_purge) <= 20 * 7


def test_an_invalid_key_is_ignored() -> None:
    seen_keys = SeenKeys()
    for key in ("", "rh:1:purge", "rh:1:hits:acme", "x" * 1000):
        seen_keys.add_key(key)
    assert seen_keys.miss_reason(hash_parts(KNOWN)) == "new"


@given(st.lists(st.integers(0, 30), max_size=60))
def test_the_oldest_keys_are_evicted_first_and_repeated_keys_count_as_recent(numbers: list[int]) -> None:
    seen_keys = SeenKeys(max_entries=4)
    fingerprints = [fingerprint_of(chat(seed=number), model=f"m{number}", tenant=f"t{number}") for number in numbers]
    for one in fingerprints:
        seen_keys.add(hash_parts(one))
    most_recent = list(dict.fromkeys(reversed(fingerprints)))
    assert [seen_keys.miss_reason(hash_parts(one)) for one in most_recent[:2]] == ["expired"] * len(most_recent[:2])
    assert {seen_keys.miss_reason(hash_parts(one)) for one in most_recent[6:]} <= {"new"}
    assert len(seen_keys._new) + len(seen_keys._old) <= 6 * 7


def test_a_response_that_was_not_stored_is_the_reason_until_one_is() -> None:
    seen_keys = SeenKeys()
    hashes = hash_parts(KNOWN)
    seen_keys.add_not_stored(hashes)
    assert seen_keys.miss_reason(hashes) == "not-stored"
    for _, wanted in ONE_APART:
        assert seen_keys.miss_reason(hash_parts(wanted)) == "new"
    seen_keys.add(hashes)
    assert seen_keys.miss_reason(hashes) == "expired"
    seen_keys.add_not_stored(hashes)
    seen_keys.clear()
    assert seen_keys.miss_reason(hashes) == "new"


def test_requests_whose_responses_were_not_stored_are_remembered_up_to_a_bound() -> None:
    seen_keys = SeenKeys(max_entries=40)
    for number in range(200):
        seen_keys.add_not_stored(hash_parts(fingerprint_of(chat(seed=number))))
    assert len(seen_keys._not_stored) <= 40
