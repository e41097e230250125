"""In-flight requests of other processes that fail before a subscriber has received anything."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from router.core.cache.cache_key import CacheKey
from router.core.cache.redis_keys import claim_key
from router.core.endpoints.chat import CHAT
from router.core.endpoints.requests.request import parse_request
from router.core.resilience.engine_losses import Suspects
from router.core.resilience.readiness import Readiness
from router.core.resilience.timeouts import EngineTimeouts
from router.errors import ApiError
from router.flow.attempts.admission import Admission
from router.flow.attempts.continuation.continuation_engines import ContinuationEngines
from router.flow.attempts.continuation.run_to_end import Continuations
from router.flow.attempts.continuation.seam import NO_CONTINUATIONS
from router.flow.attempts.dispatch import Dispatcher
from router.flow.attempts.engine_attempts import EngineAttempts
from router.flow.attempts.engine_health import EngineHealth
from router.flow.attempts.engine_losses import EngineLosses
from router.flow.attempts.engine_request import EngineRequests
from router.flow.exchange import Exchange
from router.flow.generation import Generations
from router.flow.response_delivery import ResponseDelivery, RetryRequest
from router.flow.result import GenerationResult
from router.flow.sharing.coalescer import Coalescer
from router.flow.sharing.generation_rules import AbandonRules, GenerationRules
from router.flow.sharing.inflight import InFlightRequest
from router.flow.sharing.new_generation import NewGeneration
from router.flow.sharing.outcome_codec import decode_result
from router.net.client.transport import HTTPTransport
from router.net.tasks import cancel_and_wait
from router.shared.cache.purges import BEGINNING
from router.shared.inflight.claim import Claim
from router.shared.inflight.inflight_leases import InFlightLeases
from router.upstream.client import EngineClient
from tests.support.inflight_factory import generation_record
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, RouterServer, chat_body
from tests.support.sse_answers import chat_text
from tests.support.store_fixture import StoreFixture
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("stream", [False, True], ids=["JSON", "stream"])
async def test_a_follower_of_a_process_that_is_gone_is_served_nevertheless(
    router: RouterServer, redis: Any, engines: EngineSet, *, stream: bool
) -> None:
    before = await router.chat("The sea?")
    key = before.headers["x-cache-key"]
    digest = await eventually(lambda: redis.hget(key, "digest"))
    claim = f"0123456789ab:1:{digest}:0-0"
    await redis.delete(key)
    await redis.set(claim_key(key), claim, px=200)
    answer = await router.http.post("/v1/chat/completions", json=chat_body("The sea?", stream=stream))
    assert (answer.status_code, answer.headers["x-cache"]) == (200, "MISS")
    assert chat_text(answer) == chat_text(before)


async def test_a_follower_of_a_flight_whose_response_is_already_stored_starts_again(
    redis_server: RedisServer, redis: Any
) -> None:
    store = StoreFixture(redis_server.url)
    await store.start()
    shared = InFlightLeases(store.pipeline, on_remote_subscriber=lambda _: None)
    coalescer = Coalescer()
    coalescer.enable_sharing(shared, store.purges)
    key = CacheKey("rh:1:default:llama:0:0:0", ("d",))
    await redis.hset(key.text, "created", "1.5")
    in_flight = launch(coalescer, key)
    coalescer.on_remote_subscriber(in_flight.id)  # another process can be this fast if this one was paused
    assert in_flight.task is not None
    await in_flight.task
    (record,) = [record async for record in shared.follow(key.text, Claim(shared.process_id, in_flight.id, key.digest))]
    assert record.outcome is not None
    following = launch(coalescer, key)
    following.is_leader = False
    reader = ResponseDelivery(following, following.request, EXCHANGE, is_initiator=True)
    following.finish(decode_result(record.outcome))
    with pytest.raises(RetryRequest):
        await reader.start()
    await coalescer.aclose()
    await store.aclose()


@pytest.mark.parametrize(
    ("status", "is_the_clients"), [(400, True), (404, True), (422, True), (501, True), (429, False), (503, False)]
)
@pytest.mark.parametrize("is_leader", [True, False], ids=["here", "elsewhere"])
async def test_a_refusal_applies_only_to_the_leader_since_it_may_depend_on_fields_outside_the_key(
    status: int, is_the_clients: bool, is_leader: bool
) -> None:
    coalescer = Coalescer()
    in_flight = launch(coalescer, CacheKey("rh:1:default:llama:0:0:0", ("d",)))
    in_flight.is_leader = is_leader
    leader = ResponseDelivery(in_flight, in_flight.request, EXCHANGE, is_initiator=True)
    follower = ResponseDelivery(in_flight, in_flight.request, EXCHANGE)
    in_flight.finish(GenerationResult(complete=False, error=ApiError(status, "no"), error_reason="no"))
    with pytest.raises(ApiError if is_leader or not is_the_clients else RetryRequest):
        await leader.start()
    with pytest.raises(RetryRequest if is_the_clients else ApiError):
        await follower.start()
    await coalescer.aclose()


@pytest.mark.parametrize("iterations", range(3))
async def test_a_client_that_disconnects_before_redis_has_replied_leaves_no_claim_behind(
    redis_server: RedisServer, redis: Any, iterations: int
) -> None:
    store = StoreFixture(redis_server.url)
    await store.start()
    coalescer = Coalescer()
    coalescer.enable_sharing(InFlightLeases(store.pipeline, on_remote_subscriber=lambda _: None), store.purges)
    key = CacheKey("rh:1:default:llama:0:0:0", ("d",))
    in_flight = launch(coalescer, key)
    reader = ResponseDelivery(in_flight, in_flight.request, EXCHANGE, is_initiator=True)
    for _ in range(iterations):
        await asyncio.sleep(0)
    reader.close()
    await store.pipeline.execute(("PING",))  # Redis has executed the earlier commands by then
    assert await redis.get(claim_key(key.text)) is None
    await coalescer.aclose()
    await store.aclose()


async def test_a_client_that_leaves_a_flight_during_its_takeover_leaves_no_claim_behind(
    redis_server: RedisServer, redis: Any
) -> None:
    store = StoreFixture(redis_server.url)
    await store.start()
    shared = Slow(store.pipeline, on_remote_subscriber=lambda _: None)
    coalescer = Coalescer()
    coalescer.enable_sharing(shared, store.purges)
    key = CacheKey("rh:1:default:llama:0:0:0", ("d",))
    await redis.set(claim_key(key.text), f"0123456789ab:1:{key.digest}:0-0")
    in_flight = launch(coalescer, key)
    reader = ResponseDelivery(in_flight, in_flight.request, EXCHANGE, is_initiator=True)
    in_flight.stop_joining()  # as a purge does
    await shared.taken.wait()
    reader.close()
    assert in_flight.task is not None
    await asyncio.wait([in_flight.task])
    await store.pipeline.execute(("PING",))  # Redis has executed the earlier commands by then
    assert await redis.get(claim_key(key.text)) is None
    await coalescer.aclose()
    await store.aclose()


class Slow(InFlightLeases):
    """Sets `taken` when it has taken over a lease, but never returns."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.taken = asyncio.Event()

    async def take_over(self, *args: Any) -> Any:
        await super().take_over(*args)
        self.taken.set()
        await asyncio.Event().wait()


async def test_claims_are_renewed_however_many_there_are(redis_server: RedisServer, redis: Any) -> None:
    store = StoreFixture(redis_server.url)
    await store.start()
    shared = InFlightLeases(store.pipeline, on_remote_subscriber=lambda _: None)
    keys = [f"rh:1:default:llama:0:0:{number}" for number in range(250)]
    for number, key in enumerate(keys):
        assert await shared.claims.finish(shared.claims.begin(key, "d", f"{number}", BEGINNING)) is None
        await redis.persist(claim_key(key))
    lost = keys.pop()
    await redis.set(claim_key(lost), "0123456789ab:1:d:0-0")
    renewing = asyncio.create_task(shared.run())

    async def all_lapse() -> bool:
        return all([await redis.pttl(claim_key(key)) > 0 for key in keys])

    await eventually(all_lapse)
    assert await redis.get(claim_key(lost)) == "0123456789ab:1:d:0-0"
    assert await redis.pttl(claim_key(lost)) == -1
    await cancel_and_wait(renewing)
    for number in range(250):
        shared.claims.release(f"{number}")
    await store.pipeline.execute(("PING",))
    assert [key for key in keys if await redis.exists(claim_key(key))] == []
    assert await redis.exists(claim_key(lost)) == 1
    await store.aclose()


async def test_a_claim_that_was_free_at_the_second_request_is_released_like_any_other(
    redis_server: RedisServer, redis: Any
) -> None:
    store = StoreFixture(redis_server.url)
    await store.start()
    shared = InFlightLeases(store.pipeline, on_remote_subscriber=lambda _: None)
    key = "rh:1:default:llama:0:0:0"
    await redis.set(claim_key(key), "0123456789ab:1:d:0-0")
    pending = shared.claims.begin(key, "d", "1", BEGINNING)
    await pending.replies  # it is another's
    shared.claims.release("1")
    await redis.delete(claim_key(key))
    assert await shared.claims.finish(pending) is None
    assert await redis.get(claim_key(key)) == f"{shared.process_id}:1:d:0-0"
    shared.claims.release("1")
    await store.pipeline.execute(("PING",))
    assert await redis.get(claim_key(key)) is None
    await store.aclose()


EXCHANGE = Exchange(endpoint=CHAT, request_id="1", started_at=0.0)
REQUEST = parse_request(CHAT, json.dumps(chat_body("x")).encode())


def no_engines() -> Generations:
    nothing: Any = SimpleNamespace(engines={}, models=[])
    client, health = EngineClient(HTTPTransport(), connect_timeout=1.0), EngineHealth(nothing)
    admission = Admission(
        nothing, readiness=lambda _: Readiness.DOWN, queue_timeout=1.0, set_queue_length=lambda _, __: None
    )
    requests = EngineRequests(client, EngineTimeouts(1.0, 1.0, 1.0), {})
    losses = EngineLosses(client, Suspects())
    dispatcher = Dispatcher(admission, health, losses)
    attempts = EngineAttempts(requests, health, NO_CONTINUATIONS, max_entry=1000)
    engines = ContinuationEngines(nothing, admission)
    return Generations(
        dispatcher, attempts, Continuations(dispatcher, attempts, losses, engines, NO_CONTINUATIONS), losses
    )


def launch(flights: Coalescer, key: CacheKey) -> InFlightRequest:
    rules = GenerationRules(
        no_engines(), AbandonRules("cancel", 0.0), join_limit=1000, record_generation=lambda _: None
    )
    return flights.start(NewGeneration(request=REQUEST, record=generation_record(), order_engines=list), rules, key)
