"""The model that a name refers to, and its engines."""

import pytest

from router.core.quota.model_access import ModelAccess
from router.core.resilience.breaker import BreakerState
from router.core.routing.draft_models.counted_steps import SpeculationCounters
from router.core.types import EngineTask, Task
from router.errors import ApiError
from router.upstream.catalog import Catalog, Model
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from router.upstream.engine_gauges import EngineGauges

URL = "http://127.0.0.1:1"


def engine(name: str, model: str, task: EngineTask = "any") -> Engine:
    return Engine(EngineConfig(name=name, model=model, task=task, url=URL, served_model=f"served/{model}"))


def catalog(*models: Model, engines: tuple[Engine, ...] = ()) -> Catalog:
    return Catalog(models, engines or [engine(f"{model.name}-1", model.name) for model in models])


def test_a_model_is_found_by_its_name_and_by_its_aliases() -> None:
    llama = Model("llama", "1", aliases=("meta/Llama", "gpt-4o"))
    catalog_ = catalog(llama, Model("mistral", "1"))
    for name in ("llama", "meta/Llama", "gpt-4o"):
        assert catalog_.resolve(name, "chat") is llama


@pytest.mark.parametrize("name", ["nobody", "LLAMA", " llama", "served/llama", "llama-1"])
def test_an_unknown_name_is_not_found(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        catalog(Model("llama", "1")).resolve(name, "chat")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


def test_no_name_is_the_default_or_the_only_model_and_an_error_with_several() -> None:
    llama, mistral = Model("llama", "1", aliases=("served/llama",)), Model("mistral", "1")
    assert catalog(llama).requested_name("") == "llama"
    with pytest.raises(ApiError) as caught:
        catalog(llama, mistral).requested_name("")
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "model", "model_required")
    assert "router.default_model" in caught.value.message
    both = Catalog([llama, mistral], [], default_model="auto")
    assert (both.requested_name(""), both.requested_name("mistral")) == ("auto", "mistral")


@pytest.mark.parametrize("default", [None, "llama", "served/llama", "auto"])
def test_no_name_is_the_only_model_that_a_tenant_may_use_if_it_may_not_use_the_default(default: str | None) -> None:
    models = [Model("llama", "1", aliases=("served/llama",), auto=("chat",)), Model("phi", "1"), Model("qwen", "1")]
    catalog_ = Catalog(models, [], default_model=default)
    assert catalog_.requested_name("", ModelAccess(["phi"])) == "phi"
    for names in ([], ["phi", "qwen"]):
        with pytest.raises(ApiError) as caught:
            catalog_.requested_name("", ModelAccess(names))
        assert (caught.value.status, caught.value.code) == (400, "model_required")
        assert "llama" not in caught.value.message
        assert all(name in caught.value.message for name in names)
    if default is not None:
        assert catalog_.requested_name("", ModelAccess(["phi", "served/*"])) == default


def test_auto_is_not_found_where_no_model_has_tasks() -> None:
    with pytest.raises(ApiError) as caught:
        catalog(Model("llama", "1")).resolve("auto", "chat")
    assert caught.value.status == 404


def auto(task: Task, catalog_: Catalog) -> str:
    return catalog_.resolve("auto", task).name


def test_auto_selects_a_model_that_has_the_task() -> None:
    catalog_ = catalog(Model("none", "1"), Model("chatty", "1", auto=("chat",)), Model("coder", "1", auto=("code",)))
    assert auto("chat", catalog_) == "chatty"
    assert auto("code", catalog_) == "coder"


def test_auto_prefers_a_model_with_an_engine_for_exactly_this_task() -> None:
    models = [Model(name, "1", auto=("chat", "code")) for name in ("first", "second")]
    engines = engine("a", "first", "any"), engine("b", "second", "code"), engine("c", "second", "any")
    catalog_ = catalog(*models, engines=engines)
    assert auto("code", catalog_) == "second"
    assert auto("chat", catalog_) == "first"


def test_a_task_that_no_model_has_goes_to_one_with_any_task() -> None:
    catalog_ = catalog(Model("none", "1"), Model("chatty", "1", auto=("chat",)))
    assert auto("code", catalog_) == "chatty"


def test_the_engines_of_a_model_are_its_own() -> None:
    engines = engine("a", "llama"), engine("b", "mistral"), engine("c", "llama")
    catalog_ = catalog(Model("llama", "1"), Model("mistral", "1"), engines=engines)
    assert [one.name for one in catalog_.engines_for("llama")] == ["a", "c"]
    assert [one.name for one in catalog_.engines_for("mistral")] == ["b"]
    assert list(catalog_.engines) == ["a", "b", "c"]


def test_every_requestable_name_is_listed_once() -> None:
    llama = Model("llama", "1", aliases=("x",), auto=("chat",))
    assert list(catalog(llama).named_models()) == [("llama", llama), ("x", llama), ("auto", None)]
    assert [name for name, _ in catalog(Model("llama", "1")).named_models()] == ["llama"]


def test_a_router_is_ready_once_an_engine_of_each_model_is_up() -> None:
    engines = engine("a", "llama"), engine("b", "llama"), engine("c", "mistral")
    catalog_ = catalog(Model("llama", "1"), Model("mistral", "1"), engines=engines)
    ready = [catalog_.unready_reason(accept_all) is None]
    for changed, up in ((1, True), (2, True), (1, False), (0, True)):
        engines[changed].up = up
        ready.append(catalog_.unready_reason(accept_all) is None)
    assert ready == [False, False, True, False, True]
    assert catalog_.unready_reason(lambda name: BreakerState.OPEN if name == "a" else BreakerState.CLOSED), (
        "it is up, and takes no work"
    )


def accept_all(_: str) -> BreakerState:
    return BreakerState.CLOSED


def test_a_model_that_is_asleep_does_not_keep_a_router_from_being_ready() -> None:
    only = engine("a", "llama")
    catalog_ = catalog(Model("llama", "1", wake=60.0), engines=(only,))
    assert catalog_.unready_reason(accept_all) is not None, "nobody knows yet"
    only.up = False
    assert catalog_.unready_reason(accept_all) is None
    assert catalog_.asleep_engines(accept_all) == {"a": True}
    only.drained = True
    assert catalog_.unready_reason(accept_all) is not None


def test_engines_that_replace_others_are_the_models_and_the_others_are_still_found() -> None:
    catalog_ = catalog(Model("llama", "1", wake=60.0), engines=(engine("a", "llama"),))
    new = engine("b", "llama")
    catalog_.replace_engines("llama", [new])
    assert catalog_.engines_for("llama") == [new]
    assert set(catalog_.engines) == {"a", "b"}
    assert catalog_.families_for("llama") == {"b"}


def test_a_model_whose_fallback_is_up_is_ready() -> None:
    engines = engine("a", "llama"), engine("b", "mistral")
    catalog_ = catalog(Model("llama", "1", fallback="mistral"), Model("mistral", "1"), engines=engines)
    engines[1].up = True
    assert catalog_.unready_reason(accept_all) is None
    engines[0].up, engines[1].up = True, False
    assert catalog_.unready_reason(accept_all) is not None, "mistral has no engine and no fallback"


def test_a_chain_of_fallbacks_has_no_model_twice_and_ends() -> None:
    names = ["a", "b", "c", "d", "e"]
    ring = [Model(name, "1", fallback=names[(n + 1) % 5]) for n, name in enumerate(names)]
    assert catalog(*ring).fallback_chain("b") == ["b", "c", "d", "e"]
    pair = [Model("a", "1", fallback="b"), Model("b", "1", fallback="a"), Model("c", "1")]
    assert [catalog(*pair).fallback_chain(name) for name in "abc"] == [["a", "b"], ["b", "a"], ["c"]]


def test_an_engine_without_a_probe_result_is_neither_up_nor_down() -> None:
    one = engine("a", "llama", "code")
    assert one.up is None
    assert one.gauges == EngineGauges()
    one.in_flight = 3
    assert (one.snapshot().name, one.snapshot().task, one.snapshot().up, one.snapshot().in_flight) == (
        "a",
        "code",
        None,
        3,
    )


def test_external_load_is_the_load_minus_the_requests_of_this_router() -> None:
    one = engine("a", "llama")
    assert one.snapshot().external_load is None
    one.in_flight = 3
    one.update_gauges(EngineGauges(running=5, waiting=2))
    one.in_flight = 9
    assert (one.snapshot().external_load, one.snapshot().in_flight) == (4, 9)
    one.update_gauges(EngineGauges(running=5))
    assert one.snapshot().external_load == 0
    one.update_gauges(EngineGauges())
    assert one.snapshot().external_load is None


def test_speculation_is_detected_from_the_metrics_and_remembered() -> None:
    one = engine("a", "llama")
    known = [one.has_draft]
    pages = (
        EngineGauges(kv_cache_usage=0.5),
        EngineGauges(running=0),
        EngineGauges(),
        EngineGauges(running=0, spec_counts=SpeculationCounters(0, 0)),
        EngineGauges(),
    )
    for gauges in pages:
        one.update_gauges(gauges)
        known.append(one.has_draft)
    assert known == [None, None, False, False, True, True]
    assert (
        Engine(EngineConfig(name="b", model="m", task="any", url=URL, served_model="m", has_draft=True)).has_draft
        is True
    )


def test_a_page_of_an_engine_is_below_its_address() -> None:
    one = engine("a", "llama")
    host = URL.removeprefix("http://")
    assert one.target("/v1/models").get_request.startswith(f"GET /v1/models HTTP/1.1\r\nhost: {host}\r\n".encode())
    assert one.target("/health") is one.target("/health")
