"""Engine selection: its inputs, and what it learns; no engine is contacted."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from router.core.cache.key import ContextMarkers
from router.core.endpoints.chat import CHAT
from router.core.endpoints.embeddings import EMBEDDINGS
from router.core.endpoints.endpoint import Endpoint
from router.core.endpoints.recording.recorded_response import RequestSpeculation
from router.core.resilience.unserved_paths import MEMORY
from router.core.routing.draft_models.counted_steps import SpeculationCounters
from router.core.routing.draft_models.draft_stats import DraftStats
from router.core.routing.draft_models.speeds import MIN_GENERATIONS
from router.core.routing.prefill import Prefills
from router.core.routing.session import Session
from router.core.routing.traffic_share import REST
from router.core.types import Task
from router.errors import ApiError
from router.flow.attempts.engine_selection import EngineSelector
from router.flow.exchange import AttemptFacts
from router.flow.parsed_request import ParsedRequest
from router.flow.request_resolver import RequestResolver
from router.flow.tenant_rules import TenantRules
from router.shared.prompts.prompt_records import PromptRecords
from router.upstream.catalog import Catalog, Model
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from router.upstream.engine_gauges import EngineGauges
from tests.support.inflight_factory import generation_record

MODEL = Model("llama", "1")
LOG_ODDS = {"code": 4.0, "chat": -4.0}
CHOSEN = Session("s1")


class SelectionHarness:
    """A selector with engines, and a clock and randomness that are set by hand."""

    def __init__(
        self,
        *engines: Engine,
        explore: float = 0.1,
        draft_stats: DraftStats | None = None,
        groups: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.now = 100.0
        self.random_value = 1.0
        self.draft_stats = draft_stats or DraftStats()
        self.prefills = Prefills()
        self.records = PromptRecords(self.prefills, "p")
        self.engines = {engine.name: engine for engine in engines}
        catalog = Catalog([MODEL, Model("phi", "1")], engines)
        self.chooser = EngineSelector(
            catalog, self.draft_stats, self.prefills, self.records, exploration_rate=explore, clock=lambda: self.now,
            random=lambda: self.random_value, affinity_names=groups,
        )  # fmt: skip

    def order(self, *, task: Task = "code", session: Session | None = None, **fields: Any) -> list[str]:
        choice = self.chooser.select(chat(task, **fields), "acme", session)
        return [engine.name for engine in choice.order_engines()]

    def generated(
        self,
        engine: str,
        speed: float,
        *,
        task: Task = "code",
        times: int = 20,
        per_step: float | None = None,
        choices: int = 1,
        **facts: Any,
    ) -> None:
        """Streams of 60 tokens that end now, at this rate in tokens per second.

        `per_step`: tokens per step as the engine reports them.
        """
        for _ in range(times):
            work = generation_record("acme", task=task, stream=True, log_odds=LOG_ODDS[task], choices=choices)
            work.attempts, work.completion_tokens = [AttemptFacts(engine=engine, sent_at=self.now - 60 / speed)], 60
            if per_step is not None:
                steps = round(60 / per_step)
                work.speculation = RequestSpeculation(steps, 60 - steps)
            for name, value in facts.items():
                setattr(work, name, value)
            self.chooser.learn(work)

    def counted(self, engine: str, steps: float, accepted: float) -> None:
        self.engines[engine].update_gauges(EngineGauges(running=0, spec_counts=SpeculationCounters(steps, accepted)))
        self.chooser.on_probe_round()


def chat(task: Task = "code", **fields: Any) -> ParsedRequest:
    """A parsed chat request."""
    return parsed(CHAT, task, {"messages": [{"role": "user", "content": "Hi"}], **fields})


def parsed(endpoint: Endpoint, task: Task, fields: dict[str, Any]) -> ParsedRequest:
    catalog = Catalog([MODEL], [])
    reader = RequestResolver(
        catalog=catalog, log_odds_of=lambda _: LOG_ODDS[task], markers=ContextMarkers(),
        rules=TenantRules(catalog, {}, {}),
    )  # fmt: skip
    return reader.resolve(endpoint, "acme", json.dumps({"model": "llama", **fields}).encode())


def engine(name: str, *, speculates: bool | None = True, up: bool | None = True, **more: Any) -> Engine:
    facts = {"task": "any", "model": "llama", **more}
    engine_ = Engine(EngineConfig(name=name, url=f"http://{name}:1", served_model="l", **facts))
    engine_.up, engine_.has_draft = up, speculates
    return engine_


def test_requests_in_flight_count_at_the_moment_of_the_selection() -> None:
    harness = SelectionHarness(engine("a"), engine("b"))
    choice = harness.chooser.select(chat(), "acme", None)
    for first, second in (("a", "b"), ("b", "a")):
        harness.engines[first].in_flight, harness.engines[second].in_flight = 0, 9
        assert [one.name for one in choice.order_engines()] == [first, second]


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


@pytest.mark.parametrize(("first", "order"), [("b", "b a c d"), ("a", "a b c d"), ("d", "a b c d"), ("x", "a b c d")])
def test_an_engine_that_is_to_be_the_first_passes_those_of_its_model_alone(first: str, order: str) -> None:
    harness = SelectionHarness(engine("a"), engine("b"), engine("c", model="phi"), engine("d", model="phi"))
    choice = harness.chooser.select(chat(), "acme", None, ("llama", "phi"))
    choice = choice.with_first(lambda engine: engine.name == first)
    assert [one.name for one in choice.order_engines()] == order.split()


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
        {"attempts": []},
        {
            "attempts": [
                AttemptFacts(engine="other", sent_at=1.0, error_reason="timeout"),
                AttemptFacts(engine="a", sent_at=2.0),
            ]
        },
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
    stays = harness.order(session=CHOSEN)
    harness.random_value = 0.0
    assert harness.order(session=CHOSEN) == stays


def test_a_session_of_an_agent_is_used_for_exploration_as_any_other_request() -> None:
    harness = SelectionHarness(engine("a"), engine("b"))
    harness.generated("a", 100)
    harness.random_value = 0.0
    assert harness.order(session=Session("s1", 1))[0] == harness.order()[0] == "b"


def test_an_explored_engine_fits_the_request() -> None:
    harness = SelectionHarness(engine("a", max_model_len=8192), engine("b", max_model_len=1000))
    harness.generated("a", 100)
    harness.random_value = 0.0
    assert harness.order() == ["b", "a"]
    assert harness.order(max_tokens=900) == ["a", "b"]


def test_replicas_are_one_unit_and_need_no_exploration() -> None:
    harness = SelectionHarness(engine("a.1", family="a"), engine("a.2", family="a"))
    preferred = harness.order()
    harness.generated(preferred[0], 100, times=int(MIN_GENERATIONS))
    harness.random_value = 0.0
    assert harness.order() == preferred


def test_the_draft_that_yields_more_tokens_per_step_comes_first_whatever_the_labels_and_the_machines_say() -> None:
    harness = SelectionHarness(engine("code", task="code"), engine("chat", task="chat"), explore=0.0)
    harness.generated("code", 50, per_step=1.2, times=5)
    assert harness.order() == ["code", "chat"], "the other one is unknown"
    harness.generated("chat", 50, per_step=4, times=5)
    assert harness.order() == ["chat", "code"]
    assert harness.order(session=CHOSEN) == ["chat", "code"]


def test_between_equally_good_drafts_the_load_decides() -> None:
    harness = SelectionHarness(engine("a"), engine("b"), explore=0.0)
    for name in ("a", "b"):
        harness.generated(name, 50, per_step=3, times=5)
    for first, second in (("a", "b"), ("b", "a")):
        harness.engines[first].in_flight, harness.engines[second].in_flight = 0, 9
        assert harness.order() == [first, second]


@pytest.mark.parametrize(("words", "first"), [(20_000, "holds"), (600, "better")])
def test_a_conversation_moves_to_a_better_draft_if_that_gains_more_than_to_compute_its_prompt_again(
    words: int, first: str
) -> None:
    harness = SelectionHarness(engine("holds"), engine("better"), explore=0.0)
    harness.generated("holds", 50, per_step=3, times=5)
    harness.generated("better", 50, per_step=3.3, times=5)
    messages = [{"role": "user", "content": "word " * words}]
    sent = harness.chooser.select(chat(messages=messages), "acme", None)
    sent.prompt.on_sent(harness.engines["holds"], harness.now)
    sent.prompt.on_first_token(harness.now)
    harness.now += 10
    assert harness.order(messages=messages)[0] == first


@pytest.mark.parametrize(
    ("body", "first"), [({}, "better"), ({"max_tokens": 200}, "better"), ({"max_tokens": 8}, "holds")]
)
def test_the_shorter_an_answer_can_be_the_less_a_draft_is_worth(body: dict[str, Any], first: str) -> None:
    harness = SelectionHarness(engine("holds"), engine("better"), explore=0.0)
    harness.generated("holds", 50, per_step=1.5, times=5)
    harness.generated("better", 50, per_step=3, times=5)
    messages = [{"role": "user", "content": "word " * 4000}]
    sent = harness.chooser.select(chat(messages=messages), "acme", None)
    sent.prompt.on_sent(harness.engines["holds"], harness.now)
    sent.prompt.on_first_token(harness.now)
    harness.now += 10
    assert harness.order(messages=messages, **body)[0] == first


def test_an_embedding_has_no_answer_that_a_draft_could_speed_up() -> None:
    harness = SelectionHarness(engine("a", task="chat"), engine("b", task="code"), explore=0.0)
    request = parsed(EMBEDDINGS, "chat", {"input": "Hi"})
    order = [one.name for one in harness.chooser.select(request, "acme", None).order_engines()]
    harness.engines[order[0]].in_flight = 500
    assert [one.name for one in harness.chooser.select(request, "acme", None).order_engines()] == order[::-1]
    first = harness.order(task="chat")[0]
    assert first == "a", "a chat waits for the draft of its task"


def test_a_family_has_a_backlog_only_if_all_its_engines_have_one() -> None:
    replicas = [engine(f"code.{number}", family="code", task="code", speculates=None) for number in (1, 2)]
    harness = SelectionHarness(*replicas, engine("chat", task="chat", speculates=None), explore=0.0)
    crowded = EngineGauges(running=20, waiting=30)
    replicas[0].gauges, replicas[0].external_load = crowded, 50.0
    assert harness.order() == ["code.2", "code.1", "chat"]
    replicas[1].gauges, replicas[1].external_load = crowded, 50.0
    assert harness.order()[0] == "chat"


def test_among_engines_that_are_all_down_the_configured_task_decides() -> None:
    harness = SelectionHarness(engine("a", task="chat", up=False), engine("b", task="code", up=False), explore=0.0)
    assert harness.order() == ["b", "a"]


def test_a_draft_of_which_little_is_known_is_tried_by_chance_and_never_without_exploration() -> None:
    def first_choices(explore: float) -> set[str]:
        harness = SelectionHarness(engine("a"), engine("b"), explore=explore)
        harness.generated("a", 50, per_step=2.5, times=20)
        harness.generated("b", 50, per_step=2.3, times=1)
        values = iter([0.9, 0.1, 0.9, 0.9, 0.9, 0.1] * 2)
        harness.chooser._random = lambda: next(values)
        return {harness.order()[0] for _ in range(2)}

    assert first_choices(0.02) == {"a", "b"}
    assert first_choices(0.0) == {"a"}


def test_a_draft_that_a_probe_finds_while_a_request_waits_is_ranked_with_the_others() -> None:
    harness = SelectionHarness(engine("a"), engine("b"), engine("c", speculates=None))
    harness.random_value = 0.5

    selection = harness.chooser.select(chat(), "acme", None)
    harness.engines["c"].update_gauges(EngineGauges(running=0, spec_counts=SpeculationCounters(10, 20)))

    assert sorted(engine.name for engine in selection.order_engines()) == ["a", "b", "c"]


def test_a_draft_that_is_down_leaves_its_place_to_the_others() -> None:
    harness = SelectionHarness(
        engine("code", task="code"), engine("chat", task="chat", up=False), engine("plain", speculates=False),
        explore=0.0,
    )  # fmt: skip
    harness.generated("chat", 50, per_step=4, times=5)
    assert harness.order() == ["code", "plain", "chat"]


def test_a_draft_that_does_not_pay_at_the_load_is_left_out_where_an_engine_without_one_is_up() -> None:
    harness = SelectionHarness(
        engine("draft", task="code", baseline="plain"), engine("plain", speculates=False), explore=0.0
    )
    for name, speed, per_step in (("draft", 50, 2), ("plain", 58, None)):
        harness.engines[name].in_flight = 15
        harness.generated(name, speed, times=60, per_step=per_step)
        harness.engines[name].in_flight = 0
    assert harness.order() == ["draft", "plain"], "with few requests, nothing is known"
    harness.engines["draft"].in_flight = 20
    assert harness.order() == ["plain", "draft"]
    harness.engines["plain"].up = False
    assert harness.order() == ["draft", "plain"]


def test_a_draft_that_stops_paying_is_logged_once_and_again_when_it_pays(caplog: pytest.LogCaptureFixture) -> None:
    replicas = [engine(f"a.{number}", family="a", baseline="plain") for number in (1, 2)]
    harness = SelectionHarness(*replicas, engine("plain", speculates=False))
    harness.generated("plain", 50)
    with caplog.at_level("INFO"):
        for speed, times in ((100, 20), (20, 60), (20, 20), (400, 100)):
            harness.generated("a.1", speed, per_step=3, times=times)
            harness.chooser.on_probe_round()
        assert [record.getMessage() for record in caplog.records] == [
            "engine a: its draft model slows code down: 29.91 tokens per second, 3.00 tokens per step",
            "engine a: its draft model speeds code up again",
        ]
    assert harness.engines["a.2"].drafts["code"].pays is True
    assert harness.engines["a.2"].drafts["chat"].pays is None


def test_a_draft_that_does_not_pay_is_not_logged_again_after_a_reload(caplog: pytest.LogCaptureFixture) -> None:
    engines = engine("a"), engine("b")
    harness = SelectionHarness(*engines)
    harness.generated("a", 50, per_step=1)
    harness.chooser.on_probe_round()
    reloaded = SelectionHarness(*engines, draft_stats=harness.draft_stats)
    reloaded.chooser.on_probe_round()
    assert [record.getMessage()[:43] for record in caplog.records] == ["engine a: its draft model slows code down: "]


def test_choices_that_are_generated_at_the_same_time_do_not_measure_the_speed_of_one() -> None:
    harness = SelectionHarness(engine("draft", baseline="plain"), engine("plain", speculates=False))
    harness.generated("draft", 60, per_step=2)
    harness.generated("plain", 40)
    harness.generated("plain", 160, choices=4, times=40)
    harness.chooser.on_probe_round()

    assert harness.engines["draft"].drafts["code"].pays is True
    assert harness.engines["plain"].drafts["code"].tokens_per_second == pytest.approx(40)


def test_a_draft_that_pays_at_a_low_load_only_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    replicas = [engine(f"a.{number}", family="a", baseline="plain") for number in (1, 2)]
    harness = SelectionHarness(*replicas, engine("plain", speculates=False))
    for in_flight, speed in ((0, 100), (64, 20)):
        harness.engines["plain"].in_flight = harness.engines["a.2"].in_flight = in_flight
        harness.generated("plain", 50)
        harness.generated("a.2", speed, per_step=3)
    with caplog.at_level("INFO"):
        for load in (0, 64, 0):
            harness.engines["a.1"].in_flight = load
            harness.chooser.on_probe_round()
    assert harness.engines["a.1"].drafts["code"].pays is True
    assert harness.engines["a.2"].drafts["code"].pays is False
    assert [record.getMessage()[:43] for record in caplog.records] == ["engine a: its draft model slows code down: "]


def test_whether_a_draft_pays_is_unknown_beside_a_faster_engine_that_is_not_the_same_without_it() -> None:
    harness = SelectionHarness(engine("a", speculates=False), engine("b"))
    harness.generated("a", 100)
    harness.generated("b", 50, per_step=3)
    harness.chooser.on_probe_round()
    assert harness.engines["a"].drafts["code"].pays is None
    assert harness.engines["b"].drafts["code"].pays is None


# -- shares -----------------------------------------------------------------------------------------------------------


def canary_harness(share: int = 10, **options: Any) -> SelectionHarness:
    return SelectionHarness(
        engine("stable-1", speculates=False), engine("stable-2", speculates=False),
        engine("canary", speculates=False, share=share), **options,
    )  # fmt: skip


def order_of(harness: SelectionHarness, cohort: str, session: Session | None = None) -> list[str]:
    parsed = chat()
    parsed.cohort = cohort
    return [engine.name for engine in harness.chooser.select(parsed, "acme", session).order_engines()]


def test_a_request_goes_to_the_engines_of_its_cohort_first() -> None:
    harness = canary_harness()
    assert order_of(harness, "canary")[0] == "canary"
    for first, second in (("stable-1", "stable-2"), ("stable-2", "stable-1")):
        harness.engines[first].in_flight, harness.engines[second].in_flight = 0, 9
        assert order_of(harness, REST) == [first, second, "canary"]


def test_exploration_and_affinity_stay_within_a_cohort() -> None:
    harness = canary_harness(explore=1.0)
    harness.random_value = 0.0  # every request explores
    harness.generated("stable-1", 50)  # so `canary` and `stable-2` are the least measured
    assert order_of(harness, REST)[0] == "stable-2"
    assert order_of(harness, "canary")[0] == "canary"
    assert {order_of(harness, REST, Session(f"session-{number}"))[0] for number in range(40)} == {
        "stable-1",
        "stable-2",
    }


def test_tenants_of_a_group_prefer_the_same_replicas_and_others_do_not() -> None:
    harness = SelectionHarness(*map(engine, "abcdefgh"), explore=0.0, groups={"acme": "group:one", "beta": "group:one"})

    def orders(tenant: str, **fields: Any) -> list[str]:
        messages = [{"role": "user", "content": "x" * 2000}]
        choice = harness.chooser.select(chat(messages=messages, **fields), tenant, None)
        return [each.name for each in choice.order_engines()]

    assert orders("acme") == orders("beta") != orders("gamma")
    assert orders("acme", cache_salt="x") != orders("acme")


def test_a_standby_is_left_out_while_another_engine_is_up() -> None:
    harness = canary_harness(share=0)
    assert sorted(order_of(harness, REST)) == ["stable-1", "stable-2"]
    harness.engines["stable-1"].up = False
    harness.engines["stable-2"].drained = True
    assert order_of(harness, REST) == ["stable-1", "canary"]


def test_a_tenth_of_the_requests_is_for_an_engine_with_a_share_of_10() -> None:
    engines = [engine("stable", speculates=False), engine("canary", speculates=False, share=10)]
    catalog = Catalog([MODEL], engines)
    rules = TenantRules(catalog, {}, {})
    resolver = RequestResolver(catalog=catalog, log_odds_of=lambda _: 0.0, markers=ContextMarkers(), rules=rules)
    messages = [{"role": "user", "content": "Hi"}]
    bodies = [json.dumps({"model": "llama", "messages": messages, "seed": n}).encode() for n in range(3000)]
    cohorts = [
        resolver.resolve(CHAT, "acme", body, session=session)
        for n, body in enumerate(bodies)
        for session in (None, Session(f"session-{n}"))
    ]
    for kind in (cohorts[::2], cohorts[1::2]):  # four standard deviations
        assert sum(each.cohort == "canary" for each in kind) / 3000 == pytest.approx(0.1, abs=0.022)


def test_a_model_whose_last_engine_has_lost_the_adapter_is_unknown() -> None:
    harness = canary_harness()
    parsed = chat()
    parsed.model = Model("gone", "1")
    with pytest.raises(ApiError) as caught:
        harness.chooser.select(parsed, "acme", None)
    assert caught.value.code == "model_not_found"


def test_an_engine_without_the_endpoint_is_left_out_until_it_is_asked_again() -> None:
    first, second = draftless("first"), draftless("second")
    harness = SelectionHarness(first, second)
    path = CHAT.path
    first.note_unserved(path, harness.now)
    assert harness.order() == ["second"]
    first.note_unserved("/score", harness.now)
    second.note_unserved("/score", harness.now)
    assert harness.order() == ["second"], "another path says nothing of this one"
    second.note_unserved(path, harness.now)
    assert len(harness.order()) == 1, "one is asked for all"
    harness.now += MEMORY
    assert sorted(harness.order()) == ["first", "second"]


def draftless(name: str) -> Engine:
    return Engine(EngineConfig(name=name, model="llama", task="any", url="http://127.0.0.1:1", served_model="m"))
