"""The settings with announced engines."""

import logging
from typing import Any

import pytest
from msgspec.structs import replace

from router.settings import Settings, parse
from router.shared.engines.announcements import AnnouncedEngine, Fleet, ModelRevision
from router.upstream.announced_engines import with_fleet
from router.upstream.configured_catalog import build_catalog
from tests.support.router_server import LLAMA, router_config

CONFIGURED = parse(router_config("unix:///x", {"llama-chat": ("llama", "chat", "http://127.0.0.1:8001")}), {})
SAME = AnnouncedEngine(
    name="llama-chat", model="llama", task="chat", url="http://127.0.0.1:8001", served_model=LLAMA
)  # fmt: skip


def merged(*engines: AnnouncedEngine, **revisions: ModelRevision) -> Settings:
    return with_fleet(CONFIGURED, Fleet({engine.name: engine for engine in engines}, revisions))


def test_an_engine_that_is_announced_as_it_is_configured_changes_nothing() -> None:
    assert merged() == merged(SAME) == merged(replace(SAME, capacity=0.5, power_watts=200.0)) == CONFIGURED


def test_an_announced_address_takes_the_place_of_the_configured_one() -> None:
    (engine,) = merged(replace(SAME, url="http://127.0.0.1:9001/")).engine
    assert engine.addresses == ["http://127.0.0.1:9001"]


def test_an_engine_without_a_configured_address_gets_the_announced_one() -> None:
    text = '[[model]]\nname = "llama"\n[[engine]]\nname = "e"\nmodel = "llama"\n'
    placed = parse(f'{text}[engine.launch]\ntarget = "t"\nplacement = "ray"\n', {})
    assert build_catalog(placed).engines == {}
    found = with_fleet(placed, Fleet({"e": replace(SAME, name="e", url="http://10.0.0.2:40000")}))
    assert [engine.url for engine in build_catalog(found).engines.values()] == ["http://10.0.0.2:40000"]


def test_an_engine_with_the_name_of_a_replica_is_ignored() -> None:
    text = '[[model]]\nname = "llama"\n[[engine]]\nname = "e"\nmodel = "llama"\nurls = ["http://a:1", "http://b:1"]\n'
    configured = parse(text, {})
    assert with_fleet(configured, Fleet({"e.2": replace(SAME, name="e.2")})) == configured


def test_the_key_of_an_engine_goes_to_no_announced_address() -> None:
    text = router_config("unix:///x", {"llama-chat": ("llama", "chat", "https://api")}, rest='api_key = "k"')
    configured = parse(text, {})
    assert with_fleet(configured, Fleet({"llama-chat": replace(SAME, url="http://10.0.0.2:1")})) == configured


def test_an_engine_without_a_limit_gets_a_share_of_the_usual_one_whatever_the_number_of_workers() -> None:
    catalog = build_catalog(replace(CONFIGURED, router=replace(CONFIGURED.router, workers=4)))
    catalog.set_announced({"llama-chat": replace(SAME, capacity=0.5)})
    assert catalog.engines["llama-chat"].max_in_flight == 128


def test_a_new_engine_of_a_configured_model_is_added() -> None:
    new = replace(SAME, name="llama-extra", url="http://gpu-2:8001", max_in_flight=7)
    added = merged(new).engine[-1]
    assert (added.name, added.addresses, added.max_in_flight) == ("llama-extra", ["http://gpu-2:8001"], 7)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "phi-1", "model": "phi"},
        {"model": "phi"},
        {"url": "file:///etc/passwd"},
        {"name": "new", "url": "http://"},
        {"name": "New: engine"},
    ],
)  # fmt: skip
def test_an_engine_that_cannot_be_used_is_ignored(changes: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert merged(replace(SAME, **changes)) == CONFIGURED
    assert len(caplog.messages) == 1


def test_the_revision_of_a_switch_counts_until_the_configured_one_changes() -> None:
    switched = ModelRevision(revision="2", configured="1")
    assert merged(llama=switched).model[0].revision == "2"
    assert merged(llama=replace(switched, configured="0")).model[0].revision == "1"
