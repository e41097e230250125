"""What is said about Redis, from what it says of itself."""

from typing import Any

import pytest

from router.checks.finding import Problem
from router.checks.redis_facts import RedisFacts, ServerFacts
from router.checks.redis_findings import judge_redis

GOOD = {"redis_version": "7.2.4", "role": "master", "maxmemory": "1024", "maxmemory_policy": "allkeys-lru"}


def server(info: dict[str, str] | None = None, **facts: Any) -> ServerFacts:
    return ServerFacts(address="127.0.0.1:6379", info=GOOD | (info or {}), **facts)


def found(*servers: ServerFacts, **facts: Any) -> list[tuple[str, str]]:
    findings = judge_redis("redis", RedisFacts(**{"kind": "server", "servers": servers, **facts}))
    return [(finding.level, finding.note) for finding in findings]


def test_nothing_is_wrong_with_a_current_redis_that_evicts_the_least_used_keys() -> None:
    assert found(server()) == [("ok", "version 7.2.4")]
    assert found(server({"maxmemory_policy": "volatile-lru"})) == [("ok", "version 7.2.4")]


def test_an_old_version_is_an_error() -> None:
    assert found(server({"redis_version": "6.0.16"}))[1] == ("error", "version 6.0.16 is too old")
    assert len(found(server({"redis_version": "6.2.0"}))) == 1
    assert len(found(server({"redis_version": "10.0.0"}))) == 1


def test_random_eviction_may_take_the_log_of_purges() -> None:
    (_, (level, note)) = found(server({"maxmemory_policy": "allkeys-random"}))
    assert level == "warning"
    assert "the log of purges" in note


def test_eviction_by_expiry_takes_what_routers_coordinate_with_first() -> None:
    (_, (level, note)) = found(server({"maxmemory_policy": "volatile-ttl"}))
    assert level == "warning"
    assert "claims and other leases" in note


@pytest.mark.parametrize(("lead", "words"), [(7.0, "7 s ahead of"), (-60.0, "60 s behind")])
def test_a_clock_that_differs_is_a_warning(lead: float, words: str) -> None:
    (_, (level, note)) = found(server(clock_lead=lead))
    assert level == "warning"
    assert words in note
    assert len(found(server(clock_lead=1.0))) == 1


def test_a_redis_for_other_machines_without_a_password_is_a_warning() -> None:
    (_, (level, note)) = found(server(), remote=True)
    assert level == "warning"
    assert "without a password" in note
    assert len(found(server(), remote=True, has_password=True)) == 1


def test_each_primary_of_a_cluster_is_judged_by_its_address() -> None:
    findings = judge_redis("redis", RedisFacts(kind="cluster", servers=(server(), server(denied=("get",)))))
    assert [finding.what for finding in findings] == ["redis", "redis 127.0.0.1:6379"]


def test_a_sentinel_that_is_down_is_a_warning_and_a_primary_that_is_down_an_error() -> None:
    down = (Problem("the server is down", "start it"),)
    assert found(server(), kind="sentinel", partial=down)[1] == ("warning", "the server is down")
    assert found(server(), server(), kind="cluster", partial=down)[1] == ("error", "the server is down")


def test_a_right_that_retention_by_worth_needs_is_no_longer_one_of_administration_alone() -> None:
    """Without it, no hit would give an entry back the lifetime that this setting has shortened."""
    facts = RedisFacts(kind="server", servers=(server(denied=("pttl", "scan")),))
    (_, *findings) = judge_redis("redis", facts, retention="worth")
    assert [(finding.level, finding.note) for finding in findings] == [
        ("error", "its user may not use pttl"),
        ("warning", "its user may not use scan, so `roundhouse cache` and the admin API fail"),
    ]
    assert [level for level, _ in found(server(denied=("pttl",)))] == ["ok", "warning"]


def test_keys_that_may_only_be_read_are_named_apart() -> None:
    assert found(server(protected_keys=("rh:1:hits:*",)))[1] == ("error", "its user may not write the keys rh:1:hits:*")


def test_what_could_not_be_found_out_is_said_and_is_no_mistake() -> None:
    (_, (level, note)) = found(server({"redis_version": "6.2.14"}, untried=("lpush",)))
    assert level == "ok"
    assert "does not tell whether its user may use lpush" in note


def test_a_default_user_without_rights_is_a_warning_where_redis_has_an_append_only_file() -> None:
    append_only = {"aof_enabled": "1"}
    (_, (level, note)) = found(server(append_only, default_has_rights=False))
    assert level == "warning"
    assert "loses data at each restart" in note
    assert len(found(server({"aof_enabled": "0"}, default_has_rights=False))) == 1
    assert len(found(server(append_only, default_has_rights=True))) == 1
    assert len(found(server(append_only, default_has_rights=None))) == 1
