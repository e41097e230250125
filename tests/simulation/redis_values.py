"""The values of Redis keys other than strings (bytes) and hashes (dict): sorted sets and streams."""

from typing import Any, Final

StreamId = tuple[int, int]
"""A stream record's milliseconds and sequence number."""

MAX_SEQUENCE_NUMBER: Final = (1 << 64) - 1
_NODE_SIZE: Final = 100  # records of a stream's node (stream-node-max-entries): `~` trims whole nodes


class RedisError(Exception):
    """An error reply; the message is its text."""


class SortedSet(dict[bytes, float]):
    """Members and their scores."""

    def ranked(self) -> list[bytes]:
        return sorted(self, key=lambda member: (self[member], member))


class RedisStream:
    """Records in the order of their ids. `last`: the last id that was assigned, even if its record was trimmed."""

    __slots__ = ("last", "records")

    def __init__(self) -> None:
        self.last: StreamId = (0, 0)
        self.records: list[tuple[StreamId, list[bytes]]] = []

    def copy(self) -> "RedisStream":
        copied = RedisStream()
        copied.last, copied.records = self.last, list(self.records)
        return copied

    def add(self, wanted: bytes, fields: list[bytes], now: int) -> StreamId:
        """Add a record; `now` in milliseconds."""
        id_ = self._next(wanted, now)
        if id_ <= self.last:
            raise RedisError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
        self.last = id_
        self.records.append((id_, fields))
        return id_

    def _next(self, wanted: bytes, now: int) -> StreamId:
        last, number = self.last
        if wanted == b"*":
            return (now, 0) if now > last else (last, number + 1)
        milliseconds, _, rest = wanted.partition(b"-")
        if rest == b"*":
            time = _number(milliseconds)
            return (time, number + 1) if time == last else (time, 0)
        return read_id(wanted, 0)

    def trim(self, how: bytes, threshold: bytes, *, about: bool) -> int:
        """Remove the oldest records by MAXLEN or MINID. Returns how many."""
        if how == b"MAXLEN":
            count = max(0, len(self.records) - _number(threshold))
        else:
            first = read_id(threshold, 0)
            count = next(
                (position for position, (id_, _) in enumerate(self.records) if id_ >= first), len(self.records)
            )
        if about:  # `~` removes whole nodes only
            count -= count % _NODE_SIZE
        del self.records[:count]
        return count

    def range(self, start: bytes, end: bytes, count: int | None, *, reverse: bool = False) -> list[Any]:
        """The records between two ids, as in a reply."""
        low, high = _bound(start, 0), _bound(end, MAX_SEQUENCE_NUMBER)
        if start.startswith(b"("):
            low = (low[0], low[1] + 1) if low[1] < MAX_SEQUENCE_NUMBER else (low[0] + 1, 0)
        if end.startswith(b"("):
            high = (high[0], high[1] - 1) if high[1] else (high[0] - 1, MAX_SEQUENCE_NUMBER)
        records = [[write_id(id_), fields] for id_, fields in self.records if low <= id_ <= high]
        if reverse:
            records.reverse()
        return records if count is None else records[:count]


def read_id(text: bytes, rest: int) -> StreamId:
    """An id. `rest` is the sequence number if it has none."""
    milliseconds, dash, number = text.partition(b"-")
    return _number(milliseconds), _number(number) if dash else rest


def check_id(wanted: bytes) -> None:
    """Raises RedisError for an invalid id."""
    if not wanted.endswith(b"*") and read_id(wanted, 0) == (0, 0):
        raise RedisError("ERR The ID specified in XADD must be greater than 0-0")


def write_id(id_: StreamId) -> bytes:
    return b"%d-%d" % id_


def _bound(text: bytes, rest: int) -> StreamId:
    if text == b"-":
        return (0, 0)
    if text == b"+":
        return (MAX_SEQUENCE_NUMBER, MAX_SEQUENCE_NUMBER)
    return read_id(text.removeprefix(b"("), rest)


def _number(text: bytes) -> int:
    if not text.isdigit():
        raise RedisError("ERR Invalid stream ID specified as stream command argument")
    return int(text)
