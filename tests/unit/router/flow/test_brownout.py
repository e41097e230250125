"""Which models may answer, and when a stale entry is served although its client asked for a fresh response."""

from typing import Any

import pytest

from router.core.endpoints.audio import TRANSCRIPTIONS, TRANSLATIONS
from router.core.endpoints.chat import CHAT
from router.core.endpoints.completions import COMPLETIONS
from router.core.endpoints.endpoint import Endpoint
from router.core.endpoints.messages import MESSAGES
from router.core.endpoints.responses import RESPONSES
from router.core.endpoints.table import ENDPOINTS, UPLOAD_ENDPOINTS
from router.core.resilience.breaker import BreakerPolicy
from router.flow.attempts.engine_health import EngineHealth
from router.flow.brownout import Brownout
from router.net.redis.clock import RedisClock
from router.shared.engines.breakers import Breakers
from router.upstream.catalog import Catalog, Model
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig


def engine(name: str, model: str = "llama", *, up: bool | None, drained: bool = False) -> Engine:
    made = Engine(EngineConfig(name=name, model=model, task="any", url="http://127.0.0.1:1", served_model="l"))
    made.up, made.drained = up, drained
    return made


def brownout(*engines: Engine, **options: Any) -> Brownout:
    nothing: Any = None
    catalog = Catalog([Model("llama", "1", **options), Model("phi", "1")], engines)
    policy = BreakerPolicy(open_above=0.9, close_below=0.8, failures=3, cooldown=10)
    breakers = Breakers(nothing, policy, engine_names=catalog.engines.keys, clock=RedisClock())
    return Brownout(catalog, breakers, EngineHealth(breakers).readiness)


def prefers_stale(*engines: Engine, models: tuple[str, ...] = ("llama",), wake: float | None = None) -> bool:
    return brownout(*engines, wake=wake).prefers_stale("llama", models)


@pytest.mark.parametrize(
    "other", [engine("b", up=False), engine("b", up=False, drained=True), engine("b", up=True, drained=True)]
)
def test_a_stale_entry_is_served_while_each_engine_is_down_or_drained(other: Engine) -> None:
    assert prefers_stale(engine("a", up=False), other)


@pytest.mark.parametrize("up", [True, None])
def test_no_stale_entry_is_served_while_an_engine_is_up_or_not_checked_yet(up: bool | None) -> None:
    assert not prefers_stale(engine("a", up=False), engine("b", up=up))


def test_the_engines_of_a_fallback_count_if_the_request_may_get_them() -> None:
    down, up = engine("a", up=False), engine("b", "phi", up=True)
    assert not prefers_stale(down, up, models=("llama", "phi"))
    assert prefers_stale(down, up, models=("llama",))
    assert prefers_stale(down, engine("b", "phi", up=False), models=("llama", "phi"))


def test_a_request_that_has_an_engine_started_waits_for_it() -> None:
    assert not prefers_stale(engine("a", up=False), wake=60.0)
    assert prefers_stale(engine("a", up=False, drained=True), wake=60.0), "no request starts a drained engine"


def test_without_an_engine_the_request_itself_finds_that_out_at_once() -> None:
    assert not prefers_stale()


TEXTS = (CHAT, COMPLETIONS, MESSAGES, RESPONSES, TRANSCRIPTIONS, TRANSLATIONS)


@pytest.mark.parametrize("endpoint", [*ENDPOINTS, *UPLOAD_ENDPOINTS])
def test_only_a_text_may_come_from_another_model_since_vectors_scores_and_tokens_differ(endpoint: Endpoint) -> None:
    chain = brownout(engine("a", up=False), engine("b", "phi", up=True), fallback="phi")
    assert chain.candidate_models("llama", endpoint) == (["llama", "phi"] if endpoint in TEXTS else ["llama"])
