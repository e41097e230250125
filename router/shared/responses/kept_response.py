"""A kept response and its conversation, and the fields of its hash in Redis."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from router.core.endpoints.conversations.items import join_items

MAX_TURNS: Final = 1000
"""Of a conversation. Each record has the ids of all turns before it."""


class KeptResponse(NamedTuple):
    """A turn of a conversation.

    - `parent`: the id of the turn before; empty in the first one. `root`: that of the first one.
    - `ancestors`: the ids of all turns before, the first one first, as they were when it was stored.
    - `before`, `digest`: of the conversation, without and with this turn; see items.extend_digest.
    - `size`: bytes of the items of the conversation.
    - `alive_until`: until then at least, in ms, the turns before it and itself are kept; 0 if that is not known.
    - `input`, `output`: the items of this turn. `response`: the object as it was sent.
    - `engine`: the one that may have kept more of it; see TurnAtEngine. Empty if there is none.
    """

    id: str
    parent: str
    root: str
    ancestors: tuple[str, ...]
    before: str
    digest: str
    size: int
    alive_until: int
    input: bytes
    output: bytes
    response: bytes = b""
    engine: str = ""


class EarlierTurn(NamedTuple):
    """What the turns after it need of a kept response."""

    id: str
    parent: str
    before: str
    digest: str
    input: bytes
    output: bytes


class Conversation(NamedTuple):
    """`earlier`: the turns before the last one, the first one first."""

    earlier: tuple[EarlierTurn, ...]
    last: KeptResponse

    @property
    def turn_ids(self) -> tuple[str, ...]:
        return (*[turn.id for turn in self.earlier], self.last.id)

    @property
    def input_parts(self) -> list[bytes]:
        return [*[part for turn in self.earlier for part in (turn.input, turn.output)], self.last.input]

    @property
    def items(self) -> bytes:
        return join_items(*self.input_parts, self.last.output)


class ResponseNotFoundError(Exception):
    """There is no such response, or a turn before it is gone, or nobody knows which one is meant."""


class ResponseNotCompleteError(ResponseNotFoundError):
    """It was made in the background, and is no turn of a conversation: it is running, or has ended otherwise."""


def assemble(last: KeptResponse, known: Mapping[str, EarlierTurn]) -> Conversation | str:
    """The conversation, or the id of another turn that has to be known. Raises ResponseNotFoundError.

    `known`: of the turns before, by their ids, at first those of `last.ancestors` that are there.
    """
    turn: KeptResponse | EarlierTurn = last
    earlier: list[EarlierTurn] = []
    while turn.parent:
        if len(earlier) + 1 >= MAX_TURNS:
            raise ResponseNotFoundError
        parent = known.get(turn.parent)
        if parent is None and turn.parent not in last.ancestors:  # a turn before was replaced by an equal one
            return turn.parent
        if parent is None or parent.digest != turn.before:
            raise ResponseNotFoundError
        earlier.append(parent)
        turn = parent
    return Conversation(tuple(reversed(earlier)), last)


EARLIER_FIELDS: Final = ("parent", "before", "digest", "input", "output")
TURN_FIELDS: Final = (*EARLIER_FIELDS, "size", "root", "ancestors", "alive_until", "ambiguous", "engine")
_NUMBER: Final = re.compile(rb"[0-9]{1,15}")


def encode_fields(response: KeptResponse, created: float) -> list[str | bytes]:
    fields: dict[str, str | bytes] = {
        "parent": response.parent,
        "root": response.root,
        "ancestors": " ".join(response.ancestors),
        "before": response.before,
        "digest": response.digest,
        "size": str(response.size),
        "alive_until": str(response.alive_until),
        "input": b"[%b]" % response.input,
        "output": b"[%b]" % response.output,
        "response": response.response,
        "created": f"{created:.3f}",
    }
    if response.engine:
        fields["engine"] = response.engine
    return [word for field in fields.items() for word in field]


def decode_turn(id_: str, reply: Any) -> KeptResponse | None:
    """`reply`: to HMGET with TURN_FIELDS. None if it is not there, or ambiguous.

    Raises any exception for a reply that HMGET cannot have.
    """
    earlier = _decode_earlier(id_, reply[: len(EARLIER_FIELDS)])
    size, root, ancestors, alive_until, ambiguous, engine = reply[len(EARLIER_FIELDS) :]
    if earlier is None or ambiguous or _NUMBER.fullmatch(size or b"") is None:
        return None
    return KeptResponse(
        id=id_,
        parent=earlier.parent,
        root=_text(root),
        ancestors=tuple(_text(ancestors).split()),
        before=earlier.before,
        digest=earlier.digest,
        size=int(size),
        alive_until=int(alive_until) if _NUMBER.fullmatch(alive_until or b"") else 0,
        input=earlier.input,
        output=earlier.output,
        engine=engine.decode("utf-8", "replace") if engine else "",
    )


def decode_earlier_turns(ids: Sequence[str], replies: Sequence[Any]) -> dict[str, EarlierTurn]:
    """Those that are there. `replies`: to HMGET with EARLIER_FIELDS, for each id. Raises as decode_turn does."""
    turns = [_decode_earlier(id_, reply) for id_, reply in zip(ids, replies, strict=True)]
    return {turn.id: turn for turn in turns if turn is not None}


def _decode_earlier(id_: str, reply: Any) -> EarlierTurn | None:
    parent, before, digest, input_, output = reply
    if not digest:
        return None  # it is not there, or no record of ours
    return EarlierTurn(
        id_, _text(parent), _text(before), _text(digest), (input_ or b"[]")[1:-1], (output or b"[]")[1:-1]
    )


def _text(value: bytes | None) -> str:
    return value.decode("ascii", "replace") if value else ""
