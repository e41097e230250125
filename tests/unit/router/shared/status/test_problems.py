"""What is said to be wrong, from which facts."""

from typing import Any

import pytest
from msgspec.structs import replace

from router.shared.status.problems import (
    MIN_REFUSED,
    DeploymentFacts,
    RecentTraffic,
    RedisFacts,
    find_problems,
    is_well,
    lasting_problems,
)
from router.shared.status.status_documents import EngineRow, ModelRow, RefusedRow
from tests.support.status_factory import NOW

AT = NOW - 600  # 15:50:00 UTC


def engine(name: str, model: str = "llama", **fields: Any) -> EngineRow:
    return EngineRow(name=name, model=model, task="any", url=f"http://{name}", **{"state": "up", "since": AT, **fields})


def refused(tenant: str, reason: str, count: int) -> RecentTraffic:
    return RecentTraffic(requests=count, refused=[RefusedRow(reason=reason, tenant=tenant, count=count)])


UP = engine("up")
MODELS = [ModelRow(name="llama")]
DOWN = engine("e2", state="down", cause="connection refused", failures=12)


def words(**fields: Any) -> list[str]:
    facts: dict[str, Any] = {"now": NOW, "models": MODELS, "engines": [UP]}
    return [problem.words for problem in find_problems(DeploymentFacts(**facts | fields))]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, []),
        ({"engines": []}, ["llama has no engine: only hits are served"]),
        ({"engines": [], "models": [ModelRow(name="llama", asleep=True)]}, []),
        ({"engines": [engine("new", state="unknown", since=None)]}, []),
        ({"engines": [UP, DOWN]},
         ["engine e2 is down since 15:50:00 UTC: connection refused; 12 attempts failed"]),
        ({"engines": [DOWN]},
         ["no engine of llama is in service: only hits are served",
          "engine e2 is down since 15:50:00 UTC: connection refused; 12 attempts failed"]),
        ({"engines": [UP, engine("e2", state="down", since=NOW - 90_000)]},
         ["engine e2 is down since 2026-11-22 15:00:00 UTC"]),
        ({"engines": [UP, engine("e1", state="refused", cause="status 401")]},
         ["engine e1 refuses the router's key since 15:50:00 UTC: status 401"]),
        ({"engines": [UP, engine("e1", breaker="open")]},
         ["engine e1 gets no requests: its breaker is open, after failures"]),
        ({"engines": [UP, engine("e1", drained=True)]}, ["engine e1 is drained"]),
        ({"engines": [engine("e1", drained=True)]},
         ["every engine of llama is drained: only hits are served", "engine e1 is drained"]),
        ({"engines": [engine("e1", drained=True), engine("m1", "mistral")],
          "models": [ModelRow(name="llama", fallback="mistral"), ModelRow(name="mistral")]},
         ["every engine of llama is drained: its fallback mistral answers", "engine e1 is drained"]),
        ({"engines": [engine("m1", "mistral")],
          "models": [ModelRow(name="llama", fallback="gone"), ModelRow(name="mistral", fallback="llama"),
                     ModelRow(name="gone", fallback="mistral")]},
         ["llama has no engine: its fallback mistral answers", "gone has no engine: its fallback mistral answers"]),
        ({"engines": [UP, engine("e2", state="down", drained=True)]},
         ["engine e2 is down since 15:50:00 UTC; it is drained"]),
        ({"engines": [engine("e1", state="down", asleep=True)], "models": [ModelRow(name="llama", asleep=True)]}, []),
        ({"redis": RedisFacts(state="down", since=AT)},
         ["Redis is down since 15:50:00 UTC: every request is a bypass"]),
        ({"redis": RedisFacts(state="down", since=AT, is_replica=True)},
         ["Redis is a read-only replica since 15:50:00 UTC: every request is a bypass"]),
        ({"redis": RedisFacts(state="full", since=AT)}, ["Redis is full since 15:50:00 UTC: nothing is stored"]),
        ({"redis": RedisFacts(state="cannot-save")}, ["Redis cannot save its data: nothing is stored"]),
        ({"refuses_all": "auth_mode_unset"}, ["every request is refused: auth_mode_unset"]),
        ({"traffic": refused("beta", "requests_limit", 4036)},
         ["tenant beta is being limited: 4,036 refused in 5 minutes, most by requests_limit"]),
        ({"traffic": refused("beta", "tokens_per_day_budget", 26)},
         ["tenant beta has used up its budget: 26 refused in 5 minutes, most by tokens_per_day_budget"]),
        ({"traffic": refused("beta", "queue_full", 26)},
         ["26 requests refused in 5 minutes, most with queue_full, most of tenant beta"]),
        ({"traffic": refused("none", "invalid_api_key", 26)},
         ["26 refused in 5 minutes without a tenant, most with invalid_api_key"]),
        ({"traffic": refused("beta", "requests_limit", MIN_REFUSED)}, []),
        ({"traffic": RecentTraffic(requests=400, errors=25)}, ["25 of 400 requests failed in 5 minutes"]),
        ({"traffic": RecentTraffic(requests=40_000, errors=2_000)}, []),
        ({"traffic": refused("beta", "tenant_queue_full", 26)},
         ["tenant beta has its share of a full queue: 26 refused in 5 minutes"]),
    ],
)  # fmt: skip
def test_a_problem_is_a_sentence(facts: dict[str, Any], expected: list[str]) -> None:
    assert words(**facts) == expected


def test_the_worst_comes_first_and_says_what_it_is_about() -> None:
    facts = DeploymentFacts(
        now=NOW, models=MODELS, redis=RedisFacts(state="full", since=AT), traffic=refused("beta", "requests_limit", 99),
        engines=[engine("idle", drained=True), DOWN],
    )  # fmt: skip
    assert [(each.severity, each.kind, each.subject, each.since) for each in find_problems(facts)] == [
        ("critical", "model", "llama", None), ("critical", "redis", "", AT), ("critical", "engine", "e2", AT),
        ("warning", "tenant", "beta", None), ("info", "engine", "idle", None),
    ]  # fmt: skip


def test_the_refusals_of_a_tenant_are_one_problem_with_the_most_frequent_reason() -> None:
    rows = [
        RefusedRow(reason="requests_limit", tenant="a", count=20),
        RefusedRow(reason="tokens_limit", tenant="a", count=10),
        RefusedRow(reason="queue_full", tenant="b", count=40),
    ]
    assert words(traffic=RecentTraffic(requests=5000, refused=rows)) == [
        "40 requests refused in 5 minutes, most with queue_full, most of tenant b",
        "tenant a is being limited: 30 refused in 5 minutes, most by requests_limit",
    ]


def test_the_words_for_metrics_stay_the_same_while_a_problem_lasts() -> None:
    facts = DeploymentFacts(
        now=NOW, models=MODELS, redis=RedisFacts(state="full", since=AT), traffic=refused("beta", "requests_limit", 99),
        engines=[DOWN, engine("e1", state="refused", cause="status 401")],
    )  # fmt: skip
    later = replace(
        facts, now=NOW + 90_000, redis=RedisFacts(state="full", since=NOW),
        engines=[replace(each, since=NOW, failures=each.failures + 1) for each in facts.engines],
    )  # fmt: skip
    assert find_problems(later) != find_problems(facts)
    assert lasting_problems(later) == lasting_problems(facts)
    assert [(each.subject, each.words) for each in lasting_problems(facts)] == [
        ("llama", "no engine of llama is in service: only hits are served"),
        ("", "Redis is full: nothing is stored"),
        ("e2", "engine e2 is down: connection refused"),
        ("e1", "engine e1 refuses the router's key: status 401"),
    ]


def test_an_engine_is_well_unless_it_is_missed() -> None:
    well = [UP, engine("a", state="unknown"), replace(DOWN, asleep=True), engine("b", drained=True)]
    assert all(map(is_well, well))
    assert not any(map(is_well, [DOWN, engine("a", state="refused"), engine("b", breaker="open")]))


def test_a_flood_that_is_refused_does_not_hide_what_fails() -> None:
    flood = (RefusedRow(reason="requests_limit", tenant="beta", count=1500),)
    assert words(traffic=RecentTraffic(requests=1560, errors=60, refused=flood))[0] == (
        "60 of 60 requests failed in 5 minutes"
    )


def test_an_engine_whose_breaker_lets_one_request_try_it_is_told_and_keeps_no_router_from_being_well() -> None:
    (problem,) = find_problems(DeploymentFacts(now=NOW, models=MODELS, engines=[engine("e1", breaker="half-open")]))
    assert problem.severity == "warning"
    assert problem.words == "engine e1 gets one request to try it: its breaker was open, after failures"


@pytest.mark.parametrize(
    ("jump", "since"),
    [(-3600, "15:50:00"), (3600, "15:50:00"), (-7 * 86_400, "15:50:00"), (7 * 86_400, "2026-11-23 15:50:00")],
)
def test_after_a_jump_of_the_clock_it_is_still_said_when_it_began(jump: int, since: str) -> None:
    """The time by the clock of that moment; after a jump by days the day is said, too."""
    facts: dict[str, Any] = {"now": NOW + jump, "redis": RedisFacts(state="down", since=AT)}
    assert words(**facts) == [f"Redis is down since {since} UTC: every request is a bypass"]
