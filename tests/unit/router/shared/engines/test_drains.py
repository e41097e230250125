"""Drains while a configuration replaces another."""

from typing import Any

from router.net.redis.pipeline import RedisDownError
from router.shared.engines.drains import Drains


class DownPipeline:
    def execute(self, *_: Any) -> Any:
        raise RedisDownError


async def test_a_drain_during_a_reload_belongs_to_the_next_configuration_which_publishes_it() -> None:
    pipeline: Any = DownPipeline()
    changes: list[frozenset[str]] = []
    former = Drains(pipeline, lambda _: None)
    await former.drain("a")
    later = Drains(pipeline, changes.append, former)
    await former.drain("b")
    await former.resume("a")
    later.take_over(former)
    assert later.names == frozenset({"b"})
    assert changes == [frozenset({"b"})]
    assert later.unpublished == {"b": True, "a": False}
    assert former.unpublished == {}
