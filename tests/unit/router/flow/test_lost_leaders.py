"""Flights of other processes that come to nothing, and nobody has had anything of them."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from router.core.cache.key import Key
from router.core.cache.redis_keys import claim_of
from router.core.endpoints.request import parse
from router.core.resilience.timeouts import Patience
from router.core.types import Endpoint
from router.errors import ApiError
from router.flow.admission import Admission
from router.flow.coalescer import Flights
from router.flow.dispatch import Dispatcher
from router.flow.engine_health import Standing
from router.flow.exchange import Exchange, Work
from router.flow.inflight import Again, Flight
from router.flow.outcome_codec import read_end
from router.flow.result import Landing
from router.net.client.transport import Transport
from router.net.tasks import end
from router.shared.claim import Claim
from router.shared.inflight_leases import SharedFlights
from router.shared.purges import BEGINNING
from router.upstream.client import EngineClient
from tests.support.redis_process import RedisServer
from tests.support.router_server import Engines, RouterServer, chat_body
from tests.support.sse_answers import said
from tests.support.store_fixture import Store
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("stream", [False, True], ids=["JSON", "stream"])
async def test_whoever_waited_for_a_process_that_is_gone_is_answered_all_the_same(
    router: RouterServer, redis: Any, engines: Engines, *, stream: bool
) -> None:
    before = await router.chat("The sea?")
    key = before.headers["x-cache-key"]
    claim = f"0123456789ab:1:{await redis.hget(key, 'digest')}:0-0"
    await redis.delete(key)
    await redis.set(claim_of(key), claim, px=200)
    answer = await router.http.post("/v1/chat/completions", json=chat_body("The sea?", stream=stream))
    assert (answer.status_code, answer.headers["x-cache"]) == (200, "MISS")
    assert said(answer) == said(before)


async def test_who_follows_a_flight_whose_answer_turns_out_to_be_stored_begins_anew(
    redis_server: RedisServer, redis: Any
) -> None:
    store = Store(redis_server.url)
    await store.start()
    shared = SharedFlights(store.line, wanted=lambda _: None)
    flights = Flights(idle_dispatcher(), on_abandon="cancel", abandon=0.0, limit=1000, landed=lambda _: None)
    flights.share(shared, store.purges, lambda: True)
    key = Key("rh:1:default:llama:0:0:0", ("d",))
    await redis.hset(key.text, "created", "1.5")
    flight = launch(flights, key)
    flights.wanted(flight.id)  # so fast can another process be, if this one was frozen for a moment
    assert flight.task is not None
    await flight.task
    (record,) = [record async for record in shared.follow(key.text, Claim(shared.process, flight.id, key.digest))]
    assert record.end is not None
    following = launch(flights, key)
    following.led_here = False
    reader = following.attach(following.request, EXCHANGE, leads=True)
    following.land(read_end(following, record.end))
    with pytest.raises(Again):
        await reader.begin()
    await flights.aclose()
    await store.aclose()


@pytest.mark.parametrize(
    ("status", "is_the_clients"), [(400, True), (404, True), (422, True), (501, True), (429, False), (503, False)]
)
@pytest.mark.parametrize("led_here", [True, False], ids=["here", "elsewhere"])
async def test_a_refusal_is_the_leaders_alone_since_it_can_be_about_what_is_no_part_of_the_key(
    status: int, is_the_clients: bool, led_here: bool
) -> None:
    flights = Flights(idle_dispatcher(), on_abandon="cancel", abandon=0.0, limit=1000, landed=lambda _: None)
    flight = launch(flights, Key("rh:1:default:llama:0:0:0", ("d",)))
    flight.led_here = led_here
    leader = flight.attach(flight.request, EXCHANGE, leads=True)
    follower = flight.attach(flight.request, EXCHANGE)
    flight.land(Landing(whole=False, error=ApiError(status, "no"), reason="no"))
    with pytest.raises(ApiError if led_here or not is_the_clients else Again):
        await leader.begin()
    with pytest.raises(Again if is_the_clients else ApiError):
        await follower.begin()
    await flights.aclose()


@pytest.mark.parametrize("turns", range(3))
async def test_who_leaves_before_redis_has_answered_leaves_no_claim_behind(
    redis_server: RedisServer, redis: Any, turns: int
) -> None:
    store = Store(redis_server.url)
    await store.start()
    flights = Flights(idle_dispatcher(), on_abandon="cancel", abandon=0.0, limit=1000, landed=lambda _: None)
    flights.share(SharedFlights(store.line, wanted=lambda _: None), store.purges, lambda: True)
    key = Key("rh:1:default:llama:0:0:0", ("d",))
    flight = launch(flights, key)
    reader = flight.attach(flight.request, EXCHANGE, leads=True)
    for _ in range(turns):
        await asyncio.sleep(0)
    reader.close()
    await store.line.ask(("PING",))  # what was asked before has been done by then
    assert await redis.get(claim_of(key.text)) is None
    await flights.aclose()
    await store.aclose()


async def test_who_leaves_a_flight_that_is_being_taken_over_leaves_no_claim_behind(
    redis_server: RedisServer, redis: Any
) -> None:
    store = Store(redis_server.url)
    await store.start()
    shared = Slow(store.line, wanted=lambda _: None)
    flights = Flights(idle_dispatcher(), on_abandon="cancel", abandon=0.0, limit=1000, landed=lambda _: None)
    flights.share(shared, store.purges, lambda: True)
    key = Key("rh:1:default:llama:0:0:0", ("d",))
    await redis.set(claim_of(key.text), f"0123456789ab:1:{key.digest}:0-0")
    flight = launch(flights, key)
    reader = flight.attach(flight.request, EXCHANGE, leads=True)
    flight.close()  # as a purge does
    await shared.taken.wait()
    reader.close()
    assert flight.task is not None
    await asyncio.wait([flight.task])
    await store.line.ask(("PING",))  # what was asked before has been done by then
    assert await redis.get(claim_of(key.text)) is None
    await flights.aclose()
    await store.aclose()


class Slow(SharedFlights):
    """Sets `taken` when it has taken a claim over, and does not say so."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.taken = asyncio.Event()

    async def take_over(self, *args: Any) -> Any:
        await super().take_over(*args)
        self.taken.set()
        await asyncio.Event().wait()


async def test_claims_are_renewed_however_many_there_are(redis_server: RedisServer, redis: Any) -> None:
    store = Store(redis_server.url)
    await store.start()
    shared = SharedFlights(store.line, wanted=lambda _: None)
    keys = [f"rh:1:default:llama:0:0:{number}" for number in range(250)]
    for number, key in enumerate(keys):
        assert await shared.claim(shared.ask(key, "d", f"{number}", BEGINNING)) is None
        await redis.persist(claim_of(key))
    lost = keys.pop()
    await redis.set(claim_of(lost), "0123456789ab:1:d:0-0")
    renewing = asyncio.create_task(shared.run())

    async def all_lapse() -> bool:
        return all([await redis.pttl(claim_of(key)) > 0 for key in keys])

    await eventually(all_lapse)
    assert await redis.get(claim_of(lost)) == "0123456789ab:1:d:0-0"
    assert await redis.pttl(claim_of(lost)) == -1
    await end(renewing)
    for number in range(250):
        shared.release(f"{number}")
    await store.line.ask(("PING",))
    assert [key for key in keys if await redis.exists(claim_of(key))] == []
    assert await redis.exists(claim_of(lost)) == 1
    await store.aclose()


async def test_a_claim_that_was_free_at_the_second_asking_is_given_up_as_any_other(
    redis_server: RedisServer, redis: Any
) -> None:
    store = Store(redis_server.url)
    await store.start()
    shared = SharedFlights(store.line, wanted=lambda _: None)
    key = "rh:1:default:llama:0:0:0"
    await redis.set(claim_of(key), "0123456789ab:1:d:0-0")
    asked = shared.ask(key, "d", "1", BEGINNING)
    await asked.replies  # it is another's
    shared.release("1")
    await redis.delete(claim_of(key))
    assert await shared.claim(asked) is None
    assert await redis.get(claim_of(key)) == f"{shared.process}:1:d:0-0"
    shared.release("1")
    await store.line.ask(("PING",))
    assert await redis.get(claim_of(key)) is None
    await store.aclose()


EXCHANGE = Exchange(endpoint=Endpoint.CHAT, request_id="1", begun=0.0)
REQUEST = parse(Endpoint.CHAT, json.dumps(chat_body("x")).encode())


def idle_dispatcher() -> Dispatcher:
    """One that has no engines."""
    nothing: Any = SimpleNamespace(engines={}, models=[])
    return Dispatcher(
        EngineClient(Transport(), connect_timeout=1.0),
        Admission(nothing, takes_work=lambda _: False, patience=1.0, queued=lambda _, __: None),
        Patience(1.0, 1.0, 1.0), Standing(nothing), max_entry=1000,
    )  # fmt: skip


def launch(flights: Flights, key: Key) -> Flight:
    work = Work(request_id="1", traceparent=None, tenant="default", model="llama", task="chat", stream=False, begun=0.0)
    return flights.launch(REQUEST, key, work, list, keep=None, documents=(), since=BEGINNING)
