"""The session of a request: which of the things that clients send is one, and which of them counts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.routing.session import SESSION_HEADERS, SESSION_ID, Session, session_of_body, session_of_header

HASH = "0f" * 32
ACCOUNT, SESSION = "7f3a0000-1111-4222-8333-444455556666", "123e4567-e89b-12d3-a456-426614174000"


def session_of_headers(*headers: tuple[str, str]) -> str | None:
    found: Session | None = None
    for name, value in headers:
        found = session_of_header(name.encode(), value.encode(), found)
    return None if found is None else found.id


def session_of_user(user_id: Any) -> str | None:
    found = session_of_body({"metadata": {"user_id": user_id}})
    return None if found is None else found.id


@pytest.mark.parametrize("text", [b"", b"a" * 129, b"a b", b"a\tb", b"caf\xe9", b"a\n"])
def test_a_session_is_short_and_plain(text: bytes) -> None:
    assert SESSION_ID.fullmatch(text) is None
    assert SESSION_ID.fullmatch(b"user-17:chat/42.a_b+c=@d") is not None
    for name in SESSION_HEADERS:
        assert session_of_header(name, text, None) is None


def test_the_first_source_counts_in_whatever_order_the_headers_come() -> None:
    headers = [
        ("x-session-id", "chosen"), ("x-claude-code-session-id", "claude"), ("thread-id", "thread"),
        ("thread_id", "old-thread"), ("session-id", "codex"), ("session_id", "old-codex"), ("conversation_id", "talk"),
    ]  # fmt: skip
    assert {name.encode() for name, _ in headers} == SESSION_HEADERS
    while headers:
        assert session_of_headers(*headers) == session_of_headers(*reversed(headers)) == headers[0][1]
        del headers[0]


def test_a_malformed_session_leaves_the_place_to_the_next_source() -> None:
    headers = ("x-session-id", "not one"), ("x-claude-code-session-id", "s" * 129), ("session_id", "s1")
    assert session_of_headers(*headers) == session_of_headers(*reversed(headers)) == "s1"


def test_of_two_headers_of_one_name_the_last_well_formed_one_counts() -> None:
    assert session_of_headers(("x-session-id", "a"), ("x-session-id", "b"), ("x-session-id", "c c")) == "b"


def test_only_x_session_id_is_chosen_by_the_client() -> None:
    chosen = {name for name in SESSION_HEADERS if (found := session_of_header(name, b"s", None)) and found.is_chosen}
    assert chosen == {b"x-session-id"}
    of_body = session_of_body({"prompt_cache_key": "s"})
    assert of_body is not None
    assert not of_body.is_chosen


def test_the_prompt_cache_key_comes_before_the_user() -> None:
    user = {"user_id": f"user_{HASH}_account__session_{SESSION}"}
    assert session_of_body({"prompt_cache_key": "k", "metadata": user}) == session_of_body({"prompt_cache_key": "k"})
    assert session_of_body({"prompt_cache_key": "k k", "metadata": user}) == session_of_body({"metadata": user})


@pytest.mark.parametrize(
    "user_id",
    [
        f"user_{HASH}_account_{ACCOUNT}_session_{SESSION}",
        f"user_{HASH}_account__session_{SESSION}",
        json.dumps({"device_id": HASH, "account_uuid": ACCOUNT, "session_id": SESSION}),
    ],
    ids=["with an account", "without one", "as JSON"],
)
def test_the_user_of_claude_code_has_its_session(user_id: str) -> None:
    assert session_of_user(user_id) == SESSION


@pytest.mark.parametrize(
    "user_id",
    [
        "anna@example.com", "user_1", "anna_session_1", f"user_{HASH}_account__session_", "user__session_a b", "{",
        "{}", '{"session_id": 7}', '{"session_id": ""}', '{"session_id": "\\ud800"}', "{" * 900, "[]", 7, None, [], {},
        json.dumps({"session_id": SESSION, "device_id": "0" * 1024}),
        f"user_{'0' * 1024}_session_{SESSION}",
    ],
)  # fmt: skip
def test_any_other_user_is_no_session(user_id: Any) -> None:
    assert session_of_user(user_id) is None


@given(st.dictionaries(st.sampled_from(["prompt_cache_key", "metadata"]), st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.just("\ud800"),
    lambda values: st.lists(values) | st.dictionaries(st.sampled_from(["user_id", "session_id"]), values),
)))  # fmt: skip
def test_a_body_of_whatever_types_has_a_session_or_none(fields: dict[str, Any]) -> None:
    found = session_of_body(fields)
    assert found is None or SESSION_ID.fullmatch(found.id.encode())


def test_a_previous_response_is_no_session() -> None:
    assert session_of_body({"previous_response_id": "resp_1"}) is None
