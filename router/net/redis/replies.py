"""Checks of the form of replies: a script at our key may be another's, and a server may be no Redis at all."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from router.net.redis.errors import UnexpectedReplyError

T = TypeVar("T")

_MAX_ID: Final = 41  # bytes of a record's id: two numbers of 64 bits


def decode_reply(decode: Callable[[Any], T], reply: Any) -> T:
    """What `decode` makes of a reply. Raises UnexpectedReplyError if it raises."""
    try:
        return decode(reply)
    except UnexpectedReplyError:
        raise
    except Exception as error:
        # Any exception: which one it is depends on what the reply is in place of what the decoder expects.
        raise UnexpectedReplyError.of(reply) from error


def integers(reply: Any, count: int) -> list[int]:
    """A list of so many integers. Raises UnexpectedReplyError."""
    if not isinstance(reply, list) or len(reply) != count or not all(type(number) is int for number in reply):
        raise UnexpectedReplyError.of(reply)
    return reply


def hash_fields(reply: Any) -> dict[bytes, bytes]:
    """The reply to HGETALL, which is a map or a list by the protocol's version. Raises UnexpectedReplyError.

    None is a value of another type, which counts as empty.
    """
    fields: Any = {} if reply is None else reply
    if isinstance(fields, list) and len(fields) % 2 == 0:
        fields = decode_reply(_fields_of_list, fields)
    if not isinstance(fields, dict) or not all(type(word) is bytes for pair in fields.items() for word in pair):
        raise UnexpectedReplyError.of(reply)
    return fields


def _fields_of_list(words: list[Any]) -> dict[Any, Any]:
    return dict(zip(words[::2], words[1::2], strict=True))


def stream_records(reply: Any) -> list[tuple[bytes, Any]]:
    """The reply to XRANGE: ids, and fields as in `hash_fields`. Raises UnexpectedReplyError."""
    return decode_reply(_records, reply)


def _records(reply: list[Any]) -> list[tuple[bytes, Any]]:
    records: list[tuple[bytes, Any]] = []
    for id_, fields in reply:
        milliseconds, _, number = id_.partition(b"-")
        if not (milliseconds.isdigit() and number.isdigit() and len(id_) <= _MAX_ID) or fields is None:
            raise ValueError("no record")
        hash_fields(fields)
        records.append((id_, fields))
    return records
