"""Redis' commands on data, as far as the router and its tools use them. Any other command is an error reply."""

from collections.abc import Callable
from typing import Any, Final

from tests.simulation.redis_data import RedisData
from tests.simulation.redis_scripts import run_script
from tests.simulation.redis_values import RedisError, RedisStream, SortedSet, check_id, write_id

Arguments = list[bytes]
_SYNTAX: Final = "ERR syntax error"
_NO_INTEGER: Final = "ERR value is not an integer or out of range"


class Status(str):
    """A simple string: `OK`."""

    __slots__ = ()


OK: Final = Status("OK")


def _integer(word: bytes) -> int:
    try:
        return int(word)
    except ValueError:
        raise RedisError(_NO_INTEGER) from None


# -- keys -------------------------------------------------------------------------------------------------------------


def _exists(data: RedisData, words: Arguments) -> int:
    return sum(data.find(key) is not None for key in words)


def _del(data: RedisData, words: Arguments) -> int:
    return sum(data.remove(key) for key in words)


def _expire_in(unit: int) -> Callable[[RedisData, Arguments], int]:
    def expire(data: RedisData, words: Arguments) -> int:
        if data.find(words[0]) is None:
            return 0
        data.expire_at(words[0], data.clock() + unit * _integer(words[1]))
        return 1

    return expire


def _left_in(unit: int) -> Callable[[RedisData, Arguments], int]:
    def remaining(data: RedisData, words: Arguments) -> int:
        if data.find(words[0]) is None:
            return -2
        expires_at = data.expires(words[0])
        return -1 if expires_at is None else (expires_at - data.clock() + unit // 2) // unit

    return remaining


def _persist(data: RedisData, words: Arguments) -> int:
    if data.find(words[0]) is None or data.expires(words[0]) is None:
        return 0
    data.expire_at(words[0], None)
    return 1


def _rename(data: RedisData, words: Arguments) -> Status:
    value, expires_at = data.find(words[0]), data.expires(words[0])
    if value is None:
        raise RedisError("ERR no such key")
    if words[0] != words[1]:
        data.put(words[1], value)
        data.expire_at(words[1], expires_at)
        data.delete(words[0])
    return OK


def _type(data: RedisData, words: Arguments) -> Status:
    names = {dict: "hash", list: "list", SortedSet: "zset", RedisStream: "stream", type(None): "none"}
    return Status(names.get(type(data.find(words[0])), "string"))


def _memory(data: RedisData, words: Arguments) -> int | None:
    """The sizes are not those of Redis."""
    if words[0].upper() != b"USAGE" or len(words) not in (2, 4):  # SAMPLES and a number
        raise RedisError("ERR the model of Redis knows MEMORY USAGE alone")
    value = data.find(words[1])
    return None if value is None else 64 + len(words[1]) + len(repr(value))


def _scan(data: RedisData, words: Arguments) -> list[Any]:
    """The cursor is a position in the sorted list of keys, which is good enough while keys are not added."""
    options = {words[position].upper(): words[position + 1] for position in range(1, len(words), 2)}
    position, count = _integer(words[0]), _integer(options.get(b"COUNT", b"10"))
    all_keys = data.keys()
    matching = set(data.keys(options.get(b"MATCH", b"*").decode("latin-1")))
    keys = [key for key in all_keys[position : position + count] if key in matching and data.find(key) is not None]
    if (kind := options.get(b"TYPE")) is not None:
        keys = [key for key in keys if _type(data, [key]) == kind.decode().lower()]
    return [b"%d" % (position + count if position + count < len(all_keys) else 0), keys]


# -- strings ----------------------------------------------------------------------------------------------------------


def _get(data: RedisData, words: Arguments) -> bytes | None:
    return data.get(words[0], bytes)


def _set(data: RedisData, words: Arguments) -> Any:
    key, value, *options = words
    names = [option.upper() for option in options]
    expiry, give, before = None, b"GET" in names, None
    for at, name in enumerate(names):
        if name in (b"PX", b"EX"):
            expiry = data.clock() + _integer(options[at + 1]) * (1000 if name == b"EX" else 1)
        elif name == b"PXAT":
            expiry = _integer(options[at + 1])
    if give:
        before = data.get(key, bytes)
    exists = data.find(key) is not None
    if (b"NX" in names and exists) or (b"XX" in names and not exists):
        return before
    data.put(key, value, keep_expiry=b"KEEPTTL" in names)
    if expiry is not None:
        data.expire_at(key, expiry)
    return before if give else OK


def _incr(data: RedisData, words: Arguments) -> int:
    held = data.get(words[0], bytes)
    number = _integer(b"0" if held is None else held) + 1  # an empty value is no number
    data.put(words[0], b"%d" % number, keep_expiry=True)
    return number


# -- hashes -----------------------------------------------------------------------------------------------------------


def _hash(data: RedisData, key: bytes) -> dict[bytes, bytes]:
    return data.get(key, dict) or {}


def _hset(data: RedisData, words: Arguments) -> int:
    if len(words) % 2 == 0:
        raise RedisError("ERR wrong number of arguments for 'hset' command")
    fields = data.get_or_create(words[0], dict)
    before = len(fields)
    fields.update(zip(words[1::2], words[2::2], strict=True))
    return len(fields) - before


def _hsetnx(data: RedisData, words: Arguments) -> int:
    if words[1] in _hash(data, words[0]):
        return 0
    return _hset(data, words)


def _hdel(data: RedisData, words: Arguments) -> int:
    names = {name for name in words[1:] if name in _hash(data, words[0])}
    if names:
        fields = data.get_or_create(words[0], dict)
        for name in names:
            fields.pop(name, None)
        if not fields:
            data.delete(words[0])
    return len(names)


def _hincrby(data: RedisData, words: Arguments) -> int:
    change, held = _integer(words[2]), _hash(data, words[0]).get(words[1], b"0")
    try:
        number = int(held) + change
    except ValueError:
        raise RedisError("ERR hash value is not an integer") from None
    data.get_or_create(words[0], dict)[words[1]] = b"%d" % number
    return number


# -- sorted sets ------------------------------------------------------------------------------------------------------


def _zincrby(data: RedisData, words: Arguments) -> float:
    old_score = (data.get(words[0], SortedSet) or SortedSet()).get(words[2])
    score = (old_score or 0.0) + float(words[1])
    if score != old_score:  # an unchanged score invalidates nothing
        data.get_or_create(words[0], SortedSet)[words[2]] = score
    return score


def _zremove(data: RedisData, key: bytes, members: list[bytes]) -> int:
    present = {member for member in members if member in (data.get(key, SortedSet) or ())}
    if present:
        scores = data.get_or_create(key, SortedSet)
        for member in present:
            scores.pop(member, None)
        if not scores:
            data.delete(key)
    return len(present)


def _zremrangebyrank(data: RedisData, words: Arguments) -> int:
    ranked = (data.get(words[0], SortedSet) or SortedSet()).ranked()
    return _zremove(data, words[0], _slice(ranked, words[1:3]))


def _zrevrange(data: RedisData, words: Arguments) -> list[Any]:
    if len(words) not in (3, 4) or (len(words) == 4 and words[3].upper() != b"WITHSCORES"):
        raise RedisError(_SYNTAX)
    scores = data.get(words[0], SortedSet) or SortedSet()
    members = _slice(scores.ranked()[::-1], words[1:3])
    return [[member, scores[member]] for member in members] if len(words) == 4 else members


# -- lists ------------------------------------------------------------------------------------------------------------


def _slice(items: list[bytes], bounds: Arguments) -> list[bytes]:
    """Those between two indices, of which the second is included; a negative one counts from the end."""
    first, last = (index + len(items) if index < 0 else index for index in map(_integer, bounds))
    return items[max(0, first) : last + 1] if last >= 0 else []


def _push(data: RedisData, words: Arguments, *, left: bool) -> int:
    items = data.get_or_create(words[0], list)
    items[:] = [*words[:0:-1], *items] if left else [*items, *words[1:]]
    return len(items)


def _ltrim(data: RedisData, words: Arguments) -> Status:
    bounds = words[1:3]
    for bound in bounds:  # Redis parses them before it looks up the key
        _integer(bound)
    if data.get(words[0], list) is not None:
        items = data.get_or_create(words[0], list)
        items[:] = _slice(items, bounds)
        if not items:
            data.delete(words[0])
    return OK


# -- streams ----------------------------------------------------------------------------------------------------------


def _xadd(data: RedisData, words: Arguments) -> bytes | None:
    key, rest = words[0], words[1:]
    trim, about, create = None, False, True
    while rest[0].upper() in (b"NOMKSTREAM", b"MAXLEN", b"MINID"):
        option = rest.pop(0).upper()
        if option == b"NOMKSTREAM":
            create = False
            continue
        if rest[0] in (b"=", b"~"):
            about = rest.pop(0) == b"~"
        trim = option, rest.pop(0)
    if len(rest) < 3 or len(rest) % 2 == 0:
        raise RedisError("ERR wrong number of arguments for 'xadd' command")
    check_id(rest[0])
    existing = data.get(key, RedisStream)
    if existing is None and not create:
        return None
    # On a copy, so that an invalid id creates and changes nothing.
    id_ = (existing.copy() if existing is not None else RedisStream()).add(rest[0], [], data.clock())
    stream = data.get_or_create(key, RedisStream)
    stream.add(write_id(id_), rest[1:], data.clock())
    if trim is not None:
        stream.trim(*trim, about=about)
    return write_id(id_)


def _range(data: RedisData, words: Arguments, *, reverse: bool) -> list[Any]:
    if len(words) not in (3, 5):
        raise RedisError(_SYNTAX)
    count = _integer(words[4]) if len(words) == 5 else None
    start, end = (words[2], words[1]) if reverse else (words[1], words[2])
    RedisStream().range(start, end, count)  # Redis parses the ids before it looks up the key
    stream = data.get(words[0], RedisStream)
    return (stream or RedisStream()).range(start, end, count, reverse=reverse)


def _xinfo(data: RedisData, words: Arguments) -> dict[bytes, Any]:
    if words[0].upper() != b"STREAM" or len(words) != 2:
        raise RedisError("ERR the model of Redis knows XINFO STREAM alone")
    stream = data.get(words[1], RedisStream)
    if stream is None:
        raise RedisError("ERR no such key")
    return {b"length": len(stream.records), b"last-generated-id": write_id(stream.last)}


def _time(data: RedisData, _: Arguments) -> list[bytes]:
    now = data.clock()
    return [b"%d" % (now // 1000), b"%d" % (now % 1000 * 1000)]


CommandFunction = Callable[[RedisData, Arguments], Any]

READS: Final[dict[bytes, CommandFunction]] = {
    b"EXISTS": _exists,
    b"GET": _get,
    b"HGET": lambda data, words: _hash(data, words[0]).get(words[1]),
    b"HGETALL": lambda data, words: dict(_hash(data, words[0])),
    b"HKEYS": lambda data, words: list(_hash(data, words[0])),
    b"HLEN": lambda data, words: len(_hash(data, words[0])),
    b"HMGET": lambda data, words: [_hash(data, words[0]).get(name) for name in words[1:]],
    b"LLEN": lambda data, words: len(data.get(words[0], list) or ()),
    b"LRANGE": lambda data, words: _slice(data.get(words[0], list) or [], words[1:3]),
    b"MEMORY": _memory,
    b"PTTL": _left_in(1),
    b"SCAN": _scan,
    b"STRLEN": lambda data, words: len(_get(data, words) or b""),
    b"TIME": _time,
    b"TTL": _left_in(1000),
    b"TYPE": _type,
    b"XINFO": _xinfo,
    b"XLEN": lambda data, words: len((data.get(words[0], RedisStream) or RedisStream()).records),
    b"XRANGE": lambda data, words: _range(data, words, reverse=False),
    b"XREVRANGE": lambda data, words: _range(data, words, reverse=True),
    b"ZCARD": lambda data, words: len(data.get(words[0], SortedSet) or ()),
    b"ZREVRANGE": _zrevrange,
    b"ZSCORE": lambda data, words: (data.get(words[0], SortedSet) or SortedSet()).get(words[1]),
}

TAKE_MEMORY: Final = frozenset(
    (b"HINCRBY", b"HSET", b"HSETNX", b"INCR", b"LPUSH", b"RPUSH", b"SET", b"XADD", b"ZINCRBY")
)
"""The commands that a full Redis refuses; a script with one of them ends there."""

WRITES: Final[dict[bytes, CommandFunction]] = {
    b"DEL": _del,
    b"EVAL": run_script,
    b"EXPIRE": _expire_in(1000),
    b"HDEL": _hdel,
    b"HINCRBY": _hincrby,
    b"HSET": _hset,
    b"HSETNX": _hsetnx,
    b"INCR": _incr,
    b"LPUSH": lambda data, words: _push(data, words, left=True),
    b"LTRIM": _ltrim,
    b"PERSIST": _persist,
    b"PEXPIRE": _expire_in(1),
    b"RENAME": _rename,
    b"RPUSH": lambda data, words: _push(data, words, left=False),
    b"SET": _set,
    b"UNLINK": _del,
    b"XADD": _xadd,
    b"ZINCRBY": _zincrby,
    b"ZREM": lambda data, words: _zremove(data, words[0], words[1:]),
    b"ZREMRANGEBYRANK": _zremrangebyrank,
}

MIN_ARGUMENTS: Final = {
    b"HMGET": 2,
    b"HGET": 2,
    b"LPUSH": 2,
    b"RPUSH": 2,
    b"LRANGE": 3,
    b"LTRIM": 3,
    b"ZREVRANGE": 3,
    b"RENAME": 2,
    b"SET": 2,
    b"HSET": 3,
    b"HINCRBY": 3,
    b"XADD": 4,
    b"EVAL": 2,
    b"ZREM": 2,
    b"TIME": 0,
}
"""Minimum number of arguments of a command; 1 for the others."""
