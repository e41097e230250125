"""How long an in-flight request without subscribers continues."""

import asyncio
from functools import partial

import pytest

from router.flow.sharing.abandonment import _FOLLOWER_TIMEOUT, Abandonment, abandon_limits
from router.flow.sharing.generation_rules import AbandonRules, OnAbandon
from router.flow.sharing.inflight import InFlightRequest
from router.settings import parse
from tests.support.inflight_factory import generation_record, in_flight_request
from tests.support.router_server import router_config


class Abandoned:
    """In-flight requests whose task does nothing, and a clock of the event loop that stands still until `advance`."""

    def __init__(self, on_abandon: OnAbandon = "cancel", timeout: float = 0.0, limit: int | None = None) -> None:
        self.abandonment = Abandonment()
        self._rules = AbandonRules(on_abandon, timeout, {} if limit is None else {"acme": limit})
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time()
        self._loop.time = lambda: self._now  # type: ignore[method-assign]

    def start(
        self, id_: str = "1", *, tenant: str = "default", dispatched: bool = True, stores: bool = True
    ) -> InFlightRequest:
        inflight = in_flight_request(
            id_,
            record=generation_record(tenant),
            on_no_subscribers=partial(self.abandonment.on_no_subscribers, rules=self._rules, stores_response=stores),
        )
        inflight.dispatched_at = 1.0 if dispatched else None
        inflight.task = self._loop.create_task(wait_forever())
        return inflight

    async def advance(self, seconds: float) -> None:
        self._now += seconds
        for _ in range(3):  # the timer, and the cancellation that it causes
            await asyncio.sleep(0)


async def wait_forever() -> None:
    await asyncio.Event().wait()


def is_cancelled(inflight: InFlightRequest) -> bool:
    assert inflight.task is not None
    return inflight.task.cancelled()


def leave(inflight: InFlightRequest) -> None:
    """A client comes and goes."""
    inflight.subscribe().close()


async def test_it_continues_for_the_timeout_in_which_the_client_may_come_back() -> None:
    here = Abandoned(timeout=5.0)
    left, returned = here.start("1"), here.start("2")
    leave(left)
    leave(returned)
    returned.subscribe()
    await here.advance(4.9)
    assert not is_cancelled(left)
    await here.advance(0.2)
    assert is_cancelled(left)
    assert not left.joinable
    assert not is_cancelled(returned)


async def test_it_is_cancelled_at_once_if_nothing_was_dispatched_or_nobody_can_join() -> None:
    here = Abandoned(timeout=5.0)
    waiting, closed = here.start("1", dispatched=False), here.start("2")
    closed.stop_joining()
    leave(waiting)
    leave(closed)
    await here.advance(0)
    assert is_cancelled(waiting)
    assert is_cancelled(closed)


@pytest.mark.parametrize(
    ("stores", "dispatched", "leads", "finishes"),
    [(True, True, True, True), (False, True, True, False), (True, False, True, False), (True, True, False, False)],
)
async def test_finish_means_what_will_be_stored_of_this_process_and_has_cost_an_engine_something(
    stores: bool, dispatched: bool, leads: bool, finishes: bool
) -> None:
    here = Abandoned("finish")
    inflight = here.start(dispatched=dispatched, stores=stores)
    inflight.is_leader = leads
    leave(inflight)
    await here.advance(60)
    assert is_cancelled(inflight) is not finishes


async def test_it_is_not_cancelled_while_followers_say_that_they_read_it() -> None:
    here = Abandoned()
    here.abandonment.on_synced()
    inflight = here.start()
    here.abandonment.on_follower(inflight)
    leave(inflight)
    for _ in range(5):
        await here.advance(_FOLLOWER_TIMEOUT - 0.1)
        here.abandonment.on_follower(inflight)
    assert here.abandonment.has_followers
    assert not is_cancelled(inflight)
    await here.advance(_FOLLOWER_TIMEOUT + 0.1)
    await here.advance(_FOLLOWER_TIMEOUT + 0.1)
    assert is_cancelled(inflight)


async def test_followers_are_not_gone_because_this_process_cannot_hear_them() -> None:
    here = Abandoned()
    here.abandonment.on_synced()
    inflight = here.start()
    here.abandonment.on_follower(inflight)
    here.abandonment.on_sync_lost()
    leave(inflight)
    for _ in range(5):
        await here.advance(_FOLLOWER_TIMEOUT + 1)
    await here.advance(1)
    here.abandonment.on_synced()  # from here on, silence counts
    await here.advance(_FOLLOWER_TIMEOUT - 0.5)  # the deadline has come meanwhile
    assert not is_cancelled(inflight)
    for _ in range(2):
        await here.advance(_FOLLOWER_TIMEOUT + 0.1)
    assert is_cancelled(inflight)


async def test_a_tenant_has_no_more_of_them_than_its_limit_and_loses_the_oldest() -> None:
    here = Abandoned(timeout=60.0, limit=2)
    own = [here.start(f"{number}", tenant="acme") for number in range(4)]
    others = [here.start(f"other {number}", tenant="beta") for number in range(4)]
    for inflight in (*own, *others):
        leave(inflight)
    await here.advance(0)
    assert [is_cancelled(inflight) for inflight in own] == [True, True, False, False]
    assert not any(map(is_cancelled, others)), "a tenant without a limit"


async def test_those_with_subscribers_or_followers_do_not_count_against_the_limit() -> None:
    here = Abandoned(timeout=60.0, limit=1)
    here.abandonment.on_synced()
    read, followed, abandoned = (here.start(f"{number}", tenant="acme") for number in range(3))
    here.abandonment.on_follower(followed)
    leave(read)
    read.subscribe()
    leave(followed)
    leave(abandoned)
    await here.advance(0)
    assert [is_cancelled(inflight) for inflight in (read, followed, abandoned)] == [False, False, False]


async def test_one_that_has_ended_is_not_cancelled_later() -> None:
    here = Abandoned(timeout=5.0)
    inflight = here.start()
    here.abandonment.on_follower(inflight)
    leave(inflight)
    here.abandonment.forget(inflight)
    await here.advance(60)
    assert not is_cancelled(inflight)
    assert not here.abandonment.has_followers


async def test_the_limit_of_a_tenant_is_that_of_its_concurrent_requests() -> None:
    text = '[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\nconcurrent_requests = 3\n[[tenant]]\nname = "beta"\n'
    engines = {"one": ("llama", "any", "http://127.0.0.1:1")}
    assert abandon_limits(parse(router_config("unix:///x", engines, rest=text), {})) == {"acme": 3}
