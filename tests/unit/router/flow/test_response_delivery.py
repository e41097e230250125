"""What a client gets from an in-flight request, by the form that it asks for and by how the generation ended."""

import asyncio

import pytest

from router.core.endpoints.chat import CHAT
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.recorded_response import RecordedResponse
from router.errors import ApiError
from router.flow.exchange import AttemptFacts, Exchange
from router.flow.response_delivery import LEADER_LOCAL_ERRORS, ResponseDelivery, RetryRequest
from router.flow.result import GenerationResult, lost_result
from router.flow.sharing.inflight import MAX_LAG, InFlightRequest
from tests.support.factories import chat
from tests.support.inflight_factory import in_flight_request
from tests.support.waiting import TEST_TIMEOUT

BODY = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"one"},"finish_reason":"stop"}]}'
RECORDED = RecordedResponse(body=BODY, stream=None, prompt_tokens=1, completion_tokens=2)
ENDINGS = (b"done", b"usage done")
STREAM = GenerationResult(
    complete=True, recorded_response=RECORDED, endings=ENDINGS, prompt_tokens=1, completion_tokens=2
)


def new_exchange() -> Exchange:
    return Exchange(endpoint=CHAT, request_id="1", started_at=0.0)


def deliver(
    inflight: InFlightRequest, request: InferenceRequest, *, is_initiator: bool = False
) -> tuple[ResponseDelivery, Exchange]:
    exchange = new_exchange()
    return ResponseDelivery(inflight, request, exchange, is_initiator=is_initiator), exchange


@pytest.mark.parametrize("with_usage", [False, True])
async def test_a_stream_ends_with_the_usage_event_if_the_client_asked_for_it(with_usage: bool) -> None:
    inflight = in_flight_request()
    delivery, exchange = deliver(inflight, chat(stream=True, stream_options={"include_usage": with_usage}))
    inflight.record.attempts = [AttemptFacts(engine="llama-1", sent_at=0.0)]
    inflight.publish(b"one ")
    assert await delivery.start() is None
    assert exchange.engine == "llama-1"
    assert exchange.first_token_at is not None
    assert await delivery.read() == b"one "
    inflight.finish(STREAM)
    assert await delivery.read() == ENDINGS[with_usage]
    assert delivery.finished
    assert await delivery.read() == b"", "the end comes once"
    assert (exchange.prompt_tokens, exchange.completion_tokens, exchange.outcome) == (1, 2, "complete")


async def test_a_client_that_wants_json_retries_when_the_stream_grows_beyond_what_is_buffered_for_it() -> None:
    inflight = in_flight_request(request=chat(stream=True), join_limit=10)
    delivery, exchange = deliver(inflight, chat())
    starting = asyncio.ensure_future(delivery.start())
    await asyncio.sleep(0)
    for _ in range(3):
        inflight.publish(b"x" * (MAX_LAG // 2 + 1))
    with pytest.raises(RetryRequest):
        await asyncio.wait_for(starting, TEST_TIMEOUT)
    assert exchange.outcome == "complete", "the next attempt decides"


async def test_a_client_that_wants_json_gets_the_recorded_form_of_a_stream_at_its_end() -> None:
    inflight = in_flight_request(request=chat(stream=True))
    delivery, exchange = deliver(inflight, chat())
    starting = asyncio.ensure_future(delivery.start())
    await asyncio.sleep(0)
    inflight.publish(b"one ")
    await asyncio.sleep(0)
    assert not starting.done()
    inflight.finish(STREAM)
    assert await starting == BODY
    assert (exchange.prompt_tokens, exchange.completion_tokens) == (1, 2)


async def test_a_client_that_wants_a_stream_of_a_json_generation_gets_it_converted() -> None:
    inflight = in_flight_request()
    delivery, _ = deliver(inflight, chat(stream=True))
    inflight.finish(GenerationResult(complete=True, body=BODY, recorded_response=RECORDED))
    body = await delivery.start()
    assert body is not None
    assert body.startswith(b"data: ")
    assert body.endswith(b"data: [DONE]\n\n")


async def test_a_response_that_has_no_form_for_the_client_makes_it_retry() -> None:
    inflight = in_flight_request()
    delivery, _ = deliver(inflight, chat(stream=True))
    inflight.finish(GenerationResult(complete=True, body=BODY))
    with pytest.raises(RetryRequest):
        await delivery.start()


async def test_a_generation_that_fails_after_its_first_token_ends_with_one_error_event() -> None:
    inflight = in_flight_request()
    delivery, exchange = deliver(inflight, chat(stream=True), is_initiator=True)
    inflight.publish(b"one ")
    await delivery.start()
    error = ApiError(502, "The engine is gone.", code="engine_failed")
    inflight.finish(GenerationResult(complete=False, error=error, error_reason="closed", had_data=True))
    data = await delivery.read()
    assert data.startswith(b"one data: ")
    assert b"The engine is gone." in data
    assert b"[DONE]" not in data
    assert delivery.finished
    assert (exchange.outcome, exchange.error_reason) == ("failed", "closed")


async def test_a_client_that_is_overrun_gets_an_error_event_and_the_exchange_says_why() -> None:
    inflight = in_flight_request()
    delivery, exchange = deliver(inflight, chat(stream=True))
    inflight.publish(b"one ")
    await delivery.start()
    inflight.subscribers[0].overrun = True
    assert b"the client reads too slowly" in await delivery.read()
    assert delivery.finished
    assert (exchange.outcome, exchange.error_reason) == ("failed", "slow-reader")


@pytest.mark.parametrize("led_here", [True, False], ids=["here", "elsewhere"])
@pytest.mark.parametrize(
    ("error", "retries_elsewhere", "retries_here"),
    [
        *((ApiError(503, "no", code=code), True, False) for code in LEADER_LOCAL_ERRORS),
        (ApiError(503, "no", code="no_engine"), False, False),
        (ApiError(502, "no", code="engine_lost"), False, False),
        (ApiError(400, "no"), True, True),
    ],
)
async def test_a_follower_retries_after_an_error_that_concerns_its_leader_alone(
    error: ApiError, retries_elsewhere: bool, retries_here: bool, led_here: bool
) -> None:
    inflight = in_flight_request()
    inflight.is_leader = led_here
    delivery, exchange = deliver(inflight, chat())
    inflight.finish(GenerationResult(complete=False, error=error, error_reason="no"))
    retries = retries_here if led_here else retries_elsewhere
    with pytest.raises(RetryRequest if retries else ApiError):
        await delivery.start()
    assert exchange.first_token_at is None


@pytest.mark.parametrize(("code", "retries"), [("engine_failed", True), ("engine_lost", False)])
async def test_a_client_that_has_received_nothing_of_a_stream_retries_it_unless_engines_ended_with_it(
    code: str, retries: bool
) -> None:
    inflight = in_flight_request(request=chat(stream=True))
    delivery, _ = deliver(inflight, chat())
    error = ApiError(502, "no", code=code)
    inflight.finish(GenerationResult(complete=False, error=error, error_reason="reset", had_data=True))
    with pytest.raises(RetryRequest if retries else ApiError):
        await delivery.start()


@pytest.mark.parametrize(
    ("error", "is_broken_off"),
    [
        (ApiError(502, "no", code="engine_failed"), True),
        (ApiError(502, "no", code="engine_lost"), False),
        (ApiError(400, "no"), False),
    ],
)
async def test_a_client_that_repeats_broken_requests_gets_no_error_event_where_another_engine_may_help(
    error: ApiError, is_broken_off: bool
) -> None:
    inflight = in_flight_request()
    request, exchange = chat(stream=True), new_exchange()
    delivery = ResponseDelivery(inflight, request, exchange, retries_after_break=lambda: True)
    inflight.publish(b"one ")
    assert await delivery.start() is None
    inflight.finish(GenerationResult(complete=False, error=error, error_reason="reset", had_data=True))
    sent = await delivery.read()
    assert delivery.finished
    assert (delivery.is_broken_off, b'"error"' not in sent) == (is_broken_off, is_broken_off)
    assert sent.startswith(b"one ")
    assert (exchange.outcome, exchange.error_reason) == ("failed", "reset")


async def test_a_client_that_has_received_nothing_retries_a_generation_that_was_lost() -> None:
    inflight = in_flight_request()
    delivery, _ = deliver(inflight, chat())
    inflight.finish(lost_result())
    with pytest.raises(RetryRequest):
        await delivery.start()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_whose_time_in_queues_is_over_is_refused(stream: bool) -> None:
    inflight = in_flight_request(request=chat(stream=stream))
    delivery = ResponseDelivery(inflight, chat(stream=stream), new_exchange(), queue_time=0.0, retry_after=7)
    with pytest.raises(ApiError) as refusal:
        await delivery.start()
    assert (refusal.value.status, refusal.value.code, refusal.value.retry_after) == (503, "queue_timeout", 7)


async def test_a_client_whose_time_in_queues_is_over_waits_on_if_an_engine_has_its_request() -> None:
    inflight = in_flight_request()
    inflight.is_at_engine = True
    delivery = ResponseDelivery(inflight, chat(), new_exchange(), queue_time=0.0)
    starting = asyncio.ensure_future(delivery.start())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not starting.done()
    inflight.finish(GenerationResult(complete=True, body=BODY))
    assert await starting == BODY


@pytest.mark.parametrize("code", LEADER_LOCAL_ERRORS)
async def test_a_retry_says_whether_the_client_was_queued(code: str) -> None:
    inflight = in_flight_request()
    inflight.is_leader = False
    delivery, _ = deliver(inflight, chat())
    inflight.finish(GenerationResult(complete=False, error=ApiError(503, "no", code=code, retry_after=7)))
    with pytest.raises(RetryRequest) as retry:
        await delivery.start()
    assert retry.value.retry_after == (7 if "queue" in code else None)


async def test_a_response_that_names_memory_of_one_engine_is_for_the_client_that_it_was_generated_for() -> None:
    private = GenerationResult(complete=True, body=BODY, is_private=True)
    inflight = in_flight_request()
    owner, _ = deliver(inflight, chat(), is_initiator=True)
    joined, _ = deliver(inflight, chat())
    inflight.finish(private)
    assert await owner.start() == BODY
    with pytest.raises(RetryRequest):
        await joined.start()
