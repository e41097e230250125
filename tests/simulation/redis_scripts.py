"""The Lua scripts that the router runs, by their text, reimplemented in Python.

An unknown script is an error reply that shows its text: a changed script must be changed here too. The contract tests
run each of them against a real server.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from router.core.quota.budget import BudgetUse, use_at
from router.core.quota.rate_limit import Quota, TenantUsage, UsageUpdate
from router.shared import scripts
from router.shared.accounting import daily_sums
from router.shared.audit import audit_stream
from router.shared.cache import retention, sample_order
from router.shared.credentials import key_records
from router.shared.engines import announcements, drains, gpu_groups
from router.shared.inflight import claims
from router.shared.prompts import recent_prompts
from router.shared.quota import budgets
from router.shared.quota import rate_limit_script as limits
from router.shared.responses import background_records, item_index, response_index, response_records
from router.store import entry_store as store
from router.store.admin import answers, scan
from tests.simulation.redis_batch_scripts import BATCH_SCRIPTS
from tests.simulation.redis_data import RedisData
from tests.simulation.redis_values import RedisError, RedisStream, SortedSet, write_id

ScriptFunction = Callable[[RedisData, bytes, list[bytes]], Any]
_REFUSED: Final = {None: 0, "requests": 1, "tokens": 2, "concurrent requests": 3}


class UsageText(bytes):
    """A tenant's usage, where Redis has JSON."""

    usage: TenantUsage


def _put(data: RedisData, key: bytes, value: Any, *, keep_expiry: bool = False) -> None:
    data.check_memory()
    data.put(key, value, keep_expiry=keep_expiry)


def _delete_if_same(data: RedisData, key: bytes, words: list[bytes]) -> int:
    if data.get(key, bytes) != words[0]:
        return 0
    return int(data.remove(key))


def _replace_if_same(data: RedisData, key: bytes, words: list[bytes]) -> Any:
    current = data.get(key, bytes)
    if current is not None and current != words[0]:
        return current
    _put(data, key, words[1])
    data.expire_at(key, data.clock() + int(words[2]))
    return 1


def _renew(data: RedisData, key: bytes, words: list[bytes]) -> int:
    if data.get(key, bytes) != words[0]:
        return 0
    data.expire_at(key, data.clock() + int(words[1]))
    return 1


def _write(data: RedisData, key: bytes, words: list[bytes]) -> int:
    _put(data, key, dict(zip(words[1::2], words[2::2], strict=True)))
    data.expire_at(key, data.clock() + int(words[0]))
    return 1


def _write_if_youngest(data: RedisData, key: bytes, words: list[bytes]) -> int:
    current = data.find(key)
    created = current.get(b"created") if isinstance(current, dict) else None
    if isinstance(created, bytes) and re.fullmatch(rb"[0-9.]+", created) and float(created) > float(words[1]):
        return 0
    return _write(data, key, [words[0], *words[2:]])


def _delete_if_unchanged(data: RedisData, key: bytes, words: list[bytes]) -> int:
    current = data.get(key, dict) or {}
    if [current.get(name, b"") for name in (b"created", b"checksum")] != words[:2]:
        return 0
    return int(data.remove(key))


def _end_probation(data: RedisData, key: bytes, words: list[bytes]) -> int:
    entry, expires_at = data.get(key, dict) or {}, data.expires(key)
    fields = [float(entry[name]) for name in (b"created", b"ttl", b"stale") if name in entry]
    if len(fields) < 3 or expires_at is None:
        return 0
    left = int(1000 * sum(fields)) - data.clock()
    if left < expires_at - data.clock() + int(words[0]):
        return 0
    data.expire_at(key, data.clock() + left)
    return 1


def _limit(data: RedisData, key: bytes, words: list[bytes]) -> list[int]:
    process, ask, done, working, spent, requests, tokens, concurrent, lease, now = words
    at = int(now) if now else data.clock()
    current = data.find(key)
    # A copy of the state: the journal may still need the old value.
    text = UsageText(b"ledger")
    text.usage = TenantUsage()
    if isinstance(current, UsageText):
        for name in TenantUsage.__slots__:
            value = getattr(current.usage, name)
            setattr(text.usage, name, value.copy() if isinstance(value, list | dict) else value)
    step = UsageUpdate(
        process=process.decode(),
        acquire=ask != b"0",
        needs_tokens=ask != b"2",
        released=int(done),
        running=_optional(working),
        tokens_used=int(spent),
    )
    quota = Quota(
        requests_per_minute=_optional(requests), tokens_per_minute=_optional(tokens),
        concurrent_requests=_optional(concurrent),
    )  # fmt: skip
    status = text.usage.apply(quota, step, at, int(lease))
    _put(data, key, text)
    data.expire_at(key, data.clock() + max(limits.RUNNING_LEASE_MS, 60_000) + 1000 + status.tokens_reset_ms)
    return [
        _REFUSED[status.exceeded],
        status.retry_after_ms,
        status.requests_remaining,
        status.requests_reset_ms,
        status.tokens_remaining,
        status.tokens_reset_ms,
        status.running,
    ]


_BUDGET_FIELDS: Final = ("day", "month", "day_tokens", "day_gpu_ms", "month_tokens", "month_gpu_ms")


def _budget(data: RedisData, key: bytes, words: list[bytes]) -> list[int]:
    tokens, gpu_ms, now, ttl = words
    at = int(now) if now else data.clock() // 1000
    found = data.find(key)
    stored = {name.decode(): int(value) for name, value in found.items()} if isinstance(found, dict) else {}
    use = use_at(BudgetUse(now=at, **stored) if stored else None, at).plus(int(tokens), int(gpu_ms))
    values = [getattr(use, name) for name in _BUDGET_FIELDS]
    if (tokens, gpu_ms) != (b"0", b"0"):
        _put(data, key, {name.encode(): b"%d" % value for name, value in zip(_BUDGET_FIELDS, values, strict=True)})
        data.expire_at(key, data.clock() + 1000 * int(ttl))
    return [at, *values]


def _add_savings(data: RedisData, key: bytes, words: list[bytes]) -> int:
    sums = dict(data.get(key, dict) or {})
    for field, amount in zip(words[1::2], words[2::2], strict=True):
        sums[field] = b"%.15g" % (float(sums.get(field, b"0")) + float(amount))
    _put(data, key, sums)
    data.expire_at(key, data.clock() + 1000 * int(words[0]))
    return 1


def _merge_keys(data: RedisData, key: bytes, words: list[bytes]) -> list[int]:
    stored = dict(data.get(key, dict) or {})
    triples = list(zip(words[1::3], words[2::3], words[3::3], strict=True))
    written = 0
    for kind, id_, record in triples:
        if id_ not in stored or (kind == b"revoked" and stored[id_] != record):
            stored[id_] = record
            written += 1
    version = key_records.decode_version(stored.get(b"version", b"0"))
    if written:
        version = max(data.clock(), version + 1, int(words[0]) + 1)
        _put(data, key, {**stored, b"version": b"%d" % version}, keep_expiry=True)
    return [written, version]


def _add_used_keys(data: RedisData, key: bytes, words: list[bytes]) -> int:
    stored = dict(data.get(key, dict) or {})
    for id_, at in zip(words[1::2], words[2::2], strict=True):
        if int(at) > int(stored.get(id_, b"0")):
            stored[id_] = at
    _put(data, key, stored)
    data.expire_at(key, data.clock() + 1000 * int(words[0]))
    return 1


def _drain_state(stored: bytes | None) -> tuple[bytes, int]:
    found = re.fullmatch(rb"([A-Za-z]+) ([0-9]+)", stored or b"")
    return (found[1], int(found[2])) if found else (b"", 0)


def _set_drain(data: RedisData, key: bytes, states: dict[bytes, bytes], engine: bytes, state: bytes) -> int:
    _put(data, key, {**states, engine: state}, keep_expiry=True)
    return int(engine not in states)


def _change_drain(data: RedisData, key: bytes, words: list[bytes]) -> int:
    states = data.get(key, dict) or {}
    state, changed_at = _drain_state(states.get(words[0]))
    if state == words[1]:
        return 0
    now = max(data.clock(), changed_at + 1, int(words[2]) + 1)
    return _set_drain(data, key, states, words[0], b"%b %d" % (words[1], now))


def _restore_drain(data: RedisData, key: bytes, words: list[bytes]) -> int:
    states = data.get(key, dict) or {}
    if _drain_state(states.get(words[0]))[1] >= int(words[2]):
        return 0
    return _set_drain(data, key, states, words[0], b" ".join(words[1:]))


def _exchange_gpu_report(data: RedisData, key: bytes, words: list[bytes]) -> list[bytes]:
    process, own, text, lease, *lifetimes, retention = words
    now, fields = data.clock(), dict(data.get(key, dict) or {})
    fields[own] = b"%d %b" % (now, text)
    found = re.fullmatch(rb"(\S+) (\d+)", fields.get(b"lease", b""))
    holder, ends = (found[1], int(found[2])) if found else (b"", 0)
    if lease != b"0" and (holder == process or not now <= ends <= now + int(lease)):
        holder = process
        fields[b"lease"] = b"%b %d" % (holder, now + int(lease))
    reply = [holder, fields.get(b"state", b""), b""]
    for field in list(fields):
        kind = field.partition(b":")[0]
        if kind not in (b"process", b"launcher", b"order"):
            continue
        written = re.fullmatch(rb"(\d+) (.+)", fields[field], re.DOTALL)
        if written is None or abs(now - int(written[1])) > int(lifetimes[kind == b"order"]):
            del fields[field]
        elif kind == b"order":
            reply[2] = fields[field]
        else:
            reply += [field, written[2]]
    _put(data, key, fields)
    data.expire_at(key, now + 1000 * int(retention))
    return reply


def _set_gpu_state(data: RedisData, key: bytes, words: list[bytes]) -> int:
    process, state, order = words
    fields = dict(data.get(key, dict) or {})
    if fields.get(b"lease", b"").partition(b" ")[0] != process:
        return 0
    fields[b"state"] = state
    if order and fields.get(b"order") == order:
        del fields[b"order"]
    _put(data, key, fields, keep_expiry=True)
    return 1


def _give_gpu_order(data: RedisData, key: bytes, words: list[bytes]) -> int:
    now, fields = data.clock(), dict(data.get(key, dict) or {})
    found = re.fullmatch(rb"\S+ (\d+)", fields.get(b"lease", b""))
    if found is None or int(found[1]) < now:
        return 0
    fields[b"order"] = b"%d %b" % (now, words[0])
    _put(data, key, fields)
    data.expire_at(key, now + 1000 * int(words[1]))
    return 1


def _add_prompt(data: RedisData, key: bytes, words: list[bytes]) -> list[bytes]:
    id_, most = words[0], int(words[1])
    others = [each for each in dict.fromkeys(data.get(key, list) or []) if len(each) == len(id_) and each != id_]
    data.delete(key)
    data.put(key, [id_, *others[: most - 1]])
    data.expire_at(key, data.clock() + 1000 * int(words[2]))
    return others[most - 1 :]


def _write_response(data: RedisData, key: bytes, words: list[bytes]) -> int:
    held = dict(data.get(key, dict) or {})
    expires_at = data.clock() + int(words[0])
    is_collision = held.get(b"digest", words[1]) != words[1]
    if is_collision:
        _put(data, key, {**held, b"ambiguous": b"1"})
    elif b"digest" not in held or held[b"parent"]:
        _put(data, key, {**held, **dict(zip(words[2::2], words[3::2], strict=True))})
    data.expire_at(key, expires_at)
    return int(not is_collision)


def _write_output(data: RedisData, key: bytes, words: list[bytes]) -> int:
    held = dict(data.get(key, dict) or {})
    if not held.keys() & {b"digest", b"state"}:
        _put(data, key, {**held, **dict(zip(words[1::2], words[2::2], strict=True))})
    data.expire_at(key, data.clock() + int(words[0]))
    return 1


def _prolong_response(data: RedisData, key: bytes, words: list[bytes]) -> int:
    held = data.get(key, dict)
    if held is None:
        return 0
    data.expire_at(key, data.clock() + int(words[0]))
    _put(data, key, {**held, b"alive_until": words[1]}, keep_expiry=True)
    return 1


def _end_kept_response(data: RedisData, key: bytes, words: list[bytes]) -> int:
    return _change_running(data, key, words[0], dict(zip(words[2::2], words[3::2], strict=True))) or 2


def _end_response(data: RedisData, key: bytes, words: list[bytes]) -> int:
    ttl, body, events, expired_by = words
    held = data.get(key, dict) or {}
    if held.get(b"state") == b"running" and expired_by != b"0" and int(held[b"lease"]) > int(expired_by):
        return 0
    return _change_running(data, key, ttl, {b"state": b"ended", b"response": body, b"events": events})


def _add_events(data: RedisData, key: bytes, words: list[bytes]) -> int:
    held = data.get(key, dict) or {}
    if held.get(b"state") != b"ended" or held.get(b"events"):
        return 0
    _put(data, key, {**held, b"events": words[0]}, keep_expiry=True)
    return 1


def _renew_response(data: RedisData, key: bytes, words: list[bytes]) -> int:
    ttl, lease, body = words
    return _change_running(data, key, ttl, {b"lease": lease, **({b"response": body} if body else {})})


def _change_running(data: RedisData, key: bytes, ttl: bytes, fields: dict[bytes, bytes]) -> int:
    held = data.get(key, dict) or {}
    if held.get(b"state") != b"running":
        return 0
    _put(data, key, {**held, **fields})
    data.expire_at(key, data.clock() + int(ttl))
    return 1


def _forget_response(sizes: dict[bytes, bytes], id_: bytes) -> None:
    if id_ in sizes:
        _add_sizes(sizes, -1, -int(sizes.pop(id_)))


def _add_sizes(sizes: dict[bytes, bytes], count: int, size: int) -> None:
    for name, more in ((b":count", count), (b":bytes", size)):
        sizes[name] = b"%d" % (int(sizes.get(name, b"0")) + more)


def _forget_item(fields: dict[bytes, bytes], name: bytes, id_: bytes) -> None:
    count, response, rest = fields.pop(b"item:" + name).split(b" ", 2)
    if int(count) > 1:
        fields[b"item:" + name] = b"%d %b %b" % (int(count) - 1, b"?" if response == id_ else response, rest)


def _forget_items(fields: dict[bytes, bytes], id_: bytes) -> None:
    for name in fields.pop(b"items:" + id_, b"").split():
        _forget_item(fields, name, id_)


def _add_items(data: RedisData, key: bytes, words: list[bytes]) -> int:
    id_, size, *pairs = words
    fields = dict(data.get(key, dict) or {})
    if id_ not in fields:
        return 0
    before, names = fields.get(b"items:" + id_, b"").split(), list(dict.fromkeys(pairs[::2]))
    counts = {name: int(fields.get(b"item:" + name, b"0").split()[0]) + (name not in before) for name in names}
    for name, digest in zip(pairs[::2], pairs[1::2], strict=True):
        held = fields.get(b"item:" + name)
        shown = digest if held is None or held.split()[-1] == digest else b"?"
        fields[b"item:" + name] = b"%d %b %b %b" % (counts[name], id_, size, shown)
    for name in set(before) - set(names):
        _forget_item(fields, name, id_)
    fields[b"items:" + id_] = b" ".join(names)
    _put(data, key, fields, keep_expiry=True)
    return 1


def _touch_responses(data: RedisData, key: bytes, words: list[bytes]) -> int:
    sizes_key, ttl, now, *ids = words
    scores = SortedSet(data.get(key, SortedSet) or SortedSet())
    for id_ in scores.keys() & set(ids):
        scores[id_] = float(now)
    if scores:
        _put(data, key, scores)
        data.expire_at(key, data.clock() + int(ttl))
    if data.get(sizes_key, dict) is not None:
        data.expire_at(sizes_key, data.clock() + int(ttl))
    return 1


def _use_response(data: RedisData, key: bytes, words: list[bytes]) -> list[bytes]:
    sizes_key, ttl, now, most, most_bytes, size, new, *others = words
    scores = SortedSet(data.get(key, SortedSet) or SortedSet())
    sizes = dict(data.get(sizes_key, dict) or {})
    for id_ in (new, *[id_ for id_ in others if id_ in scores]):
        scores[id_] = float(now)
    if int(sizes.get(new, b"-1")) < int(size):
        _forget_response(sizes, new)
        sizes[new] = size
        _add_sizes(sizes, 1, int(size))
    gone = scores.ranked()[::-1][int(most) :]
    for id_ in gone:
        del scores[id_]
        _forget_response(sizes, id_)
        _forget_items(sizes, id_)
    expired = 0
    while len(scores) > 1:
        oldest = scores.ranked()[0]
        has_expired = expired < 100 and scores[oldest] <= int(now) - int(ttl)
        if not has_expired and int(sizes[b":bytes"]) <= int(most_bytes):
            break
        del scores[oldest]
        _forget_response(sizes, oldest)
        _forget_items(sizes, oldest)
        expired += has_expired
        gone += [] if has_expired else [oldest]
    if len(scores) == 1 and int(sizes[b":bytes"]) > int(most_bytes):
        sizes = {next(iter(scores)): size, b":count": b"1", b":bytes": size}
    for place, value in ((key, scores), (sizes_key, sizes)):
        _put(data, place, value)
        data.expire_at(place, data.clock() + int(ttl))
    return gone


def _remove_response(data: RedisData, key: bytes, words: list[bytes]) -> int:
    sizes_key, id_ = words
    scores, sizes = data.get(key, SortedSet), data.get(sizes_key, dict)
    if scores is not None and id_ in scores:
        others = SortedSet({each: score for each, score in scores.items() if each != id_})
        if others:
            data.put(key, others, keep_expiry=True)
        else:
            data.remove(key)
    if sizes is not None:
        left = dict(sizes)
        _forget_response(left, id_)
        _forget_items(left, id_)
        data.put(sizes_key, left, keep_expiry=True)
    return 1


def _response_crowding(data: RedisData, key: bytes, words: list[bytes]) -> bytes:
    sizes_key, most, most_bytes = words
    sizes = data.get(sizes_key, dict) or {}
    fit = float(most)
    if int(sizes.get(b":bytes", b"0")) > 0:
        fit = min(fit, int(most_bytes) * int(sizes[b":count"]) / int(sizes[b":bytes"]))
    scores = data.get(key, SortedSet) or SortedSet()
    ranked = scores.ranked()[::-1]
    place = int(fit / 10)
    return b"%.17g" % scores[ranked[place]] if place < len(ranked) else b"0"


def _next_sample(data: RedisData, key: bytes, words: list[bytes]) -> list[int]:
    count, session = int(words[0]), words[1]
    scores = SortedSet(data.get(key, SortedSet) or SortedSet())
    place = int(max(scores.values(), default=-1)) + 1
    numbers = [(place + step) % count for step in range(count)]
    free = [number for number in numbers if not session or b"%b:%d" % (session, number) not in scores]
    number = (free or numbers)[0]
    scores[b"%b:%d" % (session, number)] = float(place)
    for member in scores.ranked()[: -sample_order.MAX_REMEMBERED]:
        del scores[member]
    _put(data, key, scores)
    data.expire_at(key, data.clock() + int(words[2]))
    return [place, number, int(not free)]


_SHOWN_ONLY: Final = re.compile(rb',"(?:temperature_celsius|power_watts)":[^,}]*|,"restarts":{[^}]*}')


def _announced(value: bytes) -> tuple[int, bytes, bytes] | None:
    """When an engine was renewed, in microseconds, its owner, and the JSON."""
    found = re.fullmatch(rb"([0-9]+) (\S+) (.+)", value, re.DOTALL)
    return (int(found[1]), found[2], found[3]) if found else None


def _announce(data: RedisData, key: bytes, words: list[bytes]) -> list[bytes]:
    lease, retention, owner, count = int(words[0]), int(words[1]), words[2], int(words[3])
    pairs = list(zip(words[4::2], words[5::2], strict=True))
    engines, others = pairs[:count], pairs[count:]
    now = 1000 * data.clock()
    fields = dict(data.get(key, dict) or {})
    held = []
    is_changed = any(fields.get(field) != value for field, value in others)
    for field, body in engines:
        stored = _announced(fields.get(field, b""))
        holds = stored is not None and abs(now - stored[0]) < lease
        if stored is not None and holds and stored[2] != b"-" and stored[1] != owner:
            held.append(field)
        if stored is None or not holds or _SHOWN_ONLY.sub(b"", stored[2]) != _SHOWN_ONLY.sub(b"", body):
            is_changed = True
    if held:
        return held
    if is_changed:
        fields[b"changed"] = b"%d" % now
    fields |= {field: b"%d %b %b" % (now, owner, body) for field, body in engines}
    fields |= dict(others)
    renewed = {field: re.match(rb"([0-9]+) ", value) for field, value in fields.items()}
    gone = {field for field, found in renewed.items() if found is not None and now - int(found[1]) > retention}
    _put(data, key, {field: value for field, value in fields.items() if field not in gone}, keep_expiry=True)
    return []


def _read_announced(data: RedisData, key: bytes, words: list[bytes]) -> list[Any]:
    fields = data.get(key, dict) or {}
    return [b"%d" % (data.clock() // 1000), [word for pair in fields.items() for word in pair]]


def _append_audit(data: RedisData, key: bytes, words: list[bytes]) -> list[Any]:
    stream = data.get(key, RedisStream) or RedisStream()
    pairs = stream.records[-1][1] if stream.records else []
    newest = dict(zip(pairs[::2], pairs[1::2], strict=True))
    if newest.get(b"hash", b"") != words[0]:
        return [0, *[newest.get(name, b"") for name in (b"number", b"previous", b"hash")]]
    data.check_memory()
    seconds, most = int(words[2]), int(words[3])
    first = data.clock() // 1000 * 1000 - 1000 * seconds if seconds else 0
    trim = b"MINID", b"%d" % first
    if stream.records:
        (oldest_at, _), oldest = stream.records[0]
        number = dict(zip(oldest[::2], oldest[1::2], strict=True)).get(b"number", b"")
        kept = int(words[1]) - int(number) if number.isdigit() else 0
        if kept >= most and oldest_at >= first:
            trim = b"MAXLEN", words[3]
    stream = data.get_or_create(key, RedisStream)
    stream.add(write_id(stream.copy().add(b"*", [], data.clock())), words[4:], data.clock())
    stream.trim(*trim, about=False)
    return [1]


def _read_time(data: RedisData, _: bytes, __: list[bytes]) -> list[bytes]:
    now = data.clock()
    return [b"%d" % (now // 1000), b"%d" % (now % 1000 * 1000)]


def _beginning(data: RedisData, key: bytes, words: list[bytes]) -> Any:
    body = (data.get(key, dict) or {}).get(b"body")
    return None if body is None else body[: int(words[0])]


def _optional(word: bytes) -> int | None:
    return int(word) if word else None


def _script_text(packed: bytes) -> bytes:
    """The script's text in an encoded EVAL command."""
    head, _, rest = packed.partition(b"EVAL\r\n$")
    length, _, text = rest.partition(b"\r\n")
    assert head
    return text[: int(length)].replace(b"%%", b"%")


SCRIPTS: Final[dict[bytes, ScriptFunction]] = {
    scripts.DELETE_IF_SAME.encode(): _delete_if_same,
    scripts.REPLACE_IF_SAME.encode(): _replace_if_same,
    _script_text(claims._RENEW): _renew,
    store._WRITE_SCRIPT.encode(): _write,
    store._WRITE_IF_YOUNGEST_SCRIPT.encode(): _write_if_youngest,
    store._DELETE_IF_UNCHANGED_SCRIPT.encode(): _delete_if_unchanged,
    retention.RENEW_SCRIPT.encode(): _end_probation,
    sample_order.NEXT_SCRIPT.encode(): _next_sample,
    limits.UPDATE_SCRIPT.encode(): _limit,
    daily_sums.ADD_SCRIPT.encode(): _add_savings,
    key_records.MERGE_SCRIPT.encode(): _merge_keys,
    key_records.USED_SCRIPT.encode(): _add_used_keys,
    recent_prompts._WRITE_SCRIPT.encode(): _write,
    recent_prompts._ADD_SCRIPT.encode(): _add_prompt,
    response_records._WRITE_SCRIPT.encode(): _write_response,
    response_records._END_SCRIPT.encode(): _end_kept_response,
    background_records._END_SCRIPT.encode(): _end_response,
    background_records._EVENTS_SCRIPT.encode(): _add_events,
    background_records._RENEW_SCRIPT.encode(): _renew_response,
    response_index.USE_SCRIPT.encode(): _use_response,
    response_index.REMOVE_SCRIPT.encode(): _remove_response,
    response_index.CROWDING_SCRIPT.encode(): _response_crowding,
    response_records._OUTPUT_SCRIPT.encode(): _write_output,
    item_index.ADD_SCRIPT.encode(): _add_items,
    item_index.TOUCH_SCRIPT.encode(): _touch_responses,
    response_records._PROLONG_SCRIPT.encode(): _prolong_response,
    answers._BEGINNING_SCRIPT.encode(): _beginning,
    str(scan._TIME_COMMAND[1]).encode(): _read_time,
    budgets.UPDATE_SCRIPT.encode(): _budget,
    audit_stream._APPEND_SCRIPT.encode(): _append_audit,
    gpu_groups._EXCHANGE_SCRIPT.encode(): _exchange_gpu_report,
    gpu_groups._SET_STATE_SCRIPT.encode(): _set_gpu_state,
    gpu_groups._GIVE_ORDER_SCRIPT.encode(): _give_gpu_order,
    drains._CHANGE_SCRIPT.encode(): _change_drain,
    drains._RESTORE_SCRIPT.encode(): _restore_drain,
    announcements._WRITE_SCRIPT.encode(): _announce,
    str(announcements.read_held_command()[1]).encode(): _read_announced,
    **BATCH_SCRIPTS,
}


def run_script(data: RedisData, words: list[bytes]) -> Any:
    """EVAL with the script's text, 1, the key, and the arguments; with 2, the second key is the first of these."""
    script = SCRIPTS.get(words[0])
    if script is None:
        raise RedisError(f"ERR the model of Redis does not know this script: {words[0].decode()}")
    if words[1] not in (b"1", b"2"):
        raise RedisError("ERR the model of Redis runs scripts with one key or two")
    return script(data, words[2], words[3:])
