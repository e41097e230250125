"""Writes of one event loop iteration are sent together at its end."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from router.net.server.write_batcher import BufferedWriter, WriteBatcher

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Transport:
    """Records what is written to it, and first runs a given function."""

    def __init__(self, written: list[bytes], does: Callable[[], object] = lambda: None) -> None:
        self._written = written
        self._does = does

    def write(self, data: bytes) -> None:
        self._does()
        self._written.append(data)


def make_writer(batcher: WriteBatcher, transport: Transport) -> BufferedWriter:
    return BufferedWriter(cast("asyncio.Transport", transport), batcher, asyncio.get_running_loop())


async def test_writers_flush_at_the_end_of_the_iteration_in_order_of_registration() -> None:
    batcher, written = WriteBatcher(), list[bytes]()
    for data in (b"a", b"b", b"c"):
        make_writer(batcher, Transport(written)).write(data)
    assert written == []
    await asyncio.sleep(0)
    assert written == [b"a", b"b", b"c"]


async def test_all_writes_of_a_writer_in_one_iteration_are_one_write() -> None:
    written = list[bytes]()
    one = make_writer(WriteBatcher(), Transport(written))
    one.write(b"a")
    one.write(b"b")
    await asyncio.sleep(0)
    one.write(b"c")
    await asyncio.sleep(0)
    assert written == [b"ab", b"c"]


async def test_a_large_write_does_not_wait() -> None:
    written = list[bytes]()
    one = make_writer(WriteBatcher(), Transport(written))
    one.write(b"a")
    one.write(much := b"b" * 20_000)
    assert written == [b"a" + much]
    await asyncio.sleep(0)
    assert written == [b"a" + much]


async def test_flushed_or_dropped_data_is_not_sent_again() -> None:
    written = list[bytes]()
    one = make_writer(WriteBatcher(), Transport(written))
    one.write(b"a")
    one.flush()
    one.write(b"b")
    one.discard()
    await asyncio.sleep(0)
    assert written == [b"a"]


async def test_data_written_during_a_flush_is_sent_too() -> None:
    batcher, written = WriteBatcher(), list[bytes]()
    late = make_writer(batcher, Transport(written))
    make_writer(batcher, Transport(written, lambda: late.write(b"late"))).write(b"early")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert written == [b"early", b"late"]


async def test_a_writer_that_fails_does_not_affect_the_others() -> None:
    loop = asyncio.get_running_loop()
    batcher, written, failed = WriteBatcher(), list[bytes](), list[object]()

    def fail() -> None:
        raise RuntimeError("a defect")

    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
    try:
        make_writer(batcher, Transport(written, fail)).write(b"lost")
        make_writer(batcher, Transport(written)).write(b"other")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(None)
    assert written == [b"other"]
    assert [type(error) for error in failed] == [RuntimeError]
