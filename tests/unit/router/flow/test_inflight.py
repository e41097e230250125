"""The frames of an in-flight request and the positions of its subscribers."""

import asyncio

from router.flow.result import GenerationResult, lost_result
from router.flow.sharing.inflight import MAX_LAG, InFlightRequest, Subscriber
from tests.support.inflight_factory import in_flight_request


class Client:
    """Takes frames directly while it `accepts`; refuses them otherwise."""

    def __init__(self) -> None:
        self.accepts = True
        self.received: list[bytes] = []

    def try_send(self, frames: bytes) -> bool:
        if self.accepts:
            self.received.append(frames)
        return self.accepts


async def read_to_end(subscriber: Subscriber, client: Client) -> bytes:
    while not subscriber.finished:
        if data := await subscriber.read(client.try_send):
            client.received.append(data)
    return b"".join(client.received)


def finish(inflight: InFlightRequest) -> None:
    inflight.finish(GenerationResult(complete=True))


async def test_a_subscriber_that_waits_gets_each_frame_within_the_call_that_publishes_it() -> None:
    inflight, client = in_flight_request(), Client()
    reading = asyncio.ensure_future(read_to_end(inflight.subscribe(), client))
    await asyncio.sleep(0)  # until it waits
    for number in range(3):
        inflight.publish(b"%d" % number)
        assert client.received[-1] == b"%d" % number
    finish(inflight)
    assert await reading == b"012"


async def test_frames_that_a_client_could_not_take_are_not_overtaken_by_later_ones() -> None:
    inflight, client = in_flight_request(), Client()
    reading = asyncio.ensure_future(read_to_end(inflight.subscribe(), client))
    await asyncio.sleep(0)
    inflight.publish(b"a")
    client.accepts = False
    inflight.publish(b"b")
    client.accepts = True
    inflight.publish(b"c")
    assert client.received == [b"a"]
    finish(inflight)
    assert await reading == b"abc"


async def test_a_subscriber_that_joins_late_starts_with_the_first_frame() -> None:
    inflight = in_flight_request()
    inflight.publish(b"a")
    inflight.publish(b"b")
    late = inflight.subscribe()
    pieces = [(await late.read(), late.finished)]
    inflight.publish(b"c")
    finish(inflight)
    pieces += [(await late.read(), late.finished) for _ in range(2)]
    assert pieces == [(b"ab", False), (b"c", True), (b"", True)]


async def test_who_needs_the_end_is_not_started_by_the_first_frame() -> None:
    inflight = in_flight_request()
    for_data = asyncio.ensure_future(inflight.subscribe().wait_until_started(needs_end=False))
    for_end = asyncio.ensure_future(inflight.subscribe().wait_until_started(needs_end=True))
    await asyncio.sleep(0)
    inflight.publish(b"a")
    await for_data
    assert not for_end.done()
    inflight.finish(lost_result())
    await for_end


async def test_a_subscriber_that_lags_too_far_is_overrun_and_delays_nobody() -> None:
    inflight, client = in_flight_request(join_limit=10), Client()
    slow, fast = inflight.subscribe(), inflight.subscribe()
    reading = asyncio.ensure_future(read_to_end(fast, client))
    await asyncio.sleep(0)
    frames = b"x" * (MAX_LAG // 2 + 1)
    for _ in range(3):
        inflight.publish(frames)
    assert (slow.overrun, fast.overrun, inflight.joinable) == (True, False, False)
    assert (await slow.read(), slow.finished) == (b"", True)
    finish(inflight)
    assert await reading == frames * 3


async def test_the_first_and_the_last_frames_are_known_after_they_were_dropped() -> None:
    inflight = in_flight_request(join_limit=4)
    assert inflight.first_and_last_frames() == (b"", b"")
    for frames in (b"first", b"second", b"third"):  # nobody reads, so each is dropped at once
        inflight.publish(frames)
        assert inflight.first_and_last_frames() == (b"first", frames)


async def test_the_last_frame_is_that_of_an_event_also_after_a_comment() -> None:
    inflight = in_flight_request()
    for frames in (b"data: 1\n\n", b": 1\ndata: 2\n\n", b": ping\n\n: ping\n\n"):
        inflight.publish(frames)
    assert inflight.first_and_last_frames() == (b"data: 1\n\n", b": 1\ndata: 2\n\n")


async def test_the_last_subscriber_to_leave_is_reported_once_and_not_after_the_end() -> None:
    reported: list[InFlightRequest] = []
    inflight = in_flight_request(on_no_subscribers=reported.append)
    one, other = inflight.subscribe(), inflight.subscribe()
    one.close()
    assert reported == []
    other.close()
    assert reported == [inflight]
    ended = in_flight_request(on_no_subscribers=reported.append)
    last = ended.subscribe()
    finish(ended)
    last.close()
    assert reported == [inflight]
