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


def sender(outbox: WriteBatcher, transport: Transport) -> BufferedWriter:
    return BufferedWriter(cast("asyncio.Transport", transport), outbox, asyncio.get_running_loop())


async def test_senders_send_when_the_turn_ends_in_the_order_in_which_they_were_told() -> None:
    outbox, written = WriteBatcher(), list[bytes]()
    for data in (b"a", b"b", b"c"):
        sender(outbox, Transport(written)).write(data)
    assert written == []
    await asyncio.sleep(0)
    assert written == [b"a", b"b", b"c"]


async def test_what_one_is_told_in_a_turn_is_one_write() -> None:
    written = list[bytes]()
    one = sender(WriteBatcher(), Transport(written))
    one.write(b"a")
    one.write(b"b")
    await asyncio.sleep(0)
    one.write(b"c")
    await asyncio.sleep(0)
    assert written == [b"ab", b"c"]


async def test_what_is_much_does_not_wait() -> None:
    written = list[bytes]()
    one = sender(WriteBatcher(), Transport(written))
    one.write(b"a")
    one.write(much := b"b" * 20_000)
    assert written == [b"a" + much]
    await asyncio.sleep(0)
    assert written == [b"a" + much]


async def test_what_is_flushed_or_dropped_is_not_sent_again() -> None:
    written = list[bytes]()
    one = sender(WriteBatcher(), Transport(written))
    one.write(b"a")
    one.flush()
    one.write(b"b")
    one.discard()
    await asyncio.sleep(0)
    assert written == [b"a"]


async def test_what_is_written_while_others_send_is_sent_too() -> None:
    outbox, written = WriteBatcher(), list[bytes]()
    late = sender(outbox, Transport(written))
    sender(outbox, Transport(written, lambda: late.write(b"late"))).write(b"early")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert written == [b"early", b"late"]


async def test_a_sender_that_fails_stands_in_nobodys_way() -> None:
    loop = asyncio.get_running_loop()
    outbox, written, failed = WriteBatcher(), list[bytes](), list[object]()

    def fail() -> None:
        raise RuntimeError("a defect")

    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
    try:
        sender(outbox, Transport(written, fail)).write(b"lost")
        sender(outbox, Transport(written)).write(b"other")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(None)
    assert written == [b"other"]
    assert [type(error) for error in failed] == [RuntimeError]
