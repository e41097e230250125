"""Engine selection: its inputs, and what it learns; no engine is contacted."""

import json
from typing import Any

import pytest

from router.core.cache.key import ContextMarkers
from router.core.endpoints.chat import CHAT
from router.core.routing.draft_stats import MIN_GENERATIONS, DraftStats, SpeculationCounters
from router.core.types import Task
from router.errors import ApiError
from router.flow.engine_selection import EngineSelector
from router.flow.exchange import GenerationRecord
from router.flow.parsed_request import ParsedRequest
from router.flow.request_resolver import RequestResolver
from router.upstream.catalog import Catalog, Engine, EngineGauges, Model

MODEL = Model("llama", "1")


class SelectionHarness:
    """A selector with engines, and a clock and randomness that are set by hand."""

    def __init__(self, *engines: Engine, explore: float = 0.1) -> None:
        self.now = 100.0
        self.random_value = 1.0
        self.engines = {engine.name: engine for engine in engines}
        catalog = Catalog([MODEL, Model("phi", "1")], engines)
        self.chooser = EngineSelector(
            catalog, DraftStats(), exploration_rate=explore, clock=lambda: self.now, random=lambda: self.random_value
        )

    def order(self, *, task: Task = "code", session: str | None = None, **fields: Any) -> list[str]:
        choice = self.chooser.select(chat(task, **fields), "acme", session)
        return [engine.name for engine in choice.order_engines()]

    def generated(self, engine: str, speed: float, *, task: Task = "code", times: int = 20, **facts: Any) -> None:
        """Streams of 60 tokens that end now, at this rate in tokens per second."""
        for _ in range(times):
            work = GenerationRecord(
                request_id="r", traceparent=None, tenant="acme", model="llama", task=task, stream=True, started_at=0.0
            )
            work.engine, work.completion_tokens, work.dispatched_at = engine, 60, self.now - 60 / speed
            for name, value in facts.items():
                setattr(work, name, value)
            self.chooser.record_generation(work)

    def counted(self, engine: str, steps: float, accepted: float) -> None:
        self.engines[engine].update_gauges(EngineGauges(running=0, spec_counts=SpeculationCounters(steps, accepted)))
        self.chooser.on_probe_round()


def chat(task: Task = "code", **fields: Any) -> ParsedRequest:
    """A parsed chat request."""
    reader = RequestResolver(catalog=Catalog([MODEL], []), classify=lambda _: task, markers=ContextMarkers())
    body = {"model": "llama", "messages": [{"role": "user", "content": "Hi"}], **fields}
    return reader.resolve(CHAT, "acme", json.dumps(body).encode())


def engine(name: str, *, speculates: bool | None = True, up: bool | None = True, **more: Any) -> Engine:
    facts = {"task": "any", "model": "llama", **more}
    engine_ = Engine(name=name, url="http://127.0.0.1:1", served_model="l", **facts)
    engine_.up, engine_.has_draft = up, speculates
    return engine_


def test_requests_in_flight_count_at_the_moment_of_the_selection() -> None:
    harness = SelectionHarness(engine("a"), engine("b"))
    choice = harness.chooser.select(chat(), "acme", None)
    harness.engines["a"].in_flight = 1
    assert [one.name for one in choice.order_engines()] == ["b", "a"]


BIASED: dict[str, Any] = {"logit_bias": {"5": 1}}


@pytest.mark.parametrize(
    ("a", "b", "order", "adjusted"),
    [
        ({}, {"speculates": False}, ["b"], ()),
        ({}, {"speculates": None}, ["b"], ()),
        ({}, {"speculates": False, "up": None}, ["b"], ()),
        ({}, {"speculates": False, "up": False}, ["a", "b"], ("logit_bias",)),
        ({}, {}, ["a", "b"], ("logit_bias",)),
        ({"speculates": False}, {"speculates": False}, ["a", "b"], ()),
    ],
)
def test_a_request_that_speculation_cannot_serve_goes_elsewhere_or_is_adjusted(
    a: dict[str, Any], b: dict[str, Any], order: list[str], adjusted: tuple[str, ...]
) -> None:
    harness = SelectionHarness(engine("a", **a), engine("b", **b))
    choice = harness.chooser.select(chat(**BIASED), "acme", None)
    assert ([one.name for one in choice.order_engines()], choice.adjusted_fields) == (order, adjusted)
    there = {"logit_bias" in choice.request.fields, b"logit_bias" in choice.request.body}
    assert there == {not adjusted}


def test_an_engine_without_a_draft_that_is_too_small_is_not_used() -> None:
    harness = SelectionHarness(engine("a", max_model_len=8192), engine("b", speculates=False, max_model_len=100))
    choice = harness.chooser.select(chat(max_tokens=500, **BIASED), "acme", None)
    assert ([one.name for one in choice.order_engines()], choice.adjusted_fields) == (["a"], ("logit_bias",))


def test_a_drained_engine_is_not_used_and_not_explored() -> None:
    harness = SelectionHarness(engine("a"), engine("b", speculates=False), engine("c"))
    harness.engines["b"].drained = harness.engines["c"].drained = True
    choice = harness.chooser.select(chat(**BIASED), "acme", None)
    assert ([one.name for one in choice.order_engines()], choice.adjusted_fields) == (["a"], ("logit_bias",))
    harness.random_value = 0.0
    assert harness.order() == ["a"]
    harness.engines["a"].drained = True
    assert harness.order() == [], "which is a matter of time, and no fault of the request"


def test_a_request_that_is_too_long_for_every_engine_is_refused() -> None:
    harness = SelectionHarness(engine("a", max_model_len=100), engine("b", max_model_len=200))
    with pytest.raises(ApiError, match="maximum context length is 200 tokens"):
        harness.order(max_tokens=201)
    assert harness.order(max_tokens=101) == ["b"]


def test_the_engines_of_a_fallback_model_come_after_its_own() -> None:
    harness = SelectionHarness(engine("z"), engine("y", up=False), engine("b", model="phi"), engine("a", model="phi"))
    choice = harness.chooser.select(chat(), "acme", None, ("llama", "phi"))
    assert [one.name for one in choice.order_engines()] == ["z", "y", "a", "b"]


def test_an_engine_with_a_backlog_is_not_explored() -> None:
    harness = SelectionHarness(engine("a"), engine("b"))
    harness.generated("a", 100)
    harness.random_value = 0.0
    harness.engines["b"].gauges = EngineGauges(running=2, waiting=20)
    assert harness.order() == ["a", "b"]


def test_the_label_decides_until_another_engine_is_measured_as_faster() -> None:
    harness = SelectionHarness(engine("code", task="code"), engine("chat", task="chat"))
    assert harness.order() == ["code", "chat"]
    harness.generated("chat", 100)
    assert harness.order() == ["code", "chat"]
    harness.generated("code", 50)
    assert harness.order() == ["chat", "code"]
    assert harness.order(task="chat") == ["chat", "code"]


@pytest.mark.parametrize(
    "facts",
    [
        {"error_reason": "broken-off"},
        {"dispatched_at": None},
        {"failed_attempts": [("other", "timeout")]},
    ],
)
def test_a_failed_generation_does_not_measure_the_speed(facts: dict[str, Any]) -> None:
    harness = SelectionHarness(engine("a"), engine("b"))
    harness.generated("b", 100)
    harness.generated("a", 10, **facts)
    assert harness.order() == ["a", "b"]


def test_a_generation_is_timed_from_its_dispatch_since_late_tokens_arrive_together() -> None:
    harness = SelectionHarness(engine("a"))
    harness.generated("a", 120, first_token_at=harness.now - 0.001)
    harness.chooser.on_probe_round()
    assert harness.engines["a"].drafts["code"].tokens_per_second == pytest.approx(120)


def test_a_share_of_the_requests_explores_the_least_known_engine() -> None:
    harness = SelectionHarness(engine("a"), engine("b"), engine("down", up=False))
    harness.random_value = 0.09
    assert harness.order()[0] == "a"  # there is nothing to compare with yet
    harness.generated("a", 100)
    assert harness.order() == ["b", "a", "down"]
    harness.random_value = 0.1
    assert harness.order() == ["a", "b", "down"]


def test_a_session_is_not_used_for_exploration() -> None:
    harness = SelectionHarness(engine("a"), engine("b"))
    harness.generated("a", 100)
    stays = harness.order(session="s1")
    harness.random_value = 0.0
    assert harness.order(session="s1") == stays


def test_an_explored_engine_fits_the_request() -> None:
    harness = SelectionHarness(engine("a", max_model_len=8192), engine("b", max_model_len=1000))
    harness.generated("a", 100)
    harness.random_value = 0.0
    assert harness.order() == ["b", "a"]
    assert harness.order(max_tokens=900) == ["a", "b"]


def test_replicas_are_one_unit_and_need_no_exploration() -> None:
    harness = SelectionHarness(engine("a.1", family="a"), engine("a.2", family="a"))
    harness.generated("a.1", 100, times=int(MIN_GENERATIONS))
    harness.random_value = 0.0
    assert harness.order() == ["a.1", "a.2"]


def test_a_draft_that_stops_paying_is_logged_once_and_again_when_it_pays(caplog: pytest.LogCaptureFixture) -> None:
    harness = SelectionHarness(engine("a.1", family="a"), engine("a.2", family="a"))
    with caplog.at_level("INFO"):
        for steps, accepted in ((0, 0), (1000, 3000), (21_000, 3100), (21_500, 3110)):
            harness.counted("a.1", steps, accepted)
            harness.counted("a.2", 0, 0)
        assert [record.getMessage() for record in caplog.records] == [
            "engine a: its draft model slows code down: unknown tokens per second, 1.15 tokens per step",
            "engine a: its draft model slows chat down: unknown tokens per second, 1.15 tokens per step",
        ]
        assert harness.engines["a.2"].drafts["code"].pays is False
        harness.counted("a.1", 31_500, 43_110)
    assert [record.getMessage() for record in caplog.records][2:] == [
        "engine a: its draft model speeds code up again",
        "engine a: its draft model speeds chat up again",
    ]


def test_an_engine_without_a_draft_has_no_paying_task() -> None:
    harness = SelectionHarness(engine("a", speculates=False), engine("b"))
    harness.generated("a", 100)
    harness.generated("b", 50)
    harness.chooser.on_probe_round()
    assert harness.engines["a"].drafts["code"].pays is None
    assert harness.engines["b"].drafts["code"].pays is False
