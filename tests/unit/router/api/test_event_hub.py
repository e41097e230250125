"""The events that viewers get."""

import asyncio
from typing import Any

import pytest

from router.api.dashboard.event_hub import KEEP_ALIVE_INTERVAL, MAX_VIEWERS, EventHub, Viewer
from router.errors import ApiError
from router.net.redis.errors import RedisBackendError
from tests.support.virtual_time import on_virtual_time
from tests.support.waiting import eventually


class Documents:
    """Four documents that a test changes."""

    def __init__(self) -> None:
        self.status: Any = 1
        self.error: Exception | None = None

    async def read_status(self) -> Any:
        return self.status

    async def read_other(self) -> Any:
        if self.error is not None:
            raise self.error
        return {}

    def hub(self) -> EventHub:
        return EventHub(self.read_status, self.read_other, self.read_other, self.read_other)


async def read(viewer: Viewer) -> bytes:
    return await viewer.take() or b""


async def read_until(viewer: Viewer, wanted: bytes) -> bytes:
    data = b""
    while wanted not in data:
        data += await read(viewer)
    return data


@on_virtual_time
async def test_a_viewer_keeps_only_the_newest_event_of_each_kind() -> None:
    viewer = Viewer()
    for number in range(1000):
        viewer.offer("status", b"status %d\n\n" % number)
        viewer.offer("requests", b"requests %d\n\n" % number)
    assert await read(viewer) == b"status 999\n\nrequests 999\n\n"


@on_virtual_time
async def test_a_quiet_stream_gets_comments() -> None:
    viewer = Viewer()
    for number in range(1, 4):
        assert await read(viewer) == b": keep-alive\n\n"
        assert asyncio.get_running_loop().time() == pytest.approx(number * KEEP_ALIVE_INTERVAL)


@on_virtual_time
async def test_what_has_not_changed_is_not_sent_again() -> None:
    documents = Documents()
    hub = documents.hub()
    viewer = hub.subscribe()
    first = await read_until(viewer, b"event: requests")
    assert first.startswith(b"retry: 2000\n\n")
    assert await read(viewer) == b": keep-alive\n\n", "all have been read again meanwhile"
    documents.status = 2
    assert await read(viewer) == b"event: status\ndata: 2\n\n"
    await hub.aclose()


@on_virtual_time
async def test_a_second_viewer_gets_the_latest_documents_at_once() -> None:
    hub = Documents().hub()
    await read_until(hub.subscribe(), b"event: batches")
    assert (await read(hub.subscribe())).count(b"event: ") == 4
    await hub.aclose()


@pytest.mark.parametrize("error", [RedisBackendError("down"), RuntimeError("a defect")])
@on_virtual_time
async def test_a_document_that_cannot_be_read_does_not_end_the_others(error: Exception) -> None:
    documents = Documents()
    documents.error = error
    hub = documents.hub()
    viewer = hub.subscribe()
    await read_until(viewer, b"data: 1")
    documents.status = 2
    await read_until(viewer, b"data: 2")
    documents.error = None
    await read_until(viewer, b"event: history")
    await hub.aclose()


@on_virtual_time
async def test_the_hub_reads_only_while_there_are_viewers_and_starts_again() -> None:
    hub = Documents().hub()
    for _ in range(2):
        viewer = hub.subscribe()
        await read_until(viewer, b"event: status")
        hub.unsubscribe(viewer)
        await eventually(lambda: hub._task is None)


@on_virtual_time
async def test_viewers_are_bounded_and_end_when_the_hub_closes() -> None:
    hub = Documents().hub()
    viewers = [hub.subscribe() for _ in range(MAX_VIEWERS)]
    with pytest.raises(ApiError) as refused:
        hub.subscribe()
    assert (refused.value.status, refused.value.code) == (503, "too_many_viewers")
    await hub.aclose()
    assert [await viewer.take() for viewer in viewers] == [None] * MAX_VIEWERS
    hub.unsubscribe(viewers[0])
    with pytest.raises(ApiError):
        hub.subscribe()
