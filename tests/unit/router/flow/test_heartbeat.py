"""When the client of a stream gets comments, on a virtual clock."""

from collections.abc import Callable, MutableMapping
from random import Random
from typing import Any

import pytest

from router.core.endpoints.chat import CHAT
from router.flow.body_budget import BodyAllocation, BodyBudget
from router.flow.caller import NO_HEARTBEAT, Caller
from router.flow.exchange import Exchange
from router.flow.heartbeat import Heartbeats
from tests.simulation.clock import CLOCK
from tests.simulation.loop import VirtualLoop, new_loop


class Client:
    """A client of a stream, and what it gets: the seconds and the first words."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.got: list[tuple[float, str]] = []
        self.started = False
        self.exchange = Exchange(endpoint=CHAT, request_id="1", started_at=0.0)
        self.exchange.stream = True
        allocation = BodyAllocation(BodyBudget(), 0)
        self.caller = Caller(self, self.send, allocation)

    def cancel_on_disconnect(self) -> None:
        pass

    def start_response(self, status: int, header_bytes: bytes, content_length: int | None) -> None:
        assert (status, header_bytes, content_length) == (200, b"headers", None)
        self._note("headers")

    async def send(self, message: MutableMapping[str, Any]) -> None:
        assert message["more_body"]
        self.started = True
        self._note(message["body"].decode())

    def can_break_off(self) -> bool:
        return True

    def try_send(self, data: bytes) -> bool:
        if self.started:
            self._note(data.decode())
        return self.started

    def _note(self, text: str) -> None:
        self.got.append((round(CLOCK.now, 2), text.partition(" for")[0].strip()))

    def begin(self, interval: float = 15.0, start_wait: float = 10.0) -> None:
        shared = Heartbeats(lambda _: b"headers", interval=interval, start_wait=start_wait)
        self.caller.heartbeat = shared.start(self.exchange, self.caller)

    def at(self, when: float, callback: Callable[..., object]) -> None:
        self.loop.deliver(self.loop.world, when, callback)


@pytest.fixture
def client() -> Client:
    CLOCK.now = 0.0
    return Client(new_loop(Random(1)))


def run(client: Client, seconds: float, begin: Callable[[], None]) -> list[tuple[float, str]]:
    client.at(0.0, begin)
    client.loop.run(seconds)
    assert not client.loop.defects
    client.loop.close()
    return client.got


BEAT = ": heartbeat"


def test_the_headers_and_a_comment_come_after_an_interval_of_silence_and_a_comment_after_each_further_one(
    client: Client,
) -> None:
    assert run(client, 50, client.begin) == [(15, "headers"), (15, BEAT), (30, BEAT), (45, BEAT)]
    assert client.exchange.status == 200


def test_nothing_is_sent_after_the_end_and_where_it_is_turned_off(client: Client) -> None:
    off = Client(client.loop)
    client.at(0.0, lambda: off.begin(interval=0.0))

    def stop() -> None:
        client.caller.heartbeat.stop()

    client.at(14.9, stop)
    assert run(client, 60, client.begin) == off.got == []


def test_a_request_for_json_gets_no_comment(client: Client) -> None:
    client.exchange.stream = False
    run(client, 60, client.begin)
    assert client.caller.heartbeat is NO_HEARTBEAT


def test_a_first_token_that_comes_before_the_task_of_the_comment_runs_begins_the_response(client: Client) -> None:
    def begin() -> None:
        client.begin()
        create_task = client.loop.create_task

        def create_late(task: Any, **options: Any) -> Any:
            client.caller.has_begun = True  # what the request's task does at the first token
            return create_task(task, **options)

        client.loop.create_task = create_late  # type: ignore[method-assign, assignment]  # has what is used

    assert run(client, 20, begin) == []


def test_after_the_first_token_silence_is_noticed_without_any_cost_for_a_chunk(client: Client) -> None:
    chunks = 0

    def chunk() -> None:
        nonlocal chunks
        chunks += 1

    def first_token() -> None:
        client.caller.has_begun = client.started = True
        chunk()
        client.caller.heartbeat.follow(lambda: chunks)

    for at in (2, 3, 14, 29, 44):
        client.at(at, first_token if at == 2 else chunk)
    # The last chunk is seen at 45 s, so the silence after it is known at 60 s.
    assert run(client, 80, client.begin) == [(60, BEAT), (75, BEAT)]


@pytest.mark.parametrize("interval", [15.0, 0.0])
def test_while_an_engine_starts_comments_are_more_frequent_and_say_so(client: Client, interval: float) -> None:
    asleep = True

    def begin() -> None:
        client.begin(interval)
        client.caller.heartbeat.expect_start("llama", lambda: asleep)

    def started() -> None:
        nonlocal asleep
        asleep = False

    client.at(21.0, started)
    waiting = ": waiting"
    expected = [(10, "headers"), (10, waiting), (15, waiting), (20, waiting)]
    assert run(client, 40, begin) == ([*expected, (35, BEAT)] if interval else expected)
