"""The scripts of batches in the model of Redis and in a real one: the same replies, and the same fields."""

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from router.shared.batches import batch_records
from router.shared.batches.batch_records import LEASE
from tests.simulation.redis_batch_scripts import BATCH_SCRIPTS
from tests.simulation.redis_test_clients import ClientFactory
from tests.support.redis_process import RedisServer

KEY = "rh:1:batches:acme:batch_1"
TOKENS = ("one", "two", "three")
EXPIRES = 1000  # seconds


@pytest.fixture(scope="module")
def clients() -> Iterator[tuple[ClientFactory, ClientFactory]]:
    server = RedisServer()
    factories = []
    try:
        asyncio.run(server.start())
        factories = [ClientFactory(str(server.socket)), ClientFactory(None)]
        yield factories[0], factories[1]
    finally:
        for factory in factories:
            factory.close()
        server.remove()


def steps(random: Random) -> Iterator[tuple[Any, ...]]:
    """Commands in which processes work on a batch of three ranges, some of them too late."""
    yield ("HSET", KEY, "spec", "{}", "status", "validating", "expires", EXPIRES)
    now = 0.0
    while now < EXPIRES + 100:
        now += random.choice((0.0, 1.0, 20.0, 31.0))
        milliseconds, until = int(1000 * now), int(1000 * (now + LEASE))
        token, number = random.choice(TOKENS), random.randrange(3)
        counts = [random.randrange(9) for _ in range(3)]
        yield from random.choice(
            (
                [("_CLAIM_SCRIPT", milliseconds, until, token, int(now), random.choice(("", "", "closed")), 1)],
                [("_CLAIM_SCRIPT", milliseconds, until, token, int(now), "", 0)],
                [("_RENEW_RANGE_SCRIPT", number, token, until, *counts, int(now))],
                [("_FINISH_RANGE_SCRIPT", number, token, "done", *counts)] if random.random() < 0.2 else [],
                [("_FINISH_RANGE_SCRIPT", number, token, "held", *random.choice(([], counts)))],
                [("_RENEW_JOB_SCRIPT", token, until)],
                [("_FINISH_JOB_SCRIPT", token, 0, "status", "in_progress", "ranges", 3, "index", token)]
                if now < EXPIRES else [("_FINISH_JOB_SCRIPT", token, 10**9, "status", "completed")],
                [("_SET_WAITING_SCRIPT", random.choice(("", "busy")), number % 2)],
                [("_PAUSE_SCRIPT", random.randrange(2))],
                [("_PROGRESS_SCRIPT",)],
                [("_CANCEL_SCRIPT", int(now))] if random.random() < 0.05 else [],
            )
        )  # fmt: skip


def test_processes_get_the_same_of_both(clients: tuple[ClientFactory, ClientFactory]) -> None:
    used: set[Any] = set()
    for seed in range(20):
        both = [factory.connect() for factory in clients]
        for client in both:
            client.send_commands(("FLUSHALL",))
        for name, *words in steps(Random(seed)):
            command = (name, *words)
            if name.startswith("_"):
                command = ("EVAL", getattr(batch_records, name), 1, KEY, *words)
            real, model = [client.send_commands(command, ("HGETALL", KEY)) for client in both]
            assert real == model, (seed, command)
            used.add((name, str(real[0])[:12]))
    assert {name for name, _ in used if name.startswith("_")} | {"_ADMIT_SCRIPT"} == {
        name for name in vars(batch_records) if name.endswith("_SCRIPT")
    }
    for what in ("validate", "range", "finalize", "wait", "ended"):
        assert any(what in reply for name, reply in used if name == "_CLAIM_SCRIPT"), what
    for name in ("_RENEW_RANGE_SCRIPT", "_FINISH_RANGE_SCRIPT", "_RENEW_JOB_SCRIPT", "_FINISH_JOB_SCRIPT"):
        assert {(name, "0"), (name, "1")} <= used
    assert ("_RENEW_RANGE_SCRIPT", "2") in used


def test_a_tenant_has_no_more_open_batches_than_it_may_in_both(clients: tuple[ClientFactory, ClientFactory]) -> None:
    admit = batch_records._ADMIT_SCRIPT
    assert admit.encode() in BATCH_SCRIPTS
    replies = []
    for factory in clients:
        client = factory.connect()
        client.send_commands(("FLUSHALL",))
        asked = [("acme:", 2, 1.5, f"acme:{number}") for number in range(3)] + [("other:", 2, 2.5, "other:1")]
        commands = [("EVAL", admit, 1, "open", *words) for words in asked]
        replies.append(client.send_commands(*commands, ("ZREVRANGE", "open", 0, -1, "WITHSCORES")))
    assert replies[0] == replies[1]
    assert replies[0][:4] == [1, 1, 0, 1]
