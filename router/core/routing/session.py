"""The session of a request: what its client says that the conversation is to which it belongs.

The first of these that is well-formed:

- the header X-Session-ID;
- a header that a coding agent sends by itself: `x-claude-code-session-id` of Claude Code; `thread-id` and `session-id`
  of Codex, `session_id` and `conversation_id` of its versions before 0.131;
- `prompt_cache_key` in the body;
- `metadata.user_id` in the body, where it has a session in it, as Claude Code writes it: a text that ends with
  `_session_` and the session, or JSON with a `session_id`;
- the first response of the conversation that `previous_response_id` continues, where the router keeps the responses.

Sources: openai/codex, codex-rs/codex-api (pull requests 21757 and 22193); metadata of Claude Code 1 and 2.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

SESSION_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
"""A valid X-Session-ID, and a valid session of any other source; any other value is ignored."""

_MAX_ID: Final = 128
_MAX_USER_ID: Final = 1024  # characters of a `metadata.user_id` that is searched
_LEGACY_USER: Final = "user_"
_LEGACY_SESSION: Final = "_session_"

# Sub-agents of Codex have the session of their parent, and a thread of their own.
_RANKS: Final = {
    name: rank
    for rank, name in enumerate(
        (
            b"x-session-id", b"x-claude-code-session-id", b"thread-id", b"thread_id", b"session-id", b"session_id",
            b"conversation_id",
        )
    )
}  # fmt: skip
_BODY_RANK: Final = len(_RANKS)
_ROOT_RANK: Final = _BODY_RANK + 1

SESSION_HEADERS: Final = frozenset(_RANKS)


class Session(msgspec.Struct, frozen=True, gc=False):
    """`id`: as the client sent it, so it may name a person. `rank`: of its source; 0 is the header X-Session-ID."""

    id: str
    rank: int = 0

    @property
    def is_chosen(self) -> bool:
        """Whether the client has chosen it for the router. All others say more than where a request should go."""
        return self.rank == 0

    @property
    def is_of_header(self) -> bool:
        return self.rank < _BODY_RANK


def session_of_header(name: bytes, value: bytes, found: Session | None) -> Session | None:
    """The session after one of SESSION_HEADERS. `found`: that of the headers before it."""
    rank = _RANKS[name]
    if (found is not None and found.rank < rank) or not SESSION_ID.fullmatch(value):
        return found
    return Session(value.decode("ascii"), rank)


def session_of_root(response_id: str) -> Session:
    """`response_id`: of the first response of a conversation, which has the form of a session."""
    return Session(response_id, _ROOT_RANK)


def session_of_request(found: Session | None, fields: Mapping[str, Any]) -> Session | None:
    """`found`: that of the headers or, without one, of the root, which comes after one in the body.

    `fields`: of the request's body, of whatever types.
    """
    if found is not None and found.is_of_header:
        return found
    return session_of_body(fields) or found


def session_of_body(fields: Mapping[str, Any]) -> Session | None:
    """`fields`: of the request's body, of whatever types."""
    found = _valid_id(fields.get("prompt_cache_key"))
    if found is None:
        metadata = fields.get("metadata")
        found = _session_of_user(metadata.get("user_id")) if isinstance(metadata, dict) else None
    return None if found is None else Session(found, _BODY_RANK)


def _valid_id(value: Any) -> str | None:
    if isinstance(value, str) and len(value) <= _MAX_ID and value.isascii() and SESSION_ID.fullmatch(value.encode()):
        return value
    return None


class _User(msgspec.Struct, gc=False):
    session_id: Any = None


_decode_user: Final = msgspec.json.Decoder(_User).decode


def _session_of_user(value: Any) -> str | None:
    if not isinstance(value, str) or len(value) > _MAX_USER_ID:
        return None
    if value.startswith(_LEGACY_USER):
        _, separator, session = value.rpartition(_LEGACY_SESSION)
        return _valid_id(session) if separator else None
    if not value.startswith("{"):
        return None
    try:
        return _valid_id(_decode_user(value).session_id)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
