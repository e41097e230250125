"""Addresses that no socket can be opened to, as servers name them; tests/world has the other answers of no use."""

from typing import Final

import pytest

from tests.support.nonsense_redis import NonsenseRedis
from tests.support.unusable_redis import STARTS, assert_unusable

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADDRESSES: Final = {
    "slots that do not exist": b"*1\r\n*3\r\n:0\r\n:20000\r\n*2\r\n$9\r\n127.0.0.1\r\n:7000\r\n",
    "100 million slots": b"*1\r\n*3\r\n:0\r\n:100000000\r\n*2\r\n$9\r\n127.0.0.1\r\n:7000\r\n",
    "a port that does not exist": b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:70000\r\n",
    "a host that is no name": b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$70\r\n" + 70 * b"a" + b"\r\n:7000\r\n",
    "a master at a port that does not exist": (
        b"*1\r\n%4\r\n$4\r\nname\r\n$1\r\nm\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n"
        b"$4\r\nport\r\n$5\r\n70000\r\n$5\r\nflags\r\n$6\r\nmaster\r\n"
    ),
}


@pytest.mark.parametrize("form", ADDRESSES)
async def test_a_server_that_names_an_impossible_address_at_the_start_is_like_one_that_is_down(
    form: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply = ADDRESSES[form]
    async with NonsenseRedis(reply, {"EXISTS": reply, "CLUSTER": reply, "TIME": reply}) as redis:
        for url in STARTS:
            await assert_unusable(url.format(port=redis.port))
    assert [record.message for record in caplog.records if record.exc_info] == []
