"""Which engines may go on with a stream after the configuration or the announced engines have changed."""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from router.core.resilience.breaker import BreakerState
from router.core.resilience.readiness import Readiness
from router.flow.attempts.admission import Admission
from router.flow.attempts.continuation.continuation_engines import ContinuationEngines
from router.upstream.catalog import Catalog, Model
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from tests.support.factories import chat


def new_engine(name: str, *, url: str = "", **options: Any) -> Engine:
    engine = Engine(
        EngineConfig(name=name, model="m", task="any", url=url or f"http://{name}", served_model="m", **options)
    )
    engine.update_status(up=True)
    return engine


class Router(NamedTuple):
    """An earlier configuration. `blocked`: the engines that take no work."""

    admission: Admission
    engines: ContinuationEngines
    blocked: set[Engine]

    def names(self, *selected: Engine, **fields: Any) -> list[str]:
        return [engine.name for engine in self.engines.find(chat(**fields), "m", selected)]


def new_admission(catalog: Catalog, blocked: set[Engine]) -> Admission:
    def readiness(engine: Engine) -> Readiness:
        if engine in blocked:
            return Readiness.BLOCKED
        return Readiness.READY if engine.up else Readiness.DOWN

    return Admission(catalog, readiness=readiness, queue_timeout=60, set_queue_length=lambda _, __: None)


def replaced(before: list[Engine], after: list[Engine], breakers: Mapping[str, BreakerState] | None = None) -> Router:
    """The configuration with the engines of `before`, after one with those of `after` has taken effect."""
    catalog, blocked = Catalog([Model("m", "1")], before), set[Engine]()
    admission = new_admission(catalog, blocked)
    engines = ContinuationEngines(catalog, admission)
    states = breakers or {}
    engines.adopt(Catalog([Model("m", "1")], after), lambda name: states.get(name, BreakerState.CLOSED))
    return Router(admission, engines, blocked)


def test_those_that_were_selected_come_first_and_those_that_are_gone_are_left_out() -> None:
    a, b, c = map(new_engine, "abc")
    assert replaced([a, b], [c, b]).names(a, b) == ["b", "c"]


def test_an_open_breaker_of_a_new_engine_counts() -> None:
    """The earlier configuration has no breaker of it."""
    a, b, c = map(new_engine, "abc")
    assert replaced([a], [b, c], {"b": BreakerState.OPEN}).names(a) == ["c"]


def test_streams_are_spread_over_the_new_engines() -> None:
    a, *new = map(new_engine, "abcd")
    router = replaced([a], new)
    for _ in range(30):
        router.admission.try_acquire("default", router.engines.find(chat(), "m", [a]))
    assert [engine.in_flight for engine in new] == [10, 10, 10]


def test_an_engine_without_a_share_is_the_last_resort() -> None:
    a, reserve, b = new_engine("a"), new_engine("reserve", share=0), new_engine("b")
    b.start_request()
    assert replaced([a], [reserve, b]).names(a) == ["b", "reserve"]


def test_an_engine_that_could_not_be_selected_does_not_go_on() -> None:
    a, short, with_draft, down = new_engine("a"), new_engine("b", max_model_len=8), new_engine("c"), new_engine("d")
    with_draft.has_draft = True
    down.update_status(up=False)
    router = replaced([a], [short, with_draft, down])
    assert router.names(a, max_tokens=4000) == ["c"]
    assert router.names(a, max_tokens=4000, min_p=0.1) == []


def test_an_engine_that_has_changed_must_still_be_able() -> None:
    a, b, shorter = new_engine("a"), new_engine("b"), new_engine("b", max_model_len=8)
    assert replaced([a, b], [a, shorter]).names(a, b, max_tokens=4000) == ["a"]


def test_an_engine_that_is_down_remains_a_last_resort_if_it_was_selected() -> None:
    a, b = new_engine("a"), new_engine("b")
    b.update_status(up=False)
    assert replaced([a, b], [a, b]).names(a, b) == ["a", "b"]


def test_an_engine_that_was_drained_when_the_stream_began_and_is_back_goes_on() -> None:
    a, b = new_engine("a"), new_engine("b")
    assert replaced([a, b], [b]).names(a) == ["b"]


def test_another_server_under_the_same_name_is_a_new_engine() -> None:
    a, again = new_engine("a"), new_engine("a", url="http://elsewhere")
    assert replaced([a], [again]).names(a) == ["a"]


async def test_who_waits_for_a_new_engine_does_not_leave_the_queue_because_an_old_one_is_blocked() -> None:
    a, b = new_engine("a"), new_engine("b", max_in_flight=1)
    router = replaced([a], [b])
    first = router.admission.try_acquire("default", [b])
    assert first is not None
    waiting = asyncio.ensure_future(router.admission.acquire("default", [b]))
    await asyncio.sleep(0)
    router.blocked.add(a)
    router.admission.recheck_engine(a)
    await asyncio.sleep(0)
    assert not waiting.done()
    first.release()
    slot = await waiting
    assert slot is not None
    assert slot.engine is b


async def test_who_can_wait_for_a_new_engine_does_not_go_to_one_that_is_down() -> None:
    a, down, busy = new_engine("a"), new_engine("b"), new_engine("c", max_in_flight=1)
    down.update_status(up=False)
    router = replaced([a], [down, busy])
    first = router.admission.try_acquire("default", [busy])
    assert first is not None
    waiting = asyncio.ensure_future(router.admission.acquire("default", [down, busy]))
    await asyncio.sleep(0)
    router.admission.recheck_engine(down)
    await asyncio.sleep(0)
    assert not waiting.done()
    first.release()
    slot = await waiting
    assert slot is not None
    assert slot.engine is busy
