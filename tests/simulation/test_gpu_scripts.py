"""The scripts of GPUs whose engines take turns, in the model of Redis and in a real one."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from router.core.cache.redis_keys import gpu_group_key
from router.shared.engines.gpu_groups import (
    GroupReport,
    GroupState,
    MemberReport,
    Order,
    ProcessReport,
    decode_view,
    exchange_command,
    give_order_command,
    report_process_command,
    set_state_command,
)
from tests.simulation.redis_test_clients import ClientFactory
from tests.support.redis_process import RedisServer

KEY = gpu_group_key("gpu0")
REPORT = GroupReport(3, {"a": MemberReport(people=2, used_at=1.5), "b": MemberReport(asked_at=7.25)})
STATE = GroupState(version=4, phase="draining", sleeps=("a",), wakes="b", since=8.5, awake={"a": 2.0})


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    server = RedisServer()
    try:
        asyncio.run(server.start())
        yield str(server.socket)
    finally:
        server.remove()


@pytest.fixture(params=["real", "model"])
def client(request: pytest.FixtureRequest, real: str) -> Iterator[Any]:
    factory = ClientFactory(real if request.param == "real" else None)
    found = factory.connect()
    found.send_commands(("FLUSHALL",))
    yield found
    factory.close()


def now_of(client: Any) -> int:
    """In milliseconds."""
    ((seconds, micros),) = client.send_commands(("TIME",))
    return int(seconds) * 1000 + int(micros) // 1000


def exchange(client: Any, process: str) -> Any:
    (reply,) = client.send_commands(exchange_command("gpu0", process, REPORT))
    return decode_view(reply, process)


def test_one_process_holds_the_lease_and_renews_it(client: Any) -> None:
    assert exchange(client, "one").is_holder
    assert not exchange(client, "two").is_holder
    assert exchange(client, "one").reports == {"one": REPORT, "two": REPORT}
    (lease,) = client.send_commands(("HGET", KEY, "lease"))
    assert 9_000 < int(lease.split()[1]) - now_of(client) <= 10_000
    (seconds,) = client.send_commands(("TTL", KEY))
    assert 86_000 < seconds <= 86_400


@pytest.mark.parametrize("offset", [-1, 11_000])
def test_a_lease_that_has_ended_or_is_of_another_clock_goes_to_the_next_one(client: Any, offset: int) -> None:
    client.send_commands(("HSET", KEY, "lease", f"one {now_of(client) + offset}"))
    assert exchange(client, "two").is_holder


def test_a_launcher_reports_without_a_lease(client: Any) -> None:
    report = ProcessReport(3, "failed", "it exited")
    (reply,) = client.send_commands(report_process_command("gpu0", "a", report))
    assert decode_view(reply).processes == {"a": report}
    assert client.send_commands(("HGET", KEY, "lease")) == [None]
    assert exchange(client, "one").processes == {"a": report}


def test_what_is_too_old_is_dropped(client: Any) -> None:
    now = now_of(client)
    fields = {
        "process:old": now - 6000, "launcher:old": now - 6000, "process:new": now - 3000, "order": now - 601_000,
    }  # fmt: skip
    for field, at in fields.items():
        client.send_commands(("HSET", KEY, field, f"{at} {{}}"))
    view = exchange(client, "one")
    assert view.reports.keys() == {"one", "new"}
    assert (view.processes, view.order_text) == ({}, b"")
    (kept,) = client.send_commands(("HKEYS", KEY))
    assert sorted(kept) == [b"lease", b"process:new", b"process:one"]


def test_a_state_is_written_by_the_holder_alone_and_ends_the_order_that_it_carries_out(client: Any) -> None:
    assert client.send_commands(give_order_command("gpu0", Order("b", sleeps=False))) == [0], "nobody decides"
    exchange(client, "one")
    assert client.send_commands(give_order_command("gpu0", Order("b", sleeps=False))) == [1]
    view = exchange(client, "one")
    assert view.order == Order("b", sleeps=False)
    assert client.send_commands(set_state_command("gpu0", "two", STATE, view.order_text)) == [0]
    assert client.send_commands(set_state_command("gpu0", "one", STATE, b"another")) == [1]
    assert exchange(client, "one")[1:4] == (STATE, view.order, view.order_text)
    assert client.send_commands(set_state_command("gpu0", "one", STATE, view.order_text)) == [1]
    assert exchange(client, "two")[:4] == (False, STATE, None, b"")


def test_no_order_is_taken_once_the_lease_has_ended(client: Any) -> None:
    client.send_commands(("HSET", KEY, "lease", f"one {now_of(client) - 1}"))
    assert client.send_commands(give_order_command("gpu0", Order("b", sleeps=True))) == [0]
    assert client.send_commands(("HGET", KEY, "order")) == [None]
