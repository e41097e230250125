"""The Lua scripts of batches, reimplemented in Python; see redis_scripts."""

from collections.abc import Callable
from typing import Any, Final

from router.shared.batches import batch_records
from tests.simulation.redis_data import RedisData
from tests.simulation.redis_values import SortedSet


def _admit(data: RedisData, key: bytes, words: list[bytes]) -> int:
    prefix, most, score, member = words
    if sum(each.startswith(prefix) for each in data.get(key, SortedSet) or ()) >= int(most):
        return 0
    data.check_memory()
    members = data.get_or_create(key, SortedSet)
    members[member] = members.get(member, 0.0) + float(score)
    return 1


class _Batch:
    """`now`, `until` in milliseconds."""

    def __init__(self, data: RedisData, key: bytes, now: int, until: int, token: bytes) -> None:
        self.fields = data.get_or_create(key, dict)
        self.now, self.until, self.token = now, until, token

    def is_held(self, until: int) -> bool:
        return self.now < until <= 2 * self.until - self.now

    def take_job(self, what: bytes) -> list[bytes]:
        if self.is_held(int(self.fields.get(b"job", b" 0").split()[-1])):
            return [b"wait"]
        self.fields[b"job"] = b"%b %d" % (self.token, self.until)
        return [what, self.fields.get(b"ends_as", b"")]

    def take_range(self, number: int, why_none: bytes) -> list[bytes]:
        if self.fields.get(b"paused") == b"1":
            return [b"wait"]
        if why_none:
            self.fields[b"waiting"] = why_none
            self.fields.pop(b"limited", None)
            return [b"wait"]
        for field in (b"waiting", b"limited"):
            self.fields.pop(field, None)
        state = self.fields.get(b"range:%d" % number, b"held - 1 0 0 0").split()
        counts = b" ".join(state[3:])
        self.fields[b"range:%d" % number] = b"held %b %d %b" % (self.token, self.until, counts)
        return [b"range", b"%d" % number, state[1] if state[2] == b"0" else b""]

    def ranges(self) -> tuple[int | None, bool]:
        """The first one that is to be done, and whether another process holds one."""
        first, held = None, False
        for number in range(int(self.fields.get(b"ranges", b"0"))):
            state = self.fields.get(b"range:%d" % number, b"held - 1").split()
            if state[0] == b"held" and self.is_held(int(state[2])):
                held = True
            elif state[0] == b"held" and first is None:
                first = number
        return first, held


def _claim(data: RedisData, key: bytes, words: list[bytes]) -> list[bytes]:
    now, until, token, seconds, why_none, may_take_range = words
    status = (data.get(key, dict) or {}).get(b"status")
    if status in (None, b"completed", b"failed", b"expired", b"cancelled"):
        return [b"ended"]
    data.check_memory()
    batch = _Batch(data, key, int(now), int(until), token)
    fields = batch.fields
    has_expired = int(now) >= 1000 * int(fields[b"expires"])
    if status == b"validating":
        is_paused = fields.get(b"paused") == b"1" and not has_expired
        return [b"wait"] if is_paused else batch.take_job(b"validate")
    if status == b"in_progress" and has_expired:
        fields |= {b"ends_as": b"expired", b"status": b"finalizing", b"finalizing_at": seconds}
    if status == b"cancelling":
        fields.setdefault(b"ends_as", b"cancelled")
    first, held = batch.ranges()
    if fields[b"status"] == b"in_progress":
        if first is not None:
            return batch.take_range(first, why_none) if may_take_range == b"1" else [b"wait"]
        if not held:
            fields |= {b"ends_as": b"completed", b"status": b"finalizing", b"finalizing_at": seconds}
    return [b"wait"] if held else batch.take_job(b"finalize")


def _range_of(data: RedisData, key: bytes, number: bytes, token: bytes) -> list[bytes] | None:
    """The words of its state, if this token holds it."""
    state = (data.get(key, dict) or {}).get(b"range:%b" % number, b"- -").split()
    return state if state[:2] == [b"held", token] else None


def _renew_range(data: RedisData, key: bytes, words: list[bytes]) -> int:
    if _range_of(data, key, words[0], words[1]) is None:
        return 0
    data.check_memory()
    fields = data.get_or_create(key, dict)
    fields[b"range:%b" % words[0]] = b"held " + b" ".join(words[1:6])
    if fields[b"status"] != b"in_progress" or int(words[6]) >= int(fields[b"expires"]):
        return 0
    return 2 if fields.get(b"paused") == b"1" else 1


def _finish_range(data: RedisData, key: bytes, words: list[bytes]) -> int:
    number, token, state, *counts = words
    before = _range_of(data, key, number, token)
    if before is None:
        return 0
    data.check_memory()
    fields = data.get_or_create(key, dict)
    fields[b"range:%b" % number] = b" ".join([state, token, b"0", *(counts or before[3:])])
    if state == b"done":
        for name, count in zip((b"completed", b"failed", b"cached"), counts, strict=True):
            fields[name] = b"%d" % (int(fields.get(name, b"0")) + int(count))
    return 1


def _holds_job(data: RedisData, key: bytes, token: bytes) -> bool:
    return (data.get(key, dict) or {}).get(b"job", b"-").split()[0] == token


def _renew_job(data: RedisData, key: bytes, words: list[bytes]) -> int:
    if not _holds_job(data, key, words[0]):
        return 0
    data.check_memory()
    data.get_or_create(key, dict)[b"job"] = b" ".join(words)
    return 1


def _finish_job(data: RedisData, key: bytes, words: list[bytes]) -> int:
    token, ttl, *pairs = words
    if not _holds_job(data, key, token):
        return 0
    data.check_memory()
    fields = data.get_or_create(key, dict)
    del fields[b"job"]
    new = dict(zip(pairs[::2], pairs[1::2], strict=True))
    if fields[b"status"] == b"cancelling" and new.get(b"status") == b"in_progress":
        del new[b"status"]
    fields |= new
    if ttl != b"0":
        data.expire_at(key, data.clock() + int(ttl))
    return 1


def _set_waiting(data: RedisData, key: bytes, words: list[bytes]) -> None:
    if data.find(key) is not None:
        data.check_memory()
        data.get_or_create(key, dict).update({b"waiting": words[0], b"limited": words[1]})


def _change(new: Callable[[bytes], dict[bytes, bytes]]) -> Callable[[RedisData, bytes, list[bytes]], bytes | None]:
    """A script that sets fields of a batch that has not ended."""

    def run(data: RedisData, key: bytes, words: list[bytes]) -> bytes | None:
        status = (data.get(key, dict) or {}).get(b"status")
        if status in (b"validating", b"in_progress"):
            data.check_memory()
            fields = data.get_or_create(key, dict)
            fields |= new(words[0])
        return status

    return run


def _progress(data: RedisData, key: bytes, _: list[bytes]) -> list[bytes]:
    words, sums = [], [0, 0, 0]
    for field, value in (data.get(key, dict) or {}).items():
        if not field.startswith(b"range:"):
            words += [field, value]
        elif value.startswith(b"held "):
            sums = [before + int(more) for before, more in zip(sums, value.split()[3:], strict=True)]
    return [*words, b"range:held", b"held - 0 %d %d %d" % (*sums,)] if words else []


BATCH_SCRIPTS: Final[dict[bytes, Callable[[RedisData, bytes, list[bytes]], Any]]] = {
    batch_records._ADMIT_SCRIPT.encode(): _admit,
    batch_records._CLAIM_SCRIPT.encode(): _claim,
    batch_records._RENEW_RANGE_SCRIPT.encode(): _renew_range,
    batch_records._FINISH_RANGE_SCRIPT.encode(): _finish_range,
    batch_records._RENEW_JOB_SCRIPT.encode(): _renew_job,
    batch_records._FINISH_JOB_SCRIPT.encode(): _finish_job,
    batch_records._SET_WAITING_SCRIPT.encode(): _set_waiting,
    batch_records._PROGRESS_SCRIPT.encode(): _progress,
    batch_records._CANCEL_SCRIPT.encode(): _change(
        lambda now: {b"status": b"cancelling", b"cancelling_at": now, b"paused": b"0"}
    ),
    batch_records._PAUSE_SCRIPT.encode(): _change(lambda paused: {b"paused": paused}),
}
