"""Which records Redis does not have yet."""

from collections.abc import Callable
from typing import Any

import pytest

from router.shared.inflight.inflight_leases import InFlightLeases
from router.shared.inflight.stream_writer import Producer


class ScriptedPipeline:
    """Takes commands, and answers when the test says so."""

    def __init__(self) -> None:
        self.on_replies: list[Callable[[Any], None]] = []

    def send(self, *_: Any, size: int = 0, on_reply: Callable[[Any], None] | None = None) -> None:
        if on_reply is not None:
            self.on_replies.append(on_reply)


@pytest.mark.asyncio
async def test_a_generation_is_written_until_redis_has_its_last_record() -> None:
    pipeline: Any = ScriptedPipeline()
    leases = InFlightLeases(pipeline, on_remote_subscriber=lambda _: None)
    leases.finish("key", "id", Producer("a"), b"outcome")
    pipeline.on_replies.pop()(None)  # Redis was too slow: a retired runtime must not end now
    found = [leases.is_writing]
    leases._writers["id"]._send()  # which the timer does
    pipeline.on_replies.pop()([b"1-0", 1])
    assert [*found, leases.is_writing] == [True, False]
