"""Waiting for lines of processes."""

import asyncio

import pytest

from tests.support.waiting import next_line


async def test_a_process_that_says_nothing_fails_its_test_and_does_not_hang_it() -> None:
    silent = asyncio.StreamReader()
    with pytest.raises(TimeoutError):
        await next_line(silent, timeout=0.01)
    silent.feed_data(b"ready\nand more")
    assert await next_line(silent) == b"ready\n"
    silent.feed_eof()
    assert await next_line(silent) == b"and more"
    assert await next_line(silent) == b""
