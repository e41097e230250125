"""The model of Redis replies as Redis does: every test here runs against both."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.core.cache.redis_keys import (
    ANNOUNCEMENTS_KEY,
    PURGE_LOG_KEY,
    response_sizes_key,
    responses_key,
    samples_key,
)
from router.core.endpoints.conversations.item_references import OutputItem
from router.core.quota.budget import BudgetUse, use_at
from router.core.quota.rate_limit import Quota, UsageUpdate
from router.core.routing.session import Session
from router.shared.cache.sample_order import MAX_REMEMBERED, next_command
from router.shared.engines.announcements import (
    AnnouncedEngine,
    ModelRevision,
    decode_fleet,
    read_command,
    read_held_command,
    write_command,
)
from router.shared.quota import budgets
from router.shared.quota.rate_limit_script import decode_status, update_command
from router.shared.responses import background_records, item_index, response_index, response_records
from router.shared.scripts import DELETE_IF_SAME, REPLACE_IF_SAME
from router.store import entry_store
from tests.simulation.redis_scripts import SCRIPTS
from tests.simulation.redis_test_clients import ClientFactory, ModelRedisClient, RealRedisClient
from tests.support.examples import EXAMPLES
from tests.support.redis_process import RedisServer

KEYS = ["rh:1:a", "rh:1:b", "rh:1:ab"]
WORDS = ["", "x", "12", "5-1", "née"]
LONG = 1_000_000


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    server = RedisServer()
    try:
        asyncio.run(server.start())
        yield str(server.socket)
    finally:
        server.remove()


@pytest.fixture(params=["real", "model"])
def both(request: pytest.FixtureRequest, real: str) -> Iterator[ClientFactory]:
    found = ClientFactory(real if request.param == "real" else None)
    found.connect().send_commands(("FLUSHALL",))
    yield found
    found.close()


key, word = st.sampled_from(KEYS), st.sampled_from(WORDS)
id_ = st.builds(lambda at, number: f"{at}-{number}", st.integers(0, 4), st.integers(0, 3))
bound = st.one_of(st.sampled_from(["-", "+", "2", "(2", "(3-1", "nonsense"]), id_)
commands = st.one_of(
    st.tuples(
        st.sampled_from(["GET", "TYPE", "HGETALL", "HKEYS", "HLEN", "STRLEN", "PTTL", "XLEN", "ZCARD", "LLEN"]), key
    ),
    st.tuples(st.sampled_from(["EXISTS", "DEL", "UNLINK"]), key, key),
    st.tuples(st.just("SET"), key, word),
    st.tuples(st.just("SET"), key, word, st.sampled_from(["NX", "XX", "GET", "KEEPTTL"])),
    st.tuples(st.just("INCR"), key),
    st.tuples(st.just("HSET"), key, word, word, word, word),
    st.tuples(st.just("HSETNX"), key, word, word),
    st.tuples(st.just("HINCRBY"), key, word, st.integers(-2, 2)),
    st.tuples(st.sampled_from(["HMGET", "HDEL"]), key, word, word),
    st.tuples(st.just("HGET"), key, word),
    st.tuples(st.just("ZINCRBY"), key, st.integers(-2, 2), word),
    st.tuples(st.just("ZSCORE"), key, word),
    st.tuples(st.just("ZREM"), key, word, word),
    st.tuples(st.just("ZREMRANGEBYRANK"), key, st.integers(-4, 3), st.integers(-4, 3)),
    st.tuples(st.just("ZREVRANGE"), key, st.integers(-4, 3), st.integers(-4, 3)),
    st.tuples(st.just("ZREVRANGE"), key, st.integers(-4, 3), st.integers(-4, 3), st.just("WITHSCORES")),
    st.tuples(st.sampled_from(["LPUSH", "RPUSH"]), key, word, word),
    st.tuples(st.sampled_from(["LRANGE", "LTRIM"]), key, st.integers(-4, 3), st.integers(-4, 3)),
    st.tuples(st.just("XADD"), key, id_, word, word),
    st.tuples(st.just("XADD"), key, st.sampled_from(["MINID", "MAXLEN"]), st.integers(0, 3), id_, word, word),
    st.tuples(st.just("XADD"), key, st.just("NOMKSTREAM"), id_, word, word),
    st.tuples(st.sampled_from(["XRANGE", "XREVRANGE"]), key, bound, bound),
    st.tuples(st.sampled_from(["XRANGE", "XREVRANGE"]), key, bound, bound, st.just("COUNT"), st.integers(1, 3)),
    st.tuples(st.just("PERSIST"), key),
    st.tuples(st.just("RENAME"), key, key),
)


@settings(max_examples=3 * EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps_=st.lists(commands, max_size=12))
def test_replies_and_invalidations_equal_those_of_redis_for_any_commands(steps_: list[Any], real: str) -> None:
    invalidations = []
    for one in (ClientFactory(real), ClientFactory(None)):
        client, listener = one.connect(), one.connect()
        client.send_commands(("FLUSHALL",))
        listener.send_commands(("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "rh:1:a", "PREFIX", "rh:1:b"))
        replies = []
        for command_ in steps_:  # each alone, so that both servers send its invalidations at once
            replies += client.send_commands(command_)
            listener.read_pushes()
        invalidations.append(
            (replies, sorted(map(repr, listener.pushes)), client.send_commands(*[("TYPE", key) for key in KEYS]))
        )
        one.close()
    assert invalidations[0] == invalidations[1]


def test_changes_within_one_batch_are_one_invalidation_message(both: ClientFactory) -> None:
    listener, client = both.connect(), both.connect()
    listener.send_commands(("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "rh:1:"))
    client.send_commands(("SET", "rh:1:b", "1"), ("SET", "rh:1:a", "1"), ("SET", "other", "1"), ("DEL", "rh:1:b"))
    listener.read_pushes()
    assert invalidated_keys(listener) == {b"rh:1:a", b"rh:1:b"}


def invalidated_keys(listener: RealRedisClient | ModelRedisClient) -> set[bytes]:
    return {key for kind, keys in listener.pushes if kind == b"invalidate" for key in keys}


def test_an_emptied_server_invalidates_everything(both: ClientFactory) -> None:
    listener, client = both.connect(), both.connect()
    listener.send_commands(("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "rh:1:"))
    client.send_commands(("SET", "rh:1:a", "1"), ("FLUSHALL",))
    listener.read_pushes()
    assert [b"invalidate", None] in listener.pushes


def test_overlapping_prefixes_are_refused(both: ClientFactory) -> None:
    (refused,) = both.connect().send_commands(
        ("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "rh:1:", "PREFIX", "rh:1:a")
    )
    assert "overlaps with another provided prefix 'rh:1:a'" in refused


def test_a_published_message_is_counted_and_reaches_the_subscribers(both: ClientFactory) -> None:
    listener, client = both.connect(), both.connect()
    assert client.send_commands(("PUBLISH", "c", "nobody")) == [0]
    listener.subscribe("c")
    assert client.send_commands(("PUBLISH", "c", "one")) == [1]
    listener.read_pushes()
    assert listener.pushes == [[b"subscribe", b"c", 1], [b"message", b"c", b"one"]]


def test_an_expired_key_is_gone_and_invalidated_when_it_is_accessed(both: ClientFactory) -> None:
    listener, client = both.connect(), both.connect()
    listener.send_commands(("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "rh:1:"))
    assert client.send_commands(("SET", "rh:1:a", "1", "PX", LONG), ("PEXPIRE", "rh:1:a", 0), ("GET", "rh:1:a")) == [
        b"OK",
        1,
        None,
    ]
    listener.read_pushes()
    assert invalidated_keys(listener) == {b"rh:1:a"}


def test_a_set_or_an_added_record_keeps_or_drops_the_expiry_as_redis_does(both: ClientFactory) -> None:
    client = both.connect()
    client.send_commands(
        ("SET", "a", "1", "PX", LONG), ("SET", "a", "2"), ("XADD", "s", "1-0", "f", "v"), ("EXPIRE", "s", LONG)
    )
    client.send_commands(
        ("XADD", "s", "2-0", "f", "v"), ("HSET", "h", "f", "v"), ("PEXPIRE", "h", LONG), ("HSET", "h", "f", "w")
    )
    ttl_a, ttl_s, ttl_h = client.send_commands(("PTTL", "a"), ("TTL", "s"), ("PTTL", "h"))
    assert (ttl_a, ttl_s) == (-1, LONG)
    assert 0 < ttl_h <= LONG


def test_an_id_generated_by_redis_is_later_than_the_last_even_if_that_is_ahead_of_its_clock(
    both: ClientFactory,
) -> None:
    client = both.connect()
    client.send_commands(("XADD", "s", "9999999999999-5", "f", "v"))
    assert client.send_commands(("XADD", "s", "*", "f", "v")) == [b"9999999999999-6"]
    client.send_commands(("DEL", "s"))
    (id_,) = client.send_commands(("XADD", "s", "*", "f", "v"))
    assert id_ < b"9999999999999"


def test_a_record_may_be_trimmed_by_the_command_that_adds_it(both: ClientFactory) -> None:
    client = both.connect()
    for number in range(1, 5):
        client.send_commands(("XADD", "s", "MINID", f"{number - 1}-0", f"{number}-0", "f", number))
    assert client.send_commands(("XRANGE", "s", "-", "+")) == [[[b"3-0", [b"f", b"3"]], [b"4-0", [b"f", b"4"]]]]
    client.send_commands(("XADD", "s", "MAXLEN", "~", 1, "5-0", "f", "v"))
    assert client.send_commands(("XLEN", "s")) == [3]


def test_a_complete_scan_finds_every_key(both: ClientFactory) -> None:
    client = both.connect()
    client.send_commands(*[("SET", f"rh:1:{number}", "v") for number in range(30)], ("SET", "other", "v"))
    found, cursor = set(), b"0"
    while True:
        ((cursor, keys),) = client.send_commands(("SCAN", cursor, "MATCH", "rh:1:*", "COUNT", 7))
        found |= set(keys)
        if cursor == b"0":
            break
    assert found == {f"rh:1:{number}".encode() for number in range(30)}


def test_a_scan_for_a_type_finds_no_other(both: ClientFactory) -> None:
    client = both.connect()
    client.send_commands(("SET", "rh:1:s", "v"), ("HSET", "rh:1:h", "f", "v"), ("RPUSH", "rh:1:l", "v"))
    for kind, found in (("hash", b"rh:1:h"), ("list", b"rh:1:l"), ("string", b"rh:1:s")):
        assert client.send_commands(("SCAN", 0, "COUNT", 100, "TYPE", kind)) == [[b"0", [found]]]


def test_waiting_for_a_missing_replica_blocks_only_this_connection(both: ClientFactory) -> None:
    first = both.connect()
    assert first.send_commands(("WAIT", 0, 50)) == [0]


def test_the_memory_of_a_key_is_a_number_and_none_for_an_absent_one(both: ClientFactory) -> None:
    client = both.connect()
    client.send_commands(("SET", "a", "x" * 1000))
    used, absent = client.send_commands(("MEMORY", "USAGE", "a"), ("MEMORY", "USAGE", "b"))
    assert (1000 < used < 2000, absent) == (True, None)


def test_the_server_describes_itself(both: ClientFactory) -> None:
    role, ping = both.connect().send_commands(("ROLE",), ("PING",))
    assert (role[0], ping) == (b"master", b"PONG")


@pytest.mark.parametrize("section", [(), ("memory",), ("server",), ("replication",)])
def test_the_model_states_nothing_that_redis_does_not_state(both: ClientFactory, section: tuple[str, ...]) -> None:
    (info,) = both.connect().send_commands(("INFO", *section))
    (of_the_model,) = ClientFactory(None).connect().send_commands(("INFO", *section))
    names = [line.partition(b":")[0] for line in of_the_model.splitlines() if line]
    assert [name for name in info.replace(b":", b"\r\n").splitlines() if name in names] == names


def test_a_full_server_deletes_and_refuses_what_takes_memory(both: ClientFactory) -> None:
    client = both.connect()
    client.send_commands(("SET", "a", "mine"), ("HSET", "h", "f", "1", "g", "2"), ("ZINCRBY", "z", 1, "m"))
    both.set_full(True)
    taking: list[Any] = [
        ("SET", "b", "x"), ("SET", "b", "x", "XX"), ("HSET", "h", "f", "2"), ("HINCRBY", "h", "f", 1),
        ("HSETNX", "h", "f", "2"), ("INCR", "n"), ("LPUSH", "l", "x"), ("RPUSH", "l", "x"),
        ("XADD", "s", "*", "f", "v"), ("ZINCRBY", "z", 1, "m"),
        ("EVAL", REPLACE_IF_SAME, 1, "a", "mine", "yours", LONG),
    ]  # fmt: skip
    # Redis 6.2 puts the error of a script's command after a text of its own.
    assert {"OOM command not allowed when used memory" in reply for reply in client.send_commands(*taking)} == {True}
    assert client.send_commands(("GET", "b"), ("GET", "a")) == [None, b"mine"]
    others: list[Any] = [
        ("EVAL", REPLACE_IF_SAME, 1, "a", "other", "yours", LONG), ("HDEL", "h", "f"), ("ZREM", "z", "m"),
        ("PEXPIRE", "a", LONG), ("EVAL", DELETE_IF_SAME, 1, "a", "mine"), ("UNLINK", "h"), ("DEL", "z"),
    ]  # fmt: skip
    assert client.send_commands(*others) == [b"mine", 1, 1, 1, 1, 1, 0]
    both.set_full(False)
    assert client.send_commands(("SET", "b", "x")) == [b"OK"]


def test_a_command_that_the_user_may_not_run_is_refused(both: ClientFactory) -> None:
    client = both.connect()
    both.deny("PUBLISH")
    denied, allowed = client.send_commands(("PUBLISH", "c", "x"), ("SET", "a", "x"))
    both.allow_all()
    assert denied.startswith("NOPERM")
    assert "has no permissions to run the 'publish' command" in denied  # who: Redis 6.2 names no user
    assert (allowed, client.send_commands(("PUBLISH", "c", "x"))) == (b"OK", [0])


def test_an_unknown_command_is_an_error_that_names_it(both: ClientFactory) -> None:
    (error,) = both.connect().send_commands(("FROBNICATE", "a"))
    assert error.startswith("ERR unknown command")  # the quotes about the name changed between Redis 6.2 and 7.0
    assert "FROBNICATE" in error


# -- scripts ----------------------------------------------------------------------------------------------------------


def script(part: str) -> str:
    (found,) = [text.decode() for text in SCRIPTS if part in text.decode()]
    return found


def test_a_script_deletes_or_renews_a_key_only_if_it_holds_the_same_value(both: ClientFactory) -> None:
    client = both.connect()
    delete, renew = (
        script("== ARGV[1] then return redis.call('DEL'"),
        script("return redis.call('PEXPIRE', KEYS[1], ARGV[2])"),
    )
    client.send_commands(("SET", "a", "mine"), ("HSET", "h", "f", "v"))
    assert client.send_commands(("EVAL", renew, 1, "a", "other", LONG), ("PTTL", "a")) == [0, -1]
    renewed, left = client.send_commands(("EVAL", renew, 1, "a", "mine", LONG), ("PTTL", "a"))
    assert renewed == 1
    assert 0 < left <= LONG
    assert client.send_commands(*[("EVAL", delete, 1, "a", word) for word in ("other", "mine", "mine")]) == [0, 1, 0]
    (wrong,) = client.send_commands(("EVAL", delete, 1, "h", "v"))
    assert "WRONGTYPE" in wrong  # Redis 6.2 reports an error within a script as an error of the script


def test_a_script_replaces_a_value_that_is_the_same_or_missing(both: ClientFactory) -> None:
    client, replace = both.connect(), script("if current and current ~= ARGV[1]")
    steps_ = [("EVAL", replace, 1, "a", old, new, LONG) for old, new in (("x", "mine"), ("x", "y"), ("mine", "other"))]
    assert client.send_commands(*steps_, ("GET", "a")) == [1, b"mine", 1, b"other"]
    assert 0 < client.send_commands(("PTTL", "a"))[0] <= LONG


def test_a_script_deletes_only_the_entry_that_was_read(both: ClientFactory) -> None:
    client, delete = both.connect(), script("'created', 'checksum'")
    client.send_commands(("HSET", "h", "created", "1", "checksum", "c"), ("HSET", "i", "created", "1"))
    steps_ = [("EVAL", delete, 1, "h", *words) for words in (("2", "c"), ("1", ""), ("1", "c"), ("1", "c"))]
    assert client.send_commands(*steps_, ("EVAL", delete, 1, "i", "1", "")) == [0, 0, 1, 0, 1]


def test_a_script_gives_an_entry_its_full_lifetime_and_never_shortens_it(both: ClientFactory) -> None:
    client, renew = both.connect(), script("'created', 'ttl', 'stale'")
    ((seconds, _),) = client.send_commands(("TIME",))
    now = int(seconds)
    for entry, fields in (
        ("h", ("created", now, "ttl", 3600, "stale", 0.5)),
        ("i", ("created", now - 7000, "ttl", 3600, "stale", 3600.0)),
        ("j", ("created", now, "ttl", 3600)),
    ):
        client.send_commands(("HSET", entry, *fields), ("PEXPIRE", entry, 600_000))
    steps_ = [("EVAL", renew, 1, entry, 10_000) for entry in ("h", "h", "i", "j", "absent")]
    assert client.send_commands(*steps_) == [1, 0, 0, 0, 0]
    left = client.send_commands(*[("PTTL", entry) for entry in "hij"])
    assert 3_590_000 < left[0] <= 3_601_000
    assert all(590_000 < each <= 600_000 for each in left[1:])


sample_requests = st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.integers(1, 4)), max_size=20)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=sample_requests)
def test_samples_are_handed_out_as_in_redis(requests: list[tuple[str, int]], real: str) -> None:
    found = []
    for one in (ClientFactory(real), ClientFactory(None)):
        client = one.connect()
        client.send_commands(("FLUSHALL",))
        commands = [
            next_command("rh:1:t:m:s:r:q", count, Session(name) if name else None, 60.0) for name, count in requests
        ]
        found.append(client.send_commands(*commands))
        one.close()
    assert found[0] == found[1]
    got: dict[str, list[int]] = {}
    for (name, count), (_, number, has_all) in zip(requests, found[0], strict=True):
        before = got.setdefault(name, [])
        assert (number in before) == (has_all == 1) or not name
        assert not has_all or set(range(count)) <= set(before)
        before.append(number)


def test_the_samples_of_the_last_sessions_are_remembered_and_expire(both: ClientFactory) -> None:
    client = both.connect()
    key = samples_key("rh:1:t:m:s:r:q")
    replies = client.send_commands(
        *[next_command("rh:1:t:m:s:r:q", 1, Session(str(number)), 60.0) for number in range(MAX_REMEMBERED + 2)],
        *[next_command("rh:1:t:m:s:r:q", 1, Session(str(number)), 60.0) for number in (MAX_REMEMBERED, 0)],
    )
    assert [has_all for _, _, has_all in replies[-2:]] == [1, 0]
    count, left = client.send_commands(("ZCARD", key), ("PTTL", key))
    assert count == MAX_REMEMBERED
    assert 0 < left <= 60_000


def test_a_foreign_value_in_place_of_the_samples_is_an_error(both: ClientFactory) -> None:
    client = both.connect()
    client.send_commands(("SET", samples_key("rh:1:t:m:s:r:q"), "foreign"))
    (reply,) = client.send_commands(next_command("rh:1:t:m:s:r:q", 2, None, 60.0))
    assert "WRONGTYPE" in reply


def test_a_script_adds_to_the_fields_of_a_hash(both: ClientFactory) -> None:
    client, add = both.connect(), script("'%.15g'")
    for amount in ("2", "0.5", "1e3"):
        client.send_commands(("EVAL", add, 1, "s", 60, "a/b/hits", amount, "a/b/requests", "1"))
    fields, left = client.send_commands(("HGETALL", "s"), ("PTTL", "s"))
    assert fields == {b"a/b/hits": b"1002.5", b"a/b/requests": b"3"}
    assert 0 < left <= 60_000


def test_a_script_adds_records_of_keys_and_a_revoked_one_stays(both: ClientFactory) -> None:
    client, merge = both.connect(), script("'revoked'")
    steps_ = [
        ("new", "a", "1"), ("new", "a", "2"), ("revoked", "a", "3"), ("new", "a", "4"), ("revoked", "a", "3"),
        ("revoked", "b", "5"),
    ]  # fmt: skip
    replies = client.send_commands(*[("EVAL", merge, 1, "k", 10**13, *step) for step in steps_])
    assert [written for written, _ in replies] == [1, 0, 1, 0, 0, 1]
    assert [version - 10**13 for _, version in replies] == [1, 1, 2, 2, 2, 3]
    assert client.send_commands(("HGETALL", "k")) == [{b"a": b"3", b"b": b"5", b"version": b"10000000000003"}]
    (both_at_once,) = client.send_commands(("EVAL", merge, 1, "l", 0, "new", "a", "1", "new", "b", "2"))
    assert both_at_once[0] == 2
    assert 0 < both_at_once[1] < 10**13


def test_a_script_keeps_the_latest_use_of_each_key(both: ClientFactory) -> None:
    client, add = both.connect(), script("tonumber(ARGV[i + 1]) > stored")
    client.send_commands(*[("EVAL", add, 1, "u", 60, "a", at, "b", 5) for at in (7, 9, 8)])
    fields, left = client.send_commands(("HGETALL", "u"), ("PTTL", "u"))
    assert fields == {b"a": b"9", b"b": b"5"}
    assert 0 < left <= 60_000


def test_a_script_keeps_the_latest_ids_of_requests_and_returns_those_that_it_drops(both: ClientFactory) -> None:
    client, add = both.connect(), script("local listed, seen, gone")
    client.send_commands(("RPUSH", "l", "one", "two", "a request", "one", "six"))
    steps_ = [("EVAL", add, 1, "l", id_, 3, 60) for id_ in ("two", "ten", "new")]
    assert client.send_commands(*steps_) == [[], [b"six"], [b"one"]]
    ids, left = client.send_commands(("LRANGE", "l", 0, -1), ("PTTL", "l"))
    assert ids == [b"new", b"ten", b"two"]
    assert 0 < left <= 60_000


def test_a_script_appends_to_a_chain_after_the_newest_entry_alone_and_trims_it(both: ClientFactory) -> None:
    client, append = both.connect(), script("'MAXLEN', ARGV[4]")
    day = 86400

    def add(known: str, number: int, most: int = 9, keep: int = day) -> tuple[str | int, ...]:
        return (
            "EVAL",
            append,
            1,
            "s",
            known,
            number,
            keep,
            most,
            "number",
            number,
            "previous",
            "p",
            "hash",
            f"h{number}",
        )

    assert client.send_commands(add("", 1), add("", 2), add("h1", 2)) == [[1], [0, b"1", b"p", b"h1"], [1]]
    assert client.send_commands(add("h2", 3, 2), add("h3", 4, 2)) == [[1], [1]]
    (records,) = client.send_commands(("XRANGE", "s", "-", "+"))
    assert [fields[1] for _, fields in records] == [b"3", b"4"]
    client.send_commands(("DEL", "s"), ("XADD", "s", "5-0", "f", "v"), ("XADD", "s", "6-0", "hash", "x"))
    assert client.send_commands(add("", 1, keep=0), add("x", 1, keep=0)) == [[0, b"", b"", b"x"], [1]]
    assert [len(each) for each in client.send_commands(("XRANGE", "s", "-", "+"))] == [3]
    assert client.send_commands(add("h1", 2)) == [[1]]
    (records,) = client.send_commands(("XRANGE", "s", "-", "+"))
    assert [fields[1] for _, fields in records] == [b"1", b"2"], "what is older than a day is gone"
    client.send_commands(("SET", "t", "x"))
    (wrong,) = client.send_commands(("EVAL", append, 1, "t", "", 1, day, 9, "hash", "h"))
    assert "WRONGTYPE" in wrong


def test_a_script_reads_the_clock(both: ClientFactory) -> None:
    ((seconds, microseconds), (now, _)) = both.connect().send_commands(
        ("EVAL", script("return redis.call('TIME')"), 1, "a"), ("TIME",)
    )
    assert int(now) - int(seconds) in (0, 1)
    assert 0 <= int(microseconds) < 10**6


def test_a_script_gives_each_change_of_a_drain_a_later_time(both: ClientFactory) -> None:
    client, change = both.connect(), script("if state == ARGV[2] then return 0")
    client.send_commands(("HSET", "d", "b", "drained 9000000000000", "c", "nonsense"))
    steps_ = [
        ("a", "drained", 10**13), ("a", "drained", 10**14), ("a", "resumed", 0), ("b", "resumed", 5),
        ("c", "drained", 9), ("c", "resumed", 10**14),
    ]  # fmt: skip
    replies = client.send_commands(*[("EVAL", change, 1, "d", *step) for step in steps_], ("HGETALL", "d"))
    assert replies[:-1] == [1, 0, 0, 0, 0, 0]
    assert replies[-1] == {
        b"a": b"resumed 10000000000002", b"b": b"resumed 9000000000001", b"c": b"resumed 100000000000001",
    }  # fmt: skip
    client.send_commands(("EVAL", change, 1, "d", "new", "drained", 0), ("SET", "s", "a string"))
    found, wrong = client.send_commands(("HGET", "d", "new"), ("EVAL", change, 1, "s", "a", "x", 0))
    assert int(found.split()[1]) > 10**12
    assert "WRONGTYPE" in wrong


def test_a_script_restores_a_drain_unless_redis_has_a_later_one(both: ClientFactory) -> None:
    client, restore = both.connect(), script("if (tonumber(changed_at) or 0) >=")
    steps_ = [("a", "drained", 5), ("a", "resumed", 5), ("a", "resumed", 4), ("a", "resumed", 6), ("b", "drained", 1)]
    replies = client.send_commands(*[("EVAL", restore, 1, "d", *step) for step in steps_], ("HGETALL", "d"))
    assert replies == [1, 0, 0, 0, 1, {b"a": b"resumed 6", b"b": b"drained 1"}]


def test_a_script_announces_engines_all_or_none_unless_another_launcher_holds_one(both: ClientFactory) -> None:
    client = both.connect()

    def announce(owner: str, *names: str, revision: str = "r1", **fields: Any) -> Any:
        engines = [
            AnnouncedEngine(name=name, model="llama", task="any", url=f"http://{name}", served_model="served", **fields)
            for name in names
        ]
        (held,) = client.send_commands(
            write_command(owner, engines, revisions={"llama": ModelRevision(revision=revision, configured="r1")})
        )
        return held

    def fields() -> dict[bytes, bytes]:
        (found,) = client.send_commands(read_command())
        return found  # type: ignore[no-any-return]

    def applied() -> bool:
        """Whether something changed, since the last call, that a router applies at once."""
        (existed,) = client.send_commands(("HDEL", ANNOUNCEMENTS_KEY, "changed"))
        return bool(existed)

    assert announce("one", "a", "b") == []
    assert fields().keys() == {b"engine/a", b"engine/b", b"model/llama", b"changed"}
    assert applied()
    assert announce("one", "a", "b") == []
    assert announce("one", "a", restarts={"hot": 1}, temperature_celsius=70.5, power_watts=1.0) == []
    assert announce("one", "a") == []
    assert not applied(), "renewed only, or with values that are only shown"
    before = fields()
    assert announce("two", "c", "b", revision="r2") == [b"engine/b"]
    assert fields() == before
    assert announce("one", "a", capacity=0.5) == []
    assert applied()
    assert announce("one", "a", capacity=0.5, revision="r2") == []
    assert applied()
    assert client.send_commands(write_command("one", withdrawn=["b"])) == [[]]
    assert applied()
    assert announce("two", "b", revision="r2") == []
    assert applied()
    owners = {name: value.split(b" ")[1] for name, value in fields().items() if name.startswith(b"engine/")}
    assert owners == {b"engine/a": b"one", b"engine/b": b"two"}
    (held,) = client.send_commands(read_held_command())
    assert decode_fleet(held).engines.keys() == {"a", "b"}
    assert decode_fleet(held).revisions["llama"].revision == "r2"


def test_a_script_takes_over_engines_whose_lease_has_ended_and_drops_old_ones(both: ClientFactory) -> None:
    client = both.connect()
    ((seconds, _),) = client.send_commands(("TIME",))
    now = int(seconds) * 10**6
    client.send_commands(
        (
            "HSET", ANNOUNCEMENTS_KEY, "engine/ended", f"{now - 16 * 10**6} other {{}}", "engine/old",
            f"{now - 3700 * 10**6} other {{}}", "engine/nonsense", "nonsense", "changed", "1",
        )
    )  # fmt: skip
    engines = [
        AnnouncedEngine(name=name, model="llama", task="any", url="http://a", served_model="served")
        for name in ("ended", "nonsense")
    ]
    assert client.send_commands(write_command("one", engines)) == [[]]
    (found,) = client.send_commands(read_command())
    assert found.keys() == {b"engine/ended", b"engine/nonsense", b"changed"}
    assert {found[name].split(b" ")[1] for name in (b"engine/ended", b"engine/nonsense")} == {b"one"}
    assert found[b"changed"] != b"1"


def test_an_entry_is_written_unless_a_younger_one_is_there(both: ClientFactory) -> None:
    client = both.connect()

    def write(created: str) -> list[Any]:
        command = ("EVAL", entry_store._WRITE_IF_YOUNGEST_SCRIPT, 1, "k", LONG, created, "created", created)
        return client.send_commands(command, ("HGETALL", "k"))

    assert write("2.000") == [1, {b"created": b"2.000"}]
    assert write("1.999") == [0, {b"created": b"2.000"}]
    assert write("2.000") == [1, {b"created": b"2.000"}]
    assert write("2.001") == [1, {b"created": b"2.001"}]
    (left,) = client.send_commands(("PTTL", "k"))
    assert 0 < left <= LONG
    for value in (("SET", "k", "mine"), ("HSET", "k", "body", "x"), ("HSET", "k", "created", "no number")):
        client.send_commands(("DEL", "k"), value)
        assert write("1.000") == [1, {b"created": b"1.000"}]


def keep_command(key: str, digest: str, parent: str = "", **fields: str) -> tuple[str | int, ...]:
    words = [word for pair in {"digest": digest, "parent": parent, **fields}.items() for word in pair]
    return ("EVAL", response_records._WRITE_SCRIPT, 1, key, LONG, digest, *words)


def test_an_id_of_two_conversations_is_marked_and_keeps_its_response(both: ClientFactory) -> None:
    client = both.connect()
    first, other = keep_command("k", "d1", "p", input="[1]"), keep_command("k", "d2", input="[2]")
    assert client.send_commands(first, other) == [1, 0]
    fields, left = client.send_commands(("HGETALL", "k"), ("PTTL", "k"))
    held = {b"digest": b"d1", b"parent": b"p", b"input": b"[1]", b"ambiguous": b"1"}
    assert fields == held
    assert 0 < left <= LONG
    assert client.send_commands(first, ("HGETALL", "k")) == [1, held]
    client.send_commands(("SET", "k", "mine"))
    (reply,) = client.send_commands(first)
    assert str(reply).startswith("WRONGTYPE")
    assert client.send_commands(("GET", "k")) == [b"mine"]


def test_of_one_conversation_the_response_without_a_parent_stays(both: ClientFactory) -> None:
    client = both.connect()
    assert client.send_commands(keep_command("k", "d", "p"), keep_command("k", "d", "q", input="[1]")) == [1, 1]
    assert client.send_commands(("HGETALL", "k")) == [{b"digest": b"d", b"parent": b"q", b"input": b"[1]"}]
    whole, turn = keep_command("k", "d", input="[0,1]"), keep_command("k", "d", "p", input="[1]")
    assert client.send_commands(whole, turn) == [1, 1]
    assert client.send_commands(("HGETALL", "k")) == [{b"digest": b"d", b"parent": b"", b"input": b"[0,1]"}]


def test_a_response_that_is_prolonged_says_so(both: ClientFactory) -> None:
    client = both.connect()
    prolong = ("EVAL", response_records._PROLONG_SCRIPT, 1, "k", LONG, 17)
    assert client.send_commands(prolong, ("EXISTS", "k")) == [0, 0]
    client.send_commands(("HSET", "k", "digest", "d"))
    assert client.send_commands(prolong, ("HGETALL", "k")) == [1, {b"digest": b"d", b"alive_until": b"17"}]
    (left,) = client.send_commands(("PTTL", "k"))
    assert 0 < left <= LONG
    client.send_commands(("SET", "k", "mine"))
    (reply,) = client.send_commands(prolong)
    assert str(reply).startswith("WRONGTYPE")


def test_a_response_that_has_ended_without_events_gets_them_once(both: ClientFactory) -> None:
    client = both.connect()
    add = ("EVAL", background_records._EVENTS_SCRIPT, 1, "k", "e")
    assert client.send_commands(add, ("EXISTS", "k")) == [0, 0]
    client.send_commands(("HSET", "k", "state", "running"), ("PEXPIRE", "k", LONG))
    assert client.send_commands(add, ("HSET", "k", "state", "ended", "events", ""), add, add) == [0, 1, 1, 0]
    assert client.send_commands(("HGETALL", "k")) == [{b"state": b"ended", b"events": b"e"}]
    (left,) = client.send_commands(("PTTL", "k"))
    assert 0 < left <= LONG
    client.send_commands(("SET", "k", "mine"))
    (reply,) = client.send_commands(add)
    assert str(reply).startswith("WRONGTYPE")


def test_a_response_in_the_background_ends_once(both: ClientFactory) -> None:
    client = both.connect()
    end = ("EVAL", background_records._END_SCRIPT, 1, "k", LONG, "{}", "e")
    renew = ("EVAL", background_records._RENEW_SCRIPT, 1, "k", LONG, 20)
    keep = ("EVAL", response_records._END_SCRIPT, 1, "k", LONG, "d", "digest", "d", "state", "ended")
    assert client.send_commands((*end, 0), (*renew, ""), keep, ("EXISTS", "k")) == [0, 0, 2, 0]
    client.send_commands(("HSET", "k", "state", "running", "lease", "10"))
    assert client.send_commands((*end, 9), (*renew, ""), (*end, 15), (*renew, "{1}"), (*end, 0)) == [0, 1, 0, 1, 1]
    ended = {b"state": b"ended", b"lease": b"20", b"response": b"{}", b"events": b"e"}
    assert client.send_commands(("HGETALL", "k"), (*renew, ""), (*end, 30), keep) == [ended, 0, 0, 2]
    client.send_commands(("HSET", "k", "state", "running"))
    assert client.send_commands((*end, 20)) == [1]
    client.send_commands(("HSET", "k", "state", "running"))
    assert client.send_commands(keep, ("HGETALL", "k")) == [1, {**ended, b"digest": b"d"}]
    (left,) = client.send_commands(("PTTL", "k"))
    assert 0 < left <= LONG
    client.send_commands(("SET", "k", "mine"))
    for command in ((*end, 0), (*renew, ""), keep):
        (reply,) = client.send_commands(command)
        assert str(reply).startswith("WRONGTYPE")


class Index:
    """The index of a tenant's responses, of `most` ids and `most_bytes` bytes."""

    AT = 1_795_000_000_000

    def __init__(self, client: ModelRedisClient | RealRedisClient, most: int = 3, most_bytes: int = 10**6) -> None:
        self.client = client
        self.index = response_index.ResponseIndex(LONG, most, most_bytes)

    def use(self, now: int, *ids: str, size: int = 10) -> Any:
        (gone,) = self.client.send_commands(self.index.use("acme", self.AT + now, ids[0], size, ids[1:]))
        return [id_.decode() for id_ in gone]

    def kept(self) -> list[str]:
        (members,) = self.client.send_commands(("ZREVRANGE", responses_key("acme"), 0, -1))
        return [member.decode() for member in members]

    def sizes(self) -> dict[str, int]:
        (sizes,) = self.client.send_commands(("HGETALL", response_sizes_key("acme")))
        return {name.decode(): int(value) for name, value in sorted(sizes.items())}

    def add(self, response: str, *items: str) -> int:
        """`items`: the id of each with its digest, such as `i=0`."""
        pairs = [OutputItem(item[:-2], b"", item[-1]) for item in items]
        (reply,) = self.client.send_commands(item_index.add_command("acme", response, 7, pairs))
        return int(reply)

    def places(self, *items: str) -> dict[str, str]:
        """The response and the digest of each item that is known."""
        (reply,) = self.client.send_commands(item_index.find_command("acme", items))
        found = item_index.decode_places(items, reply)
        assert all(place.size == 7 for place in found.values())
        return {item: f"{place.response_id}={place.digest}" for item, place in found.items()}

    def touch(self, now: int, *ids: str) -> None:
        self.client.send_commands(item_index.touch_command("acme", LONG, self.AT + now, ids))

    def crowding(self) -> float:
        """In ms after AT."""
        (reply,) = self.client.send_commands(self.index.crowding("acme"))
        return float(reply) - self.AT if float(reply) else 0


def test_the_responses_that_were_not_used_for_longest_leave(both: ClientFactory) -> None:
    client = both.connect()
    index = Index(client)
    assert [index.use(number, id_) for number, id_ in enumerate("abc")] == [[], [], []]
    assert index.kept() == ["c", "b", "a"]
    assert index.use(10, "d", "a", "gone") == ["b"]
    assert index.kept() == ["d", "a", "c"]
    assert index.sizes() == {":bytes": 30, ":count": 3, "a": 10, "c": 10, "d": 10}
    assert Index(client, most=1).use(20, "e") == ["d", "a", "c"]
    score, *left = client.send_commands(
        ("ZSCORE", responses_key("acme"), "e"), ("PTTL", responses_key("acme")), ("PTTL", response_sizes_key("acme"))
    )
    assert (float(score), index.kept()) == (Index.AT + 20, ["e"])
    assert all(0 < each <= LONG for each in left)


def test_the_responses_of_a_tenant_have_at_most_so_many_bytes(both: ClientFactory) -> None:
    index = Index(both.connect(), most=100, most_bytes=100)
    assert [index.use(number, id_, size=30) for number, id_ in enumerate("abc")] == [[], [], []]
    assert index.use(10, "d", "a", size=11) == ["b"]
    assert index.sizes() == {":bytes": 71, ":count": 3, "a": 30, "c": 30, "d": 11}
    assert index.use(11, "d", size=5) == []
    assert index.sizes()["d"] == 11, "the larger of both"
    assert index.use(12, "d", size=40) == []
    assert index.sizes() == {":bytes": 100, ":count": 3, "a": 30, "c": 30, "d": 40}
    assert index.use(13, "e", size=100) == ["c", "a", "d"]
    assert index.use(14, "e", size=150) == [], "what is alone stays"
    assert index.sizes() == {":bytes": 150, ":count": 1, "e": 150}


def test_bytes_of_responses_that_an_index_does_not_name_count_no_more(both: ClientFactory) -> None:
    client = both.connect()
    index = Index(client, most=100, most_bytes=100)
    for number, id_ in enumerate("abc"):
        index.use(number, id_, size=30)
    client.send_commands(("DEL", responses_key("acme")))
    assert index.use(10, "d", size=11) == []
    assert index.sizes() == {":bytes": 11, ":count": 1, "d": 11}
    client.send_commands(("DEL", response_sizes_key("acme")))
    assert index.use(11, "e", size=7) == []
    assert (index.kept(), index.sizes()) == (["e", "d"], {":bytes": 7, ":count": 1, "e": 7})


def test_a_response_that_has_expired_leaves_the_index_without_a_word(both: ClientFactory) -> None:
    index = Index(both.connect())
    index.use(0, "a")
    index.use(1, "b")
    assert index.use(LONG, "c") == []
    assert (index.kept(), index.sizes()) == (["c", "b"], {":bytes": 20, ":count": 2, "b": 10, "c": 10})


def test_a_deleted_response_leaves_the_index(both: ClientFactory) -> None:
    client = both.connect()
    index = Index(client)
    removed = response_index.remove_command("acme", "a")
    assert client.send_commands(removed, ("EXISTS", response_sizes_key("acme"))) == [1, 0]
    index.use(0, "a")
    index.use(1, "b", size=7)
    assert client.send_commands(removed, removed) == [1, 1]
    assert (index.kept(), index.sizes()) == (["b"], {":bytes": 7, ":count": 1, "b": 7})
    client.send_commands(response_index.remove_command("acme", "b"))
    assert client.send_commands(("EXISTS", responses_key("acme"))) == [0]
    assert index.sizes() == {":bytes": 0, ":count": 0}


def test_items_are_found_as_long_as_their_response_is_in_the_index(both: ClientFactory) -> None:
    client = both.connect()
    index = Index(client)
    assert (index.add("a", "i=0"), index.places("i")) == (0, {}), "a response that the index does not have"
    for number, id_ in enumerate("abc"):
        index.use(number, id_)
        assert index.add(id_, f"{id_}1=1", f"{id_}2=2") == 1
    assert index.places("a1", "b2", "d1") == {"a1": "a=1", "b2": "b=2"}
    assert index.use(10, "d") == ["a"]
    client.send_commands(response_index.remove_command("acme", "b"))
    assert index.places("a1", "a2", "b1", "b2", "c1", "c2") == {"c1": "c=1", "c2": "c=2"}
    assert index.use(LONG + 2, "e") == [], "has expired"
    assert index.places("c1", "c2") == {}
    (left,) = client.send_commands(("HGETALL", response_sizes_key("acme")))
    assert sorted(left) == [b":bytes", b":count", b"d", b"e"]


def test_an_item_of_several_responses_is_found_in_the_last_one_and_not_if_they_differ(both: ClientFactory) -> None:
    client = both.connect()
    index = Index(client, most=9)
    for number, id_ in enumerate("abc"):
        index.use(number, id_)
    index.add("a", "i=0", "j=0", "k=0")
    index.add("b", "i=0", "j=1")
    assert index.places("i", "j", "k") == {"i": "b=0", "k": "a=0"}
    index.add("c", "j=1")
    index.add("b", "i=0", "l=0")
    assert index.places("i", "j", "l") == {"i": "b=0", "l": "b=0"}
    client.send_commands(response_index.remove_command("acme", "a"))
    assert index.places("i", "j", "k") == {"i": "b=0"}
    index.use(3, "d")
    index.add("d", "i=0", "j=2", "j=2")
    assert index.places("i", "j") == {"i": "d=0"}, "b and c have another j"
    client.send_commands(response_index.remove_command("acme", "d"))
    assert index.places("i", "j") == {}, "which other response has i is not known"
    index.add("b", "i=0")
    assert index.places("i") == {"i": "b=0"}
    client.send_commands(response_index.remove_command("acme", "b"))
    client.send_commands(response_index.remove_command("acme", "c"))
    (left,) = client.send_commands(("HGETALL", response_sizes_key("acme")))
    assert sorted(left) == [b":bytes", b":count"]


def test_a_response_that_is_stored_again_with_other_items_has_only_those(both: ClientFactory) -> None:
    client = both.connect()
    index = Index(client)
    index.use(0, "a")
    index.use(1, "b")
    index.add("b", "i=0")
    index.add("a", "i=0", "j=0", "k=0")
    index.add("a", "k=1", "l=0")
    assert index.places("i", "j", "k", "l") == {"l": "a=0"}
    client.send_commands(response_index.remove_command("acme", "b"))
    (left,) = client.send_commands(("HGETALL", response_sizes_key("acme")))
    assert sorted(left) == [b":bytes", b":count", b"a", b"item:k", b"item:l", b"items:a"]


def test_what_is_touched_was_used_last(both: ClientFactory) -> None:
    client = both.connect()
    index = Index(client)
    index.touch(0, "a")
    assert client.send_commands(("EXISTS", responses_key("acme")), ("EXISTS", response_sizes_key("acme"))) == [0, 0]
    for number, id_ in enumerate("abc"):
        index.use(number, id_)
    index.touch(5, "a", "gone")
    assert index.kept() == ["a", "c", "b"]
    assert index.use(6, "d") == ["b"]
    left = client.send_commands(("PTTL", responses_key("acme")), ("PTTL", response_sizes_key("acme")))
    assert all(0 < each <= LONG for each in left)


def test_an_output_is_written_unless_the_response_is_kept_as_a_turn(both: ClientFactory) -> None:
    client = both.connect()

    def write(output: str) -> Any:
        command = ("EVAL", response_records._OUTPUT_SCRIPT, 1, "k", LONG, "output", output)
        return client.send_commands(command, ("HGETALL", "k"))

    assert write("[1]") == [1, {b"output": b"[1]"}]
    assert write("[2]") == [1, {b"output": b"[2]"}]
    turn = ("digest", "d", "parent", "", "output", "[3]")
    client.send_commands(("EVAL", response_records._WRITE_SCRIPT, 1, "k", LONG, "d", *turn))
    kept = {b"digest": b"d", b"parent": b"", b"output": b"[3]"}
    assert write("[4]") == [1, kept]
    (left,) = client.send_commands(("PTTL", "k"))
    assert 0 < left <= LONG
    client.send_commands(("DEL", "k"), ("HSET", "k", "state", "running"))
    assert write("[5]") == [1, {b"state": b"running"}]


def test_a_tenth_of_what_has_room_was_used_since(both: ClientFactory) -> None:
    client = both.connect()
    index = Index(client, most=30)
    assert index.crowding() == 0
    for number in range(3):
        index.use(number, f"r{number}")
    assert index.crowding() == 0
    index.use(3, "r3")
    index.use(4, "r4")
    assert index.crowding() == 1
    # With room for 20 of them, by their bytes.
    assert Index(client, most=30, most_bytes=200).crowding() == 2


# Instants around the ends of months and of leap years, and anywhere in two centuries.
instants = st.one_of(
    st.sampled_from([68169599, 68169600, 951782399, 951782400, 951868800, 4107542399, 4107542400, 1798761599]),
    st.integers(0, 6_000_000_000),
)
DAYS = st.sampled_from(
    [0, 1, 3600, 86_399, 86_400, 86_401, 172_800, 172_801, 31 * 86_400, -1, -86_400, -90_000, -200_000]
)
budget_steps = st.lists(st.tuples(DAYS, st.integers(0, 10**12), st.integers(0, 10**12)), min_size=1, max_size=6)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=instants, taken=budget_steps)
def test_a_budget_is_counted_as_in_redis_and_as_in_a_process(
    start: int, taken: list[tuple[int, int, int]], real: str
) -> None:
    use: BudgetUse | None = None
    expected, now = [], start
    for later, tokens, gpu_ms in taken:
        now = max(0, now + later)
        expected.append(use_at(use, now).plus(tokens, gpu_ms))
        use = expected[-1] if tokens or gpu_ms else use  # nothing is written if nothing is added
    for one in (ClientFactory(real), ClientFactory(None)):
        client, now = one.connect(), start
        client.send_commands(("FLUSHALL",))
        found = []
        for later, tokens, gpu_ms in taken:
            now = max(0, now + later)
            (reply,) = client.send_commands(budgets.update_command("rh:1:budget:t", tokens, gpu_ms, now))
            found.append(budgets.decode_use(reply))
        assert found == expected
        one.close()


def test_reading_a_budget_writes_nothing_and_a_foreign_value_is_replaced(both: ClientFactory) -> None:
    client = both.connect()
    read, spend = budgets.update_command("b", 0, 0), budgets.update_command("b", 5, 7)
    assert client.send_commands(read, ("EXISTS", "b"))[1] == 0
    client.send_commands(("SET", "b", "foreign"))
    (reply,) = client.send_commands(spend)
    assert reply[3:] == [5, 7, 5, 7]
    fields, left = client.send_commands(("HGETALL", "b"), ("TTL", "b"))
    assert (fields[b"day_tokens"], fields[b"month_gpu_ms"]) == (b"5", b"7")
    assert 39 * 86_400 < left <= 40 * 86_400


QUOTA = Quota(requests_per_minute=3, tokens_per_minute=600, concurrent_requests=2)
steps = st.builds(
    UsageUpdate, process=st.sampled_from(["p", "q"]), acquire=st.booleans(), needs_tokens=st.booleans(),
    released=st.integers(-2, 2), running=st.one_of(st.none(), st.integers(0, 2)), tokens_used=st.integers(0, 500),
)  # fmt: skip


@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(taken=st.lists(st.tuples(steps, st.integers(0, 20_000)), max_size=8))
def test_the_limits_are_counted_as_in_redis(taken: list[tuple[UsageUpdate, int]], real: str) -> None:
    allowed = []
    for one in (ClientFactory(real), ClientFactory(None)):
        client, now = one.connect(), int(time.time() * 1000) // 1000 * 1000
        client.send_commands(("FLUSHALL",))
        statuses = []
        for step, later in taken:
            now += later
            (reply,) = client.send_commands(update_command("rh:1:limit:t", QUOTA, step, now))
            found = decode_status(reply)
            statuses.append((found.exceeded, found.requests_remaining, found.tokens_remaining))
        allowed.append(statuses)
        one.close()
    assert allowed[0] == allowed[1]


def test_the_purge_log_accepts_records_as_the_purge_adds_them(both: ClientFactory) -> None:
    client = both.connect()
    (id_,) = client.send_commands(("XADD", PURGE_LOG_KEY, "MAXLEN", "~", 10_000, "*", "scope", b'{"all":true}'))
    assert client.send_commands(("XRANGE", PURGE_LOG_KEY, "(0-0", "+", "COUNT", 1000)) == [
        [[id_, [b"scope", b'{"all":true}']]]
    ]
